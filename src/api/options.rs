//! Options of single calls and of whole communicators, and the settings that calls follow.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::{Builder, Communicator};
use crate::config::{FailureSettings, MAX_TIMEOUT, NumericSettings};
use crate::element::{DataType, Wire};
use crate::engine::settings::{Preferences, Settings, Tag};
use crate::schedule::Algorithm;

/// Options of single calls, for [`Communicator::with`]. An option that is not set has the
/// communicator's value. Ranks must agree on `algorithm`, `deterministic`, `wide`, `wire` and
/// `retry_safe`; the other options may differ.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) tag: Option<Tag>,
    pub(crate) overrides: OptionalSettings,
}

impl CallOptions {
    /// Options of which none is set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The algorithm that makes the call. A collective that it can't make fails. Messages between
    /// two ranks, [`Communicator::run_schedule`], and methods that are no collectives, such as
    /// [`Communicator::split`], ignore this option.
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }

    /// The purpose of the call, shown in its errors and as a `tracing` span around it.
    #[must_use]
    pub fn tag(self, tag: impl Into<Cow<'static, str>>) -> Self {
        let tag = match tag.into() {
            Cow::Borrowed(tag) => Tag::Static(tag),
            Cow::Owned(tag) => Tag::Shared(tag.into()),
        };
        Self { tag: Some(tag), ..self }
    }
}

macro_rules! overrides {
    ($($(#[$doc:meta])* $name:ident($argument:ty): $type:ty;)*) => {
        /// Options that a communicator and its single calls both have; `None` if not set.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct OptionalSettings {
            $(pub(crate) $name: Option<$type>,)*
        }

        overrides!(Builder: $($(#[$doc])* $name($argument);)*);
        overrides!(CallOptions: $($(#[$doc])* $name($argument);)*);
    };
    ($options:ty: $($(#[$doc:meta])* $name:ident($argument:ty);)*) => {
        impl $options {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $argument) -> Self {
                    self.overrides.$name = Some($name.into());
                    self
                }
            )*
        }
    };
}

overrides! {
    /// The longest time that each wait lasts. On a builder: while ranks meet and in every call, 300
    /// s by default. On single calls: in the call; zero fails unless the other ranks are already
    /// there. [`Duration::MAX`] sets no deadline: a wait then ends once the awaited rank has ended,
    /// failed, makes another call or is on an unreachable host, and a warning after 5 s names a
    /// rank that is late or stopped.
    timeout(Duration): Duration;
    /// Whether the bits of reductions depend on the ranks' contributions and their order alone: not
    /// on algorithm, transport, length, registration or on which hosts the ranks run. Deterministic
    /// calls need links between all pairs of ranks ([`Builder::all_pairs`]); 16- and 8-bit floats
    /// travel as with `wide`.
    deterministic(bool): bool;
    /// Whether sums, averages and products of 16- and 8-bit floats are made in f32 and rounded once
    /// at the end. The option costs two or four times the bytes on links, and nothing on registered
    /// memory, where it always holds.
    wide(bool): bool;
    /// The form in which f32 travels in sums, averages, minima and maxima: a 16- or 8-bit float,
    /// [`Wire::INT8_BLOCK`] or [`Wire::F8E4M3_BLOCK`], or f32 for no conversion; other types are
    /// refused. [`wire_error`](crate::wire_error) bounds the loss of accuracy.
    wire(impl Into<Wire>): Wire;
    /// Whether a collective that fails leaves its input as it was, even in place, so that the
    /// survivors can make the call again. The option costs a copy of the buffer before each call in
    /// place, and registered memory is treated as any other.
    retry_safe(bool): bool;
}

impl OptionalSettings {
    /// Overwrites `numbers` and `failures` with the options that are set.
    pub(crate) fn over(&self, numbers: &mut NumericSettings, failures: &mut FailureSettings) {
        failures.retry_safe = self.retry_safe.unwrap_or(failures.retry_safe);
        numbers.deterministic = self.deterministic.unwrap_or(numbers.deterministic);
        numbers.wide = self.wide.unwrap_or(numbers.wide);
        if let Some(wire) = self.wire {
            numbers.wire = (wire != DataType::F32.into()).then_some(wire);
        }
    }
}

/// A communicator whose calls follow other options until this guard is dropped.
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
        if let Some(timeout) = options.overrides.timeout {
            self.set_timeout(timeout);
        }
        if options.tag.is_some() {
            self.settings.tag = options.tag;
        }
        self.settings.required = options.algorithm.or(self.settings.required);
        let Preferences { numbers, failures, .. } = &mut self.settings.preferences;
        options.overrides.over(numbers, failures);
        With { comm: self, before }
    }

    /// The longest time that each wait lasts.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Whether calls are deterministic unless their options say otherwise: see
    /// [`Builder::deterministic`].
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.settings.preferences.numbers.deterministic
    }

    /// Sets the longest time that each wait lasts, as [`CallOptions::timeout`] does for single
    /// calls. Pending operations keep the old one.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.settings.timeout = timeout.min(MAX_TIMEOUT);
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
