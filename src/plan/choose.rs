//! The choice of an algorithm (autotuning): the cheapest by closed form and measured factor, for
//! figures that all ranks agree on, unless rules decide.
//! Law: the choice depends only on the call, the world and the speeds: all ranks choose alike.

use super::slots::{LEAST_REGISTERED_PER_RANK, MOST_ONE_SHOT};
use super::{Planner, Request, Speeds};
use crate::schedule::{Algorithm, Collective, StageShape};

/// The bytes of all ranks' contributions up to which an all-reduce is not staged, but direct.
const SHORTEST_STAGED: usize = 8 << 10;
/// The most ranks of a host among which so short an all-reduce may go over links. Among more, all
/// algorithms but direct took two to four times as long, which few trials do not always tell: 8
/// bytes among 256 ranks on two CPUs took 40 ms, and 100 to 180 ms over links.
const MOST_RANKS_OVER_LINKS: u32 = 8;
/// The bytes from which on processes may read each other's memory by system calls.
const LEAST_READ: usize = 32 << 10;
/// The bytes of all ranks' outputs from which on the blocks that all of them get do not go by the
/// kernel's copy, which stores through the caches: 16 MiB among four ranks took 4.9 ms by it, and
/// 4.3 ms over stages, past the caches; among eight 13 and 5 ms.
const MOST_READ_BY_ALL: usize = 64 << 20;
/// The most ranks of a host that measure links and algorithms. Among more, a call goes through the
/// region where an algorithm of the region makes it. On two CPUs 256 ranks took 22 s to measure,
/// and 7 s from their start to their first result without.
const MOST_RANKS_MEASURED: u32 = 64;

/// An algorithm that can make a call, and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Predicted time in seconds; `None` if there is no closed form, if no speeds are known, or if
    /// the algorithm is passed over: it is made only on request.
    pub seconds: Option<f64>,
}

/// Whether every rank can read the memory of every other, as single copies need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerReads {
    /// The ranks find out before their first collective.
    #[default]
    Untested,
    /// All can, by a system call.
    Possible,
    /// All can, because they are threads of one process.
    OneProcess,
    /// Some can't, for this reason.
    Refused(String),
}

impl Planner {
    /// The algorithms that can make a call, in the order of [`Algorithm::ALL`].
    pub fn candidates(&self, request: &Request) -> impl Iterator<Item = Candidate> {
        let collective = request.collective;
        let can = move |algorithm: &Algorithm| {
            let slots = self.slots.ring.shared(algorithm.window());
            let slots = slots.and(self.slots.other.shared(algorithm.window()));
            let ordered = !self.rules.in_order || algorithm.folds_left(collective);
            let shared = match algorithm {
                Algorithm::Direct => self.may_be_direct(request),
                Algorithm::Staged => self.may_be_staged(request),
                Algorithm::SingleCopy => self.may_be_staged(request) && self.can_read_peers(),
                Algorithm::TwoLevel => self.may_be_two_level(request),
                _ => true,
            };
            let can = algorithm.reaches(&self.ring) && slots.is_some() && shared;
            ordered && can && algorithm.makes(collective, &self.ring)
        };
        let price = move |algorithm| {
            let slots = self.shape(algorithm, collective);
            let speeds = self.speeds.filter(|_| !self.passes_over(algorithm, request));
            let priced = |speeds: Speeds| speeds.seconds(algorithm, request, &self.ring, slots);
            let bytes = request.longest(self.ring.size());
            let factor = self.tuning().factor(algorithm, collective, bytes);
            let seconds = speeds.and_then(priced).map(|seconds| seconds * factor);
            Candidate { algorithm, seconds }
        };
        Algorithm::ALL.into_iter().filter(can).map(price)
    }

    fn can_read_peers(&self) -> bool {
        matches!(self.peer_reads, PeerReads::Possible | PeerReads::OneProcess)
    }

