//! What an operation that was started gives back: wait for it, look at it, or await it.
//! May touch: error. Law: whoever drops the other end without an answer answers with an error; no
//! code of the user's runs under the lock.
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

use super::InPlace;
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
pub struct Pending<B> {
    answers: Arc<Answers>,
    /// None once it has given its result.
    place: Option<usize>,
    /// It is as movable between threads as what it stands for: a lock on a `B`.
    gives: PhantomData<Arc<Mutex<B>>>,
}

/// The end that the operation's worker holds.
pub(super) struct Answer<B: Send> {
    answers: Arc<Answers>,
    place: Option<usize>,
    takes: PhantomData<fn(B)>,
}

/// What the operations of one communicator gave, until somebody fetches it. Places are used again,
/// so that there are no more of them than operations were pending at once.
#[derive(Default)]
pub(crate) struct Answers {
    places: Mutex<Slab<Place>>,
    given: Condvar,
}

/// It belongs to one [`Answer`] and one [`Pending`] of the same type.
#[allow(clippy::large_enum_variant, reason = "in a box it would be allocated for each operation")]
enum Place {
    Awaited(Option<Waker>),
    Given(Held),
    /// The other end was dropped.
    Unwanted,
}

/// Both ends.
pub(super) fn pair<B: Send>(answers: &Arc<Answers>) -> (Answer<B>, Pending<B>) {
    let place = Some(answers.lock().insert(Place::Awaited(None)));
    let answer = Answer { answers: Arc::clone(answers), place, takes: PhantomData };
    (answer, Pending { answers: Arc::clone(answers), place, gives: PhantomData })
}

/// What both ends do, whatever the type of the result.
impl Answers {
    fn lock(&self) -> MutexGuard<'_, Slab<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a result at its place and tells whoever waits for it.
    fn give(&self, place: usize, held: Held) {
        let mut places = self.lock();
        let before = match &mut places[place] {
            Place::Unwanted => {
                places.remove(place);
                drop(places);
                return drop(held);
            }
            awaited => replace(awaited, Place::Given(held)),
        };
        drop(places);
        self.given.notify_all();
        if let Place::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }

    /// The result at that place, if it is there; it is given once.
    fn fetch(places: &mut Slab<Place>, place: usize) -> Option<Held> {
        if let Place::Awaited(_) = places[place] {
            return None;
        }
        let Place::Given(held) = places.remove(place) else { return None };
        Some(held)
    }

    /// The result at that place, once it is there.
    fn wait(&self, place: usize) -> Held {
        let mut places = self.lock();
        loop {
            if let Some(held) = Self::fetch(&mut places, place) {
                return held;
            }
            places = self.given.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The result at that place, or else `waker` is woken once it is there.
    fn poll(&self, place: usize, waker: &Waker) -> Option<Held> {
        let awaited = Place::Awaited(Some(waker.clone()));
        let mut places = self.lock();
        if let Some(held) = Self::fetch(&mut places, place) {
            return Some(held);
        }
        let before = replace(&mut places[place], awaited);
        drop((places, before));
        None
    }

    /// Nobody wants the result at that place any more.
    fn forgo(&self, place: usize) {
        let mut places = self.lock();
        let before = match places[place] {
            Place::Awaited(_) => replace(&mut places[place], Place::Unwanted),
            _ => places.remove(place),
        };
        drop((places, before));
    }

    fn is_awaited(&self, place: usize) -> bool {
        matches!(self.lock()[place], Place::Awaited(_))
    }
}

impl<B: Send> Answer<B> {
    /// Tells whoever waits.
    pub(super) fn give(mut self, result: Result<B>) {
        self.put(result);
    }

    fn put(&mut self, result: Result<B>) {
        let Some(place) = take(&mut self.place) else { return };
        // SAFETY: the other end, a `Pending<B>`, takes or drops it. If that was leaked, so is its
        // share of the answers, and what they hold is never looked at again.
        let held = unsafe { Held::new(result) };
        self.answers.give(place, held);
    }
}

impl<B: Send> Drop for Answer<B> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.put(Err(panicked()));
        }
    }
}

#[cold]
fn panicked() -> Error {
    Error::Broken { call: "wait", first: "the operation panicked before it was done".into() }
}

#[cold]
fn given_before() -> Error {
    Error::Argument {
        call: "poll",
        argument: "self",
        given: "a future that has given its result".into(),
        expected: "one that has not".into(),
    }
}

impl<B> Pending<B> {
    /// Waits until the operation is done and gives its buffers back. How long that may take is
    /// bounded by the timeouts of this operation and of those before it.
    ///
    /// # Errors
    /// What the operation says; and [`Error::Broken`] if an earlier one failed.
    pub fn wait(mut self) -> Result<B> {
        let held = self.place.take().map(|place| self.answers.wait(place));
        Self::open(held)
    }

    /// Would [`Self::wait`] return at once?
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.place.is_some_and(|place| self.answers.is_awaited(place))
    }

    fn open(held: Option<Held>) -> Result<B> {
        // SAFETY: it is what the other end put there, an `Answer<B>`.
        let result = held.and_then(|held| unsafe { held.take() });
        result.unwrap_or_else(|| Err(given_before()))
    }
}

impl<B> Future for Pending<B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        if let Some(place) = self.place {
            let Some(held) = self.answers.poll(place, context.waker()) else {
                return Poll::Pending;
            };
            self.place = None;
            return Poll::Ready(Self::open(Some(held)));
        }
        Poll::Ready(Self::open(None))
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.answers.forgo(place);
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish()
    }
}

/// A value whose type and life only its owner knows.
struct Held(InPlace<dyn Send>);

impl Held {
    /// # Safety
    /// It is taken, dropped or leaked before the end of the life of `T`.
    unsafe fn new<'a, T: Send + 'a>(value: T) -> Self {
        let held: InPlace<dyn Send + 'a> = smallbox!(Some(value));
        // SAFETY: the two differ in the lifetime alone, which the caller sees to.
        Self(unsafe { transmute::<InPlace<dyn Send + 'a>, InPlace<dyn Send>>(held) })
    }

    /// # Safety
    /// It was made of a `T`.
    unsafe fn take<T>(mut self) -> Option<T> {
        let value = from_mut(&mut *self.0).cast::<Option<T>>();
        // SAFETY: it is of this type, as the caller says, and lent by `self`.
        unsafe { &mut *value }.take()
    }
}
