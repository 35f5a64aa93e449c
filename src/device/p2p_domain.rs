//! P2P domains: groups of ranks whose devices access each other's memory. A call is split into
//! phases within domains and phases between the domains' leaders, their first ranks. Pure
//! arithmetic.
//! Law: the phases of all ranks together are the call. A phase uses at most one of the caller's two
//! buffers, for all ranks must know alike whether others map the memory of a phase.

#[cfg(test)]
mod simulated;

use BlockArea::{Recv, RecvWhole, ScratchA, ScratchB, Send};

use crate::schedule::Collective;

/// A memory of a rank. The first two are the caller's buffers, of which a piece of each block is
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockArea {
    Send,
    Recv,
    /// All bytes of each block of the caller's receive buffer.
    RecvWhole,
    /// Scratch memory of the rank, for pieces of as many blocks as there are ranks.
    ScratchA,
    ScratchB,
}

/// Blocks of an area, from block `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) area: BlockArea,
    pub(crate) at: usize,
}

impl BlockArea {
    const fn at(self, at: usize) -> BlockRef {
        BlockRef { area: self, at }
    }
}

/// One phase of a call at one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainPhase {
    /// A copy between memories of the rank.
    Copy { from: BlockRef, to: BlockRef, blocks: usize },
    /// A collective of the ranks of a domain. The root is one of them; a rank gives `blocks` blocks
    /// where the collective allows several.
    Within { what: Collective, from: BlockRef, to: BlockRef, blocks: usize },
    /// A collective of the leaders. Where each leader gives or gets its own share, a share has as
    /// many blocks as the domain has ranks.
    Between { what: Collective, from: BlockRef, to: BlockRef },
    /// A message to a rank of the world.
    Send { to: usize, from: BlockRef, blocks: usize },
    /// A message from a rank of the world.
    Recv { from: usize, to: BlockRef, blocks: usize },
}

/// The partition of the ranks into domains.
#[derive(Clone, Debug)]
pub(crate) struct DomainMap {
    /// For each rank, the first rank of its domain.
    first_rank: Vec<usize>,
    /// All ranks, domain after domain.
    order: Vec<usize>,
}

impl DomainMap {
    /// The partition that gives for each rank the first rank of its domain.
    pub(crate) fn new(first_rank: Vec<usize>) -> Self {
        let mut order: Vec<_> = (0..first_rank.len()).collect();
        order.sort_by_key(|&rank| (first_rank[rank], rank));
        Self { first_rank, order }
    }

    pub(crate) fn size(&self) -> usize {
        self.first_rank.len()
    }

