//! A ring of devices: a rank's schedule read from the other end. What a step would send, the rank
//! after it fetches from where it lies, so that each rank writes its own memory alone.
//! May touch: schedule. Pure. Law: the schedule's results; what is fetched lies still until it was.

use crate::schedule::{Op, Order, Place, Schedule, Space, Step};

/// What a hop does with the chunk that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Stores it.
    Copy,
    /// Stores it reduced with my own chunk of the same number; `last` as in [`Step`].
    Reduce { last: bool },
}

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) work: Work,
    /// Where it reads: in the memory of the rank before, if it fetches, or else in its own.
    pub(crate) from: Place,
    /// The number of what it fetches, among all that the rank before has for this one.
    pub(crate) fetches: Option<usize>,
    /// The chunk of the output where it stores.
    pub(crate) to: u32,
    /// The number of what lies ready then, among all that is for the rank after.
    pub(crate) gives: Option<usize>,
}

/// All steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hops {
    pub(crate) hops: Vec<Hop>,
    /// What lies ready from the start, likewise by number.
    pub(crate) ready: Vec<usize>,
}

impl Hops {
    /// Of the rank with schedule `mine`, behind that with schedule `before`; `None` if something
    /// that is handed on lies in no buffer.
    pub(crate) fn new(before: &Schedule, mine: &Schedule) -> Option<Self> {
        let sent = |step: &&Step| step.op.sends();
        let mut given = before.steps.iter().filter(sent).map(|step| lies(before, step));
        let (mut hops, mut fetched, mut given_on) = (Self::default(), 0, 0);
        for step in &mine.steps {
            let gives = step.op.sends().then_some(given_on);
            given_on += usize::from(step.op.sends());
            if step.op == Op::Send {
                lies(mine, step).filter(|place| place.space == Space::Input)?;
                hops.ready.extend(gives);
                continue;
            }
            let (from, fetches) =
                if step.op.receives() { (given.next()??, Some(fetched)) } else { (step.src, None) };
            fetched += usize::from(step.op.receives());
            let work = match step.op.reduces() {
                true => Work::Reduce { last: step.last },
                false => Work::Copy,
            };
            let own = step.src.space == Space::Input && step.src.chunk == from.chunk;
            let folds = own && step.op.receives() && step.order == Order::IncomingFirst;
            let possible = work == Work::Copy || folds;
            let to = stored(mine, step).filter(|to| possible && to.space == Space::Output)?;
            hops.hops.push(Hop { work, from, fetches, to: to.chunk, gives });
        }
        Some(hops)
    }

    /// Does it fetch anything? The root of a broadcast does not.
    pub(crate) fn fetch(&self) -> bool {
        self.hops.iter().any(|hop| hop.fetches.is_some())
    }
}

/// Where what a step sends lies afterwards.
fn lies(of: &Schedule, step: &Step) -> Option<Place> {
    match step.op {
        Op::Send => Some(step.src),
        _ => stored(of, step),
    }
}

/// Where a step stores; what only goes out is kept at its own place in the output, if there is one.
fn stored(of: &Schedule, step: &Step) -> Option<Place> {
    let all = of.input == of.output;
    match step.op {
        Op::RecvReduceSend => all.then_some(Place::output(step.src.chunk)),
        _ => Some(step.dst),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::{Hops, Work};
    use crate::schedule::{Collective, Ring, Space};

    /// All ranks' hops, if there are such.
    fn world(collective: Collective, ring: &Ring) -> Option<Vec<Hops>> {
        let of = |me| collective.schedule(ring, me);
        let hops = |me| Hops::new(&of(ring.after(me, -1)), &of(me));
        (0..ring.size()).map(hops).collect()
    }

    #[test]
    fn what_lies_in_no_buffer_has_no_hops() {
        let ring = Ring::natural(4);
        assert_eq!(world(Collective::ReduceScatter, &ring), None);
    }

    /// In any order in which words let ranks go, in place and apart, the result is right: nobody
    /// overwrites what another one has still to fetch.
    #[test]
    fn whatever_the_order_the_result_is_right() {
        let mut random = SmallRng::seed_from_u64(7);
        for n in 1..8_usize {
            let order: Vec<_> = (0..n).map(|at| ((at * 5 + 2) % n) as u32).collect();
            let rings = [Some(Ring::natural(n as u32)), Ring::new(order)];
            for ring in rings.into_iter().flatten() {
                let root = n as u32 / 2;
                for collective in
                    [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root }]
                {
                    let world = world(collective, &ring).unwrap();
                    for _ in 0..40 {
                        walk(collective, &ring, &world, random.random(), &mut random);
                    }
                }
            }
        }
    }

    /// Walks it once. A rank's memory is its output, then its input, if they are apart.
    fn walk(
        collective: Collective,
        ring: &Ring,
        world: &[Hops],
        in_place: bool,
        random: &mut SmallRng,
    ) {
        let n = world.len();
        let gathers = collective == Collective::AllGather;
        let blocks = if matches!(collective, Collective::Broadcast { .. }) { 1 } else { n };
        let at = |rank: usize, space: Space, chunk: u32| match (space, in_place) {
            (Space::Output, _) => chunk as usize,
            (_, true) if gathers => rank,
            (_, true) => chunk as usize,
            (_, false) => blocks + chunk as usize,
        };
        let given = |rank: usize, chunk: u32| 100_i64.pow(chunk) * (rank as i64 + 1);
        let mut memory: Vec<_> = (0..n).map(|_| vec![-1; 2 * blocks]).collect();
        for (rank, memory) in memory.iter_mut().enumerate() {
            for chunk in 0..if gathers { 1 } else { blocks as u32 } {
                memory[at(rank, Space::Input, chunk)] = given(rank, chunk);
            }
        }
        let mut ready: Vec<_> = (0..n).map(|_| vec![false; 2 * n]).collect();
        let after = |rank: usize, hops| ring.after(rank as u32, hops) as usize;
        for (rank, hops) in world.iter().enumerate() {
            hops.ready.iter().for_each(|&number| ready[after(rank, 1)][number] = true);
        }
        let mut next = vec![0; n];
        loop {
            let can = |&rank: &usize| {
                let hop = world[rank].hops.get(next[rank]);
                hop.is_some_and(|hop| hop.fetches.is_none_or(|number| ready[rank][number]))
            };
            let able: Vec<_> = (0..n).filter(can).collect();
            let Some(&rank) = able.get(random.random_range(0..able.len().max(1))) else { break };
            let hop = world[rank].hops[next[rank]];
            next[rank] += 1;
            let whose = if hop.fetches.is_some() { after(rank, -1) } else { rank };
            let incoming = memory[whose][at(whose, hop.from.space, hop.from.chunk)];
            let own = memory[rank][at(rank, Space::Input, hop.from.chunk)];
            let made = match hop.work {
                Work::Copy => incoming,
                Work::Reduce { .. } => incoming + own,
            };
            memory[rank][at(rank, Space::Output, hop.to)] = made;
            hop.gives.iter().for_each(|&number| ready[after(rank, 1)][number] = true);
        }
        for (rank, memory) in memory.iter().enumerate() {
            assert_eq!(next[rank], world[rank].hops.len(), "rank {rank} waits for ever");
            for chunk in 0..blocks as u32 {
                let want = match collective {
                    Collective::AllReduce => (0..n).map(|rank| given(rank, chunk)).sum(),
                    Collective::AllGather => given(chunk as usize, 0),
                    _ => given(n / 2, 0),
                };
                assert_eq!(memory[chunk as usize], want, "rank {rank} of {n}: {collective:?}");
            }
        }
    }
}
