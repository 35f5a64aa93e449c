//! The messages between servers and workers.

use std::ops::Range;

/// A [`Header`], before which a worker sends nothing.
pub(crate) const HEADER: u32 = 1;
/// A worker's gradients or first parameters, as its header says.
pub(crate) const PUSH: u32 = 2;
/// The words of a [`Reply`].
pub(crate) const ANSWER: u32 = 3;
/// A server's parameters, as its answer says; none if it has given the worker up meanwhile.
pub(crate) const VALUES: u32 = 4;
/// The updates of a server, its parameters, and then each of the optimizer's moments.
pub(crate) const STATE: u32 = 5;
/// A sign of life of a server, or of a worker to the others of its group.
pub(crate) const ALIVE: u32 = 6;

/// A worker's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// This many parameters follow, for a server that has none, and then so many moments of each.
    /// There is no answer.
    Start {
        elements: u64,
        /// The updates in them.
        updates: u64,
        moments: u64,
    },
    /// The answer is the parameters, of which this worker's model has so many.
    Fetch { elements: u64 },
    /// The mean gradient of this number of samples follows.
    Gradient {
        samples: u64,
        /// The worker's step, from 1.
        step: u64,
        /// The updates in the parameters that it was computed with.
        version: u64,
    },
    /// This worker has come to a change of the membership, and waits for no answer.
    Leave,
    /// This worker has ended, as it wanted or as an answer has said. It sends nothing more. The
    /// answer comes once all have ended, and says whether a worker has ended as it was told to.
    End { is_stopped: bool },
    /// The answer is the server's whole state.
    State,
    /// This worker is alive, and wants no answer.
    Alive,
    /// All workers shall end after the next update. There is no answer.
    Stop,
}

impl Header {
    pub(crate) const fn words(self) -> [u64; 4] {
        match self {
            Self::Start { elements, updates, moments } => [0, elements, updates, moments],
            Self::Fetch { elements } => [1, elements, 0, 0],
            Self::Gradient { samples, step, version } => [2, samples, step, version],
            Self::Leave => [3, 0, 0, 0],
            Self::End { is_stopped } => [4, is_stopped as u64, 0, 0],
            Self::State => [5, 0, 0, 0],
            Self::Alive => [6, 0, 0, 0],
            Self::Stop => [7, 0, 0, 0],
        }
    }

    /// `None` if they are no header.
    pub(crate) const fn of(words: [u64; 4]) -> Option<Self> {
        match words {
            [0, elements, updates, moments] => Some(Self::Start { elements, updates, moments }),
            [1, elements, 0, 0] => Some(Self::Fetch { elements }),
            [2, samples, step, version] => Some(Self::Gradient { samples, step, version }),
            [3, 0, 0, 0] => Some(Self::Leave),
            [4, is_stopped @ (0 | 1), 0, 0] => Some(Self::End { is_stopped: is_stopped == 1 }),
            [5, 0, 0, 0] => Some(Self::State),
            [6, 0, 0, 0] => Some(Self::Alive),
            [7, 0, 0, 0] => Some(Self::Stop),
            _ => None,
        }
    }
}

/// A server's answer to a fetch or a gradient, as two words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Whether the fetch or the push is done; then the parameters follow.
    pub(crate) is_done: bool,
    /// Whether the worker shall come to a change of the membership.
    pub(crate) is_change: bool,
    /// Whether the server has given this worker up, and takes nothing more of it.
    pub(crate) is_refused: bool,
    /// Whether the worker shall end, as one of all workers wants, or has done so.
    pub(crate) is_stop: bool,
    /// The updates in the parameters.
    pub(crate) version: u64,
}

impl Reply {
    pub(crate) const fn words(self) -> [u64; 2] {
        let flags = self.is_done as u64
            | (self.is_change as u64) << 1
            | (self.is_refused as u64) << 2
            | (self.is_stop as u64) << 3;
        [flags, self.version]
    }

    pub(crate) const fn of(words: [u64; 2]) -> Self {
        let [flags, version] = words;
        let [is_done, is_change] = [flags & 1 != 0, flags & 2 != 0];
        let [is_refused, is_stop] = [flags & 4 != 0, flags & 8 != 0];
        Self { is_done, is_change, is_refused, is_stop, version }
    }
}

/// The elements that a server keeps, of all parameters one after the other.
pub(crate) fn kept(elements: usize, server: usize, servers: usize) -> Range<usize> {
    elements * server / servers..elements * (server + 1) / servers
}
