//! Batches made ahead of their use, by threads. Law: batches come in the order of the steps, at
//! most `depth` wait, and the first error in that order is the last item.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::{Batch, Samples};
use crate::error::{Error, Result};

/// The batches of an epoch. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Loader {
    /// The batches of each thread; thread `t` of `n` makes those of the steps `t`, `t + n`, ...
    made: Vec<Receiver<Result<Batch>>>,
    threads: Vec<JoinHandle<()>>,
    step: usize,
    steps: usize,
}

impl Loader {
    /// Begins to make the batch of each step from the images at `places`, on `workers` threads (at
    /// least one), which are `depth` batches ahead altogether, and one each at least.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub fn new(
        samples: Arc<Samples>,
        places: Vec<Vec<usize>>,
        workers: usize,
        depth: usize,
    ) -> Result<Self> {
        let steps = places.len();
        let workers = workers.clamp(1, steps.max(1));
        let mut loader = Self { made: Vec::new(), threads: Vec::new(), step: 0, steps };
        let mut shares: Vec<Vec<Vec<usize>>> = vec![Vec::new(); workers];
        for (step, places) in places.into_iter().enumerate() {
            shares[step % workers].push(places);
        }
        for share in shares {
            // A thread holds one more batch, which waits for room in the channel.
            let (sender, receiver) = sync_channel((depth / workers).saturating_sub(1));
            let samples = Arc::clone(&samples);
            let work = move || {
                for places in share {
                    let batch = samples.batch(&places);
                    let is_last = batch.is_err();
                    if sender.send(batch).is_err() || is_last {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("loader".into()).spawn(work);
            loader.threads.push(thread.map_err(Error::Thread)?);
            loader.made.push(receiver);
        }
        Ok(loader)
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.step >= self.steps {
            return None;
        }
        let from = self.step % self.made.len();
        let batch = self.made[from].recv().unwrap_or_else(|_| {
            Err(Error::Unfit(format!("the thread that makes batch {} has panicked", self.step)))
        });
        self.step = if batch.is_ok() { self.step + 1 } else { self.steps };
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.steps - self.step))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A thread that waits for room in its channel fails to send now.
        self.made.clear();
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
