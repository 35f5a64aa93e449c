//! A word that the kernel marks when this process ends, whatever ends it: a robust futex, held by a
//! thread that does nothing else. May touch: libc. Unsafe: what the kernel is told.
//!
//! Source: Linux, Documentation/locking/robust-futexes. The kernel walks the list of a thread that
//! ends before the process's memory is given back, which for gigabytes takes a good part of a
//! second, while a socket is closed only after that.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use nix::libc;
use nix::sys::signal::SigSet;

use crate::memory::mapping::Region;

/// Set by the kernel in the word of a thread that has ended.
const OWNER_DIED: u32 = 0x4000_0000;

/// The kernel's `struct robust_list`: a ring of what a thread holds, which begins in its head. The
/// kernel reads it when the thread ends, whenever that is.
#[derive(Default)]
#[repr(C)]
struct Node {
    next: AtomicPtr<Self>,
}

/// The kernel's `struct robust_list_head`.
#[derive(Default)]
#[repr(C)]
struct Head {
    list: Node,
    /// From a node to its word.
    offset: AtomicIsize,
    pending: AtomicPtr<Node>,
}

/// What the thread holds: one node, whose word is elsewhere.
#[derive(Default)]
#[repr(C)]
struct Held {
    head: Head,
    node: Node,
}

/// Has the process ended whose word this is?
pub(super) fn is_dead(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) & OWNER_DIED != 0
}

/// While it is there, the first word of a page is marked when this process ends.
#[derive(Debug)]
pub(super) struct Holder {
    /// The thread goes on until this is gone.
    ends: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts to hold the first word of `page`.
///
/// # Errors
/// If there is no thread for it, or the kernel refuses.
pub(super) fn hold(page: Arc<Region>) -> io::Result<Holder> {
    let (told, hears) = sync_channel(1);
    let (ends, goes_on) = sync_channel::<()>(1);
    let body = move || {
        // Users' handlers run on their own threads.
        let _ = SigSet::all().thread_block();
        let held = Box::new(Held::default());
        let taken = held.take(&page);
        let fine = taken.is_ok();
        let _ = told.send(taken);
        if fine {
            let _ = goes_on.recv();
            Held::give_back(held, &page);
        }
    };
    let name = thread::Builder::new().name("ringreduce-life".into()).stack_size(64 << 10);
    let thread = Some(name.spawn(body)?);
    hears.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
    Ok(Holder { ends: Some(ends), thread })
}

fn word(page: &Region) -> &AtomicU32 {
    // SAFETY: the page is aligned, longer than a word, and mapped as long as this.
    unsafe { page.start().cast::<AtomicU32>().as_ref() }
}

impl Held {
    /// This thread holds the word, until it gives it back or ends.
    fn take(&self, page: &Region) -> io::Result<()> {
        let from = (&raw const self.node).addr();
        let offset = page.start().addr().get().wrapping_sub(from).cast_signed();
        self.head.offset.store(offset, Ordering::Relaxed);
        self.node.next.store((&raw const self.head.list).cast_mut(), Ordering::Relaxed);
        self.head.list.next.store((&raw const self.node).cast_mut(), Ordering::Relaxed);
        // SAFETY: it takes nothing.
        let thread = unsafe { libc::gettid() };
        word(page).store(thread.cast_unsigned(), Ordering::SeqCst);
        tell(&raw const self.head)
    }

    /// Nothing is marked when the thread ends. If the kernel would still look, the list stays.
    fn give_back(held: Box<Self>, page: &Region) {
        word(page).store(0, Ordering::SeqCst);
        held.head.list.next.store((&raw const held.head.list).cast_mut(), Ordering::SeqCst);
        if tell(std::ptr::null()).is_err() {
            Box::leak(held);
        }
    }
}

/// What the kernel is to look at when this thread ends.
fn tell(list: *const Head) -> io::Result<()> {
    let len = size_of::<Head>();
    // SAFETY: the list is the kernel's layout, and lives until the kernel is told of none; the
    // thread runs nothing that has robust mutexes of its own.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, list, len) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
