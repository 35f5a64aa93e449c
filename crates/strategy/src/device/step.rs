//! The parts of a step: gradients are added to buckets on the framework's stream, and full buckets
//! are exchanged on the other one.
//! Law: an exchange waits for the work that has written its bucket, and the framework's stream
//! waits for an exchange only where it uses that memory next.

use std::ops::Range;

use cudarc::driver::CudaViewMut;
use ringreduce::{Error, Result};

use super::DeviceTrainer;
use super::calls::DeviceCalls;
use crate::exchange::reduce;

impl DeviceTrainer {
    /// Begins a part of a batch. Gradients of the parts of a step are added up, and exchanged in
    /// the last one; in each one where gradients are sharded. There all ranks have as many parts as
    /// the one with most; elsewhere each has as many as it likes.
    ///
    /// # Errors
    /// If the part before was not ended by [`Self::reduce`], or the device refuses something.
    pub fn begin_part(&mut self, is_last: bool) -> Result<()> {
        if self.part.is_some() {
            let expected = "a call of `reduce` before it";
            return Err(Error::argument("begin_part", "self", "within a part", expected));
        }
        if self.parts == 0 {
            self.stream.memset_zeros(&mut self.report)?;
        }
        self.part = Some(is_last);
        self.is_reduced = false;
        Ok(())
    }

    /// The gradient of a parameter, which work on the stream adds its part to: it is 0 in the first
    /// part of a step, and then the sum of the parts before, or a piece of it. What is written is
    /// exchanged after [`Self::ready`].
    ///
    /// # Errors
    /// If there is no such parameter, it is ready in this part, or no part was begun; where
    /// gradients are sharded, if a bucket is written while the second one before it is not full, as
    /// there is memory for two only. If the device refuses something.
    pub fn gradient_mut(&mut self, parameter: usize) -> Result<CudaViewMut<'_, f32>> {
        let (bucket, place) = self.unready_place("DeviceTrainer::gradient_mut", parameter)?;
        self.open(bucket)?;
        let memory = bucket % self.memories.len();
        Ok(self.memories[memory].memory.slice_mut(place))
    }

    /// Tells that all work that writes the gradient of a parameter in this part is on the stream.
    /// The exchanges of buckets whose gradients are all ready are started, in the same order at all
    /// ranks. Ranks may call this in any order.
    ///
    /// # Errors
    /// As [`Self::gradient_mut`]; and if a call failed before on a stream.
    pub fn ready(&mut self, parameter: usize) -> Result<()> {
        let (bucket, _) = self.unready_place("DeviceTrainer::ready", parameter)?;
        self.is_ready[parameter] = true;
        self.buckets[bucket].missing -= 1;
        while self.is_exchanged()
            && self.buckets.get(self.started).is_some_and(|bucket| bucket.missing == 0)
        {
            self.exchange(self.started)?;
        }
        Ok(())
    }

    /// Ends a part: gradients that are not ready count as they are, 0 if nothing was written. After
    /// the last part work on the stream finds the sums over all ranks in [`Self::shards`].
    ///
    /// # Errors
    /// If no part was begun; those of [`Self::ready`].
    pub fn reduce(&mut self) -> Result<()> {
        let is_last = self.part_begun("DeviceTrainer::reduce")?;
        if self.is_exchanged() {
            while self.started < self.buckets.len() {
                self.exchange(self.started)?;
            }
            self.stream.join(&self.exchanges)?;
        }
        self.parts = if is_last { 0 } else { self.parts + 1 };
        self.is_reduced = is_last;
        self.part = None;
        self.is_ready.fill(false);
        let is_over = self.started > 0;
        self.started = 0;
        for bucket in &mut self.buckets {
            bucket.missing = bucket.places.len();
            bucket.is_open &= !is_over;
        }
        Ok(())
    }

    /// An error unless all parts of a step are reduced, and it is not completed.
    pub(super) fn check_reduced(&self, call: &'static str) -> Result<()> {
        if self.is_reduced {
            return Ok(());
        }
        let given = match self.part {
            Some(_) => "within a part",
            None if self.parts > 0 => "before the last part of the step",
            None => "before the first part of a step",
        };
        Err(Error::argument(call, "self", given, "a call after the last part's `reduce`"))
    }

    fn part_begun(&self, call: &'static str) -> Result<bool> {
        let expected = "a call after `begin_part`";
        self.part.ok_or_else(|| Error::argument(call, "self", "between two parts", expected))
    }

    /// Whether the gradients of this part are exchanged.
    fn is_exchanged(&self) -> bool {
        self.part == Some(true) || self.settings.strategy.keeps_own_sums()
    }

    /// The bucket and the place of a parameter whose gradient may be written.
    fn unready_place(&self, call: &'static str, parameter: usize) -> Result<(usize, Range<usize>)> {
        self.part_begun(call)?;
        let place = self.place(call, parameter)?;
        if self.is_ready[parameter] {
            let given = format!("{}, which is ready in this part", self.shapes[parameter].0);
            return Err(Error::argument(call, "parameter", given, "one that is not ready"));
        }
        Ok(place)
    }

    /// Prepares the memory of a bucket's gradients, with the sums of the parts before.
    fn open(&mut self, bucket: usize) -> Result<()> {
        let turns = self.memories.len();
        if self.buckets[bucket].is_open {
            return Ok(());
        }
        if bucket >= self.started + turns {
            let name = |bucket: usize| {
                self.buckets[bucket].places.first().map_or("", |(at, _)| &*self.shapes[*at].0)
            };
            let (given, missing) = (name(bucket), name(self.started));
            let given = format!("in the bucket of {given}, while that of {missing} is not full");
            let expected =
                "gradients nearly in the reverse order of the parameters, or larger buckets";
            return Err(Error::argument("gradient_mut", "parameter", given, expected));
        }
        let (stream, memory) = (&self.stream, &mut self.memories[bucket % turns]);
        let bucket = &mut self.buckets[bucket];
        if let Some(exchanged) = &memory.exchanged {
            stream.wait(exchanged)?;
        }
        stream.memset_zeros(&mut memory.memory.slice_mut(..bucket.len))?;
        if let Some(kept) = bucket.kept.as_ref().filter(|_| self.parts > 0) {
            // This rank's gradients begin with the sums that it owns, so the exchange adds them.
            stream.memcpy_dtod(kept, &mut memory.memory.slice_mut(bucket.owned.clone()))?;
        }
        bucket.is_open = true;
        Ok(())
    }

    /// Puts the exchange of the next bucket on its stream.
    fn exchange(&mut self, at: usize) -> Result<()> {
        self.open(at)?;
        self.exchanges.join(&self.stream)?;
        let turns = self.memories.len();
        let (bucket, memory) = (&mut self.buckets[at], &mut self.memories[at % turns]);
        let gradients = &mut memory.memory.slice_mut(..bucket.len);
        let Self { comm, edges, exchanges: stream, .. } = self;
        reduce(self.settings.strategy, &mut DeviceCalls { comm, edges, stream }, gradients)?;
        if let Some(kept) = &mut bucket.kept {
            stream.memcpy_dtod(&memory.memory.slice(bucket.owned.clone()), kept)?;
            memory.exchanged = Some(stream.record_event(None)?);
        }
        self.started += 1;
        Ok(())
    }
}
