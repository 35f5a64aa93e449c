//! Arrays on CUDA devices: their calls go on a stream of the array's library.
//! Unsafe: borrows a stream known by its handle.
#![allow(unsafe_code)]

use std::sync::Arc;

use pyo3::prelude::*;
use ringreduce::Communicator as Core;
use ringreduce::cudarc::driver::{CudaContext, CudaStream};

use crate::call::Call;
use crate::comm::{Communicator, Shared};
use crate::errors::{argument_error, raised};

/// The stream of this handle.
fn borrow(core: &Core, py: Python<'_>, handle: u64) -> PyResult<Arc<CudaStream>> {
    // SAFETY: the handle is that of a stream of the array's library, which the program keeps until
    // its calls are done, as the documentation asks.
    let stream = unsafe { core.borrow_stream(handle as *mut _) };
    stream.map_err(|error| raised(py, &error))
}

/// Finds the stream of a call whose arrays are on a device.
pub(crate) fn find_stream(
    shared: &Shared,
    py: Python<'_>,
    name: &str,
    call: &mut Call,
) -> PyResult<()> {
    if let Some(handle) = call.stream_handle() {
        call.stream = Some(borrow(shared.lock(py, name)?.get(py, name)?, py, handle)?);
    }
    Ok(())
}

#[pymethods]
impl Communicator {
    /// Declares the CUDA device of this rank's arrays. All ranks call this together.
    fn use_device(&self, py: Python<'_>, ordinal: usize) -> PyResult<()> {
        let devices = ringreduce::device_count().map_err(|error| raised(py, &error))?;
        if ordinal >= devices {
            let expected = format!("below {devices}, the number of devices");
            return Err(argument_error("use_device", "ordinal", &ordinal.to_string(), &expected));
        }
        let context = CudaContext::new(ordinal).map_err(|error| {
            pyo3::exceptions::PyRuntimeError::new_err(format!("use_device: {error}"))
        })?;
        self.shared.block(py, "use_device", |comm| comm.use_device(&context))?;
        let _ = self.shared.context.set(context);
        Ok(())
    }

    /// Waits for the work of a stream, and raises the error of a call on it.
    #[pyo3(signature = (stream=0))]
    fn synchronize(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        const NAME: &str = "synchronize";
        let stream = borrow(self.shared.lock(py, NAME)?.get(py, NAME)?, py, stream)?;
        let done = py.detach(|| stream.synchronize());
        self.shared.block(py, NAME, |comm| comm.on_stream(&stream).check())?;
        done.map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(format!("{NAME}: {error}")))
    }
}
