//! Errors of a store and their reasons.

use super::protocol::StreamError;
use crate::error::Error;

/// Why no process listens at the address of a unique id.
pub(crate) const USED_ID: &str = "nothing listens there: all ranks of this unique id have \
    met already, or the process that made it has ended. Make a new id for each communicator, and \
    let its process live until all ranks have met";

/// The reason of an error about a host's name that has no address.
pub(crate) fn name_error(host: &str, error: &std::io::Error) -> String {
    format!(
        "the name {host} has no address on this host yet ({error}); look at RINGREDUCE_STORE, \
         /etc/hosts and the name server"
    )
}

/// The error of a store whose stream has failed.
pub(crate) fn stream_error(address: &str, broken: StreamError) -> Error {
    let reason = match broken {
        StreamError::Closed => {
            "it closed the connection: rank 0, the launcher or the process that made the unique id \
             has ended; its own output says why"
                .into()
        }
        StreamError::Unreachable => {
            "its host is unreachable; RINGREDUCE_PEER_TIMEOUT sets how long it may be".into()
        }
        StreamError::Malformed(what) => what,
    };
    store_error(address, reason)
}

pub(crate) fn store_error(address: &str, reason: impl Into<String>) -> Error {
    Error::Store { address: address.into(), reason: reason.into() }
}
