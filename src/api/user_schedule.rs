//! Schedules made by a user: proved once by the simulator, on every rank, then executed as the
//! library's own.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::collective::{check_reduction, element_count};
use crate::element::{DataType, Element, Reduction};
use crate::engine::{CheckedCall, Engine, PlanBy};
use crate::error::{Result, argument_error};
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::{Collective, Schedule, Space, Step};
use crate::sim::{Proven, Violation, prove};

const UNLINKED: &str =
    "sent to a rank without a link (RINGREDUCE_ALL_PAIRS or Builder::all_pairs gives more)";

impl Communicator {
    /// Has the simulator prove that the schedules which `schedule` makes for all ranks carry out
    /// `collective` over this communicator's links. No rank talks to another: each proves the
    /// schedules of all.
    ///
    /// # Errors
    /// The law that the schedules break, and where; or the step between two ranks that have no
    /// link.
    pub fn prove(
        &mut self,
        collective: Collective,
        schedule: impl Fn(u32) -> Schedule,
    ) -> std::result::Result<Proven, Violation> {
        let size = self.size() as u32;
        self.reclaim_engine();
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

    /// Executes a proven schedule that moves data and reduces nothing, from `input` to `output`.
    /// All ranks pass the lengths that their collective demands: equal ones, or one of the buffers
    /// `size` times as long as the other. A buffer that a rank's own steps do not touch, such as a
    /// gather's output at all ranks but the root, is not looked at and may be empty.
    ///
    /// # Errors
    /// If the schedule was proved for another number of ranks or for other links, if it reduces, or
    /// if the lengths do not fit; else as [`Self::all_reduce`].
    pub fn run_schedule<T: Element>(
        &mut self,
        proven: &Proven,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        self.run_schedule_bytes(proven, cast_slice(input), cast_slice_mut(output), T::DTYPE)
    }

    /// [`Self::run_schedule`] of buffers whose type is known at run time.
    ///
    /// # Errors
    /// As [`Self::run_schedule`]; and if a buffer is not whole elements.
    pub fn run_schedule_bytes(
        &mut self,
        proven: &Proven,
        input: &[u8],
        output: &mut [u8],
        dtype: DataType,
    ) -> Result<()> {
        let call = "run_schedule";
        if proven.collective().reduces() {
            let expected = "a collective that reduces nothing; run_reduction takes an operation";
            return argument_error(call, "proven", proven.collective().name(), expected);
        }
        self.run_proven((call, dtype), proven, (input, output), None)
    }

    /// Executes a proven schedule that reduces by `op`: as [`Self::run_schedule`].
    ///
    /// # Errors
    /// As [`Self::run_schedule`]; if the schedule does not reduce; and if calls have to be
    /// deterministic, because a schedule folds in an order of its own.
    pub fn run_reduction<T: Element>(
        &mut self,
        proven: &Proven,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.run_reduction_bytes(proven, cast_slice(input), cast_slice_mut(output), T::DTYPE, op)
    }

    /// [`Self::run_reduction`] of buffers whose type is known at run time.
    ///
    /// # Errors
    /// As [`Self::run_reduction`]; and if a buffer is not whole elements.
    pub fn run_reduction_bytes(
        &mut self,
        proven: &Proven,
        input: &[u8],
        output: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (call, collective) = ("run_reduction", proven.collective());
        if !collective.reduces() {
            let expected = "a collective that reduces; run_schedule needs no operation";
            return argument_error(call, "proven", collective.name(), expected);
        }
        let op = op.into();
        check_reduction(call, collective, dtype, op)?;
        if self.settings.preferences.numbers.deterministic && collective != Collective::Barrier {
            return argument_error(
                call,
                "deterministic",
                "on",
                "off: a schedule has its own order",
            );
        }
        self.run_proven((call, dtype), proven, (input, output), Some(op))
    }

    fn run_proven(
        &mut self,
        (name, dtype): (&'static str, DataType),
        proven: &Proven,
        (input, output): (&[u8], &mut [u8]),
        op: Option<Reduction>,
    ) -> Result<()> {
        let size = proven.schedules().len();
        let slots = self.engine_on_this_thread(name)?.0.planner.least_slots().capacity;
        if (size, proven.capacity().max(slots)) != (self.size(), slots) {
            let given = format!("for {size} ranks and links of {} slots", proven.capacity());
            let expected = format!("for {} and links of {slots} or fewer", self.size());
            return argument_error(name, "proven", given, expected);
        }
        let own = &proven.schedules()[self.rank()];
        let collective = proven.collective();
        let count = |argument, bytes| element_count(name, argument, bytes, dtype);
        let counts = [count("input", input.len())?, count("output", output.len())?];
        let count = chunk(name, collective, own, counts)?;
        let request = Request { collective, count, dtype, op };
        let buffer = Buffer::out_of_place(input, output);
        let (engine, settings) = self.engine_on_this_thread(name)?;
        engine.planner.add_user_schedule(own, proven.digest());
        let (plan_by, is_internal) = (PlanBy::UserSchedule(proven.digest()), true);
        let call = CheckedCall::of(&request, &buffer, settings);
        engine.make(&CheckedCall { name, plan_by, is_internal, ..call })
    }
}

/// Elements of a chunk: the count of the shorter buffer, of an input and an output of these
/// lengths. A buffer that no step touches may have any length.
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
    argument_error(name, "input and output", given, expected)
}
