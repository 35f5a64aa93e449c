//! Hosts with as many ranks each: reduce-scatter within the host, then a ring between the hosts for
//! each share of the buffer, then all-gather within the host. As many bytes as the ring's, and only
//! H-1 hops between H hosts each way, instead of n-1 at the pace of the slowest.
//! May touch: ring, fuse, sim's Speed. Law: a rank works a host's worth of chunks at a time, in the
//! order in which the hosts' ring wants them, so that links need no more slots than the ring's.
//!
//! Source: Jia et al., "Highly scalable deep learning training system with mixed-precision",
//! arXiv 1807.11205 (2018), with rings for both levels. Cost: see `hierarchical_cost`.

use super::{Collective, Definition, Op, Place, Ring, Schedule, Space, Step, Volume, fuse, ring};
use crate::sim::Speed;

/// Its cost is not the size's alone: see [`hierarchical_cost`].
pub(super) const DEFINITION: Definition = Definition {
    name: "hierarchical",
    schedule,
    volume: |collective, order| order.grid().and_then(|_| volume(collective, order)),
    ..Definition::USUAL
};

/// A rank among hosts with as many ranks each.
struct Seat<'a> {
    hosts: Vec<&'a [u32]>,
    me: u32,
    host: usize,
    local: usize,
}

/// The schedule of rank `me`; `None` unless there are several hosts, of several ranks each, and of
/// as many.
fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let [_, each] = order.grid()?;
    let (hosts, at) = (order.hosts().collect(), order.position(me));
    let seat = Seat { hosts, me, host: (at / each) as usize, local: (at % each) as usize };
    match collective {
        Collective::AllReduce => Some(seat.all_reduce()),
        Collective::ReduceScatter => Some(seat.reduce_scatter()),
        Collective::AllGather => Some(seat.all_gather()),
        _ => None,
    }
}

impl Seat<'_> {
    fn size(&self) -> u32 {
        (self.hosts.len() * self.hosts[0].len()) as u32
    }

    /// The rank with my seat on another host.
    fn peer(&self, host: u32) -> u32 {
        self.hosts[host as usize][self.local]
    }

    /// My steps of a ring within my host.
    fn within(&self, ring: fn(&Ring, u32) -> Schedule, to: impl Fn(Place) -> Place) -> Schedule {
        let own = self.hosts[self.host];
        let schedule = ring(&Ring::natural(own.len() as u32), self.local as u32);
        let steps = schedule.steps.into_iter().map(|step| {
            let [from, to] = [step.from, step.to].map(|local| own[local as usize]);
            Step { from, to, ..step }
        });
        let steps = steps.collect();
        Schedule { steps, ..schedule }.moved(0, 0, to)
    }

    /// My steps of a ring between the hosts; places are still numbered by host.
    fn between(&self, ring: fn(&Ring, u32) -> Schedule) -> Vec<Step> {
        let schedule = ring(&Ring::natural(self.hosts.len() as u32), self.host as u32);
        let peers =
            |step: Step| Step { from: self.peer(step.from), to: self.peer(step.to), ..step };
        schedule.steps.into_iter().map(peers).collect()
    }

    /// For each step between the hosts, that host's chunks are first reduced within mine. The first
    /// of my share goes out as it is made, others wait in the scratch for what comes in.
    fn reduce_scatter(&self) -> Schedule {
        let mut steps = Vec::with_capacity(self.size() as usize + 2 * self.hosts.len());
        let mut scratch = Vec::with_capacity(self.hosts.len());
        for step in self.between(ring::reduce_scatter) {
            let host = step.src.chunk;
            let mine = Place::input(self.peer(host));
            let sum = Place::scratch(scratch.len() as u32);
            let part = self.within(ring::reduce_scatter, |place| match place.space {
                Space::Input => Place::input(self.hosts[host as usize][place.chunk as usize]),
                Space::Output | Space::Scratch => sum,
            });
            steps.extend(part.steps);
            let Some(fold) = steps.last_mut() else { continue };
            // It has the contributions of this host alone.
            fold.last = false;
            if step.op == Op::Send {
                (fold.op, fold.dst, fold.to) = (Op::RecvReduceSend, fold.src, step.to);
            } else {
                scratch.push(mine);
                let dst = if step.op.stores() { step.dst } else { sum };
                steps.push(Step { src: sum, dst, ..step });
            }
        }
        Schedule { scratch, steps, ..Schedule::new(self.size(), 1) }
    }

    /// What comes from another host goes on within mine.
    fn all_gather(&self) -> Schedule {
        let all = |steps| Schedule { steps, ..Schedule::new(1, self.size()) };
        let mut schedule = all(Vec::new());
        for step in self.between(ring::all_gather) {
            let (host, place) = match step.op {
                Op::Send | Op::Copy => (self.host as u32, Place::input(0)),
                _ => (step.dst.chunk, Place::output(self.peer(step.dst.chunk))),
            };
            if step.op != Op::Copy {
                let across = Step { src: place, dst: place, ..step };
                schedule = fuse(schedule, all(vec![across]));
            }
            if step.op != Op::Send {
                let part = self.within(ring::all_gather, |to| match to.space {
                    Space::Output => Place::output(self.hosts[host as usize][to.chunk as usize]),
                    Space::Input | Space::Scratch => place,
                });
                schedule = fuse(schedule, all(part.steps));
            }
        }
        schedule
    }

    /// Both, fused; the output is what was the scratch.
    fn all_reduce(&self) -> Schedule {
        let n = self.size();
        let scatter = self.reduce_scatter();
        let like = scatter.scratch.clone();
        let mut scatter = scatter.moved(n, n, |place| match place.space {
            Space::Input => place,
            Space::Output => Place::output(self.me),
            Space::Scratch => Place::output(like[place.chunk as usize].chunk),
        });
        scatter.scratch.clear();
        let gather = self.all_gather().moved(n, n, |place| match place.space {
            Space::Input => Place::output(self.me),
            Space::Output | Space::Scratch => place,
        });
        fuse(scatter, gather)
    }
}

