//! A word that the kernel marks when this process ends, whatever ends it: a robust futex, held by a
//! thread that does nothing else. May touch: libc. Unsafe: what the kernel is told.
//!
//! Source: Linux, Documentation/locking/robust-futexes. The kernel walks the list of a thread that
//! ends before the process's memory is given back, which for gigabytes takes a good part of a
//! second, while a socket is closed only after that.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use nix::libc;
use nix::sys::signal::SigSet;

use super::region::Region;

/// Set by the kernel in the word of a thread that has ended.
const OWNER_DIED: u32 = 0x4000_0000;

/// The kernel's `struct robust_list`: a ring of what a thread holds, which begins in its head.
#[repr(C)]
struct Node {
    next: *const Node,
}

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Node,
    /// From a node to its word.
    offset: libc::c_long,
    pending: *const Node,
}

/// What the thread holds: one node, whose word is elsewhere.
#[repr(C)]
struct Held {
    head: Head,
    node: Node,
}

/// Has the process ended whose word this is?
pub(super) fn is_dead(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) & OWNER_DIED != 0
}

/// From here on the first word of `page` is marked when this process ends.
///
/// # Errors
/// If there is no thread for it, or the kernel refuses.
pub(super) fn hold(page: Arc<Region>) -> io::Result<()> {
    let (told, hears) = sync_channel(1);
    let body = move || {
        // Users' handlers run on their own threads.
        let _ = SigSet::all().thread_block();
        let held = take(&page);
        let fine = held.is_ok();
        let _ = told.send(held);
        while fine {
            thread::park();
        }
    };
    thread::Builder::new().name("ringreduce-life".into()).stack_size(64 << 10).spawn(body)?;
    hears.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

/// This thread holds the word for as long as it lives.
fn take(page: &Region) -> io::Result<()> {
    let word = page.start().cast::<AtomicU32>();
    let held = Box::leak(Box::new(Held {
        head: Head { list: Node { next: std::ptr::null() }, offset: 0, pending: std::ptr::null() },
        node: Node { next: std::ptr::null() },
    }));
    held.node.next = &raw const held.head.list;
    held.head.list.next = &raw const held.node;
    let from = (&raw const held.node).addr();
    held.head.offset = word.addr().get().wrapping_sub(from).cast_signed() as libc::c_long;
    // SAFETY: it takes nothing.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the page is aligned, longer than a word, and mapped as long as the thread runs.
    let word = unsafe { word.as_ref() };
    word.store(thread.cast_unsigned(), Ordering::SeqCst);
    let (head, len) = (&raw const held.head, size_of::<Head>());
    // SAFETY: the list is the kernel's layout, lives for ever and is never changed; the thread runs
    // nothing that has robust mutexes of its own.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head, len) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
