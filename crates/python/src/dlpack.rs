//! DLPack's structures, as far as a reader needs them: <https://dmlc.github.io/dlpack>. The capsule
//! stays the owner of the tensor, which its destructor releases.
//! Unsafe: reads what a capsule points to.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::slice;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

/// A capsule's description of its tensor.
pub(crate) struct Description {
    pub(crate) start: u64,
    pub(crate) device: (i32, i32),
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) elements: usize,
    pub(crate) is_contiguous: bool,
    pub(crate) is_read_only: bool,
}

/// Reads a capsule; `None` if it is no tensor that this file knows.
pub(crate) fn describe(capsule: &Bound<'_, PyCapsule>) -> Option<Description> {
    if let Ok(held) = capsule.pointer_checked(Some(VERSIONED_NAME)) {
        // SAFETY: a capsule of this name holds this structure, until it is dropped.
        let held = unsafe { held.cast::<Versioned>().as_ref() };
        return match held.version[0] {
            1 => held.tensor.describe(held.flags & READ_ONLY != 0),
            _ => None,
        };
    }
    let held = capsule.pointer_checked(Some(NAME)).ok()?;
    // SAFETY: as above; the structure begins with the tensor.
    unsafe { held.cast::<Tensor>().as_ref() }.describe(false)
}

impl Tensor {
    fn describe(&self, is_read_only: bool) -> Option<Description> {
        let ndim = usize::try_from(self.ndim).ok()?;
        let list = |start: *const i64| {
            if start.is_null() || ndim == 0 {
                return &[][..];
            }
            // SAFETY: both lists have `ndim` numbers.
            unsafe { slice::from_raw_parts(start, ndim) }
        };
        let (shape, strides) = (list(self.shape), list(self.strides));
        let lengths = shape.iter().map(|&length| usize::try_from(length).ok());
        let elements = lengths.clone().try_fold(1_usize, |all, it| all.checked_mul(it?))?;
        let mut expected = 1;
        let dense = shape.iter().zip(strides).rev().all(|(&length, &stride)| {
            let is_dense = length <= 1 || stride == expected;
            expected *= length.max(1);
            is_dense
        });
        Some(Description {
            start: (self.data as u64).checked_add(self.byte_offset)?,
            device: (self.device_type, self.device_id),
            code: self.code,
            bits: if self.lanes == 1 { self.bits } else { 0 },
            elements,
            is_contiguous: dense || elements == 0,
            is_read_only,
        })
    }
}
