//! Parameter servers (Li et al., OSDI 2014): the first ranks keep a part of the parameters each and
//! update it; the others are workers, which push gradients and get parameters back.
//! `server`, `worker` the two roles · `protocol` their messages. Collectives play no part, so a
//! lost worker stops no other.

mod protocol;
mod server;
mod worker;

pub use server::{Policy, Server, ServerReport};
pub use worker::Worker;
