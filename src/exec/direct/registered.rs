//! The registered buffers of a direct call.

use std::ops::Range;

use crate::memory::{Dst, Registration, Src};

/// A registered buffer from byte `at` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisteredSpan<'a> {
    pub(crate) registration: &'a Registration,
    pub(crate) at: usize,
}

impl<'a> RegisteredSpan<'a> {
    /// The bytes of the first `len` that lie in pages shared by all ranks.
    fn window(&self, len: usize) -> Range<usize> {
        let window = self.registration.window(self.at..self.at + len);
        let end = window.end.max(window.start);
        window.start - self.at..end - self.at
    }

    pub(super) fn src(&self, rank: usize, range: Range<usize>) -> Src<'a> {
        self.registration.src(rank, self.at + range.start..self.at + range.end)
    }

    pub(super) fn dst(&self, rank: usize, range: Range<usize>) -> Dst<'a> {
        self.registration.dst(rank, self.at + range.start..self.at + range.end)
    }
}

/// The buffer that peers read, and the one that peers write results to (`None` if each rank writes
/// its own result alone).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisteredBuffers<'a> {
    pub(crate) input: RegisteredSpan<'a>,
    pub(crate) output: Option<RegisteredSpan<'a>>,
}

impl RegisteredBuffers<'_> {
    /// The whole elements among the first `bytes` that lie in pages shared by all ranks.
    pub(crate) fn window(&self, bytes: usize, element: usize) -> Range<usize> {
        let Range { mut start, mut end } = self.input.window(bytes);
        if let Some(output) = self.output {
            let other = output.window(bytes);
            (start, end) = (start.max(other.start), end.min(other.end));
        }
        (start, end) = (start.next_multiple_of(element), end - end % element);
        if start < end { start..end } else { 0..0 }
    }
}
