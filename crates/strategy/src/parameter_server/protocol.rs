//! The messages between servers and workers.

use std::ops::Range;

/// A [`Header`], before which a worker sends nothing.
pub(crate) const HEADER: u32 = 1;
/// A worker's gradients or first parameters, as its header says.
pub(crate) const PUSH: u32 = 2;
/// A server's parameters.
pub(crate) const VALUES: u32 = 3;

/// What a worker wants, as two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// The first worker's parameters follow. The answer is the parameters.
    Start,
    /// The answer is the parameters, once a server has them.
    Fetch,
    /// The mean gradient of this number of samples follows. The answer is the parameters.
    Gradient(u64),
    /// This worker has ended.
    End,
}

impl Header {
    pub(crate) const fn words(self) -> [u64; 2] {
        match self {
            Self::Start => [0, 0],
            Self::Fetch => [1, 0],
            Self::Gradient(samples) => [2, samples],
            Self::End => [3, 0],
        }
    }

    /// `None` if they are no header.
    pub(crate) const fn of(words: [u64; 2]) -> Option<Self> {
        match words {
            [0, 0] => Some(Self::Start),
            [1, 0] => Some(Self::Fetch),
            [2, samples] => Some(Self::Gradient(samples)),
            [3, 0] => Some(Self::End),
            _ => None,
        }
    }
}

/// The elements that a server keeps, of all parameters one after the other.
pub(crate) fn kept(elements: usize, server: usize, servers: usize) -> Range<usize> {
    elements * server / servers..elements * (server + 1) / servers
}
