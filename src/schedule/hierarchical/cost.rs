//! The closed form of rings within hosts and between them.

use super::super::hosts::HostsOfSize;
use super::super::{Collective, Hosts, Ring};
use super::Owners;
use crate::sim::Speed;

/// The time in seconds of [`Algorithm::Hierarchical`](crate::schedule::Algorithm::Hierarchical), by
/// its closed form, with the speed `near` within a host and `far` between hosts. `bytes` is the
/// length of the longer one of a rank's input and output. `None` if the algorithm does not make the
/// collective.
///
/// With chunks of m bytes, and S, R, A for the far speed as s, r, a for the near one: among the L
/// ranks of a host, a reduce-scatter of one chunk for each takes s + (L-1)(r + a), their all-gather
/// s + (L-1)(s + a). For the chunks of one host that gives p and q: once if all H hosts have L
/// ranks, otherwise as often, on average, as the hosts have multiples of L ranks. Meanwhile the far
/// message is under way. A rank is the delegate for k chunks, n/L: reduce-scatter p + (H-1)max(p,
/// A) + (k-1)R, all-gather (H-1)max(q, A) + kS + q - s, all-reduce both less S, for the host that
/// takes longest. An all-reduce over hosts of different sizes has fewer chunks, as many of each
/// host: L is that of the largest host in p and q, and that of the smallest in k. Hosts of
/// different sizes also wait for each other: the result is within -25 and +60 % of a walk, mostly
/// 10.
///
/// For one chunk, to all or from all: the longest path along the hosts and within one.
#[must_use]
pub fn hierarchical_cost(
    collective: Collective,
    order: &Ring,
    bytes: f64,
    [near, far]: [&Speed; 2],
) -> Option<f64> {
    let (hosts, owners) = (order.host_rings()?, Owners::of(collective, order)?);
    let chunk = bytes / owners.all.len() as f64;
    let start = owners.all.start;
    let form = ClosedForm { hosts, owners, chunk, near, far, waits_once: false };
    match collective {
        Collective::AllReduce => Some(form.scatter() + form.gather() - far.moved(form.chunk)),
        Collective::ReduceScatter => Some(form.scatter()),
        Collective::AllGather => Some(form.gather()),
        Collective::Broadcast { .. } => Some(form.spread(start)),
        Collective::Reduce { .. } => Some(form.reduced(start)),
        Collective::Barrier => {
            let both = form.reduced(start) + form.spread(start);
            Some(both - far.moved(form.chunk))
        }
        _ => None,
    }
}

/// The time in seconds of a two-level all-reduce; arguments and result as of [`hierarchical_cost`],
/// whose form it is, but with one latency for all ranks of a host, which wait for each other at
/// once.
#[must_use]
pub fn two_level_cost(order: &Ring, bytes: f64, [near, far]: [&Speed; 2]) -> Option<f64> {
    let hosts = order.host_rings().filter(|_| order.grid().is_some())?;
    let owners = Owners::of(Collective::AllReduce, order)?;
    let chunk = bytes / f64::from(order.size());
    let form = ClosedForm { hosts, owners, chunk, near, far, waits_once: true };
    Some(form.scatter() + form.gather() - far.moved(chunk))
}

struct ClosedForm<'a> {
    hosts: &'a Hosts,
    owners: Owners,
    /// Bytes of a chunk.
    chunk: f64,
    near: &'a Speed,
    far: &'a Speed,
    /// True if a rank waits for all others of its host at once, not for one after the other.
    waits_once: bool,
}

/// The figures of one host in the closed form.
struct OneHost {
    /// Chunks for which a rank of the host is the delegate.
    share: f64,
    /// Seconds that the chunks of one host take within this one.
    within: f64,
    /// The number of other hosts.
    others: f64,
}

impl ClosedForm<'_> {
    /// The longest time of a host. `hop` is the time per further rank within the host.
    fn longest(&self, hop: f64, seconds: impl Fn(OneHost) -> f64) -> f64 {
        let hosts = f64::from(self.hosts.count());
        let (all, sizes) = (self.owners.all.len() as f64, self.hosts.sizes());
        let others = hosts - 1.0;
        let share = |ranks: u32| all / f64::from(ranks);
        // Hosts with as many owners wait for the largest one, and the ranks of the smallest one
        // have the most chunks.
        if let ([smallest, .., largest], Some(_)) = (sizes, self.owners.each) {
            let within = self.within(largest.ranks, hop);
            return seconds(OneHost { share: share(smallest.ranks), within, others });
        }
        let each = |&HostsOfSize { ranks, .. }: &HostsOfSize| {
            let waves = |other: &HostsOfSize| f64::from(other.ranks.div_ceil(ranks) * other.hosts);
            let waves = sizes.iter().map(waves).sum::<f64>() / hosts;
            let within = waves * self.within(ranks, hop);
            seconds(OneHost { share: share(ranks), within, others })
        };
        sizes.iter().map(each).fold(0.0, f64::max)
    }

    /// Seconds that a collective of one chunk per rank takes within a host.
    fn within(&self, ranks: u32, hop: f64) -> f64 {
        let others = f64::from(ranks - 1);
        let waits = if self.waits_once { 1.0 } else { others };
        if ranks > 1 {
            self.near.moved(self.chunk) + others * hop + waits * self.near.latency
        } else {
            0.0
        }
    }

    fn scatter(&self) -> f64 {
        let (fold, wait) = (self.far.folded(self.chunk), self.far.latency);
        self.longest(self.near.folded(self.chunk), |OneHost { share, within, others }| {
            within + others * within.max(wait) + (share - 1.0) * fold
        })
    }

    fn gather(&self) -> f64 {
        let (s, pass, wait) =
            (self.near.moved(self.chunk), self.far.moved(self.chunk), self.far.latency);
        self.longest(s, |OneHost { share, within, others }| {
            others * within.max(wait) + share * pass + (within - s).max(0.0)
        })
    }

    /// One chunk, from its owner to all ranks.
    fn spread(&self, owner: u32) -> f64 {
        let (s, pass) = (self.near.moved(self.chunk), self.far.moved(self.chunk));
        let (count, first) = (self.hosts.count(), self.hosts.host(owner));
        let done = (0..count).map(|hops| {
            let within = self.within(self.hosts.ranks((first + hops) % count), s);
            // The last host passes the chunk on only within itself.
            let passed = hops + u32::from(hops + 1 < count || within == 0.0);
            f64::from(passed) * pass + f64::from(hops) * self.far.latency + within
        });
        done.fold(0.0, f64::max)
    }

    /// One chunk, reduced over all ranks to its owner.
    fn reduced(&self, owner: u32) -> f64 {
        let (r, fold) = (self.near.folded(self.chunk), self.far.folded(self.chunk));
        let (count, first) = (self.hosts.count(), self.hosts.host(owner));
        let within = |hops| self.within(self.hosts.ranks((first + hops) % count), r);
        // The first host sends its sum as soon as it is complete.
        let start = match within(1) {
            0.0 => self.far.moved(self.chunk),
            within => within - r + fold,
        };
        let then = |now: f64, hops| within(hops).max(now + self.far.latency) + fold;
        (2..=count).fold(start, then)
    }
}

