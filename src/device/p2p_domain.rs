//! Who does what in a call that goes by islands, ranks whose devices reach each other: what goes
//! within an island, what between the first ranks of all, its leaders. Pure arithmetic.
//! May touch: schedule.
//! Law: the parts of all ranks together are the call, and of each part at most one buffer is the
//! caller's, for ranks must agree on whether others see the memory of a part.

#[cfg(test)]
mod simulated;

use crate::schedule::Collective;

/// Memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// The caller's: a piece of each of its blocks.
    Send,
    Recv,
    /// All of each block of the second.
    Whole,
    /// The rank's own, for pieces of as many blocks as there are ranks.
    One,
    Other,
}

/// Blocks of an area, from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) area: Area,
    pub(crate) at: usize,
}

impl Area {
    const fn at(self, at: usize) -> Spot {
        Spot { area: self, at }
    }
}

/// One part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leg {
    Copy {
        from: Spot,
        to: Spot,
        blocks: usize,
    },
    /// Among the ranks of the island, of which the root is one, from so many blocks of each where
    /// that is not one.
    Within {
        what: Collective,
        from: Spot,
        to: Spot,
        blocks: usize,
    },
    /// Among leaders, one for each island; where each gives or gets its share that is as many
    /// blocks as its island has ranks.
    Between {
        what: Collective,
        from: Spot,
        to: Spot,
    },
    /// A message to a rank of the world, or from it.
    Send {
        to: usize,
        from: Spot,
        blocks: usize,
    },
    Recv {
        from: usize,
        to: Spot,
        blocks: usize,
    },
}

/// Which island each rank is in.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    /// The first rank of its island.
    of: Vec<usize>,
    /// All ranks, island after island.
    order: Vec<usize>,
}

impl Map {
    /// Each rank's island, by its first rank.
    pub(crate) fn new(of: Vec<usize>) -> Self {
        let mut order: Vec<_> = (0..of.len()).collect();
        order.sort_by_key(|&rank| (of[rank], rank));
        Self { of, order }
    }

    pub(crate) fn size(&self) -> usize {
        self.of.len()
    }

