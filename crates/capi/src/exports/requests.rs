//! Calls and messages that were started.
//! Unsafe: functions that C calls, and requests that C owns.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of C")]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::c_int;
use std::fmt;
use std::ptr::null_mut;

use ringreduce::{MessageRequest, Pending, Status};

use super::messages::Lent;
use crate::failure::{Failure, Outcome, entry, give};
use crate::types::{rr_message, rr_status};

/// A call or a message that was started.
#[derive(Debug)]
pub struct rr_request(Request);

/// The call or the message of a request.
pub(crate) enum Request {
    Call(Pending<()>),
    Message(MessageRequest<Lent>),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call(_) => "Call",
            Self::Message(_) => "Message",
        })
    }
}

impl Request {
    pub(crate) fn into_raw(self) -> *mut rr_request {
        Box::into_raw(Box::new(rr_request(self)))
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Call(pending) => pending.is_done(),
            Self::Message(message) => message.is_done(),
        }
    }

    fn wait(self) -> Outcome<Option<Status>> {
        Ok(match self {
            Self::Call(pending) => pending.wait().map(|()| None)?,
            Self::Message(message) => message.wait().map(|(_, status)| Some(status))?,
        })
    }
}

/// Takes the request that a caller's pointer points to.
///
/// # Safety
/// `request` is null, or points to null or to a request that was not waited for.
unsafe fn take(request: *mut *mut rr_request) -> Outcome<Request> {
    // SAFETY: as above.
    let place = unsafe { request.as_mut() }.ok_or_else(|| Failure::argument("request is NULL"))?;
    let request = std::mem::replace(place, null_mut());
    if request.is_null() {
        return Err(Failure::argument("*request is NULL: it has ended, or was never started"));
    }
    // SAFETY: it came from `into_raw`, and its only owner gives it up.
    Ok(unsafe { Box::from_raw(request) }.0)
}

/// Waits until a call or a message has ended, and returns how. The request is freed and `*request`
/// becomes NULL, whatever the status. `message` is NULL, or gets the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_wait(
    request: *mut *mut rr_request,
    message: *mut rr_message,
) -> rr_status {
    entry("rr_wait", || {
        // SAFETY: the caller passes a request.
        let status = unsafe { take(request) }?.wait()?;
        match status {
            // SAFETY: the caller passes a place for a message.
            Some(status) if !message.is_null() => unsafe {
                give(message, "message", rr_message::of(&status))
            },
            _ => Ok(()),
        }
    })
}

/// Says whether rr_wait would return at once; `*done` becomes 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_test(request: *const rr_request, done: *mut c_int) -> rr_status {
    entry("rr_test", || {
        // SAFETY: the caller passes null or a request.
        let request = unsafe { request.as_ref() };
        let request = request.ok_or_else(|| Failure::argument("request is NULL"))?;
        // SAFETY: the caller passes a place for a number.
        unsafe { give(done, "done", c_int::from(request.0.is_done())) }
    })
}
