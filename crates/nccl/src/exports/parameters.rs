//! Parameters: the environment variables that are honoured, by name.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;
use std::str::FromStr;

use super::{export, export_plain};
use crate::abi::code;
use crate::environment::{KEYS, value};
use crate::failure::{Failure, Outcome, give};

/// A place in the list of keys, counted from 1: NULL is no parameter.
type Param = *mut c_void;

thread_local! {
    /// The text that this thread was given last, which lives until it asks again.
    static GIVEN: RefCell<CString> = RefCell::default();
    static TABLE: RefCell<(Vec<CString>, Vec<*const c_char>)> = RefCell::default();
}

fn key(param: Param) -> Outcome<&'static str> {
    let known = (param as usize).checked_sub(1).and_then(|at| KEYS.get(at));
    known.copied().ok_or_else(|| Failure::argument("the handle is no parameter"))
}

/// # Safety
/// `name` is null or a string of C.
unsafe fn position(name: *const c_char) -> Outcome<usize> {
    if name.is_null() {
        return Err(Failure::argument("key is NULL"));
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    KEYS.iter().position(|key| *key == name).ok_or_else(|| {
        Failure::argument(format_args!("key is {name}; the keys are {}", KEYS.join(", ")))
    })
}

fn keep_text(text: &str) -> *const c_char {
    GIVEN.with_borrow_mut(|given| {
        *given = CString::new(text).unwrap_or_default();
        given.as_ptr()
    })
}

fn number<T: FromStr>(param: Param) -> Outcome<T> {
    let name = key(param)?;
    let text = value(name).unwrap_or_default();
    text.parse().map_err(|_| Failure::argument(format_args!("{name} is {text:?}, no such number")))
}

macro_rules! numbers {
    ($($name:ident: $type:ty;)*) => {
        export! {$(
            /// See `nccl.h`.
            fn $name(h: Param, out: *mut $type) {
                // SAFETY: the caller passes a place for the number.
                unsafe { give(out, "out", number(h)?) }.map(|()| code::SUCCESS)
            }
        )*}
    };
}

numbers! {
    ncclParamGetI8: i8;
    ncclParamGetI16: i16;
    ncclParamGetI32: i32;
    ncclParamGetI64: i64;
    ncclParamGetU8: u8;
    ncclParamGetU16: u16;
    ncclParamGetU32: u32;
    ncclParamGetU64: u64;
}

export! {
    /// See `nccl.h`.
    fn ncclParamBind(out: *mut Param, key: *const c_char) {
        // SAFETY: the caller passes a string.
        let at = unsafe { position(key) }?;
        // SAFETY: the caller passes a place for a handle.
        unsafe { give(out, "out", (at + 1) as Param) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclParamGetStr(h: Param, out: *mut *const c_char) {
        let text = keep_text(&value(key(h)?).unwrap_or_default());
        // SAFETY: the caller passes a place for a string.
        unsafe { give(out, "out", text) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclParamGet(h: Param, out: *mut c_void, maxLen: c_int, len: *mut c_int) {
        let text = value(key(h)?).unwrap_or_default();
        if out.is_null() || usize::try_from(maxLen).map_or(true, |most| most < text.len()) {
            let len = text.len();
            return Err(Failure::argument(format_args!("out takes {maxLen} of {len} bytes")));
        }
        // SAFETY: the caller passes a place for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len()) };
        // SAFETY: the caller passes a place for the length.
        unsafe { give(len, "len", text.len() as c_int) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int) {
        // SAFETY: the caller passes a string.
        let name = KEYS[unsafe { position(key) }?];
        let text = crate::environment::value(name).unwrap_or_default();
        // SAFETY: the caller passes a place for the length.
        unsafe { give(valueLen, "valueLen", text.len() as c_int) }?;
        // SAFETY: the caller passes a place for a string.
        unsafe { give(value, "value", keep_text(&text)) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, tableLen: *mut c_int) {
        let start = TABLE.with_borrow_mut(|(texts, pointers)| {
            *texts = KEYS.iter().map(|key| CString::new(*key).unwrap_or_default()).collect();
            *pointers = texts.iter().map(|text| text.as_ptr()).collect();
            pointers.as_mut_ptr()
        });
        // SAFETY: the caller passes a place for the length.
        unsafe { give(tableLen, "tableLen", KEYS.len() as c_int) }?;
        // SAFETY: the caller passes a place for the table.
        unsafe { give(table, "table", start) }.map(|()| code::SUCCESS)
    }
}

export_plain! {
    /// See `nccl.h`.
    fn ncclParamDumpAll() {
        for key in KEYS {
            eprintln!("{key}={}", value(key).unwrap_or_default());
        }
    }

    /// NCCL reads its logging variables once more; here they are read once.
    fn ncclResetDebugInit() {}
}
