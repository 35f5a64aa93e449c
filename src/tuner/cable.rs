//! The rate of the hosts' cables, by the bytes that an all-reduce sends from host to host. Long
//! calls grow by these bytes where the rate is what they wait for: one disturbed try would
//! otherwise count for every byte of a longer call, and hide that another algorithm sends more.

use super::trial::Trial;
use crate::plan::{Factors, Tuning};
use crate::schedule::{Algorithm, Collective, Ring};

/// How much the times for a byte on the busiest cable may differ, among most algorithms with
/// different bytes there, where the cable's rate decides. Those of 2 MiB among 3 + 1 + 2 ranks on
/// two busy CPUs were as close in 65 of 84 starts at 1 Gbit/s, and without a limit, by chance, in
/// 9 of 36.
const HIGHEST_RATIO: f64 = 1.25;
/// The least time for a byte on a cable whose rate may decide, that of 4 Gbit/s. Memory and CPUs
/// take about half a nanosecond for each byte of a call: over faster cables they decide too, the
/// tries agree by chance, and an algorithm whose phases fill one direction after the other, such as
/// `binomial`, passes for a disturbed one.
const LEAST_SECONDS_PER_BYTE: f64 = 2e-9;
/// The longest time of a call, relative to that of its bytes on the cable, that counts as
/// disturbed. What takes longer has other causes: messages that wait for each other, or memory and
/// CPUs. In those starts `hierarchical` mostly took 1.0 to 1.9 times as long at 1 Gbit/s, and 1.7
/// to 9 times without a limit, where one rank of it has most of the work.
const MOST_DISTURBED: f64 = 2.0;
/// The highest ratio of numbers of bytes that count as one number: chunks are rounded.
const SAME_BYTES: f64 = 1.01;

/// Bytes that an all-reduce by each algorithm sends or receives on the cable of the busiest host,
/// per byte of the call; 0 if it makes none.
pub(super) type CableBytes = [f64; Algorithm::ALL.len()];

/// The chunks of an all-reduce that the steps of rank `me` send from host to host: first by the
/// host that sends, then by the host that receives. A host's chunks are the sum over all ranks. All
/// chunks are equally long, but for a remainder.
pub(super) fn chunks_of_hosts(algorithm: Algorithm, ring: &Ring, me: u32) -> Vec<f64> {
    let (hosts, own) = (ring.hosts().count(), ring.host(me) as usize);
    let mut chunks = vec![0.0; 2 * hosts];
    let schedule = algorithm.schedule(Collective::AllReduce, ring, me);
    let steps = schedule.iter().flat_map(|schedule| &schedule.steps);
    for step in steps.filter(|step| step.op.sends()) {
        let to = ring.host(step.to) as usize;
        if to != own {
            chunks[own] += 1.0;
            chunks[hosts + to] += 1.0;
        }
    }
    chunks
}

/// The rate of the busiest cable, which long calls wait for.
#[derive(Debug)]
pub(super) struct CableRate<'a> {
    seconds_per_byte: f64,
    cable_bytes: &'a CableBytes,
    /// The index of the longest length at which several algorithms were tried.
    point: usize,
}

