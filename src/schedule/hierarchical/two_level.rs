//! Two-level, where the ranks of each host share a region: an all-reduce is a reduce-scatter
//! through the region of each host, one ring between hosts for each part, and an all-gather through
//! the region. Ranks with the same place in their hosts have the same part. A host's own steps are
//! a few hand-overs, whatever the number of its ranks.
//!
//! Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
//! network hierarchy", MLSys 2019, with two levels.

use super::super::{Collective, Definition, Place, Ring, Schedule, Space};

/// The schedule over links is that of the rings within hosts and between them. There is no cost for
/// a single speed.
pub(in super::super) const TWO_LEVEL: Definition = Definition {
    name: "two_level",
    schedule: |it, order, me| super::schedule(it, order, me).filter(|_| makes(it, order)),
    volume: |it, order| super::volume(it, order).filter(|_| makes(it, order)),
    ..super::DEFINITION
};

fn makes(collective: Collective, order: &Ring) -> bool {
    collective == Collective::AllReduce && order.grid().is_some()
}

/// The steps of rank `me` on its part, which is its output: partial sums before, the result after.
/// `None` unless all hosts have the same number of ranks, and the collective is an all-reduce.
pub(crate) fn between_hosts(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let [hosts, each] = order.grid().filter(|_| makes(collective, order))?;
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

#[cfg(test)]
mod tests {
    use super::super::super::{Op, Step, Volume, ring};
    use super::*;
    use crate::sim::{Shape, check};

    /// The whole all-reduce over links, with rings in place of the region: chunk p * hosts + h is
    /// the chunk of host h in the part of the ranks with place p.
    fn over_links(order: &Ring, me: u32) -> Schedule {
        let [hosts, each] = order.grid().unwrap();
        let (host, mine) = (order.position(me) / each, order.position(me) % each);
        let mut all = Schedule::new(hosts * each, hosts * each);
        let within = |schedule: Schedule, all: &mut Schedule, to: &dyn Fn(Place) -> Place| {
            for step in schedule.steps {
                let [from, other] = [step.from, step.to].map(|at| order.at(host * each + at));
                for chunk in 0..hosts {
                    let place = |it| Place { chunk: to(it).chunk * hosts + chunk, ..to(it) };
                    let (src, dst) = (place(step.src), place(step.dst));
                    let moved = Step { from, to: other, src, dst, last: false, ..step };
                    all.steps.extend((step.op != Op::Copy || src != dst).then_some(moved));
                }
            }
        };
        let scatter = ring::reduce_scatter(&Ring::natural(each), mine);
        within(scatter, &mut all, &|place| match place.space {
            Space::Output => Place::output(mine),
            _ => place,
        });
        let between = between_hosts(Collective::AllReduce, order, me).unwrap();
        assert_eq!((between.output, between.scratch.len()), (hosts, 0));
        all.steps.extend(between.steps.into_iter().map(|step| {
            let place = |it: Place| Place { chunk: mine * hosts + it.chunk, ..it };
            Step { src: place(step.src), dst: place(step.dst), ..step }
        }));
        let gather = ring::all_gather(&Ring::natural(each), mine);
        within(gather, &mut all, &|place| match place.space {
            Space::Input => Place::output(mine),
            _ => place,
        });
        all
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
                let schedules: Vec<_> =
                    (0..order.size()).map(|me| over_links(&order, me)).collect();
                let sends = |it: &Schedule| it.steps.iter().filter(|it| it.op.sends()).count();
                let sends = schedules.iter().map(|it| sends(it) as u64);
                let volume = Volume { most: sends.clone().max().unwrap(), total: sends.sum() };
                for (rounds, slices) in [(1, 1), (2, 3)] {
                    let shape = Shape::uniform(rounds, slices, 2 * slices * hosts as usize);
                    let done = check(Collective::AllReduce, volume, &schedules, &shape, 1);
                    assert!(done.as_ref().is_ok_and(|it| it.exact), "{hosts} x {each}: {done:?}");
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