    /// True if others make the call as fast or faster where all ranks share the region of a host,
    /// so that the algorithm is made only on request. Trials of fewer algorithms tell more of each.
    ///
    /// - Over links: measured among 2, 4 and 8 ranks on two CPUs, near each other and far apart,
    ///   from 64 bytes to 16 MiB, the best of the others took 1.12 times as long at most. Worlds of
    ///   up to 64 ranks are taken to be alike. The circulant graph, which was not among them, is
    ///   taken to be as the double tree.
    /// - A short single copy by the kernel: its system calls take as long as a copy over stages;
    ///   and a long one to all ranks.
    /// - Among many ranks, all that go over links: nothing is measured there.
    fn passes_over(&self, algorithm: Algorithm, request: &Request) -> bool {
        let size = self.ring.size();
        // Staged has a hand-over more than direct, which folds all contributions at every rank.
        let is_short = request.longest(size) * size as usize <= SHORTEST_STAGED;
        let is_all_reduce = request.collective == Collective::AllReduce;
        let passes_over = match algorithm {
            Algorithm::SingleCopy => {
                let bytes = request.longest(size);
                let to_all = matches!(
                    request.collective,
                    Collective::AllGather | Collective::Broadcast { .. }
                );
                let is_beyond_caches = to_all && bytes * size as usize >= MOST_READ_BY_ALL;
                self.peer_reads == PeerReads::Possible && (bytes < LEAST_READ || is_beyond_caches)
            }
            Algorithm::Direct => false,
            Algorithm::Staged => is_all_reduce && is_short,
            _ if !self.has_measurements() => self.region_makes(request),
            _ if is_all_reduce && is_short && size > MOST_RANKS_OVER_LINKS => true,
            _ => self.region_makes(request) && seldom_best(request.collective).contains(&algorithm),
        };
        passes_over && self.shares_host && self.rules.forced != Some(algorithm)
    }

    /// True if an algorithm of the host's region can make the call.
    fn region_makes(&self, request: &Request) -> bool {
        let makes = |it: Algorithm| it.makes(request.collective, &self.ring);
        (makes(Algorithm::Direct) && self.may_be_direct(request))
            || (makes(Algorithm::Staged) && self.may_be_staged(request))
    }

    /// True if the ranks measure links and algorithms before their first call; if not, speeds are
    /// assumed.
    #[must_use]
    pub fn has_measurements(&self) -> bool {
        !self.shares_host || self.ring.size() <= MOST_RANKS_MEASURED
    }

    /// True if every rank's data is already in shared memory, or fits the stages. A broadcast over
    /// stages is left out: over links its root need not wait for the other ranks.
    fn may_be_direct(&self, request: &Request) -> bool {
        let broadcast = matches!(request.collective, Collective::Broadcast { .. });
        let fits = request.longest(self.ring.size()) <= MOST_ONE_SHOT && self.shares_host;
        self.rules.registered || (fits && !broadcast)
    }

    /// True if the ranks can write each other's registered memory in this collective.
    pub(super) fn may_use_registered(&self, collective: Collective) -> bool {
        let moves_data = collective != Collective::Barrier;
        self.shares_host && moves_data && Algorithm::Direct.makes(collective, &self.ring)
    }

    /// The fewest bytes of registered memory with which a call uses it, unless the direct algorithm
    /// is asked for. With fewer bytes a call is made as on any other memory.
    pub(crate) fn least_registered(&self) -> usize {
        (LEAST_REGISTERED_PER_RANK * self.ring.size() as usize).min(MOST_ONE_SHOT)
    }

    fn may_be_staged(&self, request: &Request) -> bool {
        self.shares_host && fits_stages(request, self.ring.size())
    }

    /// True if the stages of each host can make its part of the call.
    fn may_be_two_level(&self, request: &Request) -> bool {
        let each = self.ring.grid().map(|grid| grid.ranks);
        self.shares_each_host && each.is_some_and(|each| fits_stages(request, each))
    }

    /// The algorithm of a call: the one that the rules force, if it can make the call; or else the
    /// cheapest; the first candidate if none has a predicted time.
    pub fn choose(&self, request: &Request) -> Algorithm {
        let can = |wanted| self.candidates(request).any(|one| one.algorithm == wanted);
        if let Some(forced) = self.rules.forced.filter(|&forced| can(forced)) {
            return forced;
        }
        let mut best = None::<Candidate>;
        for candidate in self.candidates(request) {
            let cheaper = |best: Candidate| match (candidate.seconds, best.seconds) {
                (Some(new), Some(old)) => new < old,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if best.is_none_or(cheaper) {
                best = Some(candidate);
            }
        }
        best.map_or(Algorithm::Ring, |best| best.algorithm)
    }
}

/// The algorithms over links that are never much the best among ranks of one host.
const fn seldom_best(collective: Collective) -> &'static [Algorithm] {
    use Algorithm::{
        AllPairs, Binomial, Bruck, Circulant, DoubleTree, HalvingDoubling, TwoRings, TwoShot,
    };
    match collective {
        Collective::AllReduce => {
            &[AllPairs, Binomial, DoubleTree, HalvingDoubling, TwoRings, TwoShot]
        }
        Collective::AllGather | Collective::ReduceScatter => {
            &[AllPairs, Bruck, HalvingDoubling, TwoRings]
        }
        Collective::Broadcast { .. } => &[AllPairs, Circulant, DoubleTree],
        Collective::Reduce { .. } => &[Circulant, DoubleTree, TwoShot],
        _ => &[],
    }
}

