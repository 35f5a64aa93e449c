//! The key-value store at which ranks meet: server, client and the protocol between them.

pub(crate) mod client;
mod connection;
pub(crate) mod protocol;
pub(crate) mod server;
