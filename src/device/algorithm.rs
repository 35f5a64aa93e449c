//! Who does what in a call that goes straight to the ranks' buffers on devices: pure arithmetic.
//! May touch: schedule, plan's names of forms.
//! Law: the workers' jobs together are the whole call, and no job reads what another one writes;
//! of one worker's jobs a later one may, where it says so (prefixes, in place).

use std::ops::Range;

use crate::plan::DeviceForm;
use crate::schedule::Collective;

/// Parts begin at multiples of this many bytes: a device's line.
const LINE: usize = 128;

/// What one worker does at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Folds `bytes` of each of these ranks' `send`, from byte `from` on, in the order of ranks,
    /// and puts the result at byte `to` of these ranks' `recv`.
    Fold { sources: Range<usize>, outs: Range<usize>, from: usize, to: usize, bytes: usize },
    /// Makes all moves that are this worker's.
    Move,
}

/// A piece of a buffer that goes from one rank's `send` to another's `recv`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) collective: Collective,
    /// The world size.
    pub(crate) size: usize,
    /// Bytes of a block: all of the buffer where ranks give or get one block.
    pub(crate) block: usize,
    /// Bytes of an element.
    pub(crate) element: usize,
    /// Who works: rank 0 alone, or all, in one of these ways.
    pub(crate) by: DeviceForm,
}

impl Form {
    /// Does it fold? Otherwise it moves.
    pub(crate) fn folds(&self) -> bool {
        self.collective.reduces()
    }

    /// How many ranks work.
    pub(crate) fn workers(&self) -> usize {
        if self.by == DeviceForm::Leader { 1 } else { self.size }
    }

    /// What `worker` does, in this order.
    pub(crate) fn jobs(&self, worker: usize) -> impl Iterator<Item = Job> {
        let form = *self;
        // Downwards: in place, a prefix stores over what only longer ones read.
        (0..form.size).rev().filter_map(move |at| form.job(worker, at))
    }

    /// The job that belongs to rank `at`; to rank 0 if it is all ranks'.
    fn job(&self, worker: usize, at: usize) -> Option<Job> {
        let &Self { collective, size, block, by, .. } = self;
        let part = self.part(worker);
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
        let job = match collective {
            Collective::AllReduce if by == DeviceForm::OneShot => {
                return (worker == at && block > 0).then(|| own(size, 0));
            }
            Collective::AllReduce if at == 0 => all(0..size),
            Collective::Reduce { root } if at == 0 => all(root as usize..root as usize + 1),
            Collective::ReduceScatter if mine => own(size, at * block),
            Collective::Scan if worker == 0 => own(at + 1, 0),
            Collective::Exscan if worker == 0 && at > 0 => own(at, 0),
            _ if !self.folds() && at == 0 => Job::Move,
            _ => return None,
        };
        let empty = matches!(&job, Job::Fold { bytes: 0, .. }) || block == 0;
        (!empty).then_some(job)
    }

    /// The bytes of the whole that `worker` sees to.
    fn part(&self, worker: usize) -> Range<usize> {
        self.cut(self.workers(), worker)
    }

    /// Part `number` of so many that a block is cut into.
    pub(crate) fn cut(&self, parts: usize, number: usize) -> Range<usize> {
        let whole = LINE.next_multiple_of(self.element.max(1));
        let share = self.block.div_ceil(parts).next_multiple_of(whole);
        let start = (share * number).min(self.block);
        start..(start + share).min(self.block)
    }

    /// What rank `from` gives to rank `to` in a call that moves.
    pub(crate) fn moved(&self, from: usize, to: usize) -> Move {
        let bytes = self.block;
        let at = |rank: usize| rank * self.block;
        match self.collective {
            Collective::AllGather => Move { from: 0, to: at(from), bytes },
            Collective::Broadcast { root } if root as usize == from => {
                Move { from: 0, to: 0, bytes }
            }
            Collective::Gather { root } if root as usize == to => {
                Move { from: 0, to: at(from), bytes }
            }
            Collective::Scatter { root } if root as usize == from => {
                Move { from: at(to), to: 0, bytes }
            }
            Collective::AllToAll => Move { from: at(to), to: at(from), bytes },
            _ => Move::default(),
        }
    }

    /// Moves in the list of a worker: all, or those to its own rank.
    pub(crate) fn moves(&self) -> usize {
        if self.workers() == 1 { self.size * self.size } else { self.size }
    }

    /// Which worker makes a move, and where in its list that is.
    pub(crate) fn mover(&self, from: usize, to: usize) -> (usize, usize) {
        if self.workers() == 1 { (0, from * self.size + to) } else { (to, from) }
    }
}
