//! The rendezvous store, a key-value store in memory: server, client and the protocol between them.

pub(super) mod arrivals;
mod attempts;
pub(crate) mod client;
mod connection;
pub(crate) mod credentials;
mod endpoint;
pub(crate) mod errors;
pub(super) mod pmi;
pub(crate) mod protocol;
pub(crate) mod server;
