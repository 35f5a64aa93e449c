//! The result of a nonblocking operation, as a one-shot channel from the thread that runs it to the
//! caller, who waits for it, polls it or awaits it.
//! Law: a sender that is dropped without a result sends an error, and no code of the user's runs
//! under the lock.
//! Unsafe: results of any type are stored in one table, with type and lifetime erased.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::{replace, take, transmute};
use std::pin::Pin;
use std::ptr::from_mut;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use smallbox::smallbox;

use super::job_queue::JobQueue;
use crate::api::InlineBox;
use crate::error::{Error, Result};

/// A nonblocking operation. It holds its buffers until it is done, and then gives them back.
///
/// The operation is carried out whether or not anyone waits for it, even if the handle is dropped
/// or forgotten. If the operation fails, its buffers have no defined contents and are not given
/// back.
///
/// `Pending` is a [`Future`] as well and needs no particular runtime: the worker wakes the task
/// when the operation is done.
#[must_use = "the operation's error is reported here, or else by the next call"]
pub struct Pending<B> {
    queue: Arc<JobQueue>,
    /// `None` once the result was taken.
    slot: Option<usize>,
    /// Makes the handle `Send` and `Sync` exactly if an `Arc<Mutex<B>>` is.
    owner: PhantomData<Arc<Mutex<B>>>,
}

/// The operation's end of the channel.
pub(super) struct ResultSender<B: Send> {
    queue: Arc<JobQueue>,
    slot: Option<usize>,
    value: PhantomData<fn(B)>,
}

/// The results of one communicator's operations, until the caller takes them. Slots are used again,
/// so there are never more of them than operations were pending at once.
#[derive(Default)]
pub(crate) struct ResultTable(Slab<Slot>);

/// State of one channel, between a [`ResultSender`] and a [`Pending`] of the same type.
#[allow(clippy::large_enum_variant, reason = "a box would be allocated for each operation")]
enum Slot {
    Awaited(Option<Waker>),
    Ready(ErasedResult),
    /// The [`Pending`] was dropped.
    Abandoned,
}

pub(super) fn result_channel<B: Send>(queue: &Arc<JobQueue>) -> (ResultSender<B>, Pending<B>) {
    let slot = Some(queue.lock().results.0.insert(Slot::Awaited(None)));
    let sender = ResultSender { queue: Arc::clone(queue), slot, value: PhantomData };
    (sender, Pending { queue: Arc::clone(queue), slot, owner: PhantomData })
}

impl ResultTable {
    /// Takes the result of a slot, if it is there.
    fn fetch(&mut self, slot: usize) -> Option<ErasedResult> {
        if self.is_awaited(slot) {
            return None;
        }
        let Slot::Ready(held) = self.0.remove(slot) else { return None };
        Some(held)
    }

    fn is_awaited(&self, slot: usize) -> bool {
        matches!(self.0[slot], Slot::Awaited(_))
    }
}

/// The parts of both ends that do not depend on the type of the result.
impl JobQueue {
    /// Stores a result in its slot and wakes the thread or task that waits for it.
    fn store(&self, slot: usize, held: ErasedResult) {
        let mut state = self.lock();
        let before = match &mut state.results.0[slot] {
            Slot::Abandoned => {
                state.results.0.remove(slot);
                drop(state);
                return drop(held);
            }
            awaited => replace(awaited, Slot::Ready(held)),
        };
        self.unlock_with_change(state);
        if let Slot::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Takes the result of a slot, or else has `waker` woken once the result is there.
    fn poll(&self, slot: usize, waker: &Waker) -> Option<ErasedResult> {
        let awaited = Slot::Awaited(Some(waker.clone()));
        let mut state = self.lock();
        if let Some(held) = state.results.fetch(slot) {
            return Some(held);
        }
        let before = replace(&mut state.results.0[slot], awaited);
        drop((state, before));
        None
    }

    /// Frees the slot: the caller does not want its result.
    fn abandon(&self, slot: usize) {
        let mut state = self.lock();
        let results = &mut state.results;
        let before = if results.is_awaited(slot) {
            replace(&mut results.0[slot], Slot::Abandoned)
        } else {
            results.0.remove(slot)
        };
        drop((state, before));
    }
}

impl<B: Send> ResultSender<B> {
    pub(super) fn send(mut self, result: Result<B>) {
        self.put(result);
    }