impl<'a> CableRate<'a> {
    /// The rate by the trials of a class; `None` if other things decide how long the calls took:
    /// most algorithms with different bytes on the busiest cable must agree on the rate. Algorithms
    /// with the same bytes there may take the same time for any reason, so the fastest one counts.
    ///
    /// Each has its fastest tries, a short one and the longest, since disturbances only add time,
    /// and a short call takes the time that does not grow. Where that is most of the time, the
    /// longest one says little of a byte.
    pub(super) fn of(trials: &[&Trial], cable_bytes: &'a CableBytes) -> Option<Self> {
        let share = |trial: &Trial| cable_bytes[trial.algorithm as usize];
        let is_counted = |trial: &&&Trial| {
            trial.request.collective == Collective::AllReduce && share(trial) > 0.0
        };
        let at = |point| trials.iter().filter(is_counted).filter(move |it| it.point == point);
        let point = (0..Tuning::POINTS.len()).rev().find(|&point| at(point).count() > 1)?;
        let rate_of = |long: &&Trial| {
            let is_shorter = |it: &&&Trial| it.algorithm == long.algorithm && it.point < point;
            let short = trials.iter().filter(is_shorter).map(|it| (it.fastest(), bytes(it.point)));
            let (seconds, before) = short.min_by(|one, other| one.0.total_cmp(&other.0))?;
            let growth = (long.fastest() - seconds) / (bytes(point) - before);
            let rate =
                TriedRate { cable_bytes: share(long), seconds_per_byte: growth / share(long) };
            (seconds <= long.fastest() / 2.0).then_some(rate)
        };
        let mut rates: Vec<_> = at(point).filter_map(rate_of).collect();
        rates.sort_by(|one, other| one.cable_bytes.total_cmp(&other.cable_bytes));
        rates.dedup_by(|next, last| {
            let is_same = next.cable_bytes <= SAME_BYTES * last.cable_bytes;
            if is_same {
                last.seconds_per_byte = last.seconds_per_byte.min(next.seconds_per_byte);
            }
            is_same
        });
        rates.sort_by(|one, other| one.seconds_per_byte.total_cmp(&other.seconds_per_byte));
        let least = rates.first()?.seconds_per_byte;
        let middle = rates[rates.len() / 2].seconds_per_byte;
        let decides =
            rates.len() > 1 && middle <= HIGHEST_RATIO * least && least >= LEAST_SECONDS_PER_BYTE;
        decides.then_some(Self { seconds_per_byte: least, cable_bytes, point })
    }

    /// Sets the factors of lengths that were not tried, from the longest tries on. No algorithm
    /// takes less time than its bytes on the cable: shorter tries may have, since a cable that has
    /// rested may take a burst of them at once, which no program can count on. One that was tried
    /// with the longest call, and took no longer than by a disturbance, grows by these bytes alone.
    pub(super) fn set_long_calls(&self, found: &mut Factors, forms: &Factors, trials: &[&Trial]) {
        for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let seconds = |bytes: f64| self.seconds_per_byte * self.cable_bytes[at] * bytes;
            let most = MOST_DISTURBED * seconds(bytes(self.point));
            let tried = |point| {
                let is_there = |it: &&&Trial| (it.algorithm, it.point) == (algorithm, point);
                trials.iter().find(is_there).map(|trial| trial.fastest())
            };
            let last = tried(self.point).filter(|&last| last <= most);
            let is_left = |&point: &usize| forms[at][point] > 0.0 && tried(point).is_none();
            for point in (self.point..forms[at].len()).filter(is_left) {
                let before = found[at][point] * forms[at][point];
                let grown = last.map(|last| last + seconds(bytes(point) - bytes(self.point)));
                found[at][point] =
                    grown.unwrap_or(before.max(seconds(bytes(point)))) / forms[at][point];
            }
            for point in (0..self.point).filter(|&point| forms[at][point] > 0.0) {
                let least = seconds(bytes(point)) / forms[at][point];
                found[at][point] = found[at][point].max(least);
            }
        }
    }
}

/// The rate of the busiest cable by the tries of one algorithm.
struct TriedRate {
    cable_bytes: f64,
    seconds_per_byte: f64,
}

fn bytes(point: usize) -> f64 {
    Tuning::POINTS[point] as f64
}

#[cfg(test)]
mod tests {
    use super::super::measure::request_of;
    use super::super::trial::{Forms, Trial};
    use super::{CableBytes, CableRate, bytes, chunks_of_hosts};
    use crate::partition::{Partition, SlotShape};
    use crate::plan::{Distance, Planner, Request, Slots, Source, Speeds};
    use crate::schedule::Algorithm::{self, DoubleTree, Hierarchical, Ring as OneRing, TwoRings};
    use crate::schedule::{Collective, Ring};
    use crate::sim::{Shape, Speed, timeline};

