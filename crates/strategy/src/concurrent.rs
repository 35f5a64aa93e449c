//! Several steps at once on one device, whose gaps fill each other: while one step waits for a
//! neighbor or for an all-reduce, another one computes. Each step has a thread and communicators of
//! its own. Law: a device computes for one step at a time, and never waits for messages while it is
//! taken; so no order of steps ends in a circle of waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Model, Parameters, Part, Sink, Stage};

/// A device that steps take in turns, in the order in which they ask for it.
#[derive(Debug, Default)]
pub struct Turns {
    tickets: Mutex<Tickets>,
    next: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// Tickets that were given out, and the one whose turn it is.
    given: u64,
    served: u64,
    /// When this turn began.
    since: Option<Instant>,
    busy: Duration,
}

/// The turn of a piece of work, which ends with it, also by a panic.
struct Turn<'a>(&'a Turns);

/// A pause in a turn: other work has its turns meanwhile.
struct Pause<'a>(&'a Turns);

impl Turns {
    /// A device that is free.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes something that waits for no other rank, once no other step computes.
    pub fn compute<R>(&self, work: impl FnOnce() -> R) -> R {
        self.begin();
        let _turn = Turn(self);
        work()
    }

    /// Lets others have the device while `wait` runs, in the middle of [`Self::compute`].
    fn pause<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.end();
        let _pause = Pause(self);
        wait()
    }

    /// How long the device has computed.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.tickets().busy
    }

    /// Waits for the next turn.
    fn begin(&self) {
        let mut turns = self.tickets();
        let mine = turns.given;
        turns.given += 1;
        while turns.served != mine {
            turns = self.next.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.since = Some(Instant::now());
    }

    fn end(&self) {
        let mut turns = self.tickets();
        turns.served += 1;
        let spent = turns.since.take().map(|since| since.elapsed());
        turns.busy += spent.unwrap_or_default();
        drop(turns);
        self.next.notify_all();
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.begin();
    }
}

/// A model or a stage whose passes take turns on a device. The rest of a step, all waits for other
/// ranks among it, leaves the device to others; so does the trainer where a pass hands it a
/// gradient. A model whose passes themselves wait for other ranks, as synchronised batch norm and
/// tensor-parallel layers do, may not share a device: ranks could wait for each other in a circle.
#[derive(Debug)]
pub struct OnDevice<T> {
    /// The device, which other steps of this process have too.
    pub device: Arc<Turns>,
    /// The model or the stage.
    pub inner: T,
}

impl<P: Parameters> Parameters for OnDevice<P> {
    type Error = P::Error;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.inner.parameters()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), P::Error> {
        self.inner.read(parameter, to)
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), P::Error> {
        self.inner.write(parameter, from)
    }
}

impl<M: Model> Model for OnDevice<M> {
    type Batch = M::Batch;

    fn gradients(&mut self, part: &Part<M::Batch>, sink: &Sink) -> Result<f32, M::Error> {
        // The trainer may have to wait for the exchange of an earlier gradient. A model may hand
        // out gradients from several threads, whose one turn has one pause at a time.
        let (device, sink, pause) = (Arc::clone(&self.device), Arc::clone(sink), Mutex::new(()));
        let pausing: Sink = Arc::new(move |parameter, gradient| {
            let _one = pause.lock().unwrap_or_else(PoisonError::into_inner);
            device.pause(|| sink(parameter, gradient));
        });
        self.device.compute(|| self.inner.gradients(part, &pausing))
    }
}

impl<S: Stage> Stage for OnDevice<S> {
    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, S::Error> {
        self.device.compute(|| self.inner.forward(micro_batch, input))
    }

    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, S::Error> {
        let Self { device, inner } = self;
        let mut pausing = |parameter: usize, gradient: &[f32]| {
            device.pause(|| sink(parameter, gradient));
        };
        device.compute(|| inner.backward(micro_batch, gradient, &mut pausing))
    }
}
