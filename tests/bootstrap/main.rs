//! How ranks connect to their job: the store, the handshake, and connections that are rejected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "functions that tests/process.rs runs are built here too")]

pub(crate) mod security;
pub(crate) mod startup;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Long enough on any machine for all that should happen.
const LONG: Duration = Duration::from_secs(60);

/// Linux assigns ports from 32768 on.
const BELOW_ASSIGNED_PORTS: u16 = 20_011;

static PROCESS: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others.
fn concurrent() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that runs alone in this process: it binds one address again and again, has
/// descriptors that a child may inherit, writes a program that it starts, loads the machine, or has
/// little time.
fn exclusive() -> RwLockWriteGuard<'static, ()> {
    PROCESS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The number of descriptors that this process has open. A test that counts them has a process of
/// its own: here, a thread or a connection of an earlier test may end at any time.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// An address where no other program listens: the loopback address is this process's and this
/// call's own, and the system assigns the port to no program that asks for any port. A port that it
/// does assign may be another program's, at all addresses, before a test listens there.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let mine = Ipv4Addr::new(127, NEXT.fetch_add(1, Ordering::Relaxed).max(1), high, low);
    (mine, BELOW_ASSIGNED_PORTS).into()
}