    const NEAR: Speed = Speed { latency: 1e-6, step: 1e-6, byte: 0.07e-9, reduce: 0.02e-9 };
    const FAR: Speed = Speed { latency: 3e-4, step: 2e-5, byte: 3e-9, reduce: 1e-9 };
    /// The speeds that a probe finds where disturbances hide all growth.
    const FAR_DISTURBED: Speed = Speed { latency: 1e-3, byte: 1e-13, ..FAR };
    const ALL_REDUCE: Collective = Collective::AllReduce;

    /// Hosts with these numbers of ranks, to which the ranks are dealt out one by one in turn, or
    /// one host after the other.
    fn world(ranks: &[u32], in_turn: bool) -> Ring {
        let mut hosts: Vec<Vec<u32>> = vec![Vec::new(); ranks.len()];
        for rank in 0..ranks.iter().sum() {
            let has_room = |&host: &usize| hosts[host].len() < ranks[host] as usize;
            let free = (0..hosts.len()).filter(has_room);
            let host =
                if in_turn { free.min_by_key(|&host| hosts[host].len()) } else { free.min() };
            hosts[host.unwrap()].push(rank);
        }
        Ring::through(&hosts).unwrap()
    }

    fn planners(ring: &Ring, far: Speed) -> Vec<Planner> {
        let size = ring.size();
        let planner = |me| {
            let mut planner =
                Planner::new(ring.clone(), me, Slots::of(Distance::Tcp, size as usize, true), 64);
            planner.share_host();
            planner.set_speeds(Speeds { near: NEAR, far, source: Source::Stated });
            planner
        };
        (0..size).map(planner).collect()
    }

    /// The chunks that each host sends, and that it receives, by all ranks' counts.
    fn chunks_of_all_ranks(algorithm: Algorithm, ring: &Ring) -> Vec<f64> {
        let of_ranks = (0..ring.size()).map(|me| chunks_of_hosts(algorithm, ring, me));
        let add = |sum: Vec<f64>, one: Vec<f64>| sum.iter().zip(one).map(|(a, b)| a + b).collect();
        of_ranks.reduce(add).unwrap()
    }

    /// In a walk of the schedules, the hosts send and receive the chunks that were counted.
    #[test]
    fn the_chunks_of_a_host_are_those_that_a_walk_moves() {
        let worlds = [&[1, 1][..], &[2, 2], &[3, 3], &[4, 4], &[2, 2, 2], &[3, 1, 2], &[1, 2]];
        let worlds = worlds.into_iter().chain([&[5, 1][..], &[1, 1, 1, 4], &[2, 3, 2], &[9, 7]]);
        let worlds = worlds.flat_map(|ranks| [(ranks, false), (ranks, true)]);
        let mut walked = 0;
        for (algorithm, (ranks, in_turn)) in
            worlds.flat_map(|world| Algorithm::ALL.map(|algorithm| (algorithm, world)))
        {
            let ring = world(ranks, in_turn);
            let Some(schedules) = algorithm.schedules(ALL_REDUCE, &ring) else { continue };
            let slots = SlotShape { bytes: 1 << 10, capacity: 2 };
            let partition = [Partition::exact(1 << 10, 1, slots)];
            let shape = Shape::of(&partition, 2 * schedules[0].input as usize);
            let spans = timeline(ALL_REDUCE, &schedules, &shape, |_, _| FAR).unwrap();
            let mut moved = vec![0.0; 2 * ranks.len()];
            for span in spans.iter().filter(|span| span.step.op.sends()) {
                let host = |rank| ring.hosts().position(|host| host.contains(&rank)).unwrap();
                let [from, to] = [span.rank, span.step.to].map(host);
                if from != to {
                    moved[from] += (span.bytes >> 10) as f64;
                    moved[ranks.len() + to] += (span.bytes >> 10) as f64;
                }
            }
            let counted = chunks_of_all_ranks(algorithm, &ring);
            assert_eq!(counted, moved, "{algorithm} {ranks:?} {in_turn}");
            walked += usize::from(counted.iter().all(|&chunks| chunks > 0.0));
        }
        assert!(walked > 200, "{walked} walks between hosts");
    }

