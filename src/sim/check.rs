//! The laws: a walk that tracks every contribution, and the conditions on its end.
//! Law: `check` succeeds only if all eight laws hold, with input and output apart and in place.

use super::contents::Contents;
use super::network::walk;
use super::shape::Shape;
use super::violation::Violation;
use crate::schedule::{Collective, Op, Order, Place, Schedule, Space, Step, Volume};

/// Statistics of a walk, with input and output apart, that broke no law.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Slices processed, over all ranks and steps.
    pub slices: u64,
    /// Slices that were sent.
    pub sent: u64,
    /// Slices that were stored.
    pub stored: u64,
    /// True if every reduced result is one expression that has each contribution once. A barrier's
    /// result, which is never read, may have some twice.
    pub exact: bool,
    /// True if every reduced result reads, from left to right, rank 0, 1, .., n-1. The schedules
    /// then suit operations that do not commute.
    pub rank_order: bool,
}

/// Simulates `schedules`, one per rank, over links of `shape`, and checks the laws; the sends must
/// add up to `volume`. `seed` determines the order in which ranks run.
///
/// # Errors
/// The first violation found: which law, and where.
pub fn check(
    collective: Collective,
    volume: Volume,
    schedules: &[Schedule],
    shape: &Shape<'_>,
    seed: u64,
) -> Result<Report, Violation> {
    well_formed(collective, schedules, shape)?;
    let report = walk_once(collective, schedules, shape, seed, false)?;
    walk_once(collective, schedules, shape, seed, true)?;
    check_volume(volume, schedules)?;
    Ok(report)
}

fn walk_once(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape<'_>,
    seed: u64,
    in_place: bool,
) -> Result<Report, Violation> {
    let mut contents = Contents::new(collective, schedules, shape, in_place);
    walk(schedules, shape, seed, &mut contents)?;
    contents.finish()
}

fn well_formed(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape<'_>,
) -> Result<(), Violation> {
    let size = schedules.len() as u32;
    for (rank, schedule) in (0..size).zip(schedules) {
        let fail = |step, what| Err(Violation::Malformed { rank, step, what });
        let chunks = [schedule.input, schedule.output];
        let needed = match collective.has_blocks() {
            true => collective.shape(size),
            false => [schedules[0].output; 2],
        };
        if chunks != needed {
            return fail(None, "not the chunks of the collective, or not those of rank 0");
        }
        if !shape.fits(schedules.len()) {
            return fail(None, "neither one partition nor one for every rank");
        }
        let invalid = |place: &Place| place.space == Space::Scratch || !exists(schedule, *place);
        if schedule.scratch.iter().any(invalid) {
            return fail(None, "scratch sized like a missing chunk");
        }
        for (number, step) in (0..).zip(&schedule.steps) {
            if let Err(what) = step_fits(rank, size, schedule, step, shape) {
                return fail(Some(number), what);
            }
        }
    }
    Ok(())
}

fn exists(schedule: &Schedule, place: Place) -> bool {
    let chunks = match place.space {
        Space::Input => schedule.input,
        Space::Output => schedule.output,
        Space::Scratch => schedule.scratch.len() as u32,
    };
    place.chunk < chunks
}

fn step_fits(
    rank: u32,
    size: u32,
    schedule: &Schedule,
    step: &Step,
    shape: &Shape<'_>,
) -> Result<(), &'static str> {
    let Step { op, src, dst, .. } = *step;
    let peer = |used: bool, peer: u32| peer < size && used == (peer != rank);
    if !exists(schedule, src) || !exists(schedule, dst) {
        return Err("no such chunk");
    }
    if !peer(op.receives(), step.from) || !peer(op.sends(), step.to) {
        return Err("no such peer");
    }
    if op.stores() && dst.space == Space::Input {
        return Err("a store to the input");
    }
    if src != dst && !(op.reads() && op.stores()) {
        return Err("a place that it has no use for");
    }
    if src == dst && matches!(op, Op::Copy | Op::ReduceCopy) {
        return Err("from a place to itself");
    }
    if step.order != Order::default() && !op.reduces() {
        return Err("an order of what is not reduced");
    }
    if shape.chunk(rank, schedule.like(src)) != shape.chunk(rank, schedule.like(dst)) {
        return Err("places of different lengths");
    }
    Ok(())
}

/// Law 4, counted in chunks of any length.
fn check_volume(volume: Volume, schedules: &[Schedule]) -> Result<(), Violation> {
    let mut sum = 0;
    for (rank, schedule) in (0..).zip(schedules) {
        let sent = schedule.steps.iter().filter(|step| step.op.sends()).count() as u64;
        if sent > volume.most {
            return Err(Violation::Bytes { rank: Some(rank), sent, formula: volume.most });
        }
        sum += sent;
    }
    if sum == volume.total {
        Ok(())
    } else {
        Err(Violation::Bytes { rank: None, sent: sum, formula: volume.total })
    }
}
