//! Started calls: `Nonblocking` starts them and `Handle` waits for them, with a timeout, or tells
//! an event loop by the descriptor of a `Notifier`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringreduce::{Communicator as Core, Error, MessageRequest, Pending, Status};

use crate::array::Array;
use crate::call::Call;
use crate::comm::{Communicator, Shared};
use crate::device;
use crate::errors::{exception, raised};
use crate::init::duration;
use crate::messages;
use crate::poller::poll_for;
use crate::signals::LOOK_INTERVAL;

/// Starts the calls of a communicator: each method returns at once.
#[pyclass(frozen, module = "ringreduce")]
pub(crate) struct Nonblocking(pub(crate) Arc<Shared>);

/// A started call. It holds its arrays until it has ended, and is carried out whether or not
/// anybody waits.
#[pyclass(frozen, weakref, generic, module = "ringreduce")]
pub(crate) struct Handle {
    state: Arc<Mutex<State>>,
    /// The array of the result; of a message that is received, `None`.
    result: Py<PyAny>,
    shared: Arc<Shared>,
}

/// A call under way, or how it ended.
pub(crate) enum State {
    Collective(Pending<()>, Arc<Listeners>),
    Message(MessageRequest<Array>),
    Ended(Result<Option<Status>, Error>),
}

/// All that are to be woken at the end of a call: `Pending` knows one waker alone.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Waker>>);

impl Listeners {
    fn add(&self, waker: Option<Waker>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that waits for long comes again and again.
        if let Some(waker) = waker
            && !all.iter().any(|known| known.will_wake(&waker))
        {
            all.push(waker);
        }
    }
}

impl Wake for Listeners {
    fn wake(self: Arc<Self>) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().for_each(Waker::wake);
    }
}

impl State {
    pub(crate) fn collective(pending: Pending<()>) -> Self {
        Self::Collective(pending, Arc::default())
    }

    /// True if the call has ended; else `waker`, if given, is woken when it does. Messages wake
    /// nobody.
    fn poll(&mut self, waker: Option<Waker>) -> bool {
        match self {
            Self::Collective(pending, listeners) => {
                if waker.is_none() && !pending.is_done() {
                    return false;
                }
                let all = Waker::from(Arc::clone(listeners));
                listeners.add(waker);
                match Pin::new(pending).poll(&mut Context::from_waker(&all)) {
                    Poll::Pending => return false,
                    Poll::Ready(done) => {
                        *self = Self::Ended(done.map(|()| None));
                        all.wake();
                    }
                }
            }
            Self::Message(request) => {
                if !request.is_done() {
                    return false;
                }
                let over = Self::Ended(Ok(None));
                if let Self::Message(request) = std::mem::replace(self, over) {
                    // Dropping the array here is not for a thread without the interpreter's lock
                    // to wait for: PyO3 puts it off.
                    *self = Self::Ended(request.wait().map(|(_, status)| Some(status)));
                }
            }
            Self::Ended(_) => {}
        }
        true
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.poll(None)
    }
}

thread_local! {
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    pub(crate) fn new(state: State, result: Py<PyAny>, shared: &Arc<Shared>) -> Self {
        Self { state: Arc::new(Mutex::new(state)), result, shared: Arc::clone(shared) }
    }

    /// Waits for so long; true if the call has ended.
    fn wait_for(&self, limit: Duration) -> bool {
        let began = Instant::now();
        // The first look leaves it with the call.
        let mut waker = Some(UNPARK.with(Waker::clone));
        let mut pause = Duration::from_micros(20);
        loop {
            let mut state = lock(&self.state);
            let has_ended = state.poll(waker.take());
            let is_message = matches!(*state, State::Message(_));
            drop(state);
            let left = limit.saturating_sub(began.elapsed());
            if has_ended || left.is_zero() {
                return has_ended;
            }
            if !is_message {
                thread::park_timeout(left);
            } else if began.elapsed() < Duration::from_micros(200) {
                thread::yield_now();
            } else {
                thread::sleep(left.min(pause));
                pause = (pause * 2).min(Duration::from_millis(1));
            }
        }
    }
}

