//! `explain`: the planner's choice for a call, without making the call.

use super::Communicator;
use crate::element::{DataType, ReduceOp};
use crate::engine::CheckedCall;
use crate::error::{Result, argument_error};
use crate::memory::Buffer;
use crate::plan::{Explanation, Request};
use crate::schedule::Collective;

impl Communicator {
    /// How this rank would make a call, and why: the algorithm, the prices of the others, how the
    /// buffer is cut, and the bytes that go over each link. `count` is the number of elements of
    /// the buffer, or of one rank's block where the buffer has a block per rank. The explanation
    /// prints readably.
    ///
    /// Nothing is sent, so before the first collective no speeds are known. The explanation is for
    /// memory that is not registered, and says what differs on memory that is; a reduction is taken
    /// for a sum. Options count: elements that travel as another type are priced as that type,
    /// without the time of converting them.
    ///
    /// ```
    /// use ringreduce::{Communicator, DataType, schedule::Collective};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// println!("{}", comm.explain(Collective::AllReduce, 1 << 20, DataType::F32)?);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the root is no rank, if the buffer would not fit into memory, if the options rule out the
    /// call, or if an earlier call failed.
    pub fn explain(
        &mut self,
        collective: Collective,
        count: usize,
        dtype: DataType,
    ) -> Result<Explanation> {
        let (call, size) = ("explain", self.size());
        let root = collective.root().filter(|&root| root as usize >= size);
        if let Some(root) = root {
            return argument_error(call, "root", root, format!("a rank below {size}"));
        }
        let most = isize::MAX as usize / size / dtype.size();
        if count > most {
            return argument_error(call, "count", count, format!("at most {most} x {dtype}"));
        }
        let ops = ReduceOp::ALL.into_iter().find(|op| op.is_defined_for(dtype));
        let op = ops.filter(|_| collective.reduces()).map(Into::into);
        let request = Request { collective, count, dtype, op };
        let buffer = Buffer::in_place(&mut []);
        let (engine, settings) = self.engine_on_this_thread(call)?;
        let checked = CheckedCall::of(&request, &buffer, settings);
        let checked = CheckedCall { name: call, ..checked };
        let piecewise = engine.pieces(&checked)?;
        engine.check_usable(call)?;
        engine.planner.set_rules(checked.rules(false));
        let transports = engine.rank_info.transports.clone();
        let planner = &mut engine.planner;
        let explained = match piecewise {
            None => planner.explain(&request),
            Some(piecewise) => {
                let (piece, times, last) = piecewise.split(&request, size);
                let last = last.map(|last| planner.explain(&last));
                planner.explain(&piece).in_pieces(request, times, last)
            }
        };
        let may_use_registered = !settings.preferences.failures.retry_safe;
        let least_registered = explained.least_registered.filter(|_| may_use_registered);
        let explained = Explanation { transports, least_registered, ..explained };
        match checked.permits(explained.algorithm) {
            true => Ok(explained),
            false => Err(checked.refused(explained.algorithm, engine.planner.ring())),
        }
    }
}
