//! Any array as an address, a length and a type: by the buffer protocol, `__array_interface__`,
//! `__cuda_array_interface__` or DLPack. An array holds what keeps its memory where it is.
//! Unsafe: the memory of arrays is known by its address.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::slice;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyMemoryView};
use ringreduce::DeviceRef;

use crate::dlpack;
use crate::dtype::Elements;
use crate::errors::argument_error;

/// A call's use of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// An array that another part of the package has looked at: `start` and `bytes` of memory that
/// `owner` keeps, elements by the name of their type, and the stream of a device's memory.
#[pyclass(frozen, module = "ringreduce._core")]
pub(crate) struct Address {
    start: usize,
    bytes: usize,
    elements: Elements,
    stream: Option<u64>,
    owner: Py<PyAny>,
}

#[pymethods]
impl Address {
    #[new]
    #[pyo3(signature = (start, bytes, dtype, owner, stream=None))]
    fn new(
        start: usize,
        bytes: usize,
        dtype: &str,
        owner: Py<PyAny>,
        stream: Option<u64>,
    ) -> PyResult<Self> {
        let elements = Elements::named(dtype).filter(|it| bytes.is_multiple_of(it.dtype.size()));
        let elements = elements.ok_or_else(|| {
            let given = format!("{bytes} bytes of {dtype}");
            argument_error("_Address", "dtype", &given, "whole elements of a type")
        })?;
        Ok(Self { start, bytes, elements, stream, owner })
    }
}

/// An array, for the time of a call.
pub(crate) struct Array {
    start: *mut u8,
    bytes: usize,
    pub(crate) elements: Elements,
    /// The stream on which a device's array is ready; `None` for memory of the host.
    pub(crate) stream: Option<u64>,
    /// Keeps the memory where it is.
    _owner: Owner,
}

enum Owner {
    View(#[expect(dead_code, reason = "held to be dropped")] View),
    Object(Py<PyAny>),
}

/// A buffer, until it is dropped by a thread that is attached to the interpreter.
struct View(Box<ffi::Py_buffer>);

// SAFETY: the memory is plain bytes; a view is dropped by the thread that made it alone.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer`.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// The name of a call, and of the argument that an array is.
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) call: &'static str,
    pub(crate) name: &'static str,
    pub(crate) access: Access,
}

impl Argument {
    pub(crate) fn refuse(self, given: impl AsRef<str>, expected: &str) -> PyErr {
        argument_error(self.call, self.name, given.as_ref(), expected)
    }

    /// Checks what all protocols tell.
    fn check(self, is_contiguous: bool, is_read_only: bool) -> PyResult<()> {
        if !is_contiguous {
            let expected = "a C-contiguous one: a copy of it has that form";
            return Err(self.refuse("not a contiguous array", expected));
        }
        if is_read_only && self.access == Access::Write {
            return Err(self.refuse("read-only", "an array that the call may write to"));
        }
        Ok(())
    }

    fn refuse_type(self, of: &str) -> PyErr {
        let expected = "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, \
                        complex128, bfloat16, float8_e4m3fn, float8_e5m2, or a record of a value \
                        and an unsigned index, in the byte order of this machine";
        self.refuse(format!("an array of {of}"), expected)
    }
}

impl Array {
    /// The array that `object` is.
    pub(crate) fn new(object: &Bound<'_, PyAny>, argument: Argument) -> PyResult<Self> {
        if let Ok(known) = object.cast_exact::<Address>() {
            let Address { start, bytes, elements, stream, owner } = known.get();
            let owner = Owner::Object(owner.clone_ref(object.py()));
            let start = *start as *mut u8;
            return Ok(Self {
                start,
                bytes: *bytes,
                elements: *elements,
                stream: *stream,
                _owner: owner,
            });
        }
        match Self::of_buffer(object, argument) {
            Some(array) => array,
            None => Self::of_other(object, argument),
        }
    }

    /// No elements of the type of `like`.
    pub(crate) fn empty(like: Elements, stream: Option<u64>, py: Python<'_>) -> Self {
        Self { start: 0 as _, bytes: 0, elements: like, stream, _owner: Owner::Object(py.None()) }
    }