    /// The first ranks of all islands.
    pub(crate) fn leaders(&self) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(|&rank| self.of[rank] == rank)
    }

    /// How many ranks the island has whose first rank this is.
    pub(crate) fn members(&self, leader: usize) -> usize {
        self.of.iter().filter(|&&first| first == leader).count()
    }

    /// The rank's number in its island.
    fn among(&self, rank: usize) -> usize {
        (0..rank).filter(|&other| self.of[other] == self.of[rank]).count()
    }

    /// The island's number among all.
    fn number(&self, leader: usize) -> u32 {
        self.leaders().take_while(|&other| other < leader).count() as u32
    }

    /// Where an island's blocks begin in the order of islands.
    fn start(&self, leader: usize) -> usize {
        self.order.iter().take_while(|&&rank| rank != leader).count()
    }

    /// Is the order of islands that of ranks?
    fn is_in_order(&self) -> bool {
        self.order.is_sorted()
    }

    /// Copies between blocks in the order of islands and in that of ranks: those that lie side by
    /// side in both are one.
    fn sorted(&self, legs: &mut Vec<Leg>, leg: impl Fn(usize, usize, usize) -> Leg) {
        let mut at = 0;
        for run in self.order.chunk_by(|one, next| one + 1 == *next) {
            legs.push(leg(at, run[0], run.len()));
            at += run.len();
        }
    }

    /// What a rank does for a piece of a call, the last one or not. Is the piece all of each block?
    pub(crate) fn legs(
        &self,
        call: Collective,
        me: usize,
        is_all: bool,
        is_last: bool,
    ) -> Vec<Leg> {
        use Area::{Other, Recv, Send, Whole};
        let leads = self.of[me] == me;
        let mut legs = Vec::new();
        match call {
            Collective::AllReduce => {
                let what = Collective::Reduce { root: 0 };
                legs.push(within(what, Recv.at(0), Recv.at(0), 1));
                if leads {
                    legs.push(between(call, Recv, Recv));
                }
                legs.push(spread(Recv, 1));
            }
            Collective::Broadcast { root } => self.broadcast(&mut legs, me, root as usize),
            Collective::Reduce { root } => self.reduce(&mut legs, me, root as usize),
            Collective::ReduceScatter => {
                let from = if is_all && self.is_in_order() { Send } else { Area::One };
                if from == Area::One {
                    self.sorted(&mut legs, |at, rank, count| to(Send.at(rank), from.at(at), count));
                }
                let what = Collective::Reduce { root: 0 };
                legs.push(within(what, from.at(0), Other.at(0), self.size()));
                if leads {
                    legs.push(between(call, Other, Area::One));
                }
                legs.push(within(SCATTER, Area::One.at(0), Recv.at(0), 1));
            }
            Collective::AllGather => {
                let what = Collective::Gather { root: 0 };
                legs.push(within(what, Send.at(0), Area::One.at(0), 1));
                if leads {
                    legs.push(between(call, Area::One, Other));
                    self.sorted(&mut legs, |at, rank, count| {
                        to(Other.at(at), Recv.at(rank), count)
                    });
                }
                if is_last {
                    legs.push(spread(Whole, self.size()));
                }
            }
            Collective::Gather { root } => self.gather(&mut legs, me, root as usize),
            Collective::Scatter { root } => self.scatter(&mut legs, me, root as usize),
            _ => {}
        }
        legs
    }

    fn broadcast(&self, legs: &mut Vec<Leg>, me: usize, root: usize) {
        let (leader, at) = (self.of[root], Area::Recv.at(0));
        let here = self.of[me] == leader;
        if here {
            let what = Collective::Broadcast { root: self.among(root) as u32 };
            legs.push(within(what, at, at, 1));
        }
        if self.of[me] == me {
            let what = Collective::Broadcast { root: self.number(leader) };
            legs.push(between(what, Area::Recv, Area::Recv));
        }
        if !here {
            legs.push(spread(Area::Recv, 1));
        }
    }

    /// The others' second buffers are not to be touched, nor is there any.
    fn reduce(&self, legs: &mut Vec<Leg>, me: usize, root: usize) {
        let (leader, own) = (self.of[root], Area::One.at(0));
        legs.push(within(Collective::Reduce { root: 0 }, Area::Send.at(0), own, 1));
        if self.of[me] == me {
            let what = Collective::Reduce { root: self.number(leader) };
            legs.push(between(what, Area::One, if me == root { Area::Recv } else { Area::Other }));
        }
        if self.of[me] == leader && leader != root {
            legs.push(spread(Area::Other, 1));
            if me == root {
                legs.push(to(Area::Other.at(0), Area::Recv.at(0), 1));
            }
        }
    }

    /// The leader of another island than the root's has a message for it; the root sees to its own.
    fn gather(&self, legs: &mut Vec<Leg>, me: usize, root: usize) {
        let (leader, here) = (self.of[root], self.of[me]);
        let agent = if here == leader { root } else { here };
        let mine = Area::Other.at(self.start(here));
        let what = Collective::Gather { root: self.among(agent) as u32 };
        legs.push(within(what, Area::Send.at(0), mine, 1));
        if me == root {
            for other in self.leaders().filter(|&other| other != here) {
                let to = Area::Other.at(self.start(other));
                legs.push(Leg::Recv { from: other, to, blocks: self.members(other) });
            }
            self.sorted(legs, |at, rank, count| to(Area::Other.at(at), Area::Recv.at(rank), count));
        } else if me == agent {
            legs.push(Leg::Send { to: root, from: mine, blocks: self.members(here) });
        }
    }

    /// The other way.
    fn scatter(&self, legs: &mut Vec<Leg>, me: usize, root: usize) {
        let (leader, here) = (self.of[root], self.of[me]);
        let agent = if here == leader { root } else { here };
        let mine = Area::Other.at(self.start(here));
        if me == root {
            self.sorted(legs, |at, rank, count| to(Area::Send.at(rank), Area::Other.at(at), count));
            for other in self.leaders().filter(|&other| other != here) {
                let from = Area::Other.at(self.start(other));
                legs.push(Leg::Send { to: other, from, blocks: self.members(other) });
            }
        } else if me == agent {
            legs.push(Leg::Recv { from: root, to: mine, blocks: self.members(here) });
        }
        let what = Collective::Scatter { root: self.among(agent) as u32 };
        legs.push(within(what, mine, Area::Recv.at(0), 1));
    }
}

const SCATTER: Collective = Collective::Scatter { root: 0 };

fn to(from: Spot, to: Spot, blocks: usize) -> Leg {
    Leg::Copy { from, to, blocks }
}

fn within(what: Collective, from: Spot, to: Spot, blocks: usize) -> Leg {
    Leg::Within { what, from, to, blocks }
}

fn between(what: Collective, from: Area, to: Area) -> Leg {
    Leg::Between { what, from: from.at(0), to: to.at(0) }
}

/// What the leader has, to all of its island.
fn spread(area: Area, blocks: usize) -> Leg {
    within(Collective::Broadcast { root: 0 }, area.at(0), area.at(0), blocks)
}
