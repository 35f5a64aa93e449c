//! Hierarchical collectives: rings within hosts and between them, for hosts of any numbers of
//! ranks. Each chunk is reduced within every host to the delegate of its owner there, then along
//! the ring of hosts; all-gather goes the other way. As many bytes as on one ring, and only H-1
//! hops between H hosts each way. In an all-reduce each host owns as many chunks as the host with
//! the fewest ranks has ranks, so that hosts of different sizes send as many bytes as hosts of one
//! size, 2(H-1)/H of the buffer each. Law: a rank handles the chunks of one host at a time, in the
//! order in which the ring of hosts needs them, so links need no more slots than on one ring.
//!
//! Source: Jia et al., "Highly scalable deep learning training system with mixed-precision",
//! arXiv 1807.11205 (2018), with rings for both levels. Cost: see `hierarchical_cost`.
//! # Example
//!
//! An all-reduce of four ranks; ranks 0 and 1 are on one host. Steps 1 to 4 reduce within the
//! hosts, step 5 adds what the other host has sent in step 2, and steps 6 to 9 gather:
//!
//! ```text
//!     rank 0              rank 1              rank 2              rank 3
//! 1   3: a > 1            2: b > 0            1: c > 3            0: d > 2
//! 2   2: b+a > 2          3: a+b > 3          0: d+c > 0          1: c+d > 1
//! 3   1: a > 1            0: b > 0            3: c > 3            2: d > 2
//! 4   0 = b+a             1 = a+b             2 = d+c             3 = c+d
//! 5   0 = d+c+(b+a) > 2   1 = c+d+(a+b) > 3   2 = b+a+(d+c) > 0   3 = a+b+(c+d) > 1
//! 6   0: d+c+(b+a) > 1    1: c+d+(a+b) > 0    2: b+a+(d+c) > 3    3: a+b+(c+d) > 2
//! 7   1 = c+d+(a+b)       0 = d+c+(b+a)       3 = a+b+(c+d)       2 = b+a+(d+c)
//! 8   2 = b+a+(d+c) > 1   3 = a+b+(c+d) > 0   0 = d+c+(b+a) > 3   1 = c+d+(a+b) > 2
//! 9   3 = a+b+(c+d)       2 = b+a+(d+c)       1 = c+d+(a+b)       0 = d+c+(b+a)
//! ```

use core::ops::Range;

use super::{
    Collective, Definition, Hosts, Op, Place, Ring, Schedule, Space, Step, Volume, fuse, ring,
};

mod cost;
mod two_level;

pub use cost::{hierarchical_cost, two_level_cost};
pub(super) use two_level::TWO_LEVEL;
pub(crate) use two_level::{TwoLevelStep, between_hosts, two_level_steps};

/// Chunks that a rank may send to another before that rank receives the first: a delegate for
/// several chunks of a host has one more under way than its peer waits for.
const WINDOW: usize = 2;

/// There is no cost for a single speed: see [`hierarchical_cost`].
pub(super) const DEFINITION: Definition = Definition {
    name: "hierarchical",
    window: WINDOW,
    chunks: |collective, order| match Owners::of(collective, order) {
        Some(owners) => owners.all.len() as u32,
        None => (Definition::DEFAULT.chunks)(collective, order),
    },
    schedule,
    volume,
    ..Definition::DEFAULT
};

struct HostRank<'a> {
    order: &'a Ring,
    hosts: &'a Hosts,
    /// Its position on the ring, and its host.
    me: u32,
    host: u32,
    owners: Owners,
}

/// The owners of the chunks, in the order of the ring.
struct Owners {
    /// The positions of all ranks or of one; with `each`, numbers that stand for positions where a
    /// delegate is looked up.
    all: Range<u32>,
    /// The number of owners on each host, where it is the same: in an all-reduce. The owner is the
    /// delegate on its own host. If all hosts have as many ranks, numbers are positions.
    each: Option<u32>,
}

impl Owners {
    /// `None` if the collective is not made here.
    fn of(collective: Collective, order: &Ring) -> Option<Self> {
        let hosts = order.host_rings()?;
        let one = |rank| order.position(rank)..order.position(rank) + 1;
        let each = (collective == Collective::AllReduce).then(|| hosts.least_ranks());
        let all = match collective {
            Collective::AllReduce => 0..hosts.count() * hosts.least_ranks(),
            Collective::ReduceScatter | Collective::AllGather => 0..order.size(),
            Collective::Broadcast { root } | Collective::Reduce { root } => one(root),
            Collective::Barrier => one(0),
            _ => return None,
        };
        Some(Self { all, each })
    }

    /// The owners on a host.
    fn on(&self, hosts: &Hosts, host: u32) -> Range<u32> {
        let Range { start, end } = match self.each {
            Some(each) => host * each..(host + 1) * each,
            None => hosts.places(host),
        };
        start.max(self.all.start)..end.min(self.all.end)
    }
}