    /// The algorithms that are tried with the longest call, and the index of its length.
    const LONG: [Algorithm; 4] = [Hierarchical, OneRing, TwoRings, DoubleTree];
    const LONG_POINT: usize = 7;
    /// The index of the length for which an algorithm is chosen.
    const CHOSEN_POINT: usize = 8;

    /// Hosts of 3, 1 and 2 ranks.
    struct Uneven {
        planners: Vec<Planner>,
        cable_bytes: CableBytes,
    }

    impl Uneven {
        fn new(far: Speed) -> Self {
            let ring = world(&[3, 1, 2], false);
            let planners = planners(&ring, far);
            let cable_bytes = Algorithm::ALL.map(|algorithm| {
                let most = chunks_of_all_ranks(algorithm, &ring).into_iter().fold(0.0, f64::max);
                most / f64::from(algorithm.chunks(ALL_REDUCE, &ring))
            });
            Self { planners, cable_bytes }
        }

        /// The algorithm that all ranks choose, and its predicted seconds, after trials that took
        /// these seconds.
        fn choice(&mut self, seconds: impl Fn(Algorithm, usize) -> f64) -> (Algorithm, f64) {
            self.choice_at(CHOSEN_POINT, seconds)
        }

        fn choice_at(
            &mut self,
            chosen_point: usize,
            seconds: impl Fn(Algorithm, usize) -> f64,
        ) -> (Algorithm, f64) {
            let size = self.planners.len() as u32;
            let mut forms =
                Forms::of(&mut self.planners[0], |it, point| request_of(it, point, size));
            forms.cable_bytes = self.cable_bytes;
            let all: Vec<_> =
                self.planners[0].candidates(&request(0)).map(|it| it.algorithm).collect();
            let short = (0..6).flat_map(|point| all.iter().map(move |&one| (one, point)));
            let tried = short.chain(LONG.map(|one| (one, LONG_POINT)));
            let trials = tried.map(|(algorithm, point)| Trial {
                algorithm,
                request: request(point),
                point,
                expected: 1.0,
                tries: vec![seconds(algorithm, point)],
            });
            let tuning = forms.tuning(&trials.collect::<Vec<_>>());
            let mut chosen = Vec::new();
            for planner in &mut self.planners {
                planner.set_tuning(tuning);
                let request = request(chosen_point);
                let algorithm = planner.choose(&request);
                let mut all = planner.candidates(&request);
                let made = all.find(|one| one.algorithm == algorithm).unwrap();
                chosen.push((algorithm, made.seconds.unwrap()));
            }
            assert!(chosen.iter().all(|one| *one == chosen[0]), "{chosen:?}");
            chosen[0]
        }
    }

    fn request(point: usize) -> Request {
        request_of(ALL_REDUCE, point, 6)
    }

    /// Seconds of a call over cables of 1 Gbit/s.
    fn over_cables(cable_bytes: &CableBytes, algorithm: Algorithm, point: usize) -> f64 {
        1e-3 + 8e-9 * cable_bytes[algorithm as usize] * bytes(point)
    }

    #[test]
    fn uneven_hosts_have_equal_shares_by_hierarchical_and_not_by_a_ring() {
        let share = Uneven::new(FAR).cable_bytes;
        for (algorithm, expected) in [(Hierarchical, 4.0 / 3.0), (OneRing, 5.0 / 3.0)] {
            assert!((share[algorithm as usize] - expected).abs() < 1e-4, "{algorithm} {share:?}");
        }
    }

    #[test]
    fn a_disturbed_try_hides_nothing_of_what_cables_carry() {
        let disturbances = LONG.map(|one| [1.0, 1.25, 1.5, 1.9].map(|times| (one, times))).concat();
        for (far, (disturbed, times)) in
            [FAR, FAR_DISTURBED].iter().flat_map(|far| disturbances.iter().map(move |it| (far, it)))
        {
            let mut world = Uneven::new(*far);
            let cable_bytes = world.cable_bytes;
            let (chosen, seconds) = world.choice(|algorithm, point| {
                let is_disturbed = (algorithm, point) == (*disturbed, LONG_POINT);
                let seconds = over_cables(&cable_bytes, algorithm, point);
                if is_disturbed { seconds * times } else { seconds }
            });
            assert_eq!(chosen, Hierarchical, "{disturbed} {times}");
            let ratio = seconds / over_cables(&cable_bytes, Hierarchical, CHOSEN_POINT);
            assert!((0.99..1.15).contains(&ratio), "{disturbed} {times}: {ratio}");
        }
    }

