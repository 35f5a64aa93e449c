//! Mutual authentication of every connection: the job's secret, keys derived from it, the handshake
//! with nonces, the hello of a link's stream, and the listener that rejects unknown connections.

pub(crate) mod acceptor;
pub(crate) mod handshake;
pub(crate) mod hello;
pub(crate) mod keys;
pub(crate) mod listener;
pub(crate) mod rejected;
pub(crate) mod sealed_id;
pub(crate) mod sealed_stream;
pub(crate) mod secret;
mod wrong_secrets;
