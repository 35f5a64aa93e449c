//! Two-level, where the ranks of each host share a region: an all-reduce is a reduce-scatter
//! through the region of each host, one ring between hosts for each part, and an all-gather through
//! the region. Ranks with the same place in their hosts have the same part. Long chunks of the
//! parts take turns: while one is on its way to the next host, the next one is reduced in the
//! region.
//! Law: the ranks of a host make the same calls through their region in the same order, and no
//! chunk is sent before it is reduced there.
//!
//! Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
//! network hierarchy", MLSys 2019, with two levels.
//! # Example
//!
//! Four ranks; ranks 0 and 1 are on one host. Ranks 0 and 2 have part 0, ranks 1 and 3 part 1, and
//! chunks are those of the own part. `reduce 1` reduces chunk 1 of both parts in the region, and
//! `gather 1` shares it there:
//!
//! ```text
//!     rank 0              rank 1              rank 2              rank 3
//! 1   reduce 1            reduce 1            reduce 0            reduce 0
//! 2   1: a+b > 2          1: a+b > 3          0: c+d > 0          0: c+d > 1
//! 3   reduce 0            reduce 0            reduce 1            reduce 1
//! 4   0 = c+d+(a+b) > 2   0 = c+d+(a+b) > 3   1 = a+b+(c+d) > 0   1 = a+b+(c+d) > 1
//! 5   gather 0            gather 0            gather 1            gather 1
//! 6   1 = a+b+(c+d)       1 = a+b+(c+d)       0 = c+d+(a+b)       0 = c+d+(a+b)
//! 7   gather 1            gather 1            gather 0            gather 0
//! ```

use core::ops::Range;

use super::super::{Collective, Definition, Grid, Place, Ring, Schedule, Space};

/// The schedule over links is that of the rings within hosts and between them. There is no cost for
/// a single speed.
pub(in super::super) const TWO_LEVEL: Definition = Definition {
    name: "two_level",
    window: 1,
    schedule: |collective, order, me| {
        super::schedule(collective, order, me).filter(|_| makes(collective, order))
    },
    volume: |collective, order| {
        super::volume(collective, order).filter(|_| makes(collective, order))
    },
    ..super::DEFINITION
};

fn makes(collective: Collective, order: &Ring) -> bool {
    collective == Collective::AllReduce && order.grid().is_some()
}

/// The steps of rank `me` on its part, which is its output: partial sums before, the result after.
/// `None` unless there are several hosts, all with the same number of ranks, more than one, and the
/// collective is an all-reduce.
pub(crate) fn between_hosts(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let Grid { hosts, ranks: each } = order.grid().filter(|_| makes(collective, order))?;
    let at = order.position(me);
    let rank = |host: u32| order.at(host * each + at % each);
    // A partial sum is no contribution, which some reductions change when they read it.
    let place = |place: Place| match place.space {
        Space::Input => Place::output(place.chunk),
        Space::Output | Space::Scratch => place,
    };
    let mut schedule = collective.schedule(&Ring::natural(hosts), at / each);
    for step in &mut schedule.steps {
        (step.from, step.to) = (rank(step.from), rank(step.to));
        (step.src, step.dst) = (place(step.src), place(step.dst));
    }
    Some(schedule)
}

/// An item of the list that a rank makes in each round of a two-level call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TwoLevelStep {
    /// Reduces these chunks of all parts, each part to its rank, with the ranks of its host.
    Scatter(Range<u32>),
    /// Makes the step with this number between hosts.
    Between(usize),
    /// Gathers these chunks of all parts from the ranks of its host.
    Gather(Range<u32>),
}

