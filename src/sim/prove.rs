//! Schedules that a user made, and the proof that they may be walked. May touch: schedule,
//! partition. Law: there is no `Proven` that `check` has not said yes to.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Shape, Violation, check};
use crate::partition::SlotShape;
use crate::schedule::{Collective, Schedule, Volume};

/// The schedules of all ranks, proved to do a collective over links with so many slots, or more.
#[derive(Clone, Debug)]
pub struct Proven {
    collective: Collective,
    capacity: usize,
    schedules: Vec<Schedule>,
    rank_order: bool,
    digest: u64,
}

/// Has the simulator walk the schedules that `schedule` makes for each of `size` ranks, with pieces
/// of one slice and of as many as a round has, input and output apart and as one memory.
///
/// # Errors
/// The first law that is seen broken, and where. They may send as much as they like.
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
    let mut hasher = DefaultHasher::new();
    collective.hash(&mut hasher);
    for own in &schedules {
        (own.input, own.output, &own.scratch, &own.steps).hash(&mut hasher);
    }
    let digest = hasher.finish();
    Ok(Proven { collective, capacity: slots.capacity, schedules, rank_order, digest })
}

impl Proven {
    /// What they do together.
    #[must_use]
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// One per rank.
    #[must_use]
    pub fn schedules(&self) -> &[Schedule] {
        &self.schedules
    }

    /// The slots that links must have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Do the results read the ranks in order, as operations that do not commute need it?
    #[must_use]
    pub fn rank_order(&self) -> bool {
        self.rank_order
    }

    /// Equal for equal schedules of all ranks.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