    /// As an array that may be dropped by any thread, at any time.
    pub(crate) fn keep(self, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let owner = match &self._owner {
            Owner::View(_) => Owner::Object(PyMemoryView::from(object)?.into_any().unbind()),
            Owner::Object(held) => Owner::Object(held.clone_ref(object.py())),
        };
        Ok(Self { _owner: owner, ..self })
    }

    /// By the buffer protocol; `None` if the object has none, or none for its type.
    fn of_buffer(object: &Bound<'_, PyAny>, argument: Argument) -> Option<PyResult<Self>> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        let flags = ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT;
        // SAFETY: the object is alive, and the thread attached.
        let answer = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if answer != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        // SAFETY: the call has filled the view.
        let mut view = View(unsafe { view.assume_init() });
        // SAFETY: the view is whole.
        let dense = unsafe { ffi::PyBuffer_IsContiguous(&raw mut *view.0, b'C' as _) } != 0;
        let bytes = usize::try_from(view.0.len).unwrap_or_default();
        let size = usize::try_from(view.0.itemsize).unwrap_or_default();
        let format = if view.0.format.is_null() {
            "B"
        } else {
            // SAFETY: a format is a string of C, which the view keeps.
            unsafe { CStr::from_ptr(view.0.format) }.to_str().unwrap_or_default()
        };
        let Some(elements) = Elements::of_format(format, size) else {
            return Some(Err(argument.refuse_type(&format!("the format `{format}`"))));
        };
        if let Err(error) = argument.check(dense || bytes == 0, view.0.readonly != 0) {
            return Some(Err(error));
        }
        let start = view.0.buf.cast();
        Some(Ok(Self { start, bytes, elements, stream: None, _owner: Owner::View(view) }))
    }

    #[cold]
    fn of_other(object: &Bound<'_, PyAny>, argument: Argument) -> PyResult<Self> {
        refuse_lazy(object, argument)?;
        for (name, on_device) in
            [("__array_interface__", false), ("__cuda_array_interface__", true)]
        {
            // A tensor of the host has the second one too, which raises.
            let Ok(interface) = object.getattr(name) else { continue };
            if let Ok(interface) = interface.cast_into::<PyDict>() {
                return Self::of_interface(object, &interface, (on_device, argument));
            }
        }
        if object.hasattr("__dlpack__")? {
            return Self::of_dlpack(object, argument);
        }
        let kind = object.get_type().name()?;
        let Argument { call, name, .. } = argument;
        Err(PyTypeError::new_err(format!(
            "{call}: {name} is of type {kind}, expected an array: with the buffer protocol, \
             __array_interface__, __cuda_array_interface__ or __dlpack__"
        )))
    }

