//! Schedules that a user made: proved once, on every rank, then walked as the library's own are.
//! May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verb::refuse;
use crate::element::{Element, Reduction};
use crate::engine::{Engine, Head};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::{Collective, Schedule, Space, Step};
use crate::sim::{Proven, Violation, prove};

const UNLINKED: &str =
    "sent to a rank without a link (RINGREDUCE_ALL_PAIRS or Builder::all_pairs gives more)";

impl Communicator {
    /// Has the simulator prove that the schedules which `schedule` makes for each rank do
    /// `collective` over this communicator's links. No rank talks to another: each proves all.
    ///
    /// # Errors
    /// The law that they break, and where; or the step between ranks that have no link.
    pub fn prove(
        &mut self,
        collective: Collective,
        schedule: impl Fn(u32) -> Schedule,
    ) -> std::result::Result<Proven, Violation> {
        let size = self.size() as u32;
        self.come_home();
        let Some(Engine { planner, .. }) = &self.engine else {
            let what = "the communicator's worker has ended";
            return Err(Violation::Malformed { rank: 0, step: None, what });
        };
        let proven = prove(collective, size, planner.least_slots(), schedule)?;
        for (rank, own) in (0..).zip(proven.schedules()) {
            let far = |step: &Step| step.op.sends() && !planner.are_linked(rank, step.to);
            if let Some(step) = own.steps.iter().position(far) {
                let (step, what) = (Some(step as u32), UNLINKED);
                return Err(Violation::Malformed { rank, step, what });
            }
        }
        Ok(proven)
    }

    /// Walks a proven schedule that moves data and reduces nothing, from `input` to `output`, which
    /// all ranks pass as their collective demands: of one length, or one of them `size` times as
    /// long as the other. That of the two which a rank's own steps do not touch, as a gather's
    /// output at all ranks but the root, is not looked at and may be empty.
    ///
    /// # Errors
    /// If it was proved for other worlds or links or reduces, or the lengths do not fit; else as
    /// [`Self::all_reduce`].
    pub fn run_schedule<T: Element>(
        &mut self,
        proven: &Proven,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let call = "run_schedule";
        if proven.collective().reduces() {
            let expected = "a collective that reduces nothing; run_reduction takes an operation";
            return refuse(call, "proven", proven.collective().name(), expected);
        }
        self.run_proven(call, proven, (input, output), None)
    }

    /// Walks a proven schedule that reduces, by `op`: as [`Self::run_schedule`].
    ///
    /// # Errors
    /// As [`Self::run_schedule`]; if it does not reduce, or calls have to be deterministic, which
    /// what it folds in an order of its own is not.
    pub fn run_reduction<T: Element>(
        &mut self,
        proven: &Proven,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (call, collective) = ("run_reduction", proven.collective());
        if !collective.reduces() {
            let expected = "a collective that reduces; run_schedule needs no operation";
            return refuse(call, "proven", collective.name(), expected);
        }
        if self.settings.numbers.deterministic && collective != Collective::Barrier {
            return refuse(call, "deterministic", "on", "off: a schedule has its own order");
        }
        self.run_proven(call, proven, (input, output), Some(op.into()))
    }

    fn run_proven<T: Element>(
        &mut self,
        name: &'static str,
        proven: &Proven,
        (input, output): (&[T], &mut [T]),
        op: Option<Reduction>,
    ) -> Result<()> {
        let size = proven.schedules().len();
        let slots = self.at_home(name)?.0.planner.least_slots().capacity;
        if (size, proven.capacity().max(slots)) != (self.size(), slots) {
            let given = format!("for {size} ranks and links of {} slots", proven.capacity());
            let expected = format!("for {} and links of {slots} or fewer", self.size());
            return refuse(name, "proven", given, expected);
        }
        let own = &proven.schedules()[self.rank()];
        let collective = proven.collective();
        let count = chunk(name, collective, own, [input.len(), output.len()])?;
        let request = Request { collective, count, dtype: T::DTYPE, op };
        let buffer = Buffer::apart(cast_slice(input), cast_slice_mut(output));
        let kernel = self.kernel(&request)?;
        let head = Head { name, usual: true, ..Head::of(&request, kernel) };
        self.at_home(name)?.0.planner.adopt(own, proven.digest());
        self.walk(&head, &buffer, |planner| planner.own(&request, proven.digest()))
    }
}

/// Elements of a chunk of the one that has the smaller ones, of an input and an output of these
/// lengths; what no step touches may have any.
fn chunk(
    name: &'static str,
    collective: Collective,
    own: &Schedule,
    lengths: [usize; 2],
) -> Result<usize> {
    let chunks = if collective.has_blocks() { [own.input, own.output] } else { [1, 1] };
    let touched = [Space::Input, Space::Output].map(|space| {
        let touches = |step: &Step| {
            let reads = step.op.reads() && step.src.space == space;
            reads || step.op.stores() && step.dst.space == space
        };
        own.steps.iter().any(touches)
    });
    let looked_at = |at: usize| touched[at] || touched == [false, false];
    let first = usize::from(looked_at(1));
    let count = lengths[first] / chunks[first].max(1) as usize;
    let fits = |at: usize| count.checked_mul(chunks[at] as usize) == Some(lengths[at]);
    if (0..2).all(|at| !looked_at(at) || fits(at)) {
        return Ok(count);
    }
    let given = format!("{} and {} elements", lengths[0], lengths[1]);
    let expected = format!("{} and {} times as many as in a chunk", chunks[0], chunks[1]);
    refuse(name, "input and output", given, expected)
}
