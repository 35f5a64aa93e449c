//! The border to C: entry points, and the pointers that callers pass. Law: a null pointer is an
//! error, and a panic inside never leaves the library.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Code, Done};
use crate::{counts, failing_calls, log};

/// Defines entry points, and their `NAMES`: each has an expression or a block of type `Done`.
macro_rules! driver {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(= $value:expr;)? $($body:block)?)*) => {
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
        // SAFETY: the name is the driver's, and this library takes the driver's place.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unsafe_code)]
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::c::answer(stringify!($name), move || -> $crate::code::Done {
                $($value)? $($body)?
            })
        }
        )*
    };
}
pub(crate) use driver;

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function; in it, calls of the driver are refused.
pub(crate) fn host_function(function: HostFunction, data: usize) {
    IN_HOST_FUNCTION.set(true);
    function(data);
    IN_HOST_FUNCTION.set(false);
}

/// A function of the program, with the argument that the program gave for it.
pub(crate) type HostFunction = extern "C" fn(usize);

/// The answer of an entry point as a number.
pub(crate) fn answer(name: &'static str, body: impl FnOnce() -> Done) -> u32 {
    counts::add_call(name);
    if IN_HOST_FUNCTION.get() {
        log::misuse(&format!("{name} was called from a host function"));
        return Code::NOT_PERMITTED.0;
    }
    if let Some(code) = failing_calls::error_of(name) {
        return code.0;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// The address for a result: null or valid, as the C interface demands.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *mut T)
    }

    pub(crate) fn put(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        self.offer(value);
        Ok(())
    }

    /// For results that callers may leave out.
    pub(crate) fn offer(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for one value, as the interface demands of its callers;
            // it may be unaligned, for some results go into the caller's bytes.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// For arguments that are read and written.
    pub(crate) fn read(self) -> Done<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The `at`-th of several.
    pub(crate) fn nth(self, at: usize) -> Self {
        Self(if self.0.is_null() { self.0 } else { self.0.wrapping_add(at) })
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// The address of an argument: null or valid, as the C interface demands.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *const T)
    }

    pub(crate) fn get(self) -> Done<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for one value, as the interface demands of its callers.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The `at`-th of several.
    pub(crate) fn nth(self, at: usize) -> Done<T> {
        if self.0.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            Self(self.0.wrapping_add(at)).get()
        }
    }
}

/// A name that a caller passes.
pub(crate) fn text<'a>(name: *const c_char) -> Done<&'a CStr> {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, so a string that outlives the call, as the interface demands.
    Ok(unsafe { CStr::from_ptr(name) })
}

/// Writes a text into a caller's buffer, cut to its length.
pub(crate) fn put_text(to: Out<u8>, length: usize, text: &str) -> Done {
    let Some(room) = length.checked_sub(1) else { return Err(Code::INVALID_VALUE) };
    let bytes = text.as_bytes();
    let count = bytes.len().min(room);
    for (at, &byte) in bytes[..count].iter().enumerate() {
        to.nth(at).put(byte)?;
    }
    to.nth(count).put(0)
}
