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

/// The all-reduce of a reduce-scatter and an all-gather: the first leaves its result at chunk `mine`
/// of the output, where the second begins.
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

#[cfg(test)]
mod tests {
    use super::super::{Ring, Step};
    use super::{Op, Place, Schedule, fuse};

    /// Two steps are merged only if the first stores and the second sends the same chunk.
    #[test]
    fn only_a_store_and_a_send_of_the_same_chunk_are_merged() {
        let ring = Ring::natural(4);
        let all = |steps| Schedule { steps, ..Schedule::new(4, 4) };
        let one = |op, place| all(vec![ring.step(1, op, place)]);
        let seam = Place::output(2);
        for first in Op::ALL {
            for second in Op::ALL {
                for place in [seam, Place::output(3), Place::input(2)] {
                    // A local step must store elsewhere: a copy to itself would be dropped.
                    let [a, b] = [(first, seam), (second, place)].map(|(op, place)| {
                        let local = |step: Step| step.into(Place::output(0));
                        let mut one = one(op, place);
                        if matches!(op, Op::Copy | Op::ReduceCopy) {
                            one.steps[0] = local(one.steps[0]);
                        }
                        one
                    });
                    let fused = fuse(a.clone(), b.clone());
                    let expected = match (first, second) {
                        (Op::RecvReduceCopy, Op::Send) if place == seam => {
                            one(Op::RecvReduceCopySend, seam).steps
                        }
                        (Op::Recv, Op::Send) if place == seam => one(Op::RecvCopySend, seam).steps,
                        _ => [a.steps, b.steps].concat(),
                    };
                    assert_eq!(fused, all(expected));
                }
            }
        }
    }

    #[test]
    fn each_part_keeps_its_scratch() {
        let part = |like| {
            let step = Step::new(Op::Copy, 0, Place::input(like)).into(Place::scratch(0));
            Schedule { scratch: vec![Place::input(like)], steps: vec![step], ..Schedule::new(2, 2) }
        };
        let fused = fuse(part(0), part(1));
        assert_eq!(fused.scratch, [Place::input(0), Place::input(1)]);
        assert_eq!(fused.steps[0].dst, Place::scratch(0));
        assert_eq!(fused.steps[1].dst, Place::scratch(1));
    }
}
