//! What a call would do, said without making it. May touch: as `comm`.

use super::Communicator;
use super::engine::{Head, allowed};
use crate::element::{DataType, ReduceOp};
use crate::error::{Error, Result};
use crate::plan::{Explanation, Request};
use crate::schedule::Collective;

impl Communicator {
    /// How this rank would make a call, and why so: the algorithm, what the others would cost,
    /// how the buffer is cut and what goes over which link. `count` is the number of elements of
    /// the buffer, or of one rank's block where there is one per rank. Prints readably.
    ///
    /// Nothing is sent: before the first collective no speeds are known. What it says is of links;
    /// memory that is registered at all ranks of a host needs none.
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
    /// If the root is no rank, or so much would not fit into memory; if the options in force rule
    /// such a call out; or if an earlier call failed.
    pub fn explain(
        &mut self,
        collective: Collective,
        count: usize,
        dtype: DataType,
    ) -> Result<Explanation> {
        let (call, size) = ("explain", self.size());
        let refuse =
            |argument, given, expected| Err(Error::Argument { call, argument, given, expected });
        let root = collective.root().filter(|&root| root as usize >= size);
        if let Some(root) = root {
            return refuse("root", root.to_string(), format!("a rank below {size}"));
        }
        let most = isize::MAX as usize / size / dtype.size();
        if count > most {
            return refuse("count", count.to_string(), format!("at most {most} x {dtype}"));
        }
        let op = collective.reduces().then(|| ReduceOp::Max.into());
        let request = Request { collective, count, dtype, op };
        // Nothing is reduced: any kernel will do.
        let kernel = self.kernel(&Request { op: None, ..request })?;
        let head = Head { name: call, ..Head::of(&request, kernel) };
        let (engine, seat, settings) = self.at_home(call)?;
        if let Some(first) = &engine.broken {
            return Err(Error::Broken { call, first: first.clone() });
        }
        allowed(&mut engine.planner, settings, &head, |planner| planner.plan(&request))?;
        let transports = seat.transports.clone();
        Ok(Explanation { transports, ..engine.planner.explain(&request) })
    }
}