    fn of_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyDict>,
        (on_device, argument): (bool, Argument),
    ) -> PyResult<Self> {
        let get = |key: &str| {
            let found = interface.get_item(key)?.filter(|it| !it.is_none());
            Ok::<_, PyErr>(found)
        };
        let missing = |key: &str| {
            argument.refuse(format!("an array whose interface has no {key}"), "one that has it")
        };
        let typestr: String = get("typestr")?.ok_or_else(|| missing("typestr"))?.extract()?;
        let name = object.getattr("dtype").and_then(|it| it.str()).map(|it| it.to_string());
        let name = name.unwrap_or_default();
        let mut letters = typestr.chars();
        let (order, kind) = (letters.next(), letters.next().unwrap_or('V'));
        let size: usize = letters.as_str().parse().unwrap_or_default();
        let short = name.rsplit('.').next().unwrap_or_default();
        let known = Elements::of_name(short).or_else(|| Elements::of_kind(kind, size));
        let foreign = if cfg!(target_endian = "little") { '>' } else { '<' };
        let elements = known.filter(|_| order != Some(foreign));
        let elements =
            elements.ok_or_else(|| argument.refuse_type(&format!("{name} {typestr}")))?;
        let shape: Vec<usize> = get("shape")?.ok_or_else(|| missing("shape"))?.extract()?;
        let (start, read_only): (u64, bool) =
            get("data")?.ok_or_else(|| missing("data"))?.extract()?;
        let bytes = shape.iter().try_fold(size, |all, &it| all.checked_mul(it));
        let bytes = bytes.ok_or_else(|| argument.refuse("too large", "less than all memory"))?;
        let strides: Option<Vec<i64>> = get("strides")?.map(|it| it.extract()).transpose()?;
        let mut expected = size as i64;
        let dense = strides.is_none_or(|strides| {
            shape.iter().zip(&strides).rev().all(|(&length, &stride)| {
                let is_dense = length <= 1 || stride == expected;
                expected *= length.max(1) as i64;
                is_dense
            })
        });
        argument.check(dense || bytes == 0, read_only || on_device && is_immutable(object)?)?;
        let given: Option<u64> = get("stream")?.map(|it| it.extract()).transpose()?;
        let stream = on_device.then_some(given.unwrap_or_default());
        let owner = Owner::Object(object.clone().unbind());
        Ok(Self { start: start as *mut u8, bytes, elements, stream, _owner: owner })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, argument: Argument) -> PyResult<Self> {
        let py = object.py();
        let newest = PyDict::new(py);
        newest.set_item("max_version", (1, 1))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&newest)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                object.call_method0("__dlpack__")
            }
            other => other,
        };
        let capsule = capsule.map_err(|why| {
            argument.refuse(format!("an array that can't be shared: {why}"), "one that can")
        })?;
        let capsule = capsule.cast_into::<PyCapsule>()?;
        let Some(found) = dlpack::describe(&capsule) else {
            return Err(argument.refuse("a tensor of an unknown version", "one of DLPack 0 or 1"));
        };
        let stream = match found.device.0 {
            // Of the host; pinned.
            1 | 3 => None,
            // Of a CUDA device; managed.
            2 | 13 => Some(0),
            other => {
                let expected = "memory of the host or of a CUDA device";
                return Err(
                    argument.refuse(format!("on a device of DLPack type {other}"), expected)
                );
            }
        };
        let elements = Elements::of_dlpack(found.code, found.bits).ok_or_else(|| {
            argument.refuse_type(&format!("DLPack type {} of {} bits", found.code, found.bits))
        })?;
        argument.check(found.is_contiguous, found.is_read_only || is_immutable(object)?)?;
        let bytes = found.elements.checked_mul(elements.dtype.size());
        let bytes = bytes.ok_or_else(|| argument.refuse("too large", "less than all memory"))?;
        let owner = Owner::Object(capsule.into_any().unbind());
        Ok(Self { start: found.start as *mut u8, bytes, elements, stream, _owner: owner })
    }

    pub(crate) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// True if the two share a byte.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let end = |it: &Self| (it.start as usize).saturating_add(it.bytes);
        (self.start as usize).max(other.start as usize) < end(self).min(end(other))
    }

    /// The memory on a device.
    pub(crate) fn on_device(&self) -> DeviceRef {
        // SAFETY: the owner keeps the memory, and the caller of a call orders its streams, as the
        // documentation asks.
        unsafe { DeviceRef::from_raw_parts(self.start as u64, self.bytes) }
    }
}

/// Refuses PyTorch's lazy conjugates and negatives: their memory has other elements than they have,
/// and the protocols do not say so.
fn refuse_lazy(object: &Bound<'_, PyAny>, argument: Argument) -> PyResult<()> {
    for (is_lazy, resolve) in [("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")] {
        let answer = object.call_method0(is_lazy);
        if answer.is_ok_and(|answer| answer.is_truthy().unwrap_or(false)) {
            let expected = format!("the tensor that its {resolve}() gives");
            return Err(argument.refuse(format!("a tensor whose {is_lazy}() is true"), &expected));
        }
    }
    Ok(())
}

/// JAX's arrays do not change, and not all of their protocols say so.
fn is_immutable(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = object.get_type().module()?.to_string();
    Ok(module.split('.').next().is_some_and(|name| name == "jax" || name == "jaxlib"))
}

impl AsRef<[u8]> for Array {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 || self.stream.is_some() {
            return &[];
        }
        // SAFETY: the owner keeps the memory of the host. That nobody writes to it during a call is
        // asked of the program.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl AsMut<[u8]> for Array {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 || self.stream.is_some() {
            return &mut [];
        }
        // SAFETY: as above; a call that writes has asked for `Access::Write`, and its two arrays do
        // not overlap.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}
