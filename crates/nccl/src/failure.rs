//! Failures: NCCL's code, the text of `ncclGetLastError`, and the frame of every entry.
//! Unsafe: a caller's pointers are read and written.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use ringreduce::Error;

use crate::abi::code;
use crate::environment::warn;
use crate::group;

/// Why an entry fails: a code, and a text in a place of its own, so that results stay small.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<(c_int, String)>);

/// The result of an entry: the code to return, or a failure with its text.
pub(crate) type Outcome<T = c_int> = Result<T, Failure>;

/// The text of the last failure in any thread, for a watchdog thread that asks.
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// The text of this thread's last failure, which goes before that of others.
    static OWN: RefCell<String> = RefCell::default();
    /// The text that this thread was given last, which lives until it asks again.
    static GIVEN: RefCell<CString> = RefCell::default();
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: c_int, text: impl Display) -> Self {
        Self(Box::new((code, text.to_string())))
    }

    pub(crate) fn code(&self) -> c_int {
        self.0.0
    }

    pub(crate) fn argument(text: impl Display) -> Self {
        Self::new(code::INVALID_ARGUMENT, text)
    }

    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(code::INVALID_USAGE, text)
    }

    /// Makes this the last failure, of the entry with this name, and returns its code.
    fn keep(self, entry: &str) -> c_int {
        let (code, text) = *self.0;
        let text = format!("{entry}: {text}");
        warn(&text);
        OWN.with_borrow_mut(|own| own.clone_from(&text));
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
        group::note_failure(code);
        code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(&error), error)
    }
}

pub(crate) fn no_thread(error: std::io::Error) -> Failure {
    Failure::new(code::SYSTEM_ERROR, format_args!("starting a thread: {error}"))
}

pub(crate) fn code_of(error: &Error) -> c_int {
    match error {
        Error::Argument { .. } | Error::UnknownName(_) => code::INVALID_ARGUMENT,
        Error::Config { .. } | Error::Mismatch { .. } | Error::Violation(_) => code::INVALID_USAGE,
        Error::Timeout { .. } | Error::Stalled { .. } | Error::NoMessage { .. } => code::TIMEOUT,
        Error::Io { .. } | Error::Exhausted { .. } | Error::Store { .. } => code::SYSTEM_ERROR,
        Error::Device { .. } => code::UNHANDLED_CUDA_ERROR,
        _ => code::REMOTE_ERROR,
    }
}

/// Runs an entry: its failure becomes the last one, and a panic ends here.
pub(crate) fn entry(name: &str, work: impl FnOnce() -> Outcome) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failure.keep(name),
        Err(_panic) => {
            let text = "a panic in the library; please report it";
            Failure::new(code::INTERNAL_ERROR, text).keep(name)
        }
    }
}

/// The text of the last failure, which lives until this thread asks again.
pub(crate) fn last_text() -> *const c_char {
    let own = OWN.with_borrow(Clone::clone);
    let text = match own.is_empty() {
        true => LAST.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        false => own,
    };
    GIVEN.with_borrow_mut(|given| {
        *given = CString::new(text.replace('\0', " ")).unwrap_or_default();
        given.as_ptr()
    })
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null, or a place for a `T`.
pub(crate) unsafe fn give<T>(to: *mut T, argument: &str, value: T) -> Outcome<()> {
    if to.is_null() {
        return Err(Failure::argument(format_args!("{argument} is NULL")));
    }
    // SAFETY: the caller says that it is a place for a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads through a caller's pointer.
///
/// # Safety
/// `from` is null, or points to a `T`.
pub(crate) unsafe fn read<T: Copy>(from: *const T, argument: &str) -> Outcome<T> {
    if from.is_null() {
        return Err(Failure::argument(format_args!("{argument} is NULL")));
    }
    // SAFETY: the caller says that it points to a `T`.
    Ok(unsafe { from.read() })
}
