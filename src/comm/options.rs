//! What may be different from call to call. May touch: config, element, schedule.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use crate::config::{LONGEST_TIMEOUT, Numbers};
use crate::element::DataType;
use crate::schedule::Algorithm;

/// Options of single calls, for [`Communicator::with`]. What is not set is as the communicator
/// has it. Ranks must agree on the algorithm and on what concerns numbers, and on nothing else.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    pub(super) algorithm: Option<Algorithm>,
    pub(super) timeout: Option<Duration>,
    pub(super) tag: Option<Tag>,
    pub(super) deterministic: Option<bool>,
    pub(super) wide: Option<bool>,
    pub(super) wire: Option<DataType>,
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

    /// The longest that each wait of the call lasts. Zero fails where a moment's look does not find
    /// the others there.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
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

    /// Whether bits must depend on nothing but what the ranks contribute: see
    /// [`Builder::deterministic`](crate::Builder::deterministic).
    #[must_use]
    pub fn deterministic(self, deterministic: bool) -> Self {
        Self { deterministic: Some(deterministic), ..self }
    }

    /// Whether partial sums of 16- and 8-bit floats travel as f32: see
    /// [`Builder::wide`](crate::Builder::wide).
    #[must_use]
    pub fn wide(self, wide: bool) -> Self {
        Self { wide: Some(wide), ..self }
    }

    /// What f32 travels as; f32 for as it is. See [`Builder::wire`](crate::Builder::wire).
    #[must_use]
    pub fn wire(self, dtype: DataType) -> Self {
        Self { wire: Some(dtype), ..self }
    }
}

/// What a call is for; to copy it allocates nothing.
#[derive(Clone, Debug)]
pub(super) enum Tag {
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

/// What calls go by.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) timeout: Duration,
    pub(super) tag: Option<Tag>,
    /// The algorithm to take wherever it can make a call.
    pub(super) preferred: Option<Algorithm>,
    /// The one that has to make it.
    pub(super) required: Option<Algorithm>,
    pub(super) numbers: Numbers,
    /// Calls check their arguments, and that is all.
    pub(super) rehearses: bool,
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
        if let Some(timeout) = options.timeout {
            self.set_timeout(timeout);
        }
        if options.tag.is_some() {
            self.settings.tag = options.tag;
        }
        self.settings.required = options.algorithm.or(self.settings.required);
        let numbers = &mut self.settings.numbers;
        numbers.deterministic = options.deterministic.unwrap_or(numbers.deterministic);
        numbers.wide = options.wide.unwrap_or(numbers.wide);
        if let Some(wire) = options.wire {
            numbers.wire = (wire != DataType::F32).then_some(wire);
        }
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