    pub(crate) fn leaders(&self) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(|&rank| self.first_rank[rank] == rank)
    }

    /// The number of ranks of the domain with this leader.
    pub(crate) fn members(&self, leader: usize) -> usize {
        self.first_rank.iter().filter(|&&first| first == leader).count()
    }

    fn rank_in_domain(&self, rank: usize) -> usize {
        (0..rank).filter(|&other| self.first_rank[other] == self.first_rank[rank]).count()
    }

    fn domain_number(&self, leader: usize) -> u32 {
        self.leaders().take_while(|&other| other < leader).count() as u32
    }

    /// The index of the domain's first block, where blocks are in the order of domains.
    fn first_block(&self, leader: usize) -> usize {
        self.order.iter().take_while(|&&rank| rank != leader).count()
    }

    /// True if the order of domains is the order of ranks.
    fn is_in_order(&self) -> bool {
        self.order.is_sorted()
    }

    /// Adds copies between blocks in the order of domains and blocks in the order of ranks. A run
    /// that is contiguous in both orders is one copy; `phase` gets its two indices and its length.
    fn copies_by_rank(
        &self,
        phases: &mut Vec<DomainPhase>,
        phase: impl Fn(usize, usize, usize) -> DomainPhase,
    ) {
        let mut at = 0;
        for run in self.order.chunk_by(|one, next| one + 1 == *next) {
            phases.push(phase(at, run[0], run.len()));
            at += run.len();
        }
    }

    /// True if domains make the collective.
    pub(crate) fn makes(&self, call: Collective) -> bool {
        !self.phases(call, 0, true, true).is_empty()
    }

    /// True if the phases work in the receive buffer, in one piece.
    pub(crate) const fn is_in_place(call: Collective) -> bool {
        matches!(call, Collective::AllReduce | Collective::Broadcast { .. })
    }

    /// The phases of rank `me` for a piece of a call: `is_all` if the piece has all of each block,
    /// `is_last` if no piece follows.
    pub(crate) fn phases(
        &self,
        call: Collective,
        me: usize,
        is_all: bool,
        is_last: bool,
    ) -> Vec<DomainPhase> {
        let leads = self.first_rank[me] == me;
        let mut phases = Vec::new();
        match call {
            Collective::AllReduce => {
                let what = Collective::Reduce { root: 0 };
                phases.push(within_domain(what, Recv.at(0), Recv.at(0), 1));
                if leads {
                    phases.push(between_leaders(call, Recv, Recv));
                }
                phases.push(broadcast_from_leader(Recv, 1));
            }
            Collective::Broadcast { root } => self.broadcast(&mut phases, me, root as usize),
            Collective::Reduce { root } => self.reduce(&mut phases, me, root as usize),
            Collective::ReduceScatter => {
                let from = if is_all && self.is_in_order() { Send } else { ScratchA };
                if from == ScratchA {
                    self.copies_by_rank(&mut phases, |at, rank, count| {
                        copy(Send.at(rank), from.at(at), count)
                    });
                }
                let what = Collective::Reduce { root: 0 };
                phases.push(within_domain(what, from.at(0), ScratchB.at(0), self.size()));
                if leads {
                    phases.push(between_leaders(call, ScratchB, ScratchA));
                }
                phases.push(within_domain(SCATTER, ScratchA.at(0), Recv.at(0), 1));
            }
            Collective::AllGather => {
                let what = Collective::Gather { root: 0 };
                phases.push(within_domain(what, Send.at(0), ScratchA.at(0), 1));
                if leads {
                    phases.push(between_leaders(call, ScratchA, ScratchB));
                    self.copies_by_rank(&mut phases, |at, rank, count| {
                        copy(ScratchB.at(at), Recv.at(rank), count)
                    });
                }
                if is_last {
                    phases.push(broadcast_from_leader(RecvWhole, self.size()));
                }
            }
            Collective::Gather { root } => self.gather(&mut phases, me, root as usize),
            Collective::Scatter { root } => self.scatter(&mut phases, me, root as usize),
            _ => {}
        }
        phases
    }

    fn broadcast(&self, phases: &mut Vec<DomainPhase>, me: usize, root: usize) {
        let (leader, at) = (self.first_rank[root], Recv.at(0));
        let here = self.first_rank[me] == leader;
        if here {
            let what = Collective::Broadcast { root: self.rank_in_domain(root) as u32 };
            phases.push(within_domain(what, at, at, 1));
        }
        if self.first_rank[me] == me {
            let what = Collective::Broadcast { root: self.domain_number(leader) };
            phases.push(between_leaders(what, Recv, Recv));
        }
        if !here {
            phases.push(broadcast_from_leader(Recv, 1));
        }
    }

    /// Ranks other than the root have no receive buffer, so their results go to scratch memory.
    fn reduce(&self, phases: &mut Vec<DomainPhase>, me: usize, root: usize) {
        let (leader, own) = (self.first_rank[root], ScratchA.at(0));
        phases.push(within_domain(Collective::Reduce { root: 0 }, Send.at(0), own, 1));
        if self.first_rank[me] == me {
            let what = Collective::Reduce { root: self.domain_number(leader) };
            phases.push(between_leaders(what, ScratchA, if me == root { Recv } else { ScratchB }));
        }
        if self.first_rank[me] == leader && leader != root {
            phases.push(broadcast_from_leader(ScratchB, 1));
            if me == root {
                phases.push(copy(ScratchB.at(0), Recv.at(0), 1));
            }
        }
    }

    /// The root collects its own domain's blocks. The leader of every other domain sends it a
    /// message.
    fn gather(&self, phases: &mut Vec<DomainPhase>, me: usize, root: usize) {
        let (leader, here) = (self.first_rank[root], self.first_rank[me]);
        let agent = if here == leader { root } else { here };
        let mine = ScratchB.at(self.first_block(here));
        let what = Collective::Gather { root: self.rank_in_domain(agent) as u32 };
        phases.push(within_domain(what, Send.at(0), mine, 1));
        if me == root {
            for other in self.leaders().filter(|&other| other != here) {
                let to = ScratchB.at(self.first_block(other));
                phases.push(DomainPhase::Recv { from: other, to, blocks: self.members(other) });
            }
            self.copies_by_rank(phases, |at, rank, count| {
                copy(ScratchB.at(at), Recv.at(rank), count)
            });
        } else if me == agent {
            phases.push(DomainPhase::Send { to: root, from: mine, blocks: self.members(here) });
        }
    }

    /// The reverse of [`Self::gather`].
    fn scatter(&self, phases: &mut Vec<DomainPhase>, me: usize, root: usize) {
        let (leader, here) = (self.first_rank[root], self.first_rank[me]);
        let agent = if here == leader { root } else { here };
        let mine = ScratchB.at(self.first_block(here));
        if me == root {
            self.copies_by_rank(phases, |at, rank, count| {
                copy(Send.at(rank), ScratchB.at(at), count)
            });
            for other in self.leaders().filter(|&other| other != here) {
                let from = ScratchB.at(self.first_block(other));
                phases.push(DomainPhase::Send { to: other, from, blocks: self.members(other) });
            }
        } else if me == agent {
            phases.push(DomainPhase::Recv { from: root, to: mine, blocks: self.members(here) });
        }
        let what = Collective::Scatter { root: self.rank_in_domain(agent) as u32 };
        phases.push(within_domain(what, mine, Recv.at(0), 1));
    }
}

const SCATTER: Collective = Collective::Scatter { root: 0 };

fn copy(from: BlockRef, to: BlockRef, blocks: usize) -> DomainPhase {
    DomainPhase::Copy { from, to, blocks }
}

fn within_domain(what: Collective, from: BlockRef, to: BlockRef, blocks: usize) -> DomainPhase {
    DomainPhase::Within { what, from, to, blocks }
}

fn between_leaders(what: Collective, from: BlockArea, to: BlockArea) -> DomainPhase {
    DomainPhase::Between { what, from: from.at(0), to: to.at(0) }
}

/// A broadcast from the leader to the other ranks of its domain.
fn broadcast_from_leader(area: BlockArea, blocks: usize) -> DomainPhase {
    within_domain(Collective::Broadcast { root: 0 }, area.at(0), area.at(0), blocks)
}
