//! How a call fails: its status, what `rr_last_failure` says, and the frame of every function.
//! Unsafe: a caller's pointers are read and written.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

use ringreduce::{Error, Peer, Place};

use crate::types::{rr_failure, rr_status};

/// Why a function fails, in a place of its own, so that results stay small.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<Cause>);

#[derive(Clone, Debug)]
enum Cause {
    Argument(String),
    Panic,
    Error(Error),
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    #[cold]
    pub(crate) fn argument(text: impl Display) -> Self {
        Self(Box::new(Cause::Argument(text.to_string())))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(Box::new(Cause::Error(error)))
    }
}

/// The last failure of a thread, with the texts that it points to.
struct Last {
    failure: rr_failure,
    _texts: [Option<CString>; 3],
}

thread_local! {
    static LAST: RefCell<Option<Box<Last>>> = const { RefCell::new(None) };
}

/// The call and the rank at fault that an error names.
fn places(error: &Error) -> (Option<&Place>, Option<&Peer>) {
    match error {
        Error::Timeout { at, peer, .. }
        | Error::Stalled { at, peer, .. }
        | Error::PeerLost { at, peer, .. }
        | Error::Corrupt { at, peer, .. }
        | Error::Forged { at, peer, .. }
        | Error::Aborted { at, by: peer, .. } => (Some(at), Some(peer)),
        Error::Mismatch { at, ranks, .. } => (Some(at), Some(&ranks[0])),
        Error::NoMessage { at, .. } => (Some(at), None),
        _ => (None, None),
    }
}

impl Last {
    fn of(function: &str, cause: &Cause) -> Self {
        let text = |text: &str| CString::new(text.replace('\0', " ")).ok();
        let (status, said) = match cause {
            Cause::Argument(said) => (rr_status::RR_ARGUMENT, said.clone()),
            Cause::Panic => {
                let said = "a panic in the library or in a function that it called; please report";
                (rr_status::RR_OTHER, said.into())
            }
            Cause::Error(error) => (rr_status::of(error), error.to_string()),
        };
        let (at, peer) = match cause {
            Cause::Error(error) => places(error),
            _ => (None, None),
        };
        let number = |rank: usize| c_int::try_from(rank).unwrap_or(-1);
        let texts = [
            text(&format!("{function}: {said}")),
            at.and_then(|at| text(&at.host)),
            peer.and_then(|peer| text(&peer.host)),
        ];
        let [message, host, peer_host] =
            [0, 1, 2].map(|at: usize| texts[at].as_deref().map_or(null(), CStr::as_ptr));
        let failure = rr_failure {
            status,
            message,
            rank: at.map_or(-1, |at| number(at.rank)),
            host,
            step: at.map_or(-1, |at| at.step as i64),
            sequence: at.map_or(-1, |at| at.sequence as i64),
            peer: peer.map_or(-1, |peer| number(peer.rank)),
            peer_host,
        };
        Self { failure, _texts: texts }
    }
}

#[cold]
fn keep(function: &str, cause: &Cause) -> rr_status {
    let last = Box::new(Last::of(function, cause));
    let status = last.failure.status;
    LAST.replace(Some(last));
    status
}

/// Runs a function: its failure becomes the thread's last one, and a panic ends here.
#[inline]
pub(crate) fn entry(function: &str, work: impl FnOnce() -> Outcome) -> rr_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => rr_status::RR_OK,
        Ok(Err(failure)) => keep(function, &failure.0),
        Err(_panic) => keep(function, &Cause::Panic),
    }
}

/// The thread's last failure; NULL before the first. It stays until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn rr_last_failure() -> *const rr_failure {
    LAST.with_borrow(|last| last.as_ref().map_or(null(), |last| &raw const last.failure))
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null, or a place for a `T`.
pub(crate) unsafe fn give<T>(to: *mut T, argument: &str, value: T) -> Outcome {
    if to.is_null() {
        return Err(Failure::argument(format_args!("{argument} is NULL")));
    }
    // SAFETY: the caller says that it is a place for a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// A caller's array.
///
/// # Safety
/// `start` is null, or points to `len` elements that stay as they are while the slice is used.
pub(crate) unsafe fn array<'a, T>(start: *const T, len: usize, argument: &str) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Failure::argument(format_args!("{argument} is NULL")));
    }
    let bytes = len.checked_mul(size_of::<T>());
    if !start.is_aligned() || bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format_args!("{argument} is no array of {len} elements")));
    }
    // SAFETY: the caller says so.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// A caller's text.
///
/// # Safety
/// `start` is null, or a text that ends with a zero byte and stays while the slice is used.
pub(crate) unsafe fn text<'a>(start: *const c_char, argument: &str) -> Outcome<&'a str> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{argument} is NULL")));
    }
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map_err(|_| Failure::argument(format_args!("{argument} is not UTF-8")))
}
