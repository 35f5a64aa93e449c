//! `fuse`: the one rewrite of schedules. Two that follow each other become one, and where the
//! first ends by storing the very chunk that the second begins by sending, the two steps are one.
//! May touch: nothing. Law: the simulator sees the same result, with fewer steps.

use super::{Op, Schedule};

/// `first`, then `second`, as one schedule over the same chunks.
///
/// # Panics
/// If they cut the buffer into different numbers of chunks: they then speak of different things.
#[must_use]
pub fn fuse(first: Schedule, second: Schedule) -> Schedule {
    assert_eq!(first.chunks, second.chunks);
    let Schedule { chunks, mut steps } = first;
    let mut rest = second.steps.into_iter().peekable();
    if let (Some(last), Some(next)) = (steps.last_mut(), rest.peek()) {
        let fused = match last.op {
            Op::RecvReduceCopy => Some(Op::RecvReduceCopySend),
            Op::Recv => Some(Op::RecvCopySend),
            _ => None,
        };
        if let (Some(op), Op::Send) = (fused, next.op)
            && last.chunk == next.chunk
        {
            last.op = op;
            last.to = next.to;
            rest.next();
        }
    }
    steps.extend(rest);
    Schedule { chunks, steps }
}
