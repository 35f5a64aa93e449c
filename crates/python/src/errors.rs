//! The library's errors as exceptions. The classes are Python's, in `ringreduce/_errors.py`; the
//! variant of an error names its class, and its facts become attributes.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringreduce::{Error, Peer, Place};

/// Makes the exception of this class with these facts.
pub(crate) fn exception(class: &str, message: &str, facts: &Bound<'_, PyDict>) -> PyErr {
    let made = (|| {
        let module = facts.py().import("ringreduce._errors")?;
        module.getattr(class)?.call((message,), Some(facts))
    })();
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The exception for an argument that does not fit.
pub(crate) fn argument_error(call: &str, argument: &str, given: &str, expected: &str) -> PyErr {
    Python::attach(|py| {
        let facts = PyDict::new(py);
        let set = facts.set_item("call", call).and_then(|()| facts.set_item("argument", argument));
        if let Err(error) = set {
            return error;
        }
        let message = format!("{call}: {argument} is {given}, expected {expected}");
        exception("ArgumentError", &message, &facts)
    })
}

/// The exception for `error`.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let facts = PyDict::new(py);
    match facts_of(error, &facts) {
        Ok((class, message)) => exception(class, &message, &facts),
        Err(failure) => failure,
    }
}

/// The class of an error, and its message.
fn facts_of(error: &Error, facts: &Bound<'_, PyDict>) -> PyResult<(&'static str, String)> {
    let place = |at: &Place| {
        facts.set_item("call", at.operation)?;
        facts.set_item("rank", at.rank)?;
        facts.set_item("host", &at.host)?;
        facts.set_item("communicator", &at.communicator)?;
        facts.set_item("step", at.step)?;
        facts.set_item("sequence", at.sequence)
    };
    let peer = |peer: &Peer| {
        facts.set_item("peer", peer.rank)?;
        facts.set_item("peer_host", &peer.host)?;
        facts.set_item("peer_pid", peer.pid)
    };
    let both = |at: &Place, other: &Peer| place(at).and_then(|()| peer(other));
    let mut message = error.to_string();
    let class = match error {
        Error::Config { .. } | Error::Launchers { .. } => "ConfigError",
        Error::Argument { call, argument, given, expected, .. } => {
            // A call in place has one argument here too, by the name that others have.
            let argument = if *argument == "buf" { "send" } else { argument };
            facts.set_item("call", call)?;
            facts.set_item("argument", argument)?;
            message = format!("{call}: {argument} is {given}, expected {expected}");
            "ArgumentError"
        }
        Error::Object { call, peer: of, .. } => {
            facts.set_item("call", call)?;
            peer(of)?;
            "ObjectError"
        }
        Error::MissingRanks { rank, missing, .. } => {
            facts.set_item("rank", rank)?;
            facts.set_item("missing", missing)?;
            "MissingRanksError"
        }
        Error::DuplicateRank { rank, .. } => {
            facts.set_item("rank", rank)?;
            "DuplicateRankError"
        }
        Error::Store { .. } | Error::Handshake { .. } => "ConnectError",
        Error::Io { .. } => "SystemError",
        Error::Exhausted { .. } => "ExhaustedError",
        Error::Device { .. } => "DeviceError",
        Error::Timeout { at, peer: other, .. } => both(at, other).map(|()| "TimeoutError")?,
        Error::NoMessage { at, .. } => place(at).map(|()| "TimeoutError")?,
        Error::Stalled { at, peer: other, .. } => both(at, other).map(|()| "TimeoutError")?,
        Error::PeerLost { at, peer: other, .. } => both(at, other).map(|()| "PeerLostError")?,
        Error::Mismatch { at, ranks, .. } => both(at, &ranks[0]).map(|()| "MismatchError")?,
        Error::Corrupt { at, peer: other, .. } | Error::Forged { at, peer: other, .. } => {
            both(at, other).map(|()| "CorruptError")?
        }
        Error::Aborted { at, by, .. } => both(at, by).map(|()| "AbortedError")?,
        Error::NotAll { call, missing, .. } => {
            facts.set_item("call", call)?;
            facts.set_item("missing", missing)?;
            "MissingRanksError"
        }
        Error::QuorumLost { call, .. } | Error::Evicted { call, .. } => {
            facts.set_item("call", call)?;
            "EvictedError"
        }
        Error::Broken { call, .. } => {
            facts.set_item("call", call)?;
            "BrokenError"
        }
        Error::UnknownName(_) => "ArgumentError",
        _ => "Error",
    };
    Ok((class, message))
}

/// The exception for a communicator that can't make the call `call`.
pub(crate) fn broken(py: Python<'_>, call: &str, why: &str) -> PyErr {
    let facts = PyDict::new(py);
    match facts.set_item("call", call) {
        Ok(()) => exception("BrokenError", &format!("{call}: {why}"), &facts),
        Err(error) => error,
    }
}
