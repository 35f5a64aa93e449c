//! How ranks connect to their job: the store, the handshake, and connections that are rejected.
//! Some tests count the descriptors of this process, so these tests have a program of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "functions that tests/process.rs runs are built here too")]

pub(crate) mod security;
pub(crate) mod startup;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Long enough on any machine for all that should happen.
const LONG: Duration = Duration::from_secs(60);

static PROCESS: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others.
fn concurrent() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that runs alone in this process: it counts the process's descriptors or
/// listeners, takes many of them, binds one address again and again, has descriptors that a child
/// may inherit, writes a program that it starts, loads the machine, or has little time.
struct Exclusive(#[allow(dead_code, reason = "a lock")] RwLockWriteGuard<'static, ()>);

fn exclusive() -> Exclusive {
    let alone = Exclusive(PROCESS.write().unwrap_or_else(PoisonError::into_inner));
    // A lookup of a name that a test has given up has descriptors until the resolver answers.
    while has_thread("ringreduce-name") {
        std::thread::sleep(Duration::from_millis(1));
    }
    alone
}

/// True if a thread of this process has that name.
fn has_thread(name: &str) -> bool {
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads.any(|thread| {
        // A thread that has just ended has no name any more.
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|its| its.trim() == name)
    })
}

impl Exclusive {
    /// The number of descriptors that this process has open.
    fn descriptors(&self) -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
}

/// A free port of a loopback address that no other test uses: the system assigns it to no other
/// program that asks for any port.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let mine = Ipv4Addr::new(127, NEXT.fetch_add(1, Ordering::Relaxed).max(1), high, low);
    let listener = TcpListener::bind((mine, 0)).unwrap();
    listener.local_addr().unwrap()
}