/// The schedule of rank `me`; `None` without rings within and between hosts.
fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let (hosts, owners) = (order.host_rings()?, Owners::of(collective, order)?);
    let me = order.position(me);
    let rank = HostRank { order, host: hosts.host(me), hosts, me, owners };
    Some(match collective {
        Collective::ReduceScatter | Collective::Reduce { .. } => rank.reduce_scatter(),
        Collective::AllGather | Collective::Broadcast { .. } => rank.all_gather(),
        _ => rank.all_reduce(),
    })
}

impl HostRank<'_> {
    /// The number of the chunk of an owner.
    fn chunk(&self, owner: u32) -> u32 {
        match self.owners.all.len() as u32 {
            1 => 0,
            all if all == self.order.size() => self.order.at(owner),
            _ => owner,
        }
    }

    /// The owners on a host, in waves such that no rank of this host is the delegate of two owners.
    fn waves(&self, host: u32) -> impl Iterator<Item = Range<u32>> + use<> {
        let Range { start, end } = self.owners.on(self.hosts, host);
        let ranks = self.hosts.ranks(self.host);
        (start..end).step_by(ranks as usize).map(move |at| at..end.min(at + ranks))
    }

    /// The owner in a wave whose delegate on this host is the rank at position `delegate`.
    fn owner(&self, wave: &Range<u32>, delegate: u32) -> Option<u32> {
        let owner = self.hosts.first_owner(delegate, wave.start);
        wave.contains(&owner).then_some(owner)
    }

    /// The owner that this rank is itself.
    fn own(&self) -> Option<u32> {
        self.waves(self.host).find_map(|wave| self.owner(&wave, self.me))
    }

    /// This rank's steps of a ring within its host, with places mapped by `to`. Steps on places
    /// that do not exist are left out.
    fn within(
        &self,
        ring: fn(&Ring, u32) -> Schedule,
        to: impl Fn(Place) -> Option<Place>,
    ) -> Vec<Step> {
        let own = self.hosts.places(self.host);
        let schedule = ring(&Ring::natural(own.len() as u32), self.me - own.start);
        let steps = schedule.steps.into_iter().filter_map(|step| {
            let [from, other] = [step.from, step.to].map(|seat| self.order.at(own.start + seat));
            let (src, dst) = (to(step.src)?, to(step.dst)?);
            let nothing = step.op == Op::Copy && src == dst;
            // A partial sum has the contributions of this host alone, so it is not the last.
            (!nothing).then_some(Step { from, to: other, src, dst, last: false, ..step })
        });
        steps.collect()
    }

    /// This rank's steps of a ring between hosts; peers and places are numbers of hosts.
    fn between(&self, ring: fn(&Ring, u32) -> Schedule) -> Vec<Step> {
        ring(&Ring::natural(self.hosts.count()), self.host).steps
    }

    /// A step between hosts for an owner's chunk, with the delegates as peers.
    fn across(&self, step: Step, owner: u32, [src, dst]: [Place; 2]) -> Step {
        let peer = |host| self.order.at(self.hosts.delegate(host, owner));
        Step { from: peer(step.from), to: peer(step.to), src, dst, ..step }
    }

    /// For each step between hosts, that host's chunks are first reduced within this one. The sum
    /// for the first step is sent by the step that completes it; the others wait in the scratch for
    /// the incoming chunk.
    fn reduce_scatter(&self) -> Schedule {
        let mut all = Schedule::new(self.owners.all.len() as u32, 1);
        let is_single = self.hosts.ranks(self.host) == 1;
        let given = |owner| Place::input(self.chunk(owner));
        for step in self.between(ring::reduce_scatter) {
            for wave in self.waves(step.src.chunk) {
                let mine = self.owner(&wave, self.me);
                let sum = match mine {
                    Some(owner) if is_single => given(owner),
                    _ => Place::scratch(all.scratch.len() as u32),
                };
                let first = self.hosts.places(self.host).start;
                all.steps.extend(self.within(ring::reduce_scatter, |place| match place.space {
                    Space::Input => self.owner(&wave, first + place.chunk).map(given),
                    Space::Output | Space::Scratch => Some(sum),
                }));
                let Some(owner) = mine else { continue };
                let dst = if step.op.stores() { Place::output(0) } else { sum };
                let across = self.across(step, owner, [sum, dst]);
                match all.steps.last_mut() {
                    Some(fold) if step.op == Op::Send && !is_single => {
                        (fold.op, fold.dst, fold.to) = (Op::RecvReduceSend, fold.src, across.to);
                    }
                    _ => {
                        all.scratch.extend((!is_single).then(|| given(owner)));
                        all.steps.push(across);
                    }
                }
            }
        }
        all
    }

    /// A chunk from another host is forwarded within this one.
    fn all_gather(&self) -> Schedule {
        let all = |steps| Schedule { steps, ..Schedule::new(1, self.owners.all.len() as u32) };
        let gathered = |owner| Place::output(self.chunk(owner));
        let own = self.own();
        let place = |owner| if own == Some(owner) { Place::input(0) } else { gathered(owner) };
        let first = self.hosts.places(self.host).start;
        let mut schedule = all(Vec::new());
        for step in self.between(ring::all_gather) {
            let host = match step.op {
                Op::Send | Op::Copy => self.host,
                _ => step.dst.chunk,
            };
            for wave in self.waves(host) {
                let mine = self.owner(&wave, self.me);
                if let Some(owner) = mine.filter(|_| step.op != Op::Copy) {
                    let across = self.across(step, owner, [place(owner); 2]);
                    schedule = fuse(schedule, all(vec![across]));
                }
                if step.op != Op::Send {
                    let part = self.within(ring::all_gather, |to| match to.space {
                        Space::Output => self.owner(&wave, first + to.chunk).map(gathered),
                        Space::Input | Space::Scratch => mine.map(place),
                    });
                    schedule = fuse(schedule, all(part));
                }
            }
        }
        schedule
    }

    /// Reduce-scatter and all-gather, fused; the scratch of the first becomes the output.
    fn all_reduce(&self) -> Schedule {
        let n = self.owners.all.len() as u32;
        // A rank that is no owner has no such place.
        let mine = Place::output(self.own().map_or(0, |owner| self.chunk(owner)));
        let scatter = self.reduce_scatter();
        let like = scatter.scratch.clone();
        let mut scatter = scatter.moved(n, n, |place| match place.space {
            Space::Input => place,
            Space::Output => mine,
            Space::Scratch => Place::output(like[place.chunk as usize].chunk),
        });
        scatter.scratch.clear();
        let gather = self.all_gather().moved(n, n, |place| match place.space {
            Space::Input => mine,
            Space::Output | Space::Scratch => place,
        });
        fuse(scatter, gather)
    }
}