/// All of a round; `in_turns`: each chunk is reduced as late and gathered as early as possible,
/// else all chunks at once. A schedule between hosts reads the partial sum of each chunk once, and
/// stores its result once.
pub(crate) fn two_level_steps(
    between: &Schedule,
    in_turns: bool,
) -> impl Iterator<Item = TwoLevelStep> {
    let last = between.steps.len() - 1;
    between.steps.iter().enumerate().flat_map(move |(number, step)| {
        let chunks = |chunk: u32| if in_turns { chunk..chunk + 1 } else { 0..between.output };
        let scatters = if in_turns { step.op.reads() } else { number == 0 };
        let gathers = if in_turns { step.op.stores() } else { number == last };
        let scatter = scatters.then(|| TwoLevelStep::Scatter(chunks(step.src.chunk)));
        let gather = gathers.then(|| TwoLevelStep::Gather(chunks(step.dst.chunk)));
        [scatter, Some(TwoLevelStep::Between(number)), gather].into_iter().flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::{Op, Step, Volume, ring};
    use super::*;
    use crate::sim::{Shape, check};

    /// The whole all-reduce over links, with rings in place of the region: chunk p * hosts + h is
    /// chunk h of the part of the ranks with place p.
    fn over_links(order: &Ring, me: u32, in_turns: bool) -> Schedule {
        let Grid { hosts, ranks: each } = order.grid().unwrap();
        let (host, mine) = (order.position(me) / each, order.position(me) % each);
        let within = |schedule: Schedule, chunk: u32| {
            let rank = |at| order.at(host * each + at);
            // Both calls go from the buffer to the buffer: a rank's own part is in its place there.
            let place = |local: Place, own: Space| {
                let part = if local.space == own { mine } else { local.chunk };
                let space = if own == Space::Input { Space::Output } else { local.space };
                Place { space, chunk: part * hosts + chunk }
            };
            let own = if schedule.output == 1 { Space::Output } else { Space::Input };
            let steps = schedule.steps.into_iter().map(move |step| {
                let (src, dst) = (place(step.src, own), place(step.dst, own));
                Step { from: rank(step.from), to: rank(step.to), src, dst, last: false, ..step }
            });
            steps.filter(|step| step.op != Op::Copy || step.src != step.dst).collect::<Vec<_>>()
        };
        let between = between_hosts(Collective::AllReduce, order, me).unwrap();
        assert_eq!((between.output, between.scratch.len()), (hosts, 0));
        let natural = Ring::natural(each);
        let all = |half: fn(&Ring, u32) -> Schedule, chunks: Range<u32>| {
            chunks.flat_map(|chunk| within(half(&natural, mine), chunk)).collect::<Vec<_>>()
        };
        let steps = two_level_steps(&between, in_turns).flat_map(|step| match step {
            TwoLevelStep::Scatter(chunks) => all(ring::reduce_scatter, chunks),
            TwoLevelStep::Gather(chunks) => all(ring::all_gather, chunks),
            TwoLevelStep::Between(number) => {
                let place = |local: Place| Place { chunk: mine * hosts + local.chunk, ..local };
                let step = between.steps[number];
                vec![Step { src: place(step.src), dst: place(step.dst), ..step }]
            }
        });
        let chunks = hosts * each;
        Schedule { steps: steps.collect(), ..Schedule::new(chunks, chunks) }
    }

    #[test]
    fn parts_that_are_reduced_between_hosts_make_an_all_reduce() {
        for (hosts, each) in (2..=5).flat_map(|hosts| (2..=5).map(move |each| (hosts, each))) {
            // Ranks are dealt out to hosts in turn, or host by host.
            for step in [1, hosts] {
                let rank = |host: u32, at: u32| {
                    if step == 1 { host * each + at } else { at * hosts + host }
                };
                let ranks = |host| (0..each).map(|at| rank(host, at)).collect();
                let order = Ring::through(&(0..hosts).map(ranks).collect::<Vec<_>>()).unwrap();
                for (in_turns, rounds, slices) in [(true, 1, 1), (true, 2, 3), (false, 1, 3)] {
                    let of_rank = |me| over_links(&order, me, in_turns);
                    let schedules: Vec<_> = (0..order.size()).map(of_rank).collect();
                    let sends =
                        |all: &Schedule| all.steps.iter().filter(|step| step.op.sends()).count();
                    let sends = schedules.iter().map(|all| sends(all) as u64);
                    let volume = Volume { most: sends.clone().max().unwrap(), total: sends.sum() };
                    let shape = Shape::uniform(rounds, slices, slices + 1);
                    let done = check(Collective::AllReduce, volume, &schedules, &shape, 1);
                    assert!(
                        done.as_ref().is_ok_and(|report| report.exact),
                        "{hosts} x {each}: {done:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn hosts_of_different_sizes_have_no_such_parts() {
        let order = Ring::through(&[vec![0, 1], vec![2]]).unwrap();
        assert_eq!(between_hosts(Collective::AllReduce, &order, 0), None);
        let order = Ring::through(&[vec![0, 1], vec![2, 3]]).unwrap();
        assert_eq!(between_hosts(Collective::AllGather, &order, 0), None);
        assert_eq!(between_hosts(Collective::AllReduce, &Ring::natural(4), 0), None);
    }
}