    #[test]
    fn disturbed_short_tries_say_nothing_of_the_rate() {
        let mut world = Uneven::new(FAR);
        let cable_bytes = world.cable_bytes;
        for disturbed in LONG {
            let (chosen, _) = world.choice(|algorithm, point| match point < LONG_POINT {
                true if algorithm == disturbed => 25e-3,
                _ => over_cables(&cable_bytes, algorithm, point),
            });
            assert_eq!(chosen, Hierarchical, "{disturbed}");
        }
    }

    /// A cable that has rested takes short tries at once.
    #[test]
    fn a_burst_of_short_tries_hides_nothing_of_what_cables_carry() {
        let mut world = Uneven::new(FAR);
        let cable_bytes = world.cable_bytes;
        let (chosen, seconds) = world.choice_at(LONG_POINT - 2, |algorithm, point| match point {
            0..LONG_POINT if algorithm == OneRing => 1e-4,
            0..LONG_POINT => 1.2e-4,
            _ => over_cables(&cable_bytes, algorithm, point),
        });
        assert_eq!(chosen, Hierarchical);
        let least = over_cables(&cable_bytes, Hierarchical, LONG_POINT - 2) - 1e-3;
        assert!((0.9..1.1).contains(&(seconds / least)), "{seconds} {least}");
    }

    /// An algorithm that was tried with short calls alone takes the time of its bytes too, even if
    /// its form says that bytes take none.
    #[test]
    fn short_tries_promise_no_more_than_cables_carry() {
        let mut world = Uneven::new(FAR_DISTURBED);
        let cable_bytes = world.cable_bytes;
        world.choice(|algorithm, point| over_cables(&cable_bytes, algorithm, point));
        for one in world.planners[0].candidates(&request(CHOSEN_POINT)) {
            let least = over_cables(&cable_bytes, one.algorithm, CHOSEN_POINT) - 1e-3;
            assert!(one.seconds.unwrap() > 0.99 * least, "{one:?} {least}");
        }
    }

    /// Over a cable as fast as memory, calls that agree on a rate do so by chance.
    #[test]
    fn a_fast_cable_decides_nothing() {
        let cable_bytes = Uneven::new(FAR).cable_bytes;
        for (seconds_per_byte, decides) in [(8e-9, true), (2.1e-9, true), (0.8e-9, false)] {
            let trials = LONG.map(|algorithm| {
                [0, LONG_POINT].map(|point| {
                    let share = cable_bytes[algorithm as usize];
                    let tries = vec![1e-5 + seconds_per_byte * share * bytes(point)];
                    Trial { algorithm, request: request(point), point, expected: 1.0, tries }
                })
            });
            let trials: Vec<_> = trials.iter().flatten().collect();
            let rate = CableRate::of(&trials, &cable_bytes);
            assert_eq!(rate.is_some(), decides, "{seconds_per_byte}: {rate:?}");
        }
    }

    /// The last row agrees on a rate by chance.
    #[test]
    fn where_memory_decides_the_tries_choose() {
        let mut world = Uneven::new(FAR);
        for (fastest, nanoseconds) in [
            (OneRing, [5.0, 2.0, 2.5, 3.6]),
            (Hierarchical, [1.2, 3.0, 2.6, 4.5]),
            (OneRing, [6.0, 2.0, 2.5, 2.9]),
        ] {
            let (chosen, _) = world.choice(|algorithm, point| {
                let at = LONG.iter().position(|one| *one == algorithm);
                1e-3 + 1e-9 * at.map_or(9.0, |at| nanoseconds[at]) * bytes(point)
            });
            assert_eq!(chosen, fastest, "{nanoseconds:?}");
        }
    }
}