/// The chunks that these schedules send: every chunk is sent once by each rank but its owner on the
/// way to the owner, and as often on the way back. On the way there, each rank sends each chunk
/// once of which it is not the owner.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let owners = Owners::of(collective, order)?;
    let hosts = order.host_rings()?;
    let others = u64::from(order.size() - 1);
    let chunks = owners.all.len() as u64;
    let (to, from) = match collective {
        Collective::ReduceScatter | Collective::Reduce { .. } => (others, 0),
        Collective::AllGather | Collective::Broadcast { .. } => (0, others),
        _ => (others, others),
    };
    let most = match collective {
        Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => {
            most_sent(hosts, &owners, [to > 0, from > 0])
        }
        Collective::Reduce { .. } => 1,
        _ => most_spread(hosts, owners.all.start, collective == Collective::Barrier),
    };
    Some(Volume { most, total: chunks * (to + from) })
}

/// Chunks that the busiest rank sends in a reduce-scatter, an all-gather or both. In an all-gather,
/// to the next rank of its host all but those for which that rank is the delegate, and to the next
/// host those for which it is the delegate itself, except that host's own.
fn most_sent(hosts: &Hosts, owners: &Owners, [scatters, gathers]: [bool; 2]) -> u64 {
    let all = owners.all.len() as u32;
    let most = (0..hosts.count()).map(|host| {
        let ranks = hosts.ranks(host);
        let places = hosts.places(host);
        // The number of these owners whose delegate is the rank at a position.
        let share = |at: u32, of: Range<u32>| {
            let first = hosts.first_owner(at, of.start) - of.start;
            (of.len() as u32 + ranks - 1 - first) / ranks
        };
        let next_host = owners.on(hosts, (host + 1) % hosts.count());
        let sent = places.clone().map(|at| {
            let next = places.start + (at + 1 - places.start) % ranks;
            let [mine, others] = [at, next].map(|at| share(at, 0..all));
            let scattered = all - share(at, owners.on(hosts, host));
            let gathered = all - others + mine - share(at, next_host.clone());
            u32::from(scatters) * scattered + u32::from(gathers) * gathered
        });
        sent.max().unwrap_or(0)
    });
    most.max().unwrap_or(0).into()
}

/// Chunks that the busiest rank sends if there is only one chunk: the owner, or a delegate, sends
/// it to the next host and within its own; in a barrier it also sends to the previous host before.
fn most_spread(hosts: &Hosts, owner: u32, barrier: bool) -> u64 {
    let (count, first) = (hosts.count(), hosts.host(owner));
    let sent = (0..count).map(|hops| {
        let several = hosts.ranks((first + hops) % count) > 1;
        u64::from(hops + 1 < count) + u64::from(several) + u64::from(barrier && hops > 0)
    });
    sent.max().unwrap_or(0)
}