#[cfg(test)]
mod tests {
    use super::{Collective, Ring, Speed, hierarchical_cost};
    use crate::partition::{Partition, SlotShape};
    use crate::schedule::Algorithm;
    use crate::sim::{Random, Shape, timeline};

    const NEAR: Speed = Speed { latency: 0.3e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };
    const FAR: Speed = Speed { latency: 20e-6, step: 2e-6, byte: 0.3e-9, reduce: 0.05e-9 };
    const CHUNK: usize = 64 * 1024;

    fn through(hosts: &[u32]) -> Ring {
        let mut next = 0..;
        let ranks = hosts.iter().map(|&ranks| next.by_ref().take(ranks as usize).collect());
        Ring::through(&ranks.collect::<Vec<_>>()).unwrap()
    }

    /// The ratio of the closed form to a simulated walk; `None` if the collective is not made.
    fn ratio(collective: Collective, hosts: &[u32], [near, far]: [&Speed; 2]) -> Option<f64> {
        let ring = through(hosts);
        let schedules = Algorithm::Hierarchical.schedules(collective, &ring)?;
        let slots = SlotShape { bytes: CHUNK, capacity: 2 };
        let partition = [Partition::exact(CHUNK, 1, slots)];
        let chunks = schedules[0].input.max(schedules[0].output) as usize;
        let shape = Shape::of(&partition, 2 * ring.size() as usize);
        let host = |rank| ring.hosts().position(|host| host.contains(&rank));
        let speed = |from, to| if host(from) == host(to) { *near } else { *far };
        let spans = timeline(collective, &schedules, &shape, speed).unwrap();
        let walk = spans.iter().map(|span| span.time[1]).fold(0.0, f64::max);
        let bytes = (chunks * CHUNK) as f64;
        Some(hierarchical_cost(collective, &ring, bytes, [near, far]).unwrap() / walk)
    }

    fn speeds() -> Vec<Speed> {
        let speeds = [[1e-6, 0.3e-6, 0.05, 0.02], [20e-6, 0.0, 0.1, 0.0], [0.0, 2e-6, 0.1, 0.9]];
        let speed = |[latency, step, byte, reduce]: [f64; 4]| Speed {
            latency,
            step,
            byte: byte * 1e-9,
            reduce: reduce * 1e-9,
        };
        speeds.map(speed).into_iter().chain([NEAR, FAR]).collect()
    }

    #[test]
    fn hosts_of_one_size_cost_what_a_walk_costs() {
        for [count, each] in [[2, 2], [2, 3], [3, 2], [3, 4], [4, 4], [8, 2], [2, 8], [5, 3]] {
            for collective in Collective::all(1) {
                for speed in speeds() {
                    let hosts = vec![each; count as usize];
                    let Some(ratio) = ratio(collective, &hosts, [&speed; 2]) else { continue };
                    assert!((ratio - 1.0).abs() <= 1e-9, "{collective:?} {hosts:?}: {ratio}");
                }
            }
        }
    }

    /// A collective of one chunk costs exactly what the walk does, on any hosts and links.
    #[test]
    fn hosts_of_different_sizes_cost_about_what_a_walk_costs() {
        let mut random = Random::new(9);
        for _ in 0..80 {
            let most = 1 + random.below(8);
            let hosts: Vec<u32> =
                (0..2 + random.below(8)).map(|_| 1 + random.below(most) as u32).collect();
            let size: u32 = hosts.iter().sum();
            let pairs = speeds().into_iter().map(|speed| [speed, speed]).chain([[NEAR, FAR]]);
            for [near, far] in pairs {
                for collective in Collective::all(size) {
                    let Some(ratio) = ratio(collective, &hosts, [&near, &far]) else { continue };
                    let one = collective.root().is_some() || collective == Collective::Barrier;
                    let range = if one { 1.0 - 1e-9..1.0 + 1e-9 } else { 0.75..1.6 };
                    assert!(range.contains(&ratio), "{collective:?} {hosts:?}: {ratio}");
                }
            }
        }
    }
}