/// What these schedules send: what the ring's do.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let ours = matches!(
        collective,
        Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather
    );
    ours.then(|| collective.volume(order))
}

/// Seconds that [`Algorithm::Hierarchical`](super::Algorithm::Hierarchical) takes over `hosts`
/// hosts of `each` ranks, by its closed form: what `near` says is within a host, `far` between
/// hosts. `bytes` is the length of the longer one of a rank's input and output.
///
/// With chunks of m bytes, and S, R, A of the far as s, r, a of the near: reducing one host's
/// chunks takes p = s + (L-1)(r + a), gathering them q = s + (L-1)(s + a), and meanwhile the far
/// message is under way: reduce-scatter p + (H-1)(max(p, A) + R), all-gather
/// S + (H-1)(max(q, A) + S) + q - s, all-reduce both less S.
#[must_use]
pub fn hierarchical_cost(
    collective: Collective,
    [hosts, each]: [u32; 2],
    bytes: f64,
    [near, far]: [&Speed; 2],
) -> Option<f64> {
    let own = bytes / f64::from(hosts) / f64::from(each);
    let (hops, others) = (f64::from(hosts) - 1.0, f64::from(each) - 1.0);
    let sent = near.moved(own);
    let reduced = sent + others * (near.folded(own) + near.latency);
    let gathered = sent + others * (sent + near.latency);
    let scatter = reduced + hops * (reduced.max(far.latency) + far.folded(own));
    let passed = far.moved(own);
    let gather = passed + hops * (gathered.max(far.latency) + passed) + gathered - sent;
    match collective {
        Collective::AllReduce => Some(scatter + gather - passed),
        Collective::ReduceScatter => Some(scatter),
        Collective::AllGather => Some(gather),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Algorithm;
    use super::{Collective, Ring, Speed, hierarchical_cost};
    use crate::partition::{Partition, SlotShape};
    use crate::sim::{Shape, cost};

    #[test]
    fn the_closed_form_is_the_cost_of_a_walk() {
        let chunk = 64 * 1024;
        let partition = [Partition::exact(chunk, 1, SlotShape { bytes: chunk, capacity: 2 })];
        for [hosts, each] in [[2, 2], [2, 3], [3, 2], [3, 4], [4, 4], [8, 2], [2, 8], [5, 3]] {
            let size = hosts * each;
            let ranks = |host| (host * each..(host + 1) * each).collect();
            let ring = Ring::through(&(0..hosts).map(ranks).collect::<Vec<_>>()).unwrap();
            for speed in [[1e-6, 0.3e-6, 0.05, 0.02], [20e-6, 0.0, 0.1, 0.0], [0.0, 2e-6, 0.1, 0.9]]
            {
                let [latency, step, byte, reduce] = speed;
                let speed = Speed { latency, step, byte: byte * 1e-9, reduce: reduce * 1e-9 };
                for collective in
                    [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather]
                {
                    let schedules = Algorithm::Hierarchical.schedules(collective, &ring).unwrap();
                    let shape = Shape::of(&partition, 2 * size as usize);
                    let walk = cost(collective, &schedules, &shape, speed).unwrap();
                    let bytes = (size as usize * chunk) as f64;
                    let form = hierarchical_cost(collective, [hosts, each], bytes, [&speed; 2]);
                    let form = form.unwrap();
                    assert!(
                        (walk - form).abs() <= 1e-9 * walk,
                        "{collective:?} {hosts} x {each} {speed:?}: {walk} {form}"
                    );
                }
            }
        }
    }
}
