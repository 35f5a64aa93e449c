//! All ranks' parts of calls by islands, walked together: they meet, and the call comes out.

use std::collections::{BTreeMap, VecDeque};

use super::{Area, Leg, Map, Spot};
use crate::schedule::Collective;

/// What is in a block: of which ranks, and which of their blocks. Rubbish is nothing.
type Block = Vec<(usize, usize)>;

/// Ranks that do their parts, each as far as it can.
struct World {
    map: Map,
    memory: Vec<BTreeMap<(u8, usize), Block>>,
    legs: Vec<VecDeque<Leg>>,
}

/// Ranks in the same part: what it is, and for each where it reads and writes, and its blocks.
struct Met<'a> {
    what: Collective,
    ranks: &'a [usize],
    from: Vec<Spot>,
    to: Vec<Spot>,
    shares: Vec<usize>,
}

impl World {
    fn new(map: &Map, call: Collective, is_all: bool) -> Self {
        let n = map.size();
        let area = if is_in_place(call) { Area::Recv } else { Area::Send };
        let memory = |rank| {
            let has = given(call, rank, n);
            (0..has).map(|at| (key(area.at(at)), vec![(rank, at)])).collect()
        };
        let legs = |rank| {
            // Another piece before the last changes nothing here.
            let [some, last] = [false, true].map(|last| map.legs(call, rank, is_all, last));
            if is_all { last.into() } else { some.into_iter().chain(last).collect() }
        };
        let (memory, legs) = ((0..n).map(memory).collect(), (0..n).map(legs).collect());
        Self { map: map.clone(), memory, legs }
    }

    fn get(&self, rank: usize, spot: Spot, block: usize) -> Block {
        let found = self.memory[rank].get(&key(spot.area.at(spot.at + block)));
        found.cloned().unwrap_or_default()
    }

    fn put(&mut self, rank: usize, spot: Spot, block: usize, value: Block) {
        self.memory[rank].insert(key(spot.area.at(spot.at + block)), value);
    }

    /// The part that all these ranks have come to, if they have.
    fn met<'a>(&self, ranks: &'a [usize], leaders: bool) -> Option<Met<'a>> {
        let mut met = None;
        for &rank in ranks {
            let (what, from, to, share) = match *self.legs[rank].front()? {
                Leg::Within { what, from, to, blocks } if !leaders => (what, from, to, blocks),
                Leg::Between { what, from, to } if leaders => {
                    (what, from, to, self.map.members(rank))
                }
                _ => return None,
            };
            let none = || Met { what, ranks, from: vec![], to: vec![], shares: vec![] };
            let met = met.get_or_insert_with(none);
            assert_eq!(met.what, what, "{ranks:?} make different calls");
            met.from.push(from);
            met.to.push(to);
            met.shares.push(share);
        }
        met
    }

    /// A block of all of them, folded.
    fn fold(&self, met: &Met<'_>, block: usize) -> Block {
        let of = |(&rank, &from): (&usize, &Spot)| self.get(rank, from, block);
        let all: Vec<_> = met.ranks.iter().zip(&met.from).map(of).collect();
        assert!(all.iter().all(|block| !block.is_empty()), "rubbish is folded");
        let mut sum = all.concat();
        sum.sort_unstable();
        sum
    }

    /// What they get: which of them, in which block, and what.
    fn outcome(&self, met: &Met<'_>, leaders: bool) -> Vec<(usize, usize, Block)> {
        let Met { what, ranks, from, shares, .. } = met;
        let places = || 0..ranks.len();
        let before = |place: usize| shares[..place].iter().sum::<usize>();
        let blocks = if leaders { 1 } else { shares[0] };
        let given = |place: usize, block| self.get(ranks[place], from[place], block);
        let each = |place: usize| (0..shares[place]).map(move |block| (place, block));
        match *what {
            Collective::AllReduce => places().map(|to| (to, 0, self.fold(met, 0))).collect(),
            Collective::Reduce { root } => {
                (0..blocks).map(|block| (root as usize, block, self.fold(met, block))).collect()
            }
            Collective::ReduceScatter => {
                let all = places().flat_map(each);
                all.map(|(to, at)| (to, at, self.fold(met, before(to) + at))).collect()
            }
            Collective::AllGather => {
                let all = places().flat_map(each);
                let all = all.flat_map(|(from, at)| places().map(move |to| (to, from, at)));
                all.map(|(to, from, at)| (to, before(from) + at, given(from, at))).collect()
            }
            Collective::Gather { root } => {
                places().map(|from| (root as usize, from, given(from, 0))).collect()
            }
            Collective::Scatter { root } => {
                places().map(|to| (to, 0, given(root as usize, to))).collect()
            }
            Collective::Broadcast { root } => {
                let all = places().flat_map(|to| (0..blocks).map(move |at| (to, at)));
                all.map(|(to, at)| (to, at, given(root as usize, at))).collect()
            }
            _ => unreachable!("{what:?}"),
        }
    }

    fn together(&mut self, ranks: &[usize], leaders: bool) -> bool {
        let Some(met) = self.met(ranks, leaders) else { return false };
        for (place, block, value) in self.outcome(&met, leaders) {
            self.put(ranks[place], met.to[place], block, value);
        }
        for &rank in ranks {
            self.legs[rank].pop_front();
        }
        true
    }

    /// A part of one rank, or of a rank and its peer, whose message waits until that takes it.
    fn alone(&mut self, rank: usize) -> bool {
        let (peer, from, to, blocks) = match self.legs[rank].front().copied() {
            Some(Leg::Copy { from, to, blocks }) => (rank, from, to, blocks),
            Some(Leg::Send { to: peer, from, blocks }) => match self.legs[peer].front() {
                Some(&Leg::Recv { from: sender, to, blocks: wanted }) if sender == rank => {
                    assert_eq!(blocks, wanted);
                    self.legs[peer].pop_front();
                    (peer, from, to, blocks)
                }
                _ => return false,
            },
            _ => return false,
        };
        for block in 0..blocks {
            let value = self.get(rank, from, block);
            self.put(peer, to, block, value);
        }
        self.legs[rank].pop_front();
        true
    }

    fn walk(&mut self) {
        let leaders: Vec<_> = self.map.leaders().collect();
        let island = |&leader: &usize| {
            (0..self.map.size()).filter(|&rank| self.map.of[rank] == leader).collect::<Vec<_>>()
        };
        let islands: Vec<_> = leaders.iter().map(island).collect();
        while self.legs.iter().any(|legs| !legs.is_empty()) {
            let mut moved = self.together(&leaders, true);
            islands.iter().for_each(|island| moved |= self.together(island, false));
            (0..self.map.size()).for_each(|rank| moved |= self.alone(rank));
            assert!(moved, "all wait: {:?}", self.legs);
        }
    }
}

