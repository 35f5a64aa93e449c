//! What a call would do, said without making it. May touch: as `comm`.

use super::Communicator;
use super::verb::refuse;
use crate::element::{DataType, ReduceOp};
use crate::engine::Head;
use crate::error::Result;
use crate::plan::{Explanation, Request};
use crate::schedule::Collective;

impl Communicator {
    /// How this rank would make a call, and why so: the algorithm, what the others would cost,
    /// how the buffer is cut and what goes over which link. `count` is the number of elements of
    /// the buffer, or of one rank's block where there is one per rank. Prints readably.
    ///
    /// Nothing is sent: before the first collective no speeds are known. It speaks of memory that
    /// is not registered; what reduces is taken for a sum. Options count: elements that travel as
    /// another type are priced as that, without what it takes to convert them.
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
    /// If the root is no rank, so much would not fit into memory or the call would be refused, by
    /// its algorithm or as a deterministic one; or if an earlier call failed.
    pub fn explain(
        &mut self,
        collective: Collective,
        count: usize,
        dtype: DataType,
    ) -> Result<Explanation> {
        let (call, size) = ("explain", self.size());
        let root = collective.root().filter(|&root| root as usize >= size);
        if let Some(root) = root {
            return refuse(call, "root", root, format!("a rank below {size}"));
        }
        let most = isize::MAX as usize / size / dtype.size();
        if count > most {
            return refuse(call, "count", count, format!("at most {most} x {dtype}"));
        }
        let ops = ReduceOp::ALL.into_iter().find(|op| op.is_defined_for(dtype));
        let op = ops.filter(|_| collective.reduces()).map(Into::into);
        let request = Request { collective, count, dtype, op };
        let travel = self.travel(call, &request, None)?;
        let head = Head { name: call, ..Head::of(&request, self.kernel(&request)?) };
        let (engine, seat, settings) = self.at_home(call)?;
        engine.works(call)?;
        engine.planner.go_by(head.rules(settings, false));
        let transports = seat.transports.clone();
        let planner = &mut engine.planner;
        let explained = match travel {
            None => planner.explain(&request),
            Some(pieces) => {
                let (piece, times, last) = pieces.of(&request, size);
                let last = last.map(|last| planner.explain(&last));
                planner.explain(&piece).in_pieces(request, times, last)
            }
        };
        let explained = Explanation { transports, ..explained };
        head.admit(settings, explained.algorithm, head.world(settings, engine.planner.ring()))?;
        Ok(explained)
    }
}
