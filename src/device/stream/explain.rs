//! Explanations of calls on a stream, and the check that a required algorithm can make a call.

use super::OnStream;
use crate::element::{DataType, ReduceOp};
use crate::error::{Result, argument_error};
use crate::plan::{DeviceExplanation, DeviceForm, Request};
use crate::schedule::{Algorithm, Collective};

/// Refuses a call whose form is none of the required algorithm.
pub(super) fn may_be_by(
    name: &'static str,
    required: Option<Algorithm>,
    form: DeviceForm,
) -> Result<()> {
    match required.filter(|&asked| !form.is_by(asked)) {
        None => Ok(()),
        Some(asked) => {
            let expected = format!("one that these devices can make this call by, which is {form}");
            argument_error(name, "algorithm", asked, expected)
        }
    }
}

impl OnStream<'_> {
    /// How a call on device buffers would be made, and the alternatives. `count` is as in
    /// [`Communicator::explain`](crate::Communicator::explain), which explains the host's part
    /// where there is one. Between processes the answer is for buffers that are not registered.
    /// Prices are closed forms for stated speeds of devices and links, not measured ones.
    ///
    /// # Errors
    /// If so many elements would not fit into memory.
    pub fn explain(
        &self,
        collective: Collective,
        count: usize,
        dtype: DataType,
    ) -> Result<DeviceExplanation> {
        let (comm, size) = (&*self.comm, self.comm.size());
        let most = isize::MAX as usize / size / dtype.size();
        if count > most {
            return argument_error("explain", "count", count, format!("at most {most} x {dtype}"));
        }
        let ops = ReduceOp::ALL.into_iter().find(|op| op.is_defined_for(dtype));
        let op = ops.filter(|_| collective.reduces()).map(Into::into);
        let bytes = count * dtype.size();
        let direct = comm.streams.direct.as_ref();
        let is_shared = direct.is_none_or(|direct| direct.is_one_process());
        let request = Request { collective, count, dtype, op };
        let call = comm.device_call(&request, (bytes, is_shared, !is_shared));
        let reach = comm.device_reach();
        let forced = comm.settings.required.or(comm.settings.preferences.algorithm);
        let candidates = reach.candidates(size, &call);
        let form = reach.choose(size, &call, forced);
        let asked = candidates.first().is_some_and(|best| best.form != form);
        Ok(DeviceExplanation { size, collective, bytes, form, candidates, asked })
    }
}
