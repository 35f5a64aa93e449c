//! Calls on a stream that go by way of the host: the stream copies into pinned memory and out of
//! it, and between the two the communicator's worker makes the host's call.
//! May touch: as `comm`. Law: the host's part of a call ends whatever happens.

use std::array::from_fn;
use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::host_call::HostCall;
use super::pieces::{Cut, LINE, areas, lens, pieces};
use super::{OnStream, failure};
use crate::api::Communicator;
use crate::device::cuda::{Current, Driver, Limit, SLOT, SLOTS, Stages, Turn, refuse_capture};
use crate::error::Result;

/// How long it takes at most until a stream goes on that waited for others in vain.
const TOLD: Duration = Duration::from_secs(2);

/// How long the host's part of a call may take, whatever happens.
fn patience(timeout: Duration) -> Duration {
    timeout.saturating_mul(2).saturating_add(TOLD)
}

impl OnStream<'_> {
    /// Before a call that goes by way of the host whatever devices reach.
    pub(super) fn enter_for_host(&self, name: &'static str) -> Result<(Driver, Current)> {
        let entered = self.enter()?;
        refuse_capture(name, self.stream.cu_stream())?;
        Ok(entered)
    }

    /// Puts a call on the stream: for each piece the host makes `call` on what the piece has of
    /// both buffers.
    pub(super) fn put(&mut self, driver: Driver, cut: &impl Cut, call: &HostCall) -> Result<()> {
        if let Some(error) = failure(&self.comm.streams.failed).take() {
            return Err(error);
        }
        let (context, stream) = (self.stream.context(), self.stream.cu_stream());
        let patience = patience(self.comm.settings.timeout);
        let abort = Arc::clone(&self.comm.abort);
        let limit = Limit { patience, abort: &abort };
        let all = &mut self.comm.streams.stages;
        // What fits no block of the usual length is a call that is made whole.
        let first = pieces(cut).next().map_or([0; 2], |piece| lens(cut, &piece));
        let needed = (first[0].next_multiple_of(LINE) + first[1]).max(SLOT);
        let mut stages = match all.iter().position(|stages| stages.serves(context, needed)) {
            Some(at) => all.swap_remove(at),
            None => Stages::new(driver, context, needed)?,
        };
        // All that fits is copied in before the first is waited for.
        let mut under_way = from_fn::<_, SLOTS, _>(|_| None);
        let mut result = Ok(());
        let none_more = repeat_n(None, SLOTS);
        for (at, piece) in pieces(cut).map(Some).chain(none_more).enumerate() {
            let place = &mut under_way[at % SLOTS];
            if let Some((ticket, piece)) = place.take() {
                result = result.and(stages.end(stream, &ticket, limit, areas(cut, &piece)));
            }
            let Some(piece) = piece.filter(|_| result.is_ok()) else { continue };
            match stages.begin(stream, limit, areas(cut, &piece)) {
                Ok(turn) => {
                    *place = Some((turn.ticket(), piece.clone()));
                    self.start(turn, lens(cut, &piece), call.clone(), piece);
                }
                Err(error) => result = Err(error),
            }
        }
        self.comm.streams.stages.push(stages);
        if let Err(error) = &result {
            self.give_up(error.to_string());
        }
        result
    }

    /// After a call that was put on the stream in part, or not at all, this rank is out of step
    /// with those who make it. Streams may wait for it in calls that go straight, too.
    pub(super) fn give_up(&mut self, why: String) {
        let streams = &mut self.comm.streams;
        if let Some(direct) = &streams.direct {
            direct.watch().refuse(why.clone(), None);
        }
        if let Some(islands) = &mut streams.islands {
            islands.give_up(self.stream, &why, None);
        }
        drop(self.comm.nonblocking().start((), move |comm, ()| {
            if let Some(engine) = &mut comm.engine {
                engine.give_up(why);
            }
            Ok(())
        }));
    }

    /// Starts the host's part of a piece.
    fn start(&mut self, mut turn: Turn, lens: [usize; 2], call: HostCall, piece: Range<usize>) {
        let failed = Arc::clone(&self.comm.streams.failed);
        let stands_for = self.comm.streams.stands_for.clone();
        let pending = self.comm.nonblocking().start((), move |comm, ()| {
            let timeout = comm.settings.timeout;
            // Whom the stream waits for, who stands for others knows better: it is told first.
            let most = if stands_for.is_some() { patience(timeout) } else { timeout };
            let done = comm.work_on((&mut turn, most), |comm, bytes| {
                if stands_for.as_ref().is_some_and(|watch| watch.has_failed()) {
                    // The stream was let pass, and brings anything: others must not have it. Who
                    // has failed is said elsewhere.
                    let why = "the ranks that this one stands for have failed";
                    comm.engine.iter_mut().for_each(|engine| engine.give_up(why.into()));
                    return Ok(());
                }
                let second = lens[0].next_multiple_of(LINE).min(bytes.len());
                let (one, other) = bytes.split_at_mut(second);
                call.make(comm, &piece, &mut one[..lens[0]], &mut other[..lens[1]])
            });
            if let Err(mut error) = done {
                // Before the turn ends, and the stream goes on with what is in the block.
                if let Some(watch) = stands_for {
                    let culprit = error.peer_mut().map(|peer| peer.rank);
                    watch.refuse(error.to_string(), culprit);
                }
                failure(&failed).get_or_insert(error);
            }
            drop(turn);
            Ok(())
        });
        // Its errors are kept elsewhere.
        drop(pending);
    }
}

impl Communicator {
    /// Bytes of the pieces that calls are cut into: those of a block; whole calls, where ranks that
    /// have no device make them so.
    pub(super) fn room(&self) -> usize {
        if self.streams.mixed { isize::MAX as usize } else { SLOT }
    }

    /// The host's part. If the stream does not come, the others must not wait for this rank.
    fn work_on(
        &mut self,
        (turn, most): (&mut Turn, Duration),
        work: impl Fn(&mut Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let abort = Arc::clone(&self.abort);
        match turn.bytes(most, || abort.load(Ordering::Relaxed)) {
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
