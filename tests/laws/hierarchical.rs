//! Rings within hosts and between them obey the laws, whatever the numbers of ranks: all sets of
//! hosts of up to nine ranks together, in their order, and samples to 64 ranks and beyond.

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Algorithm, Collective, Ring, Schedule};
use ringreduce::sim::{Random, Shape, Violation, check};

const HOSTS: Algorithm = Algorithm::Hierarchical;

/// Hosts of so many ranks, who are numbered by chance.
fn through(hosts: &[u32]) -> Ring {
    let size: u32 = hosts.iter().sum();
    let mut order: Vec<u32> = (0..size).collect();
    Random::new(u64::from(size)).shuffle(&mut order);
    let mut next = order.into_iter();
    let ranks = hosts.iter().map(|&ranks| next.by_ref().take(ranks as usize).collect());
    Ring::through(&ranks.collect::<Vec<_>>()).unwrap()
}

/// All ways to place so many ranks on hosts, in the order of the hosts.
fn sets(size: u32) -> Vec<Vec<u32>> {
    let with = move |first: u32| {
        let rest = sets(size - first).into_iter();
        rest.map(move |rest| [vec![first], rest].concat())
    };
    if size == 0 { vec![Vec::new()] } else { (1..=size).flat_map(with).collect() }
}

/// Several hosts, of several ranks one of them at least.
fn fits(hosts: &[u32]) -> bool {
    hosts.len() > 1 && hosts.iter().any(|&ranks| ranks > 1)
}

/// By chance, to some 64 ranks: most hosts are alike.
fn samples(count: usize) -> impl Iterator<Item = Vec<u32>> {
    let mut random = Random::new(64);
    (0..count).map(move |_| {
        let (least, more) = (1 + random.below(4), 1 + random.below(8));
        let (mut hosts, mut left) = (Vec::new(), 8 + random.below(57));
        while left > 0 {
            let other = if random.below(3) == 0 { random.below(more) } else { 0 };
            let ranks = (least + other).min(left);
            hosts.push(ranks as u32);
            left -= ranks;
        }
        hosts
    })
}

/// What all ranks do of a collective.
struct Work<'a> {
    ring: &'a Ring,
    collective: Collective,
    schedules: Vec<Schedule>,
}

fn works<'a>(ring: &'a Ring, roots: &[u32]) -> Vec<Work<'a>> {
    let mut all = Collective::all(ring.size());
    all.retain(|collective| collective.root().is_none_or(|root| roots.contains(&root)));
    let work = |collective| {
        let schedules = HOSTS.schedules(collective, ring)?;
        Some(Work { ring, collective, schedules })
    };
    all.into_iter().filter_map(work).collect()
}

impl Work<'_> {
    fn verdict(&self, shape: &Shape<'_>, seed: u64) -> Result<(), Violation> {
        let volume = HOSTS.volume(self.collective, self.ring).unwrap();
        check(self.collective, volume, &self.schedules, shape, seed).map(|_| ())
    }

    fn holds(&self, shape: &Shape<'_>, seed: u64) {
        let (ring, collective) = (self.ring, self.collective);
        let verdict = self.verdict(shape, seed);
        assert_eq!(verdict.map_err(|why| why.to_string()), Ok(()), "{collective:?} {ring:?}");
    }

    /// Over links with the slots that it needs, and in as many rounds and slices.
    fn uniform(&self, rounds: usize, slices: usize, more: usize) {
        self.holds(&Shape::uniform(rounds, slices, slices * HOSTS.window() + more), 1);
    }

    /// No rank sends more than the formula says, and one sends as much.
    fn sends_what_is_said(&self) {
        let sends = |s: &Schedule| s.steps.iter().filter(|step| step.op.sends()).count() as u64;
        let most = self.schedules.iter().map(sends).max();
        let said = HOSTS.volume(self.collective, self.ring).map(|volume| volume.most);
        assert_eq!(most, said, "{:?} {:?}", self.collective, self.ring);
    }
}

#[test]
fn the_laws_hold_over_all_small_sets_of_hosts() {
    for hosts in (1..=9).flat_map(sets) {
        let ring = through(&hosts);
        let works = works(&ring, &(0..ring.size()).collect::<Vec<_>>());
        for work in &works {
            for (rounds, slices, more) in [(1, 1, 0), (3, 1, 0), (2, 3, 0), (2, 2, 1), (1, 8, 7)] {
                work.uniform(rounds, slices, more);
            }
            work.sends_what_is_said();
        }
        // Three of all ranks, a barrier, and two for each root.
        let made = if fits(&hosts) { 4 + 2 * ring.size() as usize } else { 0 };
        assert_eq!(works.len(), made, "{hosts:?}");
    }
}

