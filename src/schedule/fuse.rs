//! `fuse`: the one transformation of schedules. It concatenates two of them, and where the first
//! ends by storing the chunk that the second begins by sending, it merges both steps into one. Law:
//! the simulator sees the same result, with one step less where two were merged.

use super::{Op, Place, Schedule, Space};

/// `first`, then `second`, as one schedule over the same chunks. Each keeps a scratch of its own.
///
/// # Panics
/// If the schedules have different numbers of input or output chunks.
#[must_use]
pub fn fuse(first: Schedule, second: Schedule) -> Schedule {
    assert_eq!((first.input, first.output), (second.input, second.output));
    let own = first.scratch.len() as u32;
    let second = second.moved(first.input, first.output, |place| match place.space {
        Space::Scratch => Place::scratch(own + place.chunk),
        Space::Input | Space::Output => place,
    });
    let Schedule { input, output, mut scratch, mut steps } = first;
    scratch.extend(second.scratch);
    let mut rest = second.steps.into_iter().peekable();
    if let (Some(last), Some(next)) = (steps.last_mut(), rest.peek()) {
        let fused = match last.op {
            Op::RecvReduceCopy => Some(Op::RecvReduceCopySend),
            Op::Recv => Some(Op::RecvCopySend),
            _ => None,
        };
        if let (Some(op), Op::Send) = (fused, next.op)
            && last.dst == next.src
        {
            last.op = op;
            last.to = next.to;
            rest.next();
        }
    }
    steps.extend(rest);
    Schedule { input, output, scratch, steps }
}

/// The all-reduce of a reduce-scatter and an all-gather: the first leaves its result at chunk
/// `mine` of the output, where the second begins.
pub(super) fn fuse_halves(scatter: Schedule, gather: Schedule, mine: u32) -> Schedule {
    let chunks = scatter.input;
    let scattered = |place: Place| match place.space {
        Space::Output => Place::output(mine),
        Space::Input | Space::Scratch => place,
    };
    let gathered = |place: Place| match place.space {
        Space::Input => Place::output(mine),
        Space::Output | Space::Scratch => place,
    };
    fuse(scatter.moved(chunks, chunks, scattered), gather.moved(chunks, chunks, gathered))
}
