//! How ranks meet: the store, the handshake, and strangers who connect. Tests that count this
//! process's descriptors take turns, so these have a program of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod rendezvous;
pub(crate) mod strangers;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that count descriptors or ports of this process, load the machine or need a free port take
/// turns: all of this program's, for each sees what the others open.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that is free now, at a loopback address that nobody else uses: whoever asks the system
/// for any port meanwhile asks for one of another address.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let mine = Ipv4Addr::new(127, NEXT.fetch_add(1, Ordering::Relaxed).max(1), high, low);
    let listener = TcpListener::bind((mine, 0)).unwrap();
    listener.local_addr().unwrap()
}
