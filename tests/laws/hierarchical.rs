//! Rings within hosts and between them obey the laws for any number of ranks: all sequences of
//! hosts with up to nine ranks, and samples to 64 ranks and beyond.

use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::sim::{Random, Shape};

use super::work::{through, works};

const HOSTS: Algorithm = Algorithm::Hierarchical;

/// All sequences of hosts with `size` ranks in sum.
fn sets(size: u32) -> Vec<Vec<u32>> {
    let with = move |first: u32| {
        let rest = sets(size - first).into_iter();
        rest.map(move |rest| [vec![first], rest].concat())
    };
    if size == 0 { vec![Vec::new()] } else { (1..=size).flat_map(with).collect() }
}

/// True for several hosts, at least one of which has several ranks.
fn fits(hosts: &[u32]) -> bool {
    hosts.len() > 1 && hosts.iter().any(|&ranks| ranks > 1)
}

/// Random sequences of up to 64 ranks in which most hosts are equal.
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

#[test]
fn the_laws_hold_over_all_small_sets_of_hosts() {
    for hosts in (1..=9).flat_map(sets) {
        let ring = through(&hosts);
        let works = works(&[HOSTS], &ring, &(0..ring.size()).collect::<Vec<_>>());
        for work in &works {
            for (rounds, slices, more) in [(1, 1, 0), (3, 1, 0), (2, 3, 0), (2, 2, 1), (1, 8, 7)] {
                work.uniform(rounds, slices, more, 1);
            }
            work.sends_the_volume();
        }
        // Three collectives and a barrier, and two collectives for each root.
        let made = if fits(&hosts) { 4 + 2 * ring.size() as usize } else { 0 };
        assert_eq!(works.len(), made, "{hosts:?}");
    }
}

#[test]
fn the_laws_hold_over_samples_of_large_ones() {
    // Typical sequences, and some in which many chunks go over few links.
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
        for work in works(&[HOSTS], &ring, &[0, ring.size() / 2]) {
            work.uniform(1, 1, 0, 1);
            work.uniform(3, 2, 0, 1);
            work.sends_the_volume();
        }
    }
}

#[test]
fn the_laws_hold_for_real_partitions() {
    for hosts in [&[2, 2][..], &[3, 1], &[1, 2, 1, 2], &[1, 1, 1, 3, 1], &[4, 2, 3], &[2, 2, 2, 2]]
    {
        for work in works(&[HOSTS], &through(hosts), &[0, 3]) {
            work.partitions(&[2, 3, 4, 8, 9, 16, 33], &[0, 1, 17, 333, 1000]);
        }
    }
}

/// In an all-reduce, and where all hosts have equal numbers of ranks, no rank is ever a chunk
/// ahead; elsewhere links must hold the window.
#[test]
fn a_window_needs_its_slots() {
    let stuck = |hosts: &[u32], collective, slots| {
        let ring = through(hosts);
        let works = works(&[HOSTS], &ring, &[0]);
        let work = works.iter().find(|work| work.collective == collective).unwrap();
        work.is_stuck(&Shape::uniform(2, 3, slots))
    };
    for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
        let is_ahead = collective != Collective::AllReduce;
        assert_eq!(stuck(&[1, 2, 1, 2], collective, 4), is_ahead, "{collective:?}");
        for (count, each) in (2..=6).flat_map(|count| (2..=6).map(move |each| (count, each))) {
            assert!(!stuck(&vec![each; count], collective, 4), "{collective:?} {count} x {each}");
        }
    }
    assert_eq!(HOSTS.window(), 2);
}

/// The ranks of a host send equal numbers of chunks to the next host, or one less.
#[test]
fn all_ranks_of_a_host_share_the_traffic_to_the_next_host() {
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

/// Hosts of any sizes send as many chunks of an all-reduce to the next host: 2(H-1)/H of all.
#[test]
fn all_hosts_have_equal_traffic_in_an_all_reduce() {
    for hosts in (2..=9).flat_map(sets).chain(samples(20)).filter(|hosts| fits(hosts)) {
        let ring = through(&hosts);
        let schedules = HOSTS.schedules(Collective::AllReduce, &ring).unwrap();
        let chunks = HOSTS.chunks(Collective::AllReduce, &ring) as usize;
        for host in ring.hosts() {
            let across = |&rank: &u32| {
                let steps = schedules[rank as usize].steps.iter();
                steps.filter(|step| step.op.sends() && !host.contains(&step.to)).count()
            };
            let sent: usize = host.iter().map(across).sum();
            assert_eq!(sent * hosts.len(), 2 * (hosts.len() - 1) * chunks, "{hosts:?}");
        }
    }
}

#[test]
fn a_rank_on_two_hosts_and_an_empty_host_are_refused() {
    assert_eq!(Ring::through(&[vec![0, 1], vec![1, 2]]), None);
    let with_empty = Ring::through(&[vec![0, 1], vec![], vec![2]]).unwrap();
    assert_eq!(HOSTS.schedules(Collective::AllReduce, &with_empty), None);
}
