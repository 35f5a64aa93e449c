//! Calls on a stream that go by way of the host: the stream copies into pinned memory and out of
//! it, and between the two the communicator's worker makes the host's call.
//! May touch: as `comm`. Law: the host's part of a call ends whatever happens.

use std::array::from_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytemuck::cast_slice_mut;

use super::{OnStream, Side, Sides, failure};
use crate::comm::Communicator;
use crate::device::cuda::{Area, Driver, SLOT, SLOTS, Stages, Turn};
use crate::element::Element;
use crate::error::{Error, Result};

/// Where the second buffer of a piece begins behind the first: a line, at which any element may.
const LINE: usize = 64;

impl OnStream<'_> {
    /// Puts a call on the stream: for each piece of the blocks `work` has those of the one buffer,
    /// then those of the other.
    pub(super) fn put<T: Element>(
        &mut self,
        driver: Driver,
        Sides { sides, block, most }: Sides,
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        if let Some(error) = failure(&self.comm.streams.failed).take() {
            return Err(error);
        }
        let step = (SLOT - LINE) / most / size_of::<T>() * size_of::<T>();
        if step == 0 {
            let (doing, reason) = ("cutting a call", "there are too many ranks for one piece");
            return Err(Error::Device { doing: doing.into(), reason: reason.into() });
        }
        let (context, stream) = (self.stream.context(), self.stream.cu_stream());
        let all = &mut self.comm.streams.stages;
        let mut stages = match all.iter().position(|stages| stages.is_of(context)) {
            Some(at) => all.swap_remove(at),
            None => Stages::new(driver, context)?,
        };
        let pieces = block.div_ceil(step).max(1);
        let areas = |piece: usize| {
            let range = piece * step..block.min((piece + 1) * step);
            let second = (sides[0].blocks * range.len()).next_multiple_of(LINE);
            let [one, other] = sides;
            one.areas(0, block, range.clone()).chain(other.areas(second, block, range))
        };
        let lens = |piece: usize| {
            let len = step.min(block - piece * step);
            sides.map(|side| side.blocks * len)
        };
        // All that fits is copied in before the first is waited for.
        let mut tickets = from_fn::<_, SLOTS, _>(|_| None);
        let mut result = Ok(());
        for at in 0..pieces + SLOTS {
            let ticket = &mut tickets[at % SLOTS];
            if let Some(ticket) = ticket.take() {
                result = result.and(stages.end(stream, &ticket, areas(at - SLOTS)));
            }
            if at < pieces && result.is_ok() {
                match stages.begin(stream, areas(at)) {
                    Ok(turn) => {
                        *ticket = Some(turn.ticket());
                        self.start(turn, lens(at), work.clone());
                    }
                    Err(error) => result = Err(error),
                }
            }
        }
        self.comm.streams.stages.push(stages);
        if let Err(error) = &result {
            self.give_up(error.to_string());
        }
        result
    }

    /// After a call that was put on the stream in part, or not at all, this rank is out of step
    /// with those who make it.
    fn give_up(&mut self, why: String) {
        drop(self.comm.nonblocking().start((), move |comm, ()| {
            if let Some(engine) = &mut comm.engine {
                engine.give_up(why);
            }
            Ok(())
        }));
    }

    /// Starts the host's part of a piece.
    fn start<T: Element>(
        &mut self,
        mut turn: Turn,
        lens: [usize; 2],
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Send + 'static,
    ) {
        let failed = Arc::clone(&self.comm.streams.failed);
        let pending = self.comm.nonblocking().start((), move |comm, ()| {
            let done = comm.work_on(&mut turn, |comm, bytes| {
                let second = lens[0].next_multiple_of(LINE).min(bytes.len());
                let (one, other) = bytes.split_at_mut(second);
                let one = cast_slice_mut(&mut one[..lens[0]]);
                work(comm, one, cast_slice_mut(&mut other[..lens[1]]))
            });
            if let Err(error) = done {
                failure(&failed).get_or_insert(error);
            }
            Ok(())
        });
        // Its errors are kept elsewhere.
        drop(pending);
    }
}

impl Side {
    /// Where the bytes `range` of each block are, and where in a turn from `at` on.
    pub(super) fn areas(
        self,
        at: usize,
        block: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = Area> {
        let Self { device, blocks, reads, writes } = self;
        let len = range.len();
        (0..blocks).map(move |number| {
            let device = device + (number * block + range.start) as u64;
            Area { device, at: at + number * len, len, reads, writes }
        })
    }
}

impl Communicator {
    /// The host's part. If the stream does not come, the others must not wait for this rank.
    fn work_on(
        &mut self,
        turn: &mut Turn,
        work: impl Fn(&mut Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (timeout, abort) = (self.settings.timeout, Arc::clone(&self.abort));
        match turn.bytes(timeout, || abort.load(Ordering::Relaxed)) {
            Ok(bytes) => work(self, bytes),
            Err(error) => {
                if let Some(engine) = &mut self.engine {
                    engine.give_up(error.to_string());
                }
                Err(error)
            }
        }
    }
}