/// Of a piece that is the whole, both are one.
fn key(spot: Spot) -> (u8, usize) {
    let area = match spot.area {
        Area::Send => 0,
        Area::Recv | Area::Whole => 1,
        Area::One => 2,
        Area::Other => 3,
    };
    (area, spot.at)
}

/// Made in the second buffer, and in one piece.
fn is_in_place(call: Collective) -> bool {
    matches!(call, Collective::AllReduce | Collective::Broadcast { .. })
}

/// Blocks that a rank gives.
fn given(call: Collective, rank: usize, n: usize) -> usize {
    match call {
        Collective::ReduceScatter => n,
        Collective::Scatter { root } => n * usize::from(root as usize == rank),
        _ => 1,
    }
}

/// What a rank must have at the end.
fn wanted(call: Collective, rank: usize, n: usize) -> Vec<Block> {
    let all = |block| (0..n).map(|from| (from, block)).collect::<Block>();
    let each = || (0..n).map(|from| vec![(from, 0)]).collect();
    match call {
        Collective::AllReduce => vec![all(0)],
        Collective::Reduce { root } if root as usize == rank => vec![all(0)],
        Collective::ReduceScatter => vec![all(rank)],
        Collective::AllGather => each(),
        Collective::Gather { root } if root as usize == rank => each(),
        Collective::Broadcast { root } => vec![vec![(root as usize, 0)]],
        Collective::Scatter { root } => vec![vec![(root as usize, rank)]],
        _ => Vec::new(),
    }
}

/// All ways to be in islands, as the first rank of each rank's.
fn partitions(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |all, rank| {
        let more = |of: Vec<usize>| {
            let firsts: Vec<_> = (0..rank).filter(|&it| of[it] == it).chain([rank]).collect();
            firsts.into_iter().map(move |first| [&of[..], &[first]].concat())
        };
        all.into_iter().flat_map(more).collect()
    })
}

/// All calls in all islands of so many ranks.
fn each(n: usize, check: impl Fn(&Map, Collective)) {
    let rooted = |root| {
        [
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]
    };
    let others = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];
    for map in partitions(n).into_iter().map(Map::new) {
        (0..n as u32).flat_map(rooted).chain(others).for_each(|call| check(&map, call));
    }
}

#[test]
fn blocks_come_out_in_the_order_of_ranks_whatever_the_islands() {
    for n in 1..=5 {
        each(n, |map, call| {
            for is_all in [true, false] {
                if !is_all && is_in_place(call) {
                    continue;
                }
                let mut world = World::new(map, call, is_all);
                world.walk();
                for rank in 0..n {
                    for (at, block) in wanted(call, rank, n).into_iter().enumerate() {
                        let found = world.get(rank, Area::Recv.at(0), at);
                        assert_eq!(found, block, "{map:?} {call:?}: rank {rank}, block {at}");
                    }
                }
            }
        });
    }
}

/// Who has no second buffer writes none, and the first stays as it is.
#[test]
fn nobody_writes_what_a_call_leaves_alone() {
    each(4, |map, call| {
        if is_in_place(call) {
            return;
        }
        let mut world = World::new(map, call, true);
        world.walk();
        for rank in 0..4 {
            let written = world.memory[rank].keys().filter(|key| key.0 == 1).count();
            assert_eq!(written, wanted(call, rank, 4).len(), "{map:?} {call:?}: rank {rank}");
            for at in 0..given(call, rank, 4) {
                assert_eq!(world.get(rank, Area::Send.at(0), at), [(rank, at)]);
            }
        }
    });
}

/// What goes within islands has at most one buffer of the caller's.
#[test]
fn ranks_agree_on_whether_others_see_the_memory_of_a_part() {
    let is_callers = |spot: Spot| matches!(spot.area, Area::Send | Area::Recv | Area::Whole);
    each(4, |map, call| {
        for leg in (0..4).flat_map(|rank| map.legs(call, rank, true, true)) {
            if let Leg::Within { from, to, .. } = leg {
                assert!(from == to || !is_callers(from) || !is_callers(to), "{call:?}: {leg:?}");
            }
        }
    });
}
