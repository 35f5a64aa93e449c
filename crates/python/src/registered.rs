//! Registered memory as a buffer of Python's, and NumPy arrays in it.
//! Unsafe: lends memory to the buffer protocol, whose views keep its owner.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringreduce::Registered;

use crate::comm::Communicator;
use crate::errors::{argument_error, raised};

/// Memory that the other ranks of this host can map too. It has the buffer protocol.
#[pyclass(frozen, module = "ringreduce")]
pub(crate) struct Memory {
    start: usize,
    len: usize,
    /// Freed with the last view.
    _owner: Mutex<Registered<'static, u8>>,
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    /// As the interpreter calls it.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, len) = (slf.get().start as *mut c_void, slf.get().len as isize);
        // SAFETY: the interpreter gives a view to fill; the memory lives as long as the object,
        // which the view keeps.
        let answer = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        match answer {
            0 => Ok(()),
            _ => Err(PyErr::take(slf.py())
                .unwrap_or_else(|| PyBufferError::new_err("the memory can't be viewed"))),
        }
    }
}

#[pymethods]
impl Communicator {
    /// So many bytes of registered memory, all zero.
    fn alloc(&self, py: Python<'_>, length: usize) -> PyResult<Memory> {
        let mut comm = self.shared.lock(py, "alloc")?;
        let comm = comm.get(py, "alloc")?;
        let mut memory =
            py.detach(move || comm.alloc::<u8>(length)).map_err(|error| raised(py, &error))?;
        let start = memory.as_mut_ptr() as usize;
        Ok(Memory { start, len: length, _owner: Mutex::new(memory) })
    }

    /// A NumPy array in registered memory, all zero.
    #[pyo3(signature = (shape, dtype=None))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let dtype = match dtype {
            Some(dtype) => numpy.call_method1("dtype", (dtype,))?,
            None => numpy.call_method1("dtype", ("float32",))?,
        };
        let size: usize = dtype.getattr("itemsize")?.extract()?;
        let lengths: Vec<usize> = match shape.extract::<usize>() {
            Ok(length) => vec![length],
            Err(_) => shape.extract()?,
        };
        let bytes = lengths.iter().try_fold(size, |all, &it| all.checked_mul(it));
        let Some(bytes) = bytes else {
            let given = shape.repr()?.to_string();
            return Err(argument_error("empty", "shape", &given, "less than the address space"));
        };
        let memory = Bound::new(py, self.alloc(py, bytes)?)?;
        let options = PyDict::new(py);
        options.set_item("buffer", memory)?;
        options.set_item("dtype", dtype)?;
        numpy.getattr("ndarray")?.call((lengths,), Some(&options))
    }
}