    fn put(&mut self, result: Result<B>) {
        let Some(slot) = take(&mut self.slot) else { return };
        // SAFETY: the other end, a `Pending<B>`, takes or drops the result. If that end was leaked,
        // its `Arc` of the queue was leaked too, and the result is never looked at again.
        let held = unsafe { ErasedResult::new(result) };
        self.queue.store(slot, held);
    }
}

impl<B: Send> Drop for ResultSender<B> {
    fn drop(&mut self) {
        if self.slot.is_some() {
            self.put(Err(panicked_error()));
        }
    }
}

#[cold]
fn panicked_error() -> Error {
    Error::Broken { call: "wait", first: "the operation panicked before it was done".into() }
}

#[cold]
fn result_taken_error() -> Error {
    Error::Argument {
        call: "poll",
        argument: "self",
        given: "a future whose result was taken".into(),
        expected: "a pending or finished one".into(),
    }
}

impl<B> Pending<B> {
    /// Waits until the operation is done and gives its buffers back. A thread that waits makes the
    /// progress itself: it runs operations, closures of [`Queue::start`](super::Queue::start) too,
    /// unless the worker thread has begun them. The wait is bounded by the timeouts of this
    /// operation and of those before it.
    ///
    /// # Errors
    /// The error of the operation; and [`Error::Broken`] if an earlier one failed.
    pub fn wait(mut self) -> Result<B> {
        self.queue.process.check("wait")?;
        let held =
            self.slot.take().map(|slot| self.queue.wait_for(|state| state.results.fetch(slot)));
        Self::unpack(held)
    }

    /// Has the worker begin the operation at once, because this thread makes another call before
    /// it waits.
    pub(crate) fn hurry(&self) {
        self.queue.hurry();
    }

    /// True if [`Self::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.slot.is_some_and(|slot| self.queue.lock().results.is_awaited(slot))
    }

    fn unpack(held: Option<ErasedResult>) -> Result<B> {
        // SAFETY: the other end, a `ResultSender<B>`, has stored a `Result<B>` here.
        let result = held.and_then(|held| unsafe { held.take() });
        result.unwrap_or_else(|| Err(result_taken_error()))
    }
}

impl<B> Future for Pending<B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        if let Some(slot) = self.slot {
            let Some(held) = self.queue.poll(slot, context.waker()) else {
                return Poll::Pending;
            };
            self.slot = None;
            return Poll::Ready(Self::unpack(Some(held)));
        }
        Poll::Ready(Self::unpack(None))
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot
            && self.queue.process.is_current()
        {
            self.queue.abandon(slot);
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish()
    }
}

/// A result whose type and lifetime only the two ends of its channel know.
struct ErasedResult(InlineBox<dyn Send>);

impl ErasedResult {
    /// # Safety
    /// The value is taken, dropped or leaked before the lifetime `'a` ends.
    unsafe fn new<'a, T: Send + 'a>(value: T) -> Self {
        let held: InlineBox<dyn Send + 'a> = smallbox!(Some(value));
        // SAFETY: the types differ in the lifetime alone, and the caller keeps the value within it.
        Self(unsafe { transmute::<InlineBox<dyn Send + 'a>, InlineBox<dyn Send>>(held) })
    }

    /// # Safety
    /// The value was made of a `T`.
    unsafe fn take<T>(mut self) -> Option<T> {
        let value = from_mut(&mut *self.0).cast::<Option<T>>();
        // SAFETY: the caller says that the value is an `Option<T>`, and `self` owns it.
        unsafe { &mut *value }.take()
    }
}
