//! The result of a nonblocking operation, as a one-shot channel from the worker to the caller, who
//! waits for it, polls it or awaits it.
//! Law: a sender that is dropped without a result sends an error, and no code of the user's runs
//! under the lock.
//! Unsafe: results of any type are stored in one table, with type and lifetime erased.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::{replace, take, transmute};
use std::pin::Pin;
use std::ptr::from_mut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use smallbox::smallbox;

use super::InlineBox;
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
    results: Arc<ResultTable>,
    /// `None` once the result was taken.
    slot: Option<usize>,
    /// Makes the handle `Send` and `Sync` exactly if an `Arc<Mutex<B>>` is.
    owner: PhantomData<Arc<Mutex<B>>>,
}

/// The worker's end of the channel.
pub(super) struct ResultSender<B: Send> {
    results: Arc<ResultTable>,
    slot: Option<usize>,
    value: PhantomData<fn(B)>,
}

/// The results of one communicator's operations, until the caller takes them. Slots are used again,
/// so there are never more of them than operations were pending at once.
#[derive(Default)]
pub(crate) struct ResultTable {
    slots: Mutex<Slab<Slot>>,
    stored: Condvar,
}

/// State of one channel, between a [`ResultSender`] and a [`Pending`] of the same type.
#[allow(clippy::large_enum_variant, reason = "a box would be allocated for each operation")]
enum Slot {
    Awaited(Option<Waker>),
    Ready(ErasedResult),
    /// The [`Pending`] was dropped.
    Abandoned,
}

pub(super) fn result_channel<B: Send>(results: &Arc<ResultTable>) -> (ResultSender<B>, Pending<B>) {
    let slot = Some(results.lock().insert(Slot::Awaited(None)));
    let sender = ResultSender { results: Arc::clone(results), slot, value: PhantomData };
    (sender, Pending { results: Arc::clone(results), slot, owner: PhantomData })
}

/// The parts of both ends that do not depend on the type of the result.
impl ResultTable {
    fn lock(&self) -> MutexGuard<'_, Slab<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a result in its slot and wakes the thread or task that waits for it.
    fn store(&self, slot: usize, held: ErasedResult) {
        let mut slots = self.lock();
        let before = match &mut slots[slot] {
            Slot::Abandoned => {
                slots.remove(slot);
                drop(slots);
                return drop(held);
            }
            awaited => replace(awaited, Slot::Ready(held)),
        };
        drop(slots);
        self.stored.notify_all();
        if let Slot::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Takes the result of a slot, if it is there.
    fn fetch(slots: &mut Slab<Slot>, slot: usize) -> Option<ErasedResult> {
        if let Slot::Awaited(_) = slots[slot] {
            return None;
        }
        let Slot::Ready(held) = slots.remove(slot) else { return None };
        Some(held)
    }

    fn wait(&self, slot: usize) -> ErasedResult {
        let mut slots = self.lock();
        loop {
            if let Some(held) = Self::fetch(&mut slots, slot) {
                return held;
            }
            slots = self.stored.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the result of a slot, or else has `waker` woken once the result is there.
    fn poll(&self, slot: usize, waker: &Waker) -> Option<ErasedResult> {
        let awaited = Slot::Awaited(Some(waker.clone()));
        let mut slots = self.lock();
        if let Some(held) = Self::fetch(&mut slots, slot) {
            return Some(held);
        }
        let before = replace(&mut slots[slot], awaited);
        drop((slots, before));
        None
    }

    /// Frees the slot: the caller does not want its result.
    fn abandon(&self, slot: usize) {
        let mut slots = self.lock();
        let before = match slots[slot] {
            Slot::Awaited(_) => replace(&mut slots[slot], Slot::Abandoned),
            _ => slots.remove(slot),
        };
        drop((slots, before));
    }

    fn is_awaited(&self, slot: usize) -> bool {
        matches!(self.lock()[slot], Slot::Awaited(_))
    }
}

impl<B: Send> ResultSender<B> {
    pub(super) fn send(mut self, result: Result<B>) {
        self.put(result);
    }

    fn put(&mut self, result: Result<B>) {
        let Some(slot) = take(&mut self.slot) else { return };
        // SAFETY: the other end, a `Pending<B>`, takes or drops the result. If that end was leaked,
        // its `Arc` of the table was leaked too, and the result is never looked at again.
        let held = unsafe { ErasedResult::new(result) };
        self.results.store(slot, held);
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
    /// Waits until the operation is done and gives its buffers back. The wait is bounded by the
    /// timeouts of this operation and of those before it.
    ///
    /// # Errors
    /// The error of the operation; and [`Error::Broken`] if an earlier one failed.
    pub fn wait(mut self) -> Result<B> {
        let held = self.slot.take().map(|slot| self.results.wait(slot));
        Self::unpack(held)
    }

    /// True if [`Self::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.slot.is_some_and(|slot| self.results.is_awaited(slot))
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
            let Some(held) = self.results.poll(slot, context.waker()) else {
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
        if let Some(slot) = self.slot {
            self.results.abandon(slot);
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
