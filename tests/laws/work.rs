//! The schedules of all ranks for one collective, and the checks that tests of schedules share.

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Algorithm, Collective, Ring, Schedule, Volume};
use ringreduce::sim::{Random, Report, Shape, Violation, check};

/// Every collective; those with a root, with each of `roots`.
pub(crate) fn collectives(size: u32, roots: &[u32]) -> Vec<Collective> {
    let mut all = Collective::all(size);
    all.retain(|collective| collective.root().is_none_or(|root| roots.contains(&root)));
    all
}

/// Ranks in random order.
pub(crate) fn shuffled(size: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..size).collect();
    Random::new(u64::from(size)).shuffle(&mut order);
    order
}

/// A ring through hosts with so many ranks each, which are numbered at random.
pub(crate) fn through(hosts: &[u32]) -> Ring {
    let mut order = shuffled(hosts.iter().sum()).into_iter();
    let ranks = hosts.iter().map(|&ranks| order.by_ref().take(ranks as usize).collect());
    Ring::through(&ranks.collect::<Vec<_>>()).unwrap()
}

pub(crate) struct Work<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) collective: Collective,
    pub(crate) ring: &'a Ring,
    pub(crate) volume: Volume,
    pub(crate) schedules: Vec<Schedule>,
}

/// All collectives that these algorithms make over a ring, with these roots.
pub(crate) fn works<'a>(algorithms: &[Algorithm], ring: &'a Ring, roots: &[u32]) -> Vec<Work<'a>> {
    let mut all = Vec::new();
    for &algorithm in algorithms {
        for collective in collectives(ring.size(), roots) {
            all.extend(Work::of(algorithm, collective, ring));
        }
    }
    all
}

impl<'a> Work<'a> {
    /// The schedules of this collective; `None` if the algorithm does not make it over this ring,
    /// or makes it in shared memory: its schedule over links is that of another algorithm then.
    pub(crate) fn of(algorithm: Algorithm, collective: Collective, ring: &'a Ring) -> Option<Self> {
        if algorithm.is_in_shared_memory() {
            return None;
        }
        let volume = algorithm.volume(collective, ring)?;
        let schedules = algorithm.schedules(collective, ring)?;
        Some(Self { algorithm, collective, ring, volume, schedules })
    }
}

impl Work<'_> {
    pub(crate) fn verdict(&self, shape: &Shape<'_>, seed: u64) -> Result<Report, Violation> {
        check(self.collective, self.volume, &self.schedules, shape, seed)
    }

    pub(crate) fn is_stuck(&self, shape: &Shape<'_>) -> bool {
        matches!(self.verdict(shape, 1), Err(Violation::Stuck(_)))
    }

    /// The laws hold, and the order of ranks where the algorithm promises it.
    pub(crate) fn holds(&self, shape: &Shape<'_>, seed: u64) -> Report {
        let Self { algorithm, collective, ring, .. } = self;
        let report = self.verdict(shape, seed);
        let report = report.unwrap_or_else(|violation| {
            panic!("{algorithm} {collective:?} {ring:?} {shape:?}: {violation}")
        });
        // A tree to another root than rank 0 begins with that root.
        let rotated =
            matches!(collective, Collective::Reduce { .. }) && *algorithm != Algorithm::TwoShot;
        let tree = matches!(algorithm, Algorithm::Binomial | Algorithm::DoubleTree);
        let promised = tree || (ring.is_natural() && algorithm.in_rank_order());
        let ordered = report.rank_order || rotated || !promised;
        assert!(ordered, "{algorithm} {collective:?} {ring:?}");
        report
    }

    /// The laws hold with `slices` in each chunk, over links with the necessary slots and `more`.
    pub(crate) fn uniform(&self, rounds: usize, slices: usize, more: usize, seed: u64) -> Report {
        let needed = (slices + 1).max(slices * self.algorithm.window());
        self.holds(&Shape::uniform(rounds, slices, needed + more), seed)
    }

    /// The laws hold for chunks as `Partition` cuts them: short and empty chunks, and a last round
    /// that is not full.
    pub(crate) fn partitions(&self, capacities: &[usize], counts: &[usize]) {
        for &capacity in capacities {
            let links = SlotShape { bytes: 64, capacity };
            let Some(slots) = links.shared(self.algorithm.window()) else { continue };
            for &count in counts {
                let cut = |schedule: &Schedule| match self.collective.has_blocks() {
                    true => Partition::exact(count, 4, slots),
                    false => Partition::even(count, 4, schedule.output as usize, 64, slots),
                };
                let cuts = self.schedules.iter().map(|own| cut(own).with_scratch(&own.scratch));
                self.holds(&Shape::of(&cuts.collect::<Vec<_>>(), capacity), 1);
            }
        }
    }

    /// No rank sends more than the formula says, and one sends as much. A ring's formula may be
    /// one chunk above, so the tests of its steps count them.
    pub(crate) fn sends_the_volume(&self) {
        if self.algorithm == Algorithm::Ring {
            return;
        }
        let sends = |s: &Schedule| s.steps.iter().filter(|step| step.op.sends()).count() as u64;
        let most = self.schedules.iter().map(sends).max();
        assert_eq!(most, Some(self.volume.most), "{} {:?}", self.algorithm, self.collective);
    }
}
