//! The sentences of errors that depend on which rank reports.

use std::time::Duration;

use super::{Peer, Place};

pub(super) fn timeout_text(at: &Place, peer: &Peer, after: &Duration) -> String {
    let (waited, is_sent) = (wait_text(after), at.operation.ends_with("send"));
    match (is_sent, at.rank == peer.rank) {
        (true, true) => format!("{at}: this rank has not received its own message {waited}"),
        (false, true) => format!("{at}: this rank has not sent to itself {waited}"),
        (true, false) => format!(
            "{at}: {peer} has not received the message {waited}; it posts no receive for it, is \
             stuck or waits for another rank"
        ),
        (false, false) => format!(
            "{at}: nothing from {peer} {waited}; it is stuck, makes other calls or waits for \
             another rank"
        ),
    }
}

/// How long a timed-out call waited, in words.
pub(super) fn wait_text(after: &Duration) -> String {
    if after.is_zero() {
        return "yet, and the call does not wait: its timeout is zero".into();
    }
    format!("for {after:.1?}")
}

pub(super) fn mismatch_text(
    at: &Place,
    ranks: &[Peer; 2],
    field: &str,
    values: &[String; 2],
) -> String {
    let ([one, other], [there, here]) = (ranks, values);
    // The field of calls on devices of which one has memory that the other ranks can't open.
    let memory = "; pass memory from alloc_device or register_device at all ranks, or at none";
    let advice = if field == "the buffer" { memory } else { "" };
    if other.rank == at.rank {
        return format!(
            "{at}: {one} does not make the same call: {field} is {there} there, {here} here{advice}"
        );
    }
    let rank = other.rank;
    format!(
        "{at}: {one} does not make the same call as {other}: {field} is {there} there, {here} at \
         rank {rank}{advice}"
    )
}

/// The rank that aborted, if it is another one, in words.
pub(super) fn abort_source(at: &Place, by: &Peer) -> String {
    if by.rank == at.rank { String::new() } else { format!(" by {by}") }
}
