//! The pull schedule of a ring of devices, made from the ring's send schedule: where a rank's step
//! would send a chunk, the rank's successor fetches it from the memory where that step leaves it.
//! Pure.
//! Law: the results are those of the ring's schedule. Each rank writes its own memory alone, and no
//! rank overwrites what its successor has still to fetch.

use crate::schedule::{Op, Order, Place, Schedule, Space, Step};

/// The work of a pull step on the chunk that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullWork {
    /// Stores the chunk.
    Copy,
    /// Stores the chunk reduced with this rank's own chunk of the same number; `last` as in
    /// [`Step`].
    Reduce { last: bool },
}

/// A ring pull step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PullStep {
    pub(crate) work: PullWork,
    /// The place it reads: in the predecessor's memory if it fetches, else in the rank's own.
    pub(crate) from: Place,
    /// The number of the chunk it fetches, among all chunks that the predecessor hands to this
    /// rank.
    pub(crate) fetches: Option<usize>,
    /// The chunk of the output where it stores.
    pub(crate) to: u32,
    /// The number of the chunk that is ready after it, among all chunks handed to the successor.
    pub(crate) given_number: Option<usize>,
}

/// All ring pull steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PullSchedule {
    pub(crate) steps: Vec<PullStep>,
    /// The numbers of the chunks that are ready before the first step.
    pub(crate) ready: Vec<usize>,
}

impl PullSchedule {
    /// The steps of the rank with schedule `mine`, whose predecessor has schedule `before`; `None`
    /// if a chunk that is handed on lies in no buffer.
    pub(crate) fn new(before: &Schedule, mine: &Schedule) -> Option<Self> {
        let sent = |step: &&Step| step.op.sends();
        let mut given =
            before.steps.iter().filter(sent).map(|step| place_of_sent_chunk(before, step));
        let (mut schedule, mut fetched, mut given_on) = (Self::default(), 0, 0);
        for step in &mine.steps {
            let gives = step.op.sends().then_some(given_on);
            given_on += usize::from(step.op.sends());
            if step.op == Op::Send {
                place_of_sent_chunk(mine, step).filter(|place| place.space == Space::Input)?;
                schedule.ready.extend(gives);
                continue;
            }
            let (from, fetches) =
                if step.op.receives() { (given.next()??, Some(fetched)) } else { (step.src, None) };
            fetched += usize::from(step.op.receives());
            let work = match step.op.reduces() {
                true => PullWork::Reduce { last: step.last },
                false => PullWork::Copy,
            };
            let own = step.src.space == Space::Input && step.src.chunk == from.chunk;
            let folds = own && step.op.receives() && step.order == Order::IncomingFirst;
            let possible = work == PullWork::Copy || folds;
            let to = store_place(mine, step).filter(|to| possible && to.space == Space::Output)?;
            schedule.steps.push(PullStep {
                work,
                from,
                fetches,
                to: to.chunk,
                given_number: gives,
            });
        }
        Some(schedule)
    }

    /// True if a step fetches. The root of a broadcast fetches nothing.
    pub(crate) fn fetches_anything(&self) -> bool {
        self.steps.iter().any(|step| step.fetches.is_some())
    }
}

/// The place where a chunk that a step sends lies after the step.
fn place_of_sent_chunk(of: &Schedule, step: &Step) -> Option<Place> {
    match step.op {
        Op::Send => Some(step.src),
        _ => store_place(of, step),
    }
}

/// The place where a step stores. A chunk that is only sent on is kept at its own place in the
/// output, if the output has one.
fn store_place(of: &Schedule, step: &Step) -> Option<Place> {
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

    use super::{PullSchedule, PullWork};
    use crate::schedule::{Collective, Ring, Space};

    /// All ranks' pull schedules, if they exist.
    fn world(collective: Collective, ring: &Ring) -> Option<Vec<PullSchedule>> {
        let of = |me| collective.schedule(ring, me);
        let pulls = |me| PullSchedule::new(&of(ring.after(me, -1)), &of(me));
        (0..ring.size()).map(pulls).collect()
    }

    #[test]
    fn reduce_scatter_has_no_pull_schedule() {
        let ring = Ring::natural(4);
        assert_eq!(world(Collective::ReduceScatter, &ring), None);
    }

    /// The result is right in any order in which ready words release the ranks, in place and out of
    /// place.
    #[test]
    fn ring_pulls_in_any_order_give_the_result_of_the_collective() {
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

    /// Walks the schedules once. The memory of a rank is its output, then its input if the two
    /// differ.
    fn walk(
        collective: Collective,
        ring: &Ring,
        world: &[PullSchedule],
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
        let after = |rank: usize, distance| ring.after(rank as u32, distance) as usize;
        for (rank, pulls) in world.iter().enumerate() {
            pulls.ready.iter().for_each(|&number| ready[after(rank, 1)][number] = true);
        }
        let mut next = vec![0; n];
        loop {
            let can = |&rank: &usize| {
                let step = world[rank].steps.get(next[rank]);
                step.is_some_and(|step| step.fetches.is_none_or(|number| ready[rank][number]))
            };
            let able: Vec<_> = (0..n).filter(can).collect();
            let Some(&rank) = able.get(random.random_range(0..able.len().max(1))) else { break };
            let step = world[rank].steps[next[rank]];
            next[rank] += 1;
            let whose = if step.fetches.is_some() { after(rank, -1) } else { rank };
            let incoming = memory[whose][at(whose, step.from.space, step.from.chunk)];
            let own = memory[rank][at(rank, Space::Input, step.from.chunk)];
            let made = match step.work {
                PullWork::Copy => incoming,
                PullWork::Reduce { .. } => incoming + own,
            };
            memory[rank][at(rank, Space::Output, step.to)] = made;
            step.given_number.iter().for_each(|&number| ready[after(rank, 1)][number] = true);
        }
        for (rank, memory) in memory.iter().enumerate() {
            assert_eq!(next[rank], world[rank].steps.len(), "rank {rank} waits for ever");
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
