//! Calls of many buffers, and groups of several operations: among threads, and among processes over
//! shared memory and TCP.

pub(crate) mod calls;
pub(crate) mod many_buffers;
pub(crate) mod message_programs;
pub(crate) mod options;
pub(crate) mod processes;
pub(crate) mod several;

use super::{SUM, message};

/// Element `i` of message number `turn` from rank `from` to rank `to`.
fn sent(from: usize, to: usize, turn: usize, i: usize) -> u32 {
    (from * 1_000_003 + to * 10_007 + turn * 101 + i) as u32
}
