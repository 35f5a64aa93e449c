//! The simulated time of a collective: the walk of [`check`](super::check()) with a clock at every
//! rank and a time in every slot. No real clock is read.
//!
//! The letters are those of [`Speed`], and n is the number of ranks. A slice of a step keeps its
//! rank busy for `o` seconds and `b` seconds per byte (`g` more per byte if it reduces). It starts
//! when the rank is idle, its incoming slot is full and its outgoing slot empty. Its message
//! arrives `a` seconds after its end; so does the news that the incoming slot is empty. (LogGP:
//! Alexandrov et al., SPAA 1995, without its gap.) With one slice per chunk and slots to spare,
//! ranks never wait for a slot, and each algorithm's file has its closed form. A broadcast of k
//! slices of m bytes round a ring is a pipeline: (n+k-1)(o + mb) + (n-1)a.

use super::network::{Cursor, Work, walk};
use super::shape::Shape;
use super::violation::Violation;
use crate::schedule::{Collective, Op, Schedule, Step};

/// The speed of links and ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// a: seconds from the commit of a slot until the peer sees it.
    pub latency: f64,
    /// o: seconds of its rank that a slice of a step takes, whatever its length.
    pub step: f64,
    /// b: seconds per byte to move data.
    pub byte: f64,
    /// g: additional seconds per byte to reduce data.
    pub reduce: f64,
}

impl Speed {
    /// Seconds of its rank that a slice of `bytes` takes in a step that does not reduce.
    #[must_use]
    pub fn moved(&self, bytes: f64) -> f64 {
        self.step + bytes * self.byte
    }

    /// Seconds of its rank that a slice of `bytes` takes in a step that reduces.
    #[must_use]
    pub fn folded(&self, bytes: f64) -> f64 {
        self.moved(bytes) + bytes * self.reduce
    }
}

/// The simulated time in seconds until the last rank is done, in place, if all start at 0, over
/// links of `shape`. `schedules` has one schedule per rank; they must obey the laws (see
/// [`check`](super::check())).
///
/// # Errors
/// [`Violation::Stuck`] if the links have too few slots.
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
    let speed = |_, _| speed;
    let mut clocks = Clocks { collective, schedules, shape, speed, now, on_slice: |_| {} };
    walk(schedules, shape, 0, &mut clocks)?;
    Ok(clocks.now.into_iter().fold(0.0, f64::max))
}

/// One slice of a step in a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank.
    pub rank: u32,
    /// The step that it processes.
    pub step: Step,
    /// Start and end, in seconds from the start of the call; the rank is busy in between.
    pub time: [f64; 2],
    /// Bytes of the slice.
    pub bytes: usize,
}

/// The walk that [`cost`] simulates, slice by slice, in the order in which ranks make them; each
/// link has its own speed, `speed(from, to)`. A step takes the speed of the link that it sends on,
/// or else of the link that it receives from.
///
/// # Errors
/// As [`cost`].
///
/// # Panics
/// As [`cost`].
pub fn timeline(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape<'_>,
    speed: impl Fn(u32, u32) -> Speed,
) -> Result<Vec<Span>, Violation> {
    let now = vec![0.0; schedules.len()];
    let mut spans = Vec::new();
    let on_slice = |span| spans.push(span);
    walk(schedules, shape, 0, &mut Clocks { collective, schedules, shape, speed, now, on_slice })?;
    Ok(spans)
}

struct Clocks<'a, Links, OnSlice> {
    collective: Collective,
    schedules: &'a [Schedule],
    shape: &'a Shape<'a>,
    speed: Links,
    now: Vec<f64>,
    on_slice: OnSlice,
}