#[pymethods]
impl Handle {
    /// Waits until the call has ended, and returns its result: the array that it wrote to, or the
    /// status of a message. A timeout in seconds ends the wait and not the call.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if !self._has_ended_after(py, timeout)? {
            let facts = pyo3::types::PyDict::new(py);
            facts.set_item("call", "wait")?;
            let message = "wait: the call has not ended yet; it goes on";
            return Err(exception("TimeoutError", message, &facts));
        }
        match &*lock(&self.state) {
            State::Ended(Ok(Some(status))) => {
                Ok(Py::new(py, messages::MessageStatus::of(*status))?.into_any())
            }
            State::Ended(Err(error)) => Err(raised(py, error)),
            _ => Ok(self.result.clone_ref(py)),
        }
    }

    /// Waits as `wait` does; false if the time is over before the call has ended, however it did.
    fn _has_ended_after(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.shared.check_fork(py, "wait")?;
        let timeout = timeout.map(|it| duration("wait", "timeout", it)).transpose()?;
        let began = Instant::now();
        loop {
            let left = timeout.map_or(LOOK_INTERVAL, |it| it.saturating_sub(began.elapsed()));
            if py.detach(|| self.wait_for(left.min(LOOK_INTERVAL))) {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// True if `wait` would return at once.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.check_fork(py, "done")?;
        Ok(py.detach(|| lock(&self.state).has_ended()))
    }

    /// Gives a message up that has not ended, whose buffer is then the caller's alone.
    fn _cancel(&self, py: Python<'_>) {
        py.detach(|| {
            let mut state = lock(&self.state);
            if state.has_ended() || !matches!(*state, State::Message(_)) {
                return;
            }
            let expected = "one that was not given up";
            let over = Error::argument("wait", "message", "one that was given up", expected);
            let over = State::Ended(Err(over));
            if let State::Message(request) = std::mem::replace(&mut *state, over) {
                drop(request.cancel());
            }
        });
    }

    /// Has `notifier` post `token` once the call has ended.
    fn _notify(&self, py: Python<'_>, notifier: &Notifier, token: u64) {
        let completion = Completion { queue: Arc::clone(&notifier.0), token };
        py.detach(|| {
            let mut state = lock(&self.state);
            if matches!(*state, State::Message(_)) {
                drop(state);
                return poll_for(Arc::clone(&self.state), completion);
            }
            let waker = Waker::from(Arc::new(completion));
            if state.poll(Some(waker.clone())) {
                waker.wake();
            }
        });
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waits = slf.py().import("ringreduce._asyncio")?.call_method1("ended", (slf,))?;
        waits.call_method0("__await__")
    }
}

/// The completion queue of an event loop: a descriptor that becomes readable, and the tokens of the
/// calls that have ended. Posting needs no lock of the interpreter.
#[pyclass(frozen, module = "ringreduce")]
pub(crate) struct Notifier(Arc<CompletionQueue>);

struct CompletionQueue {
    descriptor: File,
    tokens: Mutex<Vec<u64>>,
}

/// The completion of one call, to be posted to its queue.
pub(crate) struct Completion {
    queue: Arc<CompletionQueue>,
    token: u64,
}

impl Completion {
    pub(crate) fn post(&self) {
        let tokens = self.queue.tokens.lock();
        tokens.unwrap_or_else(PoisonError::into_inner).push(self.token);
        // A full counter is readable too.
        let _ = (&self.queue.descriptor).write(&1_u64.to_ne_bytes());
    }
}

impl Wake for Completion {
    fn wake(self: Arc<Self>) {
        self.post();
    }
}

#[pymethods]
impl Notifier {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let made: i32 = py.import("os")?.call_method1("eventfd", (0, EVENT_FLAGS))?.extract()?;
        let descriptor = File::from(owned(made));
        Ok(Self(Arc::new(CompletionQueue { descriptor, tokens: Mutex::default() })))
    }

    fn fileno(&self) -> i32 {
        self.0.descriptor.as_raw_fd()
    }

    /// The tokens since the last time.
    fn take(&self) -> Vec<u64> {
        let _ = (&self.0.descriptor).read(&mut [0; 8]);
        std::mem::take(&mut *self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const EVENT_FLAGS: i32 = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;

#[allow(unsafe_code, reason = "a descriptor known by its number")]
fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: the descriptor was just made, for nobody else.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

impl Nonblocking {
    pub(crate) fn start(
        &self,
        py: Python<'_>,
        name: &'static str,
        mut call: Call,
        result: Py<PyAny>,
    ) -> PyResult<Handle> {
        device::find_stream(&self.0, py, name, &mut call)?;
        self.start_work(py, name, result, move |comm| {
            // The arrays are let go before the call counts as ended.
            let mut call = call;
            call.run(comm)
        })
    }

    fn start_work(
        &self,
        py: Python<'_>,
        name: &'static str,
        result: Py<PyAny>,
        work: impl FnOnce(&mut Core) -> Result<(), Error> + Send + 'static,
    ) -> PyResult<Handle> {
        let mut comm = self.0.lock(py, name)?;
        let comm = comm.get(py, name)?;
        let started = self.0.activity.start();
        let pending = py.detach(|| {
            comm.nonblocking().start((), move |comm, ()| {
                let _started = started;
                work(comm)
            })
        });
        Ok(Handle::new(State::collective(pending), result, &self.0))
    }
}

#[pymethods]
impl Communicator {
    /// The same calls, started and not waited for.
    #[getter]
    fn nonblocking(&self) -> Nonblocking {
        Nonblocking(Arc::clone(&self.shared))
    }
}

#[pymethods]
impl Nonblocking {
    /// Starts a barrier.
    fn barrier(&self, py: Python<'_>) -> PyResult<Handle> {
        self.start_work(py, "barrier", py.None(), Core::barrier)
    }
}
