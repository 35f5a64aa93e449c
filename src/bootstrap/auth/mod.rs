//! Authentication of every stream: the job's secret, the keys made from it, the handshake, and the
//! listener that turns strangers away.

pub(crate) mod acceptor;
pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod listener;
pub(crate) mod rejected;
pub(crate) mod secret;