impl<Links: Fn(u32, u32) -> Speed, OnSlice: FnMut(Span)> Work for Clocks<'_, Links, OnSlice> {
    /// The time from which the slot is seen to be full (by the receiver) or empty (by the sender).
    type Slot = f64;

    fn slice(
        &mut self,
        at: &Cursor,
        step: &Step,
        incoming: Option<&mut f64>,
        outgoing: Option<&mut f64>,
    ) -> Result<(), Violation> {
        let rank = at.rank;
        let [src, dst] = [step.src, step.dst].map(|place| self.collective.in_place(rank, place));
        if step.op == Op::Copy && src == dst {
            return Ok(());
        }
        let like = self.schedules[rank as usize].like(step.src);
        let bytes = self.shape.bytes(rank, at.round, like, at.slice);
        let seconds = if step.op.reduces() { Speed::folded } else { Speed::moved };
        let [takes, gives] = [(step.from, rank), (rank, step.to)].map(|(a, b)| (self.speed)(a, b));
        let speed = if step.op.sends() { gives } else { takes };
        let now = &mut self.now[rank as usize];
        for slot in [&incoming, &outgoing].into_iter().flatten() {
            *now = now.max(**slot);
        }
        let start = *now;
        *now += seconds(&speed, bytes as f64);
        for (slot, link) in [(incoming, takes), (outgoing, gives)] {
            if let Some(slot) = slot {
                *slot = *now + link.latency;
            }
        }
        (self.on_slice)(Span { rank, step: *step, time: [start, *now], bytes });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Shape, Span, Speed, cost, timeline};
    use crate::partition::{Partition, SlotShape};
    use crate::schedule::Collective;
    use crate::schedule::Ring;

    const SPEED: Speed = Speed { latency: 1e-6, step: 0.3e-6, byte: 0.05e-9, reduce: 0.02e-9 };

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

    /// With one slice per chunk, `schedule::algorithm` compares the costs with the closed forms.
    #[test]
    fn slices_go_down_a_ring_as_a_pipeline() {
        let (a, root, m) = (SPEED.latency, 1, 64.0 * 1024.0);
        for size in 2..=16 {
            let n = f64::from(size);
            for slices in [1, 2, 16] {
                let k = slices as f64;
                let [slice, fold] = [SPEED.moved(m / k), SPEED.folded(m / k)];
                let moves = (n + k - 1.0) * slice + (n - 1.0) * a;
                let folds = slice + (n + k - 2.0) * fold + (n - 1.0) * a;
                for (collective, want) in [
                    (Collective::Broadcast { root }, moves),
                    (Collective::Reduce { root }, folds),
                    (Collective::Scan, folds),
                ] {
                    let got = seconds(collective, size, 64 * 1024, slices, 1000);
                    assert!((got / want - 1.0).abs() < 1e-9, "{collective:?}: {got} {want}");
                }
            }
        }
    }

    /// The closed form ignores capacity: with the least legal one, slices wait for each other.
    #[test]
    fn two_chunks_of_slots_are_worth_their_memory() {
        let time = |slices, slots| seconds(Collective::AllReduce, 8, 64 * 1024, slices, slots);
        assert!(time(4, 8) < time(1, 8));
        assert!(time(4, 5) > 2.0 * time(4, 8));
        assert!(time(4, 16) > 0.9 * time(4, 8));
    }

    /// A timeline ends at the cost, ranks do one slice at a time, and a slow link delays the end.
    #[test]
    fn a_timeline_is_the_walk_of_the_cost() {
        let schedules = Collective::AllReduce.schedules(&Ring::natural(6));
        let partition = [Partition::exact(1 << 16, 1, SlotShape { bytes: 1 << 16, capacity: 2 })];
        let shape = Shape::of(&partition, 12);
        let spans = timeline(Collective::AllReduce, &schedules, &shape, |_, _| SPEED).unwrap();
        let end = |spans: &[Span]| spans.iter().map(|span| span.time[1]).fold(0.0, f64::max);
        let walk = cost(Collective::AllReduce, &schedules, &shape, SPEED).unwrap();
        assert!((end(&spans) - walk).abs() < 1e-15);
        for rank in 0..6 {
            let own: Vec<_> = spans.iter().filter(|span| span.rank == rank).collect();
            assert_eq!(own.len(), schedules[rank as usize].steps.len());
            assert!(own.is_sorted_by(|one, next| one.time[1] <= next.time[0]));
        }
        let slow = Speed { latency: 1e-3, ..SPEED };
        let links = |from, to| if (from, to) == (2, 3) { slow } else { SPEED };
        let spans = timeline(Collective::AllReduce, &schedules, &shape, links).unwrap();
        assert!((2e-3..2.2e-3).contains(&end(&spans)), "{}", end(&spans));
    }
}