/// True if each rank's part of a block has room for an element, among `ranks` of a host.
fn fits_stages(request: &Request, ranks: u32) -> bool {
    request.element_size() <= StageShape::of(ranks as usize).block / ranks as usize
}

#[cfg(test)]
mod tests {
    use super::super::{Planner, Request, Rules, Slots, Source, Speeds};
    use super::Candidate;
    use crate::element::{DataType, LARGEST, ReduceOp, Reduction};
    use crate::partition::SlotShape;
    use crate::schedule::{Algorithm, Collective, Ring, StageShape};
    use crate::sim::Speed;

    const SLOTS: Slots = Slots {
        ring: SlotShape { bytes: 64 << 10, capacity: 16 },
        other: SlotShape { bytes: 8 << 10, capacity: 8 },
    };
    const SPEED: Speed = Speed { latency: 1e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };

    fn planner(size: u32, me: u32) -> Planner {
        let mut planner = Planner::new(Ring::natural(size), me, SLOTS, 256);
        planner.set_speeds(Speeds::uniform(SPEED, Source::Stated));
        planner
    }

    fn all_reduce(bytes: usize) -> Request {
        let (collective, dtype) = (Collective::AllReduce, DataType::F32);
        Request { collective, count: bytes / 4, dtype, op: Some(ReduceOp::Sum.into()) }
    }

    #[test]
    fn small_messages_take_few_hops_and_large_ones_few_bytes() {
        for size in [3, 4, 8, 16] {
            let planner = planner(size, 0);
            assert_ne!(planner.choose(&all_reduce(8)), Algorithm::Ring, "{size}");
            assert_eq!(planner.choose(&all_reduce(256 << 20)), Algorithm::Ring, "{size}");
        }
    }

    #[test]
    fn all_ranks_choose_the_same() {
        for size in 2..=20 {
            for power in 3..=28 {
                let request = all_reduce(1 << power);
                let first = planner(size, 0).choose(&request);
                assert!((1..size).all(|me| planner(size, me).choose(&request) == first));
            }
        }
    }

    /// A call that alternates between rules has one plan for each of them.
    #[test]
    fn each_set_of_rules_has_a_plan_of_its_own() {
        let mut planner = planner(4, 1);
        let request = all_reduce(8);
        let rules = [
            Rules::default(),
            Rules { forced: Some(Algorithm::Ring), ..Rules::default() },
            Rules { in_order: true, ..Rules::default() },
            Rules { part_of: 7, ..Rules::default() },
        ];
        let mut prints = |rules| {
            planner.set_rules(rules);
            planner.plan(&request).fingerprint
        };
        let first = rules.map(&mut prints);
        assert_eq!(rules.map(&mut prints), first);
        assert!((0..4).all(|at| !first[..at].contains(&first[at])), "{first:x?}");
    }

    /// Among so many ranks of a host that none measures anything, calls go through the region.
    #[test]
    fn many_ranks_of_a_host_assume_speeds_and_use_its_region() {
        for (size, measures) in [(64, true), (65, false), (256, false), (1024, false)] {
            let mut planner = Planner::new(Ring::natural(size), 3, SLOTS, 256);
            assert!(planner.has_measurements(), "{size} ranks without a region");
            planner.share_host();
            assert_eq!(planner.has_measurements(), measures, "{size}");
            planner.set_speeds(Speeds::assumed());
            for collective in Collective::all(1) {
                for power in [3, 12, 24] {
                    let request = Request { collective, ..all_reduce(1 << power) };
                    let in_region = planner.choose(&request).is_in_shared_memory();
                    let is_right = measures || in_region == planner.region_makes(&request);
                    assert!(is_right, "{size} {collective:?} {power}");
                }
            }
        }
    }

    fn over(hosts: u32, each: u32) -> Ring {
        // Not in order: some launchers deal ranks out to hosts in turn.
        let ranks = |host| (0..each).map(|seat| seat * hosts + host).collect();
        Ring::through(&(0..hosts).map(ranks).collect::<Vec<_>>()).unwrap()
    }

