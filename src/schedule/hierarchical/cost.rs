//! What rings within hosts and between them cost. May touch: ring, sim's Speed.

use super::super::{Collective, Hosts, Ring};
use super::owners;
use crate::sim::Speed;

/// Seconds that [`Algorithm::Hierarchical`](crate::schedule::Algorithm::Hierarchical) takes, by
/// its closed form: what `near` says is within a host, `far` between hosts. `bytes` is the length
/// of the longer one of a rank's input and output.
///
/// With chunks of m bytes, and S, R, A of the far as s, r, a of the near: among the L ranks of a
/// host, reducing a chunk for each takes s + (L-1)(r + a), gathering them s + (L-1)(s + a). For a
/// host's chunks that is p and q: once where all H hosts have as many, otherwise as often as theirs
/// are more than L, on average. Meanwhile the far message is under way. A rank stands for k chunks,
/// n/L: reduce-scatter p + (H-1)max(p, A) + (k-1)R, all-gather (H-1)max(q, A) + kS + q - s,
/// all-reduce both less S, of that host which takes longest. Where hosts differ they also wait for
/// each other: within -25 and +60 % of a walk, mostly 10.
///
/// One chunk, to all or from all: the longest of the ways along the hosts and within one.
#[must_use]
pub fn hierarchical_cost(
    collective: Collective,
    order: &Ring,
    bytes: f64,
    [near, far]: [&Speed; 2],
) -> Option<f64> {
    let (hosts, owners) = (order.host_rings()?, owners(collective, order)?);
    let form = Form { hosts, chunk: bytes / owners.len() as f64, near, far };
    match collective {
        Collective::AllReduce => Some(form.scatter() + form.gather() - far.moved(form.chunk)),
        Collective::ReduceScatter => Some(form.scatter()),
        Collective::AllGather => Some(form.gather()),
        Collective::Broadcast { .. } => Some(form.spread(owners.start)),
        Collective::Reduce { .. } => Some(form.reduced(owners.start)),
        Collective::Barrier => {
            let both = form.reduced(owners.start) + form.spread(owners.start);
            Some(both - far.moved(form.chunk))
        }
        _ => None,
    }
}

struct Form<'a> {
    hosts: &'a Hosts,
    /// Bytes of a chunk.
    chunk: f64,
    near: &'a Speed,
    far: &'a Speed,
}

impl Form<'_> {
    /// The longest time of a host: `of` says it from how many chunks a rank of its stands for, the
    /// seconds that a host's chunks take within it, and how many other hosts there are. `hop` is
    /// what one more rank takes there.
    fn longest(&self, hop: f64, of: impl Fn(f64, f64, f64) -> f64) -> f64 {
        let [n, hosts] = [self.hosts.size(), self.hosts.count()].map(f64::from);
        let sizes = self.hosts.sizes();
        let each = |&(ranks, _): &(u32, u32)| {
            let times = |&(other, many): &(u32, u32)| f64::from(other.div_ceil(ranks) * many);
            let times = sizes.iter().map(times).sum::<f64>() / hosts;
            of(n / f64::from(ranks), times * self.within(ranks, hop), hosts - 1.0)
        };
        sizes.iter().map(each).fold(0.0, f64::max)
    }

    /// Seconds that a chunk for each rank takes within a host.
    fn within(&self, ranks: u32, hop: f64) -> f64 {
        let others = f64::from(ranks - 1);
        if ranks > 1 {
            self.near.moved(self.chunk) + others * (hop + self.near.latency)
        } else {
            0.0
        }
    }

    fn scatter(&self) -> f64 {
        let (fold, wait) = (self.far.folded(self.chunk), self.far.latency);
        self.longest(self.near.folded(self.chunk), |share, p, others| {
            p + others * p.max(wait) + (share - 1.0) * fold
        })
    }

    fn gather(&self) -> f64 {
        let (s, pass, wait) =
            (self.near.moved(self.chunk), self.far.moved(self.chunk), self.far.latency);
        self.longest(s, |share, q, others| others * q.max(wait) + share * pass + (q - s).max(0.0))
    }

    /// One chunk, from its owner.
    fn spread(&self, owner: u32) -> f64 {
        let (s, pass) = (self.near.moved(self.chunk), self.far.moved(self.chunk));
        let (count, first) = (self.hosts.count(), self.hosts.host(owner));
        let done = (0..count).map(|hops| {
            let within = self.within(self.hosts.ranks((first + hops) % count), s);
            // The last one passes it on within its host alone.
            let passed = hops + u32::from(hops + 1 < count || within == 0.0);
            f64::from(passed) * pass + f64::from(hops) * self.far.latency + within
        });
        done.fold(0.0, f64::max)
    }

    /// One chunk, to its owner.
    fn reduced(&self, owner: u32) -> f64 {
        let (r, fold) = (self.near.folded(self.chunk), self.far.folded(self.chunk));
        let (count, first) = (self.hosts.count(), self.hosts.host(owner));
        let within = |hops| self.within(self.hosts.ranks((first + hops) % count), r);
        // The first one's last sum goes out as it is made.
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

    /// What the form says of what a walk takes, if it is made.
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
    fn of_hosts_with_as_many_ranks_it_is_the_cost_of_a_walk() {
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

    /// Of one chunk it is the cost whatever the hosts are, and their links.
    #[test]
    fn of_other_hosts_it_is_about_the_cost_of_a_walk() {
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
