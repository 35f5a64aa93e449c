//! Signals and forks of a process while its calls wait. The Python handlers of signals run in the
//! main thread alone.
//! Unsafe: has the C library call a function in a forked child.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;
use ringreduce::Result;

use crate::errors::raised;

/// How often a thread that waits runs the handlers of signals that came.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The operating system's number of Python's main thread.
static MAIN_THREAD: AtomicI32 = AtomicI32::new(UNKNOWN);
const UNKNOWN: i32 = 0;

thread_local! {
    /// Whether this is Python's main thread, since so many forks. The others must not wait for the
    /// interpreter's lock.
    static IS_MAIN: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    /// True while this thread waits in a call that Python has made.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// The exception that a handler has raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// How many forks this process is away from the one that loaded the library.
static FORKS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // The thread that has forked is the child's only one, and its main thread.
    MAIN_THREAD.store(current_thread(), Ordering::Relaxed);
}

fn is_main_thread() -> bool {
    let forks = forks();
    if let Some((since, is_main)) = IS_MAIN.get()
        && since == forks
    {
        return is_main;
    }
    let main = MAIN_THREAD.load(Ordering::Relaxed);
    let is_main = main == UNKNOWN || main == current_thread();
    IS_MAIN.set(Some((forks, is_main)));
    is_main
}

/// Has waits look for signals, and children know that they are forks.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let main = py.import("threading")?.call_method0("main_thread")?;
    let id: Option<i32> = main.getattr("native_id")?.extract()?;
    MAIN_THREAD.store(id.unwrap_or(UNKNOWN), Ordering::Relaxed);
    ringreduce::set_interrupt(handler_has_raised);
    // SAFETY: the function sets words, which is allowed after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    Ok(())
}

fn current_thread() -> i32 {
    // SAFETY: the call has no arguments and can't fail.
    unsafe { libc::gettid() }
}

/// Asked by each thread of the library that waits. The library's own threads run no handlers.
fn handler_has_raised() -> bool {
    IN_CALL.get()
        && Python::try_attach(|py| match py.check_signals() {
            Ok(()) => false,
            Err(error) => {
                RAISED.set(Some(error));
                true
            }
        })
        .unwrap_or(false)
}

/// Waits by short waits until one gives something; an exception of a handler of signals ends it.
pub(crate) fn wait_by_parts<R>(mut part: impl FnMut() -> Option<R>) -> Result<R, PyErr> {
    loop {
        if let Some(done) = part() {
            return Ok(done);
        }
        let (is_interrupted, exception) = interruptible(handler_has_raised);
        if is_interrupted && let Some(exception) = exception {
            return Err(exception);
        }
    }
}

/// Makes a call that handlers of signals may end; also the exception of one that did.
pub(crate) fn interruptible<R>(call: impl FnOnce() -> R) -> (R, Option<PyErr>) {
    IN_CALL.set(is_main_thread());
    let done = call();
    IN_CALL.set(false);
    (done, RAISED.take())
}

/// Makes a call without the interpreter's lock. The exception of a handler of signals, which ended
/// the call, goes before the call's result.
pub(crate) fn blocking<R: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R> + Send,
) -> PyResult<R> {
    match py.detach(|| interruptible(call)) {
        (_, Some(exception)) => Err(exception),
        (done, None) => done.map_err(|error| raised(py, &error)),
    }
}

/// Makes a call that knows no interruption, on a thread of its own. If a handler of signals raises
/// meanwhile, the call goes on and its result is dropped.
pub(crate) fn on_a_thread<R: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R> + Send + 'static,
) -> PyResult<R> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("ring-init".into()).spawn(move || sender.send(call()))?;
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let came = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(LOOK_INTERVAL)
        });
        match came {
            Ok(done) => return done.map_err(|error| raised(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let message = "init: the library panicked";
                return Err(pyo3::exceptions::PyRuntimeError::new_err(message));
            }
        }
    }
}
