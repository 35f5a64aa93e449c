//! The settings that calls follow.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, FailureSettings, NumericSettings};
use crate::schedule::Algorithm;

/// The purpose of a call, as the user names it. Copying a tag allocates nothing.
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

/// Options of a communicator. Communicators that are made from it inherit them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preferences {
    /// The algorithm to take wherever it can make a call.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) numbers: NumericSettings,
    /// How calls fail: whether they can be made again, and whether all ranks end them alike.
    pub(crate) failures: FailureSettings,
    /// The most multiprocessors that kernels may take.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "devices have them"))]
    pub(crate) multiprocessors: Option<u32>,
}

impl From<&Config> for Preferences {
    fn from(config: &Config) -> Self {
        let &Config { algorithm, numbers, failures, multiprocessors, .. } = config;
        Self { algorithm, numbers, failures, multiprocessors }
    }
}

/// The options in force for a call: the communicator's, with those of the call itself.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) tag: Option<Tag>,
    pub(crate) preferences: Preferences,
    /// The algorithm that has to make the call; a call that it can't make fails.
    pub(crate) required: Option<Algorithm>,
    /// The divisor of averages, if these ranks stand for a larger number of ranks.
    pub(crate) average_divisor: Option<usize>,
    /// The call that this call is a part of, mostly one of another communicator: its name and
    /// number, for errors.
    pub(crate) parent_call: Option<(&'static str, u64)>,
    /// Calls check their arguments and do nothing else.
    pub(crate) is_dry_run: bool,
}

impl Settings {
    /// The settings of a communicator's calls.
    pub(crate) fn new(timeout: Duration, preferences: Preferences) -> Self {
        Self {
            timeout,
            tag: None,
            preferences,
            required: None,
            average_divisor: None,
            parent_call: None,
            is_dry_run: false,
        }
    }

    /// The divisor of averages among `size` ranks.
    pub(super) fn divisor(&self, size: usize) -> usize {
        self.average_divisor.unwrap_or(size)
    }
}
