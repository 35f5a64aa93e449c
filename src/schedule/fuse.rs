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

#[cfg(test)]
mod tests {
    use super::super::{Ring, all_gather, all_reduce, reduce_scatter};
    use super::{Op, Schedule, fuse};

    #[test]
    fn the_rings_all_reduce_has_one_step_less_than_its_halves() {
        for size in 2..=64 {
            let ring = Ring::natural(size);
            for me in 0..size {
                let halves = [reduce_scatter(&ring, me), all_gather(&ring, me)];
                let fused = all_reduce(&ring, me);
                let seam = size as usize - 1;
                assert_eq!(fused.steps.len(), 2 * size as usize - 1);
                assert_eq!(fused.chunks, size);
                // Nothing but the seam differs, and there it takes from the first and gives as
                // the second.
                assert_eq!(fused.steps[..seam], halves[0].steps[..seam]);
                assert_eq!(fused.steps[seam + 1..], halves[1].steps[1..]);
                let step = fused.steps[seam];
                let (last, next) = (halves[0].steps[seam], halves[1].steps[0]);
                assert_eq!((step.op, step.last), (Op::RecvReduceCopySend, true));
                assert_eq!((step.chunk, step.from, step.to), (me, last.from, next.to));
            }
        }
    }

    /// Whatever the ops at the seam, two steps become one only where a store is followed by a send
    /// of the same chunk.
    #[test]
    fn only_a_store_and_a_send_of_the_same_chunk_become_one() {
        let ring = Ring::natural(4);
        let one = |op, chunk| Schedule { chunks: 4, steps: vec![ring.step(1, op, false, chunk)] };
        for first in Op::ALL {
            for second in Op::ALL {
                for chunk in [2, 3] {
                    let (a, b) = (one(first, 2), one(second, chunk));
                    let fused = fuse(a.clone(), b.clone());
                    let expected = match (first, second, chunk) {
                        (Op::RecvReduceCopy, Op::Send, 2) => one(Op::RecvReduceCopySend, 2).steps,
                        (Op::Recv, Op::Send, 2) => one(Op::RecvCopySend, 2).steps,
                        _ => [a.steps, b.steps].concat(),
                    };
                    assert_eq!(fused, Schedule { chunks: 4, steps: expected });
                }
            }
        }
    }

    #[test]
    fn nothing_is_fused_with_nothing() {
        let empty = || Schedule { chunks: 4, steps: Vec::new() };
        let some = || reduce_scatter(&Ring::natural(4), 0);
        assert_eq!(fuse(empty(), empty()), empty());
        assert_eq!(fuse(some(), empty()), some());
        assert_eq!(fuse(empty(), some()), some());
    }
}