#[test]
fn the_laws_hold_over_samples_of_large_ones() {
    // Typical ones, and some where many chunks go over few links.
    let typical: [&[u32]; 10] = [
        &[8, 8, 4],
        &[16, 16, 8],
        &[8, 7],
        &[7, 8],
        &[64, 1],
        &[1, 40, 1, 1],
        &[8; 16],
        &[27, 9, 3, 1],
        &[1, 3, 7, 15],
        &[5, 2, 1, 1, 5, 2, 1, 1],
    ];
    for hosts in samples(60).chain(typical.map(<[u32]>::to_vec)) {
        let ring = through(&hosts);
        for work in works(&ring, &[0, ring.size() / 2]) {
            work.uniform(1, 1, 0);
            work.uniform(3, 2, 0);
            work.sends_what_is_said();
        }
    }
}

/// Chunks as `Partition` cuts them: short ones, empty ones, and a last round that is not full.
#[test]
fn the_laws_hold_for_real_partitions() {
    for hosts in [&[2, 2][..], &[3, 1], &[1, 2, 1, 2], &[1, 1, 1, 3, 1], &[4, 2, 3], &[2, 2, 2, 2]]
    {
        let ring = through(hosts);
        for work in works(&ring, &[0, 3]) {
            for capacity in [2, 3, 4, 8, 9, 16, 33] {
                let links = SlotShape { bytes: 64, capacity };
                let slots = links.shared(HOSTS.window()).unwrap();
                for count in [0, 1, 17, 333, 1000] {
                    let cut = |schedule: &Schedule| {
                        let even = Partition::even(count, 4, schedule.output as usize, 64, slots);
                        let exact = Partition::exact(count, 4, slots);
                        if schedule.input == schedule.output { even } else { exact }
                    };
                    let schedules = work.schedules.iter();
                    let cuts = schedules.map(|own| cut(own).with_scratch(&own.scratch));
                    let partitions: Vec<_> = cuts.collect();
                    work.holds(&Shape::of(&partitions, capacity), 1);
                }
            }
        }
    }
}

/// Where all hosts have as many ranks, nobody is ever a chunk ahead; elsewhere the window is what
/// links must hold.
#[test]
fn a_window_needs_its_slots() {
    let stuck = |hosts: &[u32], collective, slots| {
        let ring = through(hosts);
        let works = works(&ring, &[0]);
        let work = works.iter().find(|work| work.collective == collective).unwrap();
        let verdict = work.verdict(&Shape::uniform(2, 3, slots), 1);
        matches!(verdict, Err(Violation::Stuck(_)))
    };
    for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
        assert!(stuck(&[1, 2, 1, 2], collective, 4), "{collective:?}");
        for (count, each) in (2..=6).flat_map(|count| (2..=6).map(move |each| (count, each))) {
            assert!(!stuck(&vec![each; count], collective, 4), "{collective:?} {count} x {each}");
        }
    }
    assert_eq!(HOSTS.window(), 2);
}

/// A rank sends to the host beside its own as many chunks as others there, or nearly, however few
/// ranks that one has; hosts with as many ranks go seat by seat.
#[test]
fn all_ranks_of_a_host_share_the_way_to_the_next() {
    for hosts in (2..=9).flat_map(sets).chain(samples(20)).filter(|hosts| fits(hosts)) {
        let ring = through(&hosts);
        let schedules = HOSTS.schedules(Collective::ReduceScatter, &ring).unwrap();
        for host in ring.hosts() {
            let across = |&rank: &u32| {
                let steps = schedules[rank as usize].steps.iter();
                steps.filter(|step| step.op.sends() && !host.contains(&step.to)).count()
            };
            let sent: Vec<usize> = host.iter().map(across).collect();
            let [least, most] = [sent.iter().min(), sent.iter().max()].map(Option::unwrap);
            assert!(most - least <= 1, "{hosts:?}: {sent:?}");
        }
    }
}

#[test]
fn a_rank_is_on_one_host() {
    assert_eq!(Ring::through(&[vec![0, 1], vec![1, 2]]), None);
    let nobody = Ring::through(&[vec![0, 1], vec![], vec![2]]).unwrap();
    assert_eq!(HOSTS.schedules(Collective::AllReduce, &nobody), None);
}
