//! Contexts: the primary context of each device, the current context of each thread, and errors
//! after which a context is lost.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use crate::code::{Code, Done};
use crate::log;
use crate::memory::{self, Owner};
use crate::module;
use crate::registry::{Handle, Registry, lock, new_handle};
use crate::settings;
use crate::stream::{EVENTS, STREAMS, Streams};

pub(crate) static CONTEXTS: Registry<Context> = Registry::new();

pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: i32,
    error: AtomicU32,
    destroyed: AtomicBool,
    pub(crate) streams: Streams,
    /// Enqueued waits for values that have not ended.
    pub(crate) waits: AtomicUsize,
    /// Devices whose memory this context's kernels reach.
    pub(crate) peers: Mutex<HashSet<i32>>,
}

/// The process that called cuInit. A child that it forks has no driver.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// cuInit.
pub(crate) fn initialize() -> Done {
    if settings::get().visible().is_empty() || settings::get().devices == 0 {
        return Err(Code::NO_DEVICE);
    }
    if *PROCESS.get_or_init(std::process::id) == std::process::id() {
        Ok(())
    } else {
        Err(Code::NOT_INITIALIZED)
    }
}

/// An error before cuInit, and after a fork.
pub(crate) fn initialized() -> Done {
    match PROCESS.get() {
        Some(&process) if process == std::process::id() => Ok(()),
        _ => Err(Code::NOT_INITIALIZED),
    }
}

/// An error if the process may not use this device, which is numbered among all devices, not among
/// the visible ones.
pub(crate) fn device(ordinal: i32) -> Done<i32> {
    initialized()?;
    let settings = settings::get();
    if settings.visible().contains(&ordinal) && ordinal < settings.devices {
        Ok(ordinal)
    } else {
        Err(Code::INVALID_DEVICE)
    }
}

/// A device's primary context, which lives while it is retained.
#[derive(Default)]
struct Primary {
    living: Option<Arc<Context>>,
    retained: usize,
}

fn primary<T>(ordinal: i32, with: impl FnOnce(&mut Primary) -> Done<T>) -> Done<T> {
    static ALL: LazyLock<Mutex<Vec<Primary>>> = LazyLock::new(|| {
        Mutex::new((0..settings::get().devices).map(|_| Primary::default()).collect())
    });
    let ordinal = device(ordinal)?;
    with(lock(&ALL).get_mut(ordinal as usize).ok_or(Code::INVALID_DEVICE)?)
}

pub(crate) fn retain_primary(ordinal: i32) -> Done<Handle> {
    primary(ordinal, |primary| {
        primary.retained += 1;
        let context = primary.living.get_or_insert_with(|| Context::new(ordinal));
        Ok(context.handle)
    })
}

pub(crate) fn release_primary(ordinal: i32) -> Done {
    primary(ordinal, |primary| {
        primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if primary.retained == 0
            && let Some(context) = primary.living.take()
        {
            context.destroy();
        }
        Ok(())
    })
}

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn current_handle() -> Handle {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

pub(crate) fn set_current(handle: Handle) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

pub(crate) fn push_current(handle: Handle) {
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
}

pub(crate) fn pop_current() -> Done<Handle> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}

/// The thread's current context, if it is not lost.
pub(crate) fn current() -> Done<Arc<Context>> {
    initialized()?;
    let context = match current_handle() {
        0 => return Err(Code::INVALID_CONTEXT),
        handle => CONTEXTS.get(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED)?,
    };
    context.check()?;
    Ok(context)
}

impl Context {
    pub(crate) fn new(device: i32) -> Arc<Self> {
        let context = Arc::new(Self {
            handle: new_handle(),
            device,
            error: AtomicU32::new(0),
            destroyed: AtomicBool::new(false),
            streams: Streams::new(settings::get().queues),
            waits: AtomicUsize::new(0),
            peers: Mutex::default(),
        });
        CONTEXTS.insert(context.handle, context.clone());
        context
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { device: self.device, context: self.handle }
    }

    /// The error after which the context is lost, if there was one.
    pub(crate) fn check(&self) -> Done {
        match Code(self.error.load(Ordering::SeqCst)) {
            Code::SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Marks the context as lost by the error of a stream's work.
    pub(crate) fn failed(&self, code: Code) {
        let code = if code.is_sticky() { code } else { Code::LAUNCH_FAILED };
        let _ = self.error.compare_exchange(0, code.0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// True if the context's work is skipped from here on.
    pub(crate) fn is_lost(&self) -> bool {
        self.destroyed.load(Ordering::SeqCst) || self.error.load(Ordering::SeqCst) != 0
    }

    /// Waits for all streams.
    pub(crate) fn synchronize(&self) -> Done {
        for last in self.streams.last_of(|_| true) {
            last.wait();
        }
        self.check()
    }

    /// Logs a call that may deadlock on a real driver, which may wait for all work of the device.
    pub(crate) fn hazard(&self, what: &str) {
        if self.waits.load(Ordering::SeqCst) > 0 {
            log::misuse(&format!("hazard: {what} while a stream waits for a value"));
        }
    }

    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
        self.streams.close();
        let _ = CONTEXTS.remove(self.handle);
        module::forget(self.handle);
        let streams = STREAMS.take_where(|stream| stream.context.handle == self.handle).len();
        let events = EVENTS.take_where(|event| event.context == self.handle).len();
        let left = memory::forget(self.handle);
        if streams + events + left.len() > 0 {
            let bytes: usize = left.iter().map(|block| block.bytes).sum();
            log::misuse(&format!(
                "leak: a context ended with {} allocations of {bytes} bytes, {streams} streams \
                 and {events} events",
                left.len(),
            ));
        }
    }
}
