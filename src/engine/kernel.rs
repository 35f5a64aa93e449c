//! The kernel of a call.

use super::call::CheckedCall;
use super::settings::Settings;
use crate::element::{DataType, ReduceOp, Reduction};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::plan::Request;

/// The library's kernel that was selected last. Most calls reduce as the one before, and a kernel
/// that is selected and copied again takes a sixth of the shortest call's time.
#[derive(Default)]
pub(crate) struct LastKernel(Option<(Choice, Kernel<'static>)>);

/// The key of a kernel: type, reduction, and the number that an average divides by.
type Choice = (DataType, Option<Reduction>, usize);

impl LastKernel {
    /// The kernel that a call among `size` ranks reduces by.
    #[inline]
    pub(crate) fn of<'a>(
        &'a mut self,
        call: &CheckedCall<'a>,
        size: usize,
    ) -> Result<&'a Kernel<'a>> {
        let CheckedCall { request, settings, kernel, .. } = *call;
        if let Some(kernel) = kernel {
            return Ok(kernel);
        }
        let choice = (request.dtype, request.op, settings.divisor(size));
        if self.0.as_ref().is_none_or(|(of, _)| *of != choice) {
            self.0 = Some((choice, library_kernel(request, settings, size)?));
        }
        self.0.as_ref().map(|(_, kernel)| kernel).ok_or_else(|| no_kernel(request))
    }
}

/// The library's kernel for a request among `size` ranks. Calls that reduce nothing need none, and
/// get the cheapest.
pub(super) fn library_kernel(
    request: &Request,
    settings: &Settings,
    size: usize,
) -> Result<Kernel<'static>> {
    let (dtype, op) =
        request.op.map_or((DataType::U8, ReduceOp::Max.into()), |op| (request.dtype, op));
    Kernel::select(dtype, op, settings.divisor(size)).ok_or_else(|| no_kernel(request))
}

#[cold]
fn no_kernel(request: &Request) -> Error {
    Error::Bug { call: request.collective.name(), state: "a reduction without a kernel" }
}
