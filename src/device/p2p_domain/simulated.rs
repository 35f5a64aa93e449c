//! A simulator of calls by P2P domains: it walks the phases of all ranks together, each as far as
//! it can, and compares the blocks at the end with the collective's definition.

use std::collections::{BTreeMap, VecDeque};

use super::{BlockArea, BlockRef, DomainMap, DomainPhase};
use crate::schedule::{ChunkResult, Collective};

/// The contributions in a block, each a rank and a block of its send buffer. An unwritten block is
/// empty.
type Block = Vec<(usize, usize)>;

/// All ranks: what is in their memories, and the phases that they still have to do.
struct World {
    map: DomainMap,
    memory: Vec<BTreeMap<(u8, usize), Block>>,
    phases: Vec<VecDeque<DomainPhase>>,
}

/// Ranks that have reached the same phase: the collective, and for each rank the source, the target
/// and the number of blocks.
struct MetPhase<'a> {
    what: Collective,
    ranks: &'a [usize],
    from: Vec<BlockRef>,
    to: Vec<BlockRef>,
    shares: Vec<usize>,
}

impl World {
    fn new(map: &DomainMap, call: Collective, is_all: bool) -> Self {
        let n = map.size();
        let area = if DomainMap::is_in_place(call) { BlockArea::Recv } else { BlockArea::Send };
        let memory = |rank| {
            let has = given(call, rank, n);
            (0..has).map(|at| (key(area.at(at)), vec![(rank, at)])).collect()
        };
        let phases = |rank| {
            // For this simulator one more piece before the last changes nothing.
            let [some, last] = [false, true].map(|last| map.phases(call, rank, is_all, last));
            if is_all { last.into() } else { some.into_iter().chain(last).collect() }
        };
        let (memory, phases) = ((0..n).map(memory).collect(), (0..n).map(phases).collect());
        Self { map: map.clone(), memory, phases }
    }

    fn get(&self, rank: usize, block_ref: BlockRef, block: usize) -> Block {
        let found = self.memory[rank].get(&key(block_ref.area.at(block_ref.at + block)));
        found.cloned().unwrap_or_default()
    }

    fn put(&mut self, rank: usize, block_ref: BlockRef, block: usize, value: Block) {
        self.memory[rank].insert(key(block_ref.area.at(block_ref.at + block)), value);
    }

