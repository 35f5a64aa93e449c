//! Schedules that a user made: proved once, on every rank, then walked as the library's own are.
//! May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::engine::{Engine, Head};
use super::verbs::refuse;
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::{Collective, Schedule, Step};
use crate::sim::{Proven, Violation, prove};

const CALL: &str = "run_schedule";
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

    /// Walks a proven schedule from `input` to `output`, which all ranks pass as their collective
    /// demands: of one length, or one of them `size` times as long as the other.
    ///
    /// # Errors
    /// If it was proved for other worlds or links, or the lengths do not fit; else as
    /// [`Self::all_reduce`].
    pub fn run_schedule<T: Element>(
        &mut self,
        proven: &Proven,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let size = proven.schedules().len();
        let slots = self.at_home(CALL)?.0.planner.least_slots().capacity;
        if (size, proven.capacity().max(slots)) != (self.size(), slots) {
            let given = format!("for {size} ranks and links of {} slots", proven.capacity());
            let expected = format!("for {} and links of {slots} or fewer", self.size());
            return refuse(CALL, "proven", given, expected);
        }
        let own = &proven.schedules()[self.rank()];
        let blocks = proven.collective().has_blocks();
        let [parts, wholes] = if blocks { [own.input, own.output] } else { [1, 1] };
        let count = output.len() / wholes.max(1) as usize;
        let lengths = [count.checked_mul(parts as usize), count.checked_mul(wholes as usize)];
        if lengths != [Some(input.len()), Some(output.len())] {
            let given = format!("{} and {} elements", input.len(), output.len());
            let expected = format!("{parts} and {wholes} times as many as in a chunk");
            return refuse(CALL, "input and output", given, expected);
        }
        let collective = proven.collective();
        let request = Request { collective, count, dtype: T::DTYPE, op: Some(op.into()) };
        let buffer = Buffer::apart(cast_slice(input), cast_slice_mut(output));
        let kernel = self.kernel(&request)?;
        let head = Head { usual: true, ..Head::of(&request, kernel) };
        self.at_home(CALL)?.0.planner.adopt(own, proven.digest());
        self.walk(&head, &buffer, |planner| planner.own(&request, proven.digest()))
    }
}
