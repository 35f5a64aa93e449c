//! Schedules made by a user, and their proof. Law: every `Proven` has passed `check`.

use super::{Shape, Violation, check};
use crate::partition::SlotShape;
use crate::plan::{digest, mix};
use crate::schedule::{Collective, Order, Place, Schedule, Step, Volume};

/// The schedules of all ranks, proved to do a collective over links of so many slots or more.
#[derive(Clone, Debug)]
pub struct Proven {
    collective: Collective,
    capacity: usize,
    schedules: Vec<Schedule>,
    rank_order: bool,
    digest: u64,
}

/// Proves the schedules that `schedule` makes for each of `size` ranks: simulates them with pieces
/// of one slice and of as many slices as a round has, with input and output apart and in place.
///
/// # Errors
/// The first violation found: which law, and where. Law 4 is not checked.
pub fn prove(
    collective: Collective,
    size: u32,
    slots: SlotShape,
    schedule: impl Fn(u32) -> Schedule,
) -> Result<Proven, Violation> {
    let schedules: Vec<Schedule> = (0..size).map(schedule).collect();
    let sent = |own: &Schedule| own.steps.iter().filter(|step| step.op.sends()).count() as u64;
    let most = schedules.iter().map(sent).max().unwrap_or(0);
    let volume = Volume { most, total: schedules.iter().map(sent).sum() };
    let mut rank_order = true;
    for slices in [1, slots.slices_per_round()] {
        let shape = Shape::uniform(2, slices, slots.capacity);
        rank_order &= check(collective, volume, &schedules, &shape, 1)?.rank_order;
    }
    let digest = digest_of(collective, &schedules);
    Ok(Proven { collective, capacity: slots.capacity, schedules, rank_order, digest })
}

/// The digest of all schedules. Ranks compare it, so it must not depend on a rank's compiler, as
/// the standard library's hasher does.
fn digest_of(collective: Collective, schedules: &[Schedule]) -> u64 {
    let mut digest = digest(collective.name().as_bytes());
    let mut add = |word: u64| digest = mix(digest ^ word);
    let pair = |one: u32, other: u32| u64::from(one) << 32 | u64::from(other);
    let place = |place: Place| pair(place.chunk, place.space as u32);
    add(collective.root().map_or(u64::MAX, u64::from));
    for Schedule { input, output, scratch, steps } in schedules {
        add(pair(*input, *output));
        add(scratch.len() as u64);
        scratch.iter().for_each(|&chunk| add(place(chunk)));
        add(steps.len() as u64);
        for &Step { op, last, order, src, dst, from, to } in steps {
            let local_first = u32::from(order == Order::LocalFirst);
            add(pair(op as u32, u32::from(last) << 1 | local_first));
            add(place(src));
            add(place(dst));
            add(pair(from, to));
        }
    }
    digest
}

impl Proven {
    /// The collective that they do.
    #[must_use]
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// The schedules, by rank.
    #[must_use]
    pub fn schedules(&self) -> &[Schedule] {
        &self.schedules
    }

    /// The number of slots that links need.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// True if results read the ranks in order, as operations that do not commute need.
    #[must_use]
    pub fn rank_order(&self) -> bool {
        self.rank_order
    }

    /// A digest of the schedules of all ranks, equal on every machine and with every compiler.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Op, Place};

    /// Rank 0 sends its chunk to rank 1.
    fn schedules() -> Vec<Schedule> {
        let place = Place::input(0);
        let mut all = vec![Schedule::new(1, 1); 2];
        all[0].steps.push(Step::new(Op::Send, 0, place).to(1));
        all[1].steps.push(Step::new(Op::Recv, 1, Place::output(0)).from(0));
        all
    }

    const WHAT: Collective = Collective::Broadcast { root: 0 };

    #[test]
    fn the_digest_does_not_depend_on_the_compiler() {
        assert_eq!(digest_of(WHAT, &schedules()), 4_570_425_933_281_420_371);
    }

    #[test]
    fn every_difference_changes_the_digest() {
        let changes: [fn(&mut Schedule); 12] = [
            |_| (),
            |own| own.input = 2,
            |own| own.output = 2,
            |own| own.scratch.push(Place::input(0)),
            |own| own.scratch.push(Place::output(0)),
            |own| own.steps[0].op = Op::RecvCopySend,
            |own| own.steps[0].last = true,
            |own| own.steps[0].order = Order::LocalFirst,
            |own| own.steps[0].src = Place::scratch(0),
            |own| own.steps[0].dst = Place::output(1),
            |own| own.steps[0].from = 7,
            |own| own.steps[0].to = 7,
        ];
        let changed = changes.iter().flat_map(|change| {
            [0, 1].map(|rank| {
                let mut all = schedules();
                change(&mut all[rank]);
                digest_of(WHAT, &all)
            })
        });
        let others = [Collective::Broadcast { root: 1 }, Collective::AllGather];
        let others = others.map(|other| digest_of(other, &schedules()));
        let all: std::collections::HashSet<_> = changed.chain(others).collect();
        // The unchanged schedules are in the list twice.
        assert_eq!(all.len(), 2 * changes.len() - 1 + others.len());
    }
}
