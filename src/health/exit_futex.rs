//! The exit futex: a word that the kernel marks when this process ends, whatever ends it. A robust
//! futex does this, held by a thread that does nothing else. Unsafe: the list that the kernel
//! reads.
//!
//! Source: Linux, Documentation/locking/robust-futexes. The kernel walks the list of an ending
//! thread before it frees the memory of the process; with gigabytes that takes a good part of a
//! second, and sockets close only after it.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use nix::libc;
use nix::sys::signal::SigSet;

use crate::error::refused_call::name_refused_call;
use crate::memory::mapping::Region;

/// The bit that the kernel sets in the futex of a thread that has ended.
const OWNER_DIED: u32 = 0x4000_0000;

/// The kernel's `struct robust_list`: one node of a circular list of the futexes that a thread
/// holds. The kernel reads it at the end of the thread.
#[derive(Default)]
#[repr(C)]
struct RobustListNode {
    next: AtomicPtr<Self>,
}

/// The kernel's `struct robust_list_head`.
#[derive(Default)]
#[repr(C)]
struct RobustListHead {
    list: RobustListNode,
    /// Bytes from a node to its futex.
    offset: AtomicIsize,
    pending: AtomicPtr<RobustListNode>,
}

/// The list of the thread, of one node, whose futex lies in the process page.
#[derive(Default)]
#[repr(C)]
struct RobustFutex {
    head: RobustListHead,
    node: RobustListNode,
}

/// True if the process that held this futex has ended.
pub(super) fn owner_died(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) & OWNER_DIED != 0
}

/// The thread that holds the first word of a process page as an exit futex.
#[derive(Debug)]
pub(super) struct ExitFutex {
    /// The thread releases the futex when this sender is dropped.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ExitFutex {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a thread that holds the first word of `page`.
///
/// # Errors
/// If the thread cannot start, or the kernel refuses the list.
pub(super) fn hold(page: Arc<Region>) -> io::Result<ExitFutex> {
    let (ready, started) = sync_channel(1);
    let (stop, stopped) = sync_channel::<()>(1);
    let body = move || {
        // Signal handlers of the program run on the program's own threads.
        let _ = SigSet::all().thread_block();
        let futex = Box::new(RobustFutex::default());
        let taken = futex.take(&page);
        let is_held = taken.is_ok();
        let _ = ready.send(taken);
        if is_held {
            let _ = stopped.recv();
            RobustFutex::release(futex, &page);
        }
    };
    let builder = thread::Builder::new().name("ringreduce-life".into()).stack_size(64 << 10);
    let thread = Some(builder.spawn(body)?);
    started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
    Ok(ExitFutex { stop: Some(stop), thread })
}

fn word(page: &Region) -> &AtomicU32 {
    // SAFETY: the page is aligned, longer than a word, and mapped for as long as the borrow.
    unsafe { page.start().cast::<AtomicU32>().as_ref() }
}

impl RobustFutex {
    /// Makes this thread the holder of the futex, until it releases the futex or ends.
    fn take(&self, page: &Region) -> io::Result<()> {
        let from = (&raw const self.node).addr();
        let offset = page.start().addr().get().wrapping_sub(from).cast_signed();
        self.head.offset.store(offset, Ordering::Relaxed);
        self.node.next.store((&raw const self.head.list).cast_mut(), Ordering::Relaxed);
        self.head.list.next.store((&raw const self.node).cast_mut(), Ordering::Relaxed);
        // SAFETY: the call takes no arguments.
        let thread = unsafe { libc::gettid() };
        word(page).store(thread.cast_unsigned(), Ordering::SeqCst);
        set_robust_list(&raw const self.head)
    }

    /// Releases the futex, so that the end of the thread marks nothing. If the kernel keeps the
    /// list, its memory stays.
    fn release(futex: Box<Self>, page: &Region) {
        word(page).store(0, Ordering::SeqCst);
        futex.head.list.next.store((&raw const futex.head.list).cast_mut(), Ordering::SeqCst);
        if set_robust_list(std::ptr::null()).is_err() {
            Box::leak(futex);
        }
    }
}

/// Tells the kernel which list to walk at the end of this thread.
fn set_robust_list(list: *const RobustListHead) -> io::Result<()> {
    let len = size_of::<RobustListHead>();
    // SAFETY: the list has the kernel's layout and lives until the kernel is told of no list; the
    // thread runs no code with robust mutexes.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, list, len) };
    if set == 0 {
        return Ok(());
    }
    Err(name_refused_call("set_robust_list", io::Error::last_os_error()))
}