    /// The memory of a host's region has a fixed shape, and asserts that what it is given fits: no
    /// algorithm is a candidate for an element or a length that does not.
    #[test]
    fn candidates_in_shared_memory_fit_the_stages() {
        for each in [2, 3, 16, 17, 32, 33, 64, 128, 256, 1024] {
            for ring in [Ring::natural(each), over(2, each)] {
                let mut planner = Planner::new(ring, 0, SLOTS, 256);
                planner.share_host();
                let block = StageShape::of(each as usize).block;
                let mut two_level = Vec::new();
                for size in [1, 4, 100, 512, 1000, 2048, 2049, LARGEST] {
                    for collective in Collective::all(1) {
                        let op = Some(Reduction::user(1, size));
                        let request = Request { collective, op, dtype: DataType::U8, count: 3 };
                        for Candidate { algorithm, .. } in planner.candidates(&request) {
                            let fits = match algorithm {
                                Algorithm::Staged => size * each as usize <= block,
                                Algorithm::TwoLevel => {
                                    two_level.push(size);
                                    size * each as usize <= block
                                }
                                Algorithm::Direct => request.longest(each) <= block,
                                _ => true,
                            };
                            assert!(fits, "{algorithm} {collective:?}: {each} ranks, {size} bytes");
                        }
                    }
                }
                let hosts = planner.ring().hosts().count();
                assert_eq!(two_level.is_empty(), hosts == 1, "{hosts} hosts of {each}");
            }
        }
    }

    /// No algorithm is chosen that needs a link which large worlds do not have.
    #[test]
    fn every_step_of_a_chosen_algorithm_has_its_link() {
        let grids = [[2, 2], [2, 9], [9, 2], [5, 4], [8, 8]].map(|[hosts, each]| over(hosts, each));
        let odd = [&[8, 8, 4][..], &[5, 3], &[1, 1, 9], &[7, 1, 6, 1], &[20, 13], &[1, 31]];
        let odd = odd.map(|hosts: &[u32]| {
            let (size, mut next) = (hosts.iter().sum::<u32>(), 0..);
            let rank = |at: u32| at * 37 % size;
            let host = |&ranks: &u32| next.by_ref().take(ranks as usize).map(rank).collect();
            Ring::through(&hosts.iter().map(host).collect::<Vec<_>>()).unwrap()
        });
        let worlds = [3, 16, 17, 24, 32, 64].map(Ring::natural).into_iter().chain(grids).chain(odd);
        for ring in
            worlds.flat_map(|ring| [2, 16, 32].map(|most| ring.clone().with_all_pairs(most)))
        {
            let size = ring.size();
            for me in [0, 1, size / 2, size - 1] {
                let mut planner = Planner::new(ring.clone(), me, SLOTS, 256);
                let far = Speed { latency: 20e-6, byte: 0.3e-9, ..SPEED };
                planner.set_speeds(Speeds { near: SPEED, far, source: Source::Stated });
                let forced = Algorithm::ALL.map(Some);
                for (power, forced) in [3, 12, 20].map(|p| forced.map(|f| (p, f))).concat() {
                    planner.set_rules(Rules { forced, ..Rules::default() });
                    let peers = planner.peers();
                    for collective in Collective::all(1) {
                        let request = Request { collective, ..all_reduce(1 << power) };
                        for step in &planner.plan(&request).schedule.steps {
                            let linked = !step.op.sends() || peers.contains(&step.to);
                            assert!(linked, "{size} {me} {collective:?}");
                            let linked = !step.op.receives() || peers.contains(&step.from);
                            assert!(linked, "{size} {me} {collective:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn hierarchical_is_chosen_where_hosts_are_far_apart() {
        let ring = over(8, 8);
        let chosen = |far| {
            let choose = |me| {
                let mut planner = Planner::new(ring.clone(), me, SLOTS, 256);
                planner.set_speeds(Speeds { near: SPEED, far, source: Source::Stated });
                planner.choose(&all_reduce(1 << 20))
            };
            assert!((1..64).all(|me| choose(me) == choose(0)));
            choose(0)
        };
        let far = Speed { latency: 50e-6, step: 5e-6, ..SPEED };
        assert_eq!(chosen(far), Algorithm::Hierarchical);
        assert_ne!(chosen(SPEED), Algorithm::Hierarchical);
    }
}
