//! How long a collective takes: the same walk, with a clock at every rank and a time in every slot.
//! May touch: schedule. Pure: the speeds are given, no clock is read.
//!
//! A step keeps its rank busy for b seconds per byte (g more where it reduces), starts when its
//! slots are there, and its message arrives a seconds after its end; so does the news that the
//! incoming slot is empty. With one slice of m bytes per chunk and slots to spare, nobody ever
//! waits for a slot, and the 2n-1 steps of the ring's all-reduce follow each other over 2n-2 hops:
//! (2n-1)mb + (n-1)mg + (2n-2)a. Each half has n steps and n-1 hops: nmb + (n-1)a, and (n-1)mg for
//! reduce-scatter. A broadcast of k slices of m bytes is a pipeline: (n+k-1)mb + (n-1)a.

use super::network::{At, Work, walk};
use super::shape::Shape;
use super::violation::Violation;
use crate::schedule::{Collective, Op, Schedule, Step};

/// How fast links and ranks are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// a: seconds from a rank's commit of a slot to the peer's seeing it.
    pub latency: f64,
    /// b: seconds that a rank needs to move one byte.
    pub byte: f64,
    /// g: seconds more that it needs to reduce one byte.
    pub reduce: f64,
}

/// Seconds until the last rank is done, in place, all having started at 0, over links of `shape`.
/// `schedules` has one schedule per rank; they must obey the laws (see [`check`](super::check)).
///
/// # Errors
/// [`Violation::Stuck`] if the capacity does not suffice.
///
/// # Panics
/// If a step names a rank or a chunk that does not exist.
pub fn cost(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape<'_>,
    speed: Speed,
) -> Result<f64, Violation> {
    let now = vec![0.0; schedules.len()];
    let mut clocks = Clocks { collective, schedules, shape, speed, now };
    walk(schedules, shape, 0, &mut clocks)?;
    Ok(clocks.now.into_iter().fold(0.0, f64::max))
}

struct Clocks<'a> {
    collective: Collective,
    schedules: &'a [Schedule],
    shape: &'a Shape<'a>,
    speed: Speed,
    /// The time at each rank.
    now: Vec<f64>,
}

impl Work for Clocks<'_> {
    /// Since when the slot can be seen to be full (by the receiver) or empty (by the sender).
    type Slot = f64;

    fn slice(
        &mut self,
        at: &At,
        step: &Step,
        incoming: Option<&mut f64>,
        outgoing: Option<&mut f64>,
    ) -> Result<(), Violation> {
        let rank = at.rank;
        let [src, dst] = [step.src, step.dst].map(|it| self.collective.in_place(rank, it));
        if step.op == Op::Copy && src == dst {
            return Ok(());
        }
        let like = self.schedules[rank as usize].like(step.src);
        let bytes = self.shape.bytes(rank, at.round, like, at.slice);
        let reduce = if step.op.reduces() { self.speed.reduce } else { 0.0 };
        let now = &mut self.now[rank as usize];
        for slot in [&incoming, &outgoing].into_iter().flatten() {
            *now = now.max(**slot);
        }
        *now += bytes as f64 * (self.speed.byte + reduce);
        for slot in [incoming, outgoing].into_iter().flatten() {
            *slot = *now + self.speed.latency;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Shape, Speed, Violation, cost};
    use crate::partition::{Partition, SlotShape};
    use crate::schedule::Collective;
    use crate::schedule::Ring;

    const SPEED: Speed = Speed { latency: 1e-6, byte: 0.05e-9, reduce: 0.02e-9 };

    fn seconds(
        collective: Collective,
        size: u32,
        bytes: usize,
        slices: usize,
        slots: usize,
    ) -> f64 {
        let schedules = collective.schedules(&Ring::natural(size));
        let chunks = schedules[0].input.max(schedules[0].output) as usize;
        let bytes = bytes / chunks / slices;
        let partition = Partition::even(
            bytes * slices * chunks,
            1,
            chunks,
            64,
            SlotShape { bytes, capacity: 2 * slices },
        );
        assert_eq!(partition.rounds(), 1);
        cost(collective, &schedules, &Shape::of(&[partition], slots), SPEED).unwrap()
    }

    #[test]
    fn the_cost_is_that_of_the_closed_form() {
        let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} {want}");
        let Speed { latency: a, byte: b, reduce: g } = SPEED;
        for size in 2..=16 {
            let n = f64::from(size);
            let m = 64.0 * 1024.0;
            let bytes = size as usize * 64 * 1024;
            let halves = (n * m * b + (n - 1.0) * (m * g + a), n * m * b + (n - 1.0) * a);
            let both = (2.0 * n - 1.0) * m * b + (n - 1.0) * m * g + (2.0 * n - 2.0) * a;
            close(seconds(Collective::AllReduce, size, bytes, 1, 4), both);
            close(seconds(Collective::ReduceScatter, size, bytes, 1, 4), halves.0);
            close(seconds(Collective::AllGather, size, bytes, 1, 4), halves.1);
            for slices in [1, 2, 16] {
                let root = Collective::Broadcast { root: 1 };
                let pipeline = (n + slices as f64 - 1.0) * (m / slices as f64) * b + (n - 1.0) * a;
                close(seconds(root, size, 64 * 1024, slices, 1000), pipeline);
            }
        }
    }

    #[test]
    fn the_cost_of_direct_ones_and_chains_is_that_of_the_closed_form() {
        let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} {want}");
        let Speed { latency: a, byte: b, reduce: g } = SPEED;
        let (root, m) = (1, 64.0 * 1024.0);
        for size in 3..=16 {
            let n = f64::from(size);
            let whole = size as usize * 64 * 1024;
            for slices in [1, 2, 16] {
                let k = slices as f64;
                let chain = m / k * (b + (n + k - 2.0) * (b + g)) + (n - 1.0) * a;
                for collective in [Collective::Reduce { root }, Collective::Scan] {
                    close(seconds(collective, size, 64 * 1024, slices, 1000), chain);
                }
            }
            let direct = n * m * b + a;
            for collective in [Collective::Gather { root }, Collective::Scatter { root }] {
                close(seconds(collective, size, whole, 1, 4), direct);
            }
            let exscan = 2.0 * m * b + a + (n - 2.0) * (3.0 * m * b + m * g + a);
            close(seconds(Collective::Exscan, size, 64 * 1024, 1, 4), exscan);
            let exchange = (2.0 * (n - 1.0) * m * b).max(n * m * b + a);
            close(seconds(Collective::AllToAll, size, whole, 1, 4), exchange);
        }
    }

    /// What the closed form hides: the least legal capacity makes the slices wait for each other.
    #[test]
    fn two_chunks_of_slots_are_worth_their_memory() {
        let time = |slices, slots| seconds(Collective::AllReduce, 8, 64 * 1024, slices, slots);
        assert!(time(4, 8) < time(1, 8));
        assert!(time(4, 5) > 2.0 * time(4, 8));
        assert!(time(4, 16) > 0.9 * time(4, 8));
    }

    #[test]
    fn too_little_capacity_has_no_cost() {
        let ring = Ring::natural(4);
        let schedules = Collective::AllReduce.schedules(&ring);
        let partition = Partition::even(1024, 4, 4, 64, SlotShape { bytes: 64, capacity: 8 });
        let shape = [partition];
        let cost = cost(Collective::AllReduce, &schedules, &Shape::of(&shape, 4), SPEED);
        assert!(matches!(cost, Err(Violation::Stuck(_))));
    }
}
