//! What an operation that was started gives back: wait for it, look at it, or await it.
//! May touch: error. Law: whoever drops the other end without an answer answers with an error.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};

/// An operation that was started; it has its buffers until it is done, and gives them back.
///
/// A pending operation goes on whether somebody waits for it or not: dropped or forgotten, it is
/// carried out all the same. If it fails its buffers have no defined contents and are not given
/// back.
///
/// It is a [`Future`] too and needs no particular runtime: whoever finishes the operation wakes
/// the task.
#[must_use = "the operation's error shows here; without looking it shows at the next call"]
pub struct Pending<B>(Arc<Shared<B>>);

/// The end that the operation's worker holds.
pub(super) struct Answer<B>(Option<Arc<Shared<B>>>);

struct Shared<B> {
    state: Mutex<State<B>>,
    done: Condvar,
}

enum State<B> {
    Running(Option<Waker>),
    Done(Result<B>),
    Taken,
}

/// Both ends.
pub(super) fn pair<B>() -> (Answer<B>, Pending<B>) {
    let (state, done) = (Mutex::new(State::Running(None)), Condvar::new());
    let shared = Arc::new(Shared { state, done });
    (Answer(Some(Arc::clone(&shared))), Pending(shared))
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, result: Result<B>) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(result));
        self.done.notify_all();
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<B> Answer<B> {
    /// Tells whoever waits.
    pub(super) fn give(mut self, result: Result<B>) {
        if let Some(shared) = self.0.take() {
            shared.answer(result);
        }
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let first = "the operation panicked before it was done".into();
            shared.answer(Err(Error::Broken { call: "wait", first }));
        }
    }
}

/// The result, which is given once.
fn take<B>(state: &mut State<B>) -> Option<Result<B>> {
    match std::mem::replace(state, State::Taken) {
        State::Done(result) => Some(result),
        State::Taken => Some(Err(Error::Argument {
            call: "poll",
            argument: "self",
            given: "a future that has given its result".into(),
            expected: "one that has not".into(),
        })),
        running @ State::Running(_) => {
            *state = running;
            None
        }
    }
}

impl<B> Pending<B> {
    /// Waits until the operation is done and gives its buffers back. How long that may take is
    /// bounded by the timeouts of this operation and of those before it.
    ///
    /// # Errors
    /// What the operation says; and [`Error::Broken`] if an earlier one failed.
    pub fn wait(self) -> Result<B> {
        let mut state = self.0.lock();
        loop {
            if let Some(result) = take(&mut state) {
                return result;
            }
            state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Would [`Self::wait`] return at once?
    #[must_use]
    pub fn is_done(&self) -> bool {
        !matches!(*self.0.lock(), State::Running(_))
    }
}

impl<B> Future for Pending<B> {
    type Output = Result<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let mut state = self.0.lock();
        if let Some(result) = take(&mut state) {
            return Poll::Ready(result);
        }
        *state = State::Running(Some(context.waker().clone()));
        Poll::Pending
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish()
    }
}
