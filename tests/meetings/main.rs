//! How ranks meet: the store, the handshake, and strangers who connect. Tests that count this
//! process's descriptors run alone, so these have a program of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod rendezvous;
pub(crate) mod strangers;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURNS: RwLock<()> = RwLock::new(());

/// For a test that runs beside others.
fn with_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that runs alone in this process: it counts the process's descriptors or
/// listeners, takes many of them, binds one address again and again, has descriptors that a child
/// may inherit, writes a program that it starts, loads the machine, or has little time.
struct Alone(#[allow(dead_code, reason = "a lock")] RwLockWriteGuard<'static, ()>);

fn alone() -> Alone {
    Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner))
}

impl Alone {
    /// How many this process has.
    fn descriptors(&self) -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
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