    /// The phase that all these ranks have reached, if they have.
    fn common_phase<'a>(&self, ranks: &'a [usize], is_leaders: bool) -> Option<MetPhase<'a>> {
        let mut met = None;
        for &rank in ranks {
            let (what, from, to, share) = match *self.phases[rank].front()? {
                DomainPhase::Within { what, from, to, blocks } if !is_leaders => {
                    (what, from, to, blocks)
                }
                DomainPhase::Between { what, from, to } if is_leaders => {
                    (what, from, to, self.map.members(rank))
                }
                _ => return None,
            };
            let none = || MetPhase { what, ranks, from: vec![], to: vec![], shares: vec![] };
            let met = met.get_or_insert_with(none);
            assert_eq!(met.what, what, "{ranks:?} make different calls");
            met.from.push(from);
            met.to.push(to);
            met.shares.push(share);
        }
        met
    }

    /// The reduction of one block of all ranks.
    fn fold(&self, met: &MetPhase<'_>, block: usize) -> Block {
        let of = |(&rank, &from): (&usize, &BlockRef)| self.get(rank, from, block);
        let all: Vec<_> = met.ranks.iter().zip(&met.from).map(of).collect();
        assert!(all.iter().all(|block| !block.is_empty()), "an unwritten block is reduced");
        let mut sum = all.concat();
        sum.sort_unstable();
        sum
    }

    /// The results of a phase: the index of the rank, the block, and the contributions in it.
    fn results(&self, met: &MetPhase<'_>, is_leaders: bool) -> Vec<(usize, usize, Block)> {
        let MetPhase { what, ranks, from, shares, .. } = met;
        let places = || 0..ranks.len();
        let before = |place: usize| shares[..place].iter().sum::<usize>();
        let blocks = if is_leaders { 1 } else { shares[0] };
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

    fn step_group(&mut self, ranks: &[usize], is_leaders: bool) -> bool {
        let Some(met) = self.common_phase(ranks, is_leaders) else { return false };
        for (place, block, value) in self.results(&met, is_leaders) {
            self.put(ranks[place], met.to[place], block, value);
        }
        for &rank in ranks {
            self.phases[rank].pop_front();
        }
        true
    }

    /// Does a copy, or a message whose receiver has reached it; false if the rank waits for others.
    fn step_rank(&mut self, rank: usize) -> bool {
        let (peer, from, to, blocks) = match self.phases[rank].front().copied() {
            Some(DomainPhase::Copy { from, to, blocks }) => (rank, from, to, blocks),
            Some(DomainPhase::Send { to: peer, from, blocks }) => match self.phases[peer].front() {
                Some(&DomainPhase::Recv { from: sender, to, blocks: wanted }) if sender == rank => {
                    assert_eq!(blocks, wanted);
                    self.phases[peer].pop_front();
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
        self.phases[rank].pop_front();
        true
    }

    fn walk(&mut self) {
        let leaders: Vec<_> = self.map.leaders().collect();
        let domain = |&leader: &usize| {
            (0..self.map.size())
                .filter(|&rank| self.map.first_rank[rank] == leader)
                .collect::<Vec<_>>()
        };
        let domains: Vec<_> = leaders.iter().map(domain).collect();
        while self.phases.iter().any(|phases| !phases.is_empty()) {
            let mut moved = self.step_group(&leaders, true);
            domains.iter().for_each(|domain| moved |= self.step_group(domain, false));
            (0..self.map.size()).for_each(|rank| moved |= self.step_rank(rank));
            assert!(moved, "deadlock: {:?}", self.phases);
        }
    }
}

/// The key of a block. In a piece that is the whole block, `RecvWhole` and `Recv` are the same
/// memory.
fn key(block_ref: BlockRef) -> (u8, usize) {
    let area = match block_ref.area {
        BlockArea::Send => 0,
        BlockArea::Recv | BlockArea::RecvWhole => 1,
        BlockArea::ScratchA => 2,
        BlockArea::ScratchB => 3,
    };
    (area, block_ref.at)
}

/// The number of blocks that a rank contributes.
fn given(call: Collective, rank: usize, n: usize) -> usize {
    call.sides(rank as u32, n as u32)[0]
}

/// The contributions that a rank must have in its receive buffer at the end.
fn expected(call: Collective, rank: usize, n: usize) -> Vec<Block> {
    let blocks = 0..call.shape(n as u32)[1];
    let block = |block| match call.result(rank as u32, block) {
        ChunkResult::Sum(chunk) => (0..n).map(|from| (from, chunk as usize)).collect(),
        ChunkResult::Copy { rank, chunk } => vec![(rank as usize, chunk as usize)],
        ChunkResult::Untouched | ChunkResult::Prefix { .. } => Vec::new(),
    };
    blocks.map(block).filter(|block| !block.is_empty()).collect()
}

/// All partitions of `n` ranks, each as the first rank of each rank's domain.
fn partitions(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |all, rank| {
        let more = |of: Vec<usize>| {
            let firsts: Vec<_> = (0..rank).filter(|&it| of[it] == it).chain([rank]).collect();
            firsts.into_iter().map(move |first| [&of[..], &[first]].concat())
        };
        all.into_iter().flat_map(more).collect()
    })
}

/// Checks every collective with every partition of `n` ranks.
fn for_each_collective(n: usize, check: impl Fn(&DomainMap, Collective)) {
    for map in partitions(n).into_iter().map(DomainMap::new) {
        let made = Collective::all(n as u32).into_iter().filter(|&call| map.makes(call));
        made.for_each(|call| check(&map, call));
    }
}

#[test]
fn blocks_are_in_the_order_of_ranks_in_every_partition() {
    for n in 1..=5 {
        for_each_collective(n, |map, call| {
            for is_all in [true, false] {
                if !is_all && DomainMap::is_in_place(call) {
                    continue;
                }
                let mut world = World::new(map, call, is_all);
                world.walk();
                for rank in 0..n {
                    for (at, block) in expected(call, rank, n).into_iter().enumerate() {
                        let found = world.get(rank, BlockArea::Recv.at(0), at);
                        assert_eq!(found, block, "{map:?} {call:?}: rank {rank}, block {at}");
                    }
                }
            }
        });
    }
}

/// A rank without a receive buffer writes none, and no rank writes its send buffer.
#[test]
fn send_buffers_and_missing_receive_buffers_stay_unwritten() {
    for_each_collective(4, |map, call| {
        if DomainMap::is_in_place(call) {
            return;
        }
        let mut world = World::new(map, call, true);
        world.walk();
        for rank in 0..4 {
            let written = world.memory[rank].keys().filter(|key| key.0 == 1).count();
            assert_eq!(written, expected(call, rank, 4).len(), "{map:?} {call:?}: rank {rank}");
            for at in 0..given(call, rank, 4) {
                assert_eq!(world.get(rank, BlockArea::Send.at(0), at), [(rank, at)]);
            }
        }
    });
}

/// Of the source and the target of a phase within a domain, at most one is a buffer of the caller.
#[test]
fn a_phase_within_a_domain_uses_at_most_one_of_the_callers_buffers() {
    let is_callers = |block_ref: BlockRef| {
        matches!(block_ref.area, BlockArea::Send | BlockArea::Recv | BlockArea::RecvWhole)
    };
    for_each_collective(4, |map, call| {
        for phase in (0..4).flat_map(|rank| map.phases(call, rank, true, true)) {
            if let DomainPhase::Within { from, to, .. } = phase {
                assert!(from == to || !is_callers(from) || !is_callers(to), "{call:?}: {phase:?}");
            }
        }
    });
}
