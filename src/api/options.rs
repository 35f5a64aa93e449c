//! What may be different from call to call. May touch: config, element, schedule.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use crate::bootstrap::Builder;
use crate::config::{Config, Failures, LONGEST_TIMEOUT, Numbers};
use crate::element::DataType;
use crate::schedule::Algorithm;

/// Options of single calls, for [`Communicator::with`]. What is not set is as the communicator
/// has it. Ranks must agree on the algorithm, on what concerns numbers and on whether calls are
/// safe to make again, and on nothing else.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) tag: Option<Tag>,
    pub(crate) told: Told,
}

impl CallOptions {
    /// Nothing set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How the call is made; a collective that this algorithm can't make fails. Messages between
    /// two ranks, [`Communicator::run_schedule`] and what is no collective, such as
    /// [`Communicator::split`], have no algorithm and go as always.
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }

    /// What the call is for: shown in its errors, and as a `tracing` span around it.
    #[must_use]
    pub fn tag(self, tag: impl Into<Cow<'static, str>>) -> Self {
        let tag = match tag.into() {
            Cow::Borrowed(tag) => Tag::Static(tag),
            Cow::Owned(tag) => Tag::Shared(tag.into()),
        };
        Self { tag: Some(tag), ..self }
    }
}

macro_rules! told {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        /// What a communicator can be told, and its single calls too.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Told {
            $(pub(crate) $name: Option<$type>,)*
        }

        told!(Builder: $($(#[$doc])* $name: $type;)*);
        told!(CallOptions: $($(#[$doc])* $name: $type;)*);
    };
    ($options:ty: $($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        impl $options {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.told.$name = Some($name);
                    self
                }
            )*
        }
    };
}

told! {
    /// The longest that each wait lasts: of a communicator's, while ranks meet and in every call,
    /// 300 s if nobody says; of single calls, theirs, and zero fails where a moment's look does not
    /// find the others there.
    timeout: Duration;
    /// Whether the bits of reductions depend on nothing but what the ranks contribute, in the order
    /// of ranks: not on algorithm, transport, length, registration or on where ranks are. Such
    /// calls need links between all pairs of ranks ([`Builder::all_pairs`]); 16- and 8-bit floats
    /// travel as with `wide`.
    deterministic: bool;
    /// Whether sums, averages and products of 16- and 8-bit floats are made of f32 all the way and
    /// rounded once at the end. It costs two or four times the bytes on links, and nothing on
    /// registered memory, where it is always so.
    wide: bool;
    /// What f32 travels as in sums, averages, minima and maxima: one of the 16- and 8-bit floats,
    /// or f32 for as it is; nothing else is accepted. [`wire_error`](crate::wire_error) says what
    /// it costs in accuracy.
    wire: DataType;
    /// Whether a collective that fails leaves what it was to reduce or move as it was, also where
    /// the result was to take its place: then survivors can make the call again. It costs a copy of
    /// the buffer before each such call, and registered memory is treated as any other.
    retry_safe: bool;
}

impl Told {
    /// As `numbers` and `failures` have it, but for what is set here.
    pub(crate) fn over(&self, numbers: &mut Numbers, failures: &mut Failures) {
        failures.retry_safe = self.retry_safe.unwrap_or(failures.retry_safe);
        numbers.deterministic = self.deterministic.unwrap_or(numbers.deterministic);
        numbers.wide = self.wide.unwrap_or(numbers.wide);
        if let Some(wire) = self.wire {
            numbers.wire = (wire != DataType::F32).then_some(wire);
        }
    }
}

/// What a call is for; to copy it allocates nothing.
#[derive(Clone, Debug)]
pub(crate) enum Tag {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Deref for Tag {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Static(tag) => tag,
            Self::Shared(tag) => tag,
        }
    }
}

/// What a communicator is told once, and those that are made of it go by too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preferences {
    /// The algorithm to take wherever it can make a call.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) numbers: Numbers,
    pub(crate) failures: Failures,
    /// How many multiprocessors kernels may take.
    pub(super) multiprocessors: Option<u32>,
}

impl From<&Config> for Preferences {
    fn from(config: &Config) -> Self {
        let &Config { algorithm, numbers, failures, multiprocessors, .. } = config;
        Self { algorithm, numbers, failures, multiprocessors }
    }
}

/// What calls go by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) tag: Option<Tag>,
    /// The algorithm to take wherever it can make a call.
    pub(crate) preferred: Option<Algorithm>,
    /// The one that has to make it.
    pub(crate) required: Option<Algorithm>,
    pub(crate) numbers: Numbers,
    /// What holds of calls that fail.
    pub(crate) failures: Failures,
    /// How many multiprocessors kernels may take.
    pub(crate) multiprocessors: Option<u32>,
    /// What an average is divided by, where these ranks stand for more than there are of them.
    pub(crate) averages: Option<usize>,
    /// The call of another communicator that these are parts of: its name and number, for errors.
    pub(crate) part_of: Option<(&'static str, u64)>,
    /// Calls check their arguments, and that is all.
    pub(crate) rehearses: bool,
}

impl Settings {
    /// Those of a communicator's calls.
    pub(super) fn new(timeout: Duration, preferences: Preferences) -> Self {
        let Preferences { algorithm: preferred, numbers, failures, multiprocessors } = preferences;
        Self {
            timeout,
            tag: None,
            preferred,
            required: None,
            numbers,
            failures,
            multiprocessors,
            averages: None,
            part_of: None,
            rehearses: false,
        }
    }

    /// What those that are made of it go by.
    pub(crate) fn preferences(&self) -> Preferences {
        let &Self { preferred: algorithm, numbers, failures, multiprocessors, .. } = self;
        Preferences { algorithm, numbers, failures, multiprocessors }
    }
}

/// A communicator whose calls go by other options as long as this lives.
#[derive(Debug)]
pub struct With<'a> {
    comm: &'a mut Communicator,
    before: Settings,
}

impl Communicator {
    /// This communicator, for calls with these options, blocking or not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ringreduce::{CallOptions, Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let options = CallOptions::new().tag("gradients").timeout(Duration::from_secs(5));
    /// comm.with(options).all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    pub fn with(&mut self, options: CallOptions) -> With<'_> {
        let before = self.settings.clone();
        if let Some(timeout) = options.told.timeout {
            self.set_timeout(timeout);
        }
        if options.tag.is_some() {
            self.settings.tag = options.tag;
        }
        self.settings.required = options.algorithm.or(self.settings.required);
        options.told.over(&mut self.settings.numbers, &mut self.settings.failures);
        With { comm: self, before }
    }

    /// The longest that each wait lasts.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// From now on each wait lasts no longer than this, as by [`CallOptions::timeout`]; operations
    /// that are pending keep theirs.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.settings.timeout = timeout.min(LONGEST_TIMEOUT);
    }
}

impl Deref for With<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        self.comm
    }
}

impl DerefMut for With<'_> {
    fn deref_mut(&mut self) -> &mut Communicator {
        self.comm
    }
}

impl Drop for With<'_> {
    fn drop(&mut self) {
        std::mem::swap(&mut self.comm.settings, &mut self.before);
    }
}
