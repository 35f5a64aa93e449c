//! The device algorithm of a direct call, one that reads and writes the ranks' buffers where they
//! are: which rank reduces or copies which bytes. Pure arithmetic.
//! Law: the workers' jobs together are the whole call, and no job reads what another worker writes.
//! A job may read what a later job of the same worker writes (prefixes, in place).

use std::ops::Range;

use crate::plan::DeviceForm;
use crate::schedule::{ChunkResult, Collective};

/// Parts begin at multiples of this many bytes, a line of a device's cache.
pub(crate) const DEVICE_LINE: usize = 128;

/// One kernel launch of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Reduces `bytes` of the `send` buffers of the ranks `sources`, from byte `from` on and in the
    /// order of ranks, into byte `to` of the `recv` buffers of the ranks `outs`.
    Fold { sources: Range<usize>, outs: Range<usize>, from: usize, to: usize, bytes: usize },
    /// Makes all moves in the worker's list.
    Move,
}

/// A copy from one rank's `send` to another's `recv`: byte offsets, and a length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// A collective, and how the ranks share its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAlgorithm {
    pub(crate) collective: Collective,
    pub(crate) size: usize,
    /// Bytes of a block: the whole buffer where each rank gives or gets one block, else one rank's
    /// part.
    pub(crate) block: usize,
    pub(crate) element: usize,
    /// The form: rank 0 is the only worker of `Leader`, every rank is one of the others.
    pub(crate) by: DeviceForm,
}

impl DeviceAlgorithm {
    /// True if kernels reduce; otherwise they copy.
    pub(crate) fn is_reduction(&self) -> bool {
        self.collective.reduces()
    }

    /// The number of workers, which are the first ranks.
    pub(crate) fn workers(&self) -> usize {
        if self.by == DeviceForm::Leader { 1 } else { self.size }
    }

    /// The jobs of `worker`, in the order of launches.
    pub(crate) fn jobs(&self, worker: usize) -> impl Iterator<Item = Job> {
        let call = *self;
        // The order is downwards: in place, a shorter prefix overwrites what only longer prefixes
        // read.
        (0..call.size).rev().filter_map(move |at| call.job(worker, at))
    }

    /// The job for the result of rank `at`. A job for all ranks' results counts as rank 0's.
    fn job(&self, worker: usize, at: usize) -> Option<Job> {
        let &Self { collective, size, block, by, .. } = self;
        let part = self.worker_range(worker);
        let all = |outs| {
            let (from, bytes) = (part.start, part.len());
            Job::Fold { sources: 0..size, outs, from, to: from, bytes }
        };
        let own = |sources: usize, from| Job::Fold {
            sources: 0..sources,
            outs: at..at + 1,
            from,
            to: 0,
            bytes: block,
        };
        let mine = self.workers() == 1 || worker == at;
        let root = collective.root().map(|root| root as usize);
        let job = match collective.result(at as u32, 0) {
            _ if by == DeviceForm::OneShot => {
                return (worker == at && block > 0).then(|| own(size, 0));
            }
            ChunkResult::Prefix { ranks, .. } => (worker == 0).then(|| own(ranks as usize, 0))?,
            ChunkResult::Sum(part) if collective.has_blocks() => {
                mine.then(|| own(size, part as usize * block))?
            }
            _ if at > 0 || collective.is_prefix() => return None,
            _ if self.is_reduction() => all(root.map_or(0..size, |root| root..root + 1)),
            _ => Job::Move,
        };
        let empty = matches!(&job, Job::Fold { bytes: 0, .. }) || block == 0;
        (!empty).then_some(job)
    }

    /// The bytes of a block that `worker` reduces.
    fn worker_range(&self, worker: usize) -> Range<usize> {
        self.range_of_part(self.workers(), worker)
    }

    /// The bytes of part `number`, where a block is cut into `parts`. The last parts may be empty.
    pub(crate) fn range_of_part(&self, parts: usize, number: usize) -> Range<usize> {
        let granule = DEVICE_LINE.next_multiple_of(self.element.max(1));
        let share = self.block.div_ceil(parts).next_multiple_of(granule);
        let start = (share * number).min(self.block);
        start..(start + share).min(self.block)
    }

    /// The copy from rank `from` to rank `to`, in a collective that does not reduce.
    pub(crate) fn block_move(&self, from: usize, to: usize) -> Move {
        let bytes = self.block;
        self.collective.block_move(from as u32, to as u32).map_or(Move::default(), |blocks| {
            let [from, to] = blocks.map(|number| number as usize * bytes);
            Move { from, to, bytes }
        })
    }

    /// The length of a worker's list of moves: all pairs of ranks, or those to the worker's own
    /// rank.
    pub(crate) fn move_count(&self) -> usize {
        if self.workers() == 1 { self.size * self.size } else { self.size }
    }

    /// The worker that makes a move, and the index in that worker's list.
    pub(crate) fn move_position(&self, from: usize, to: usize) -> (usize, usize) {
        if self.workers() == 1 { (0, from * self.size + to) } else { (to, from) }
    }
}
