//! Calls by way of the host: the stream copies into a staging block and out of it, and between the
//! two the communicator's worker makes the host's call.
//! Law: the host's part of a call ends whatever happens.

use std::array::from_fn;
use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::OnStream;
use super::host_call::HostCall;
use super::pieces::{LINE, PieceRule, areas, lens, pieces};
use crate::api::Communicator;
use crate::device::cuda::{
    BLOCK_BYTES, BLOCK_COUNT, CurrentContext, Driver, StagingBuffers, StagingTicket, WaitLimit,
    refuse_capture,
};
use crate::error::{Error, Result};

/// How long a rank that waits for others in vain may take to hear of the failure.
const FAILURE_NOTICE: Duration = Duration::from_secs(2);

/// How long the host's part of a call may take, whatever happens.
fn host_timeout(timeout: Duration) -> Duration {
    timeout.saturating_mul(2).saturating_add(FAILURE_NOTICE)
}

impl OnStream<'_> {
    /// Makes the context current for a call that always goes by way of the host.
    pub(super) fn enter_for_host(&self, name: &'static str) -> Result<(Driver, CurrentContext)> {
        let entered = self.enter_context()?;
        refuse_capture(name, self.stream.cu_stream())?;
        Ok(entered)
    }

    /// Puts a call on the stream; for each piece the host makes `call` on the piece of both
    /// buffers.
    pub(super) fn put_staged(
        &mut self,
        driver: Driver,
        cut: &impl PieceRule,
        call: &HostCall,
    ) -> Result<()> {
        self.comm.streams.failures.report()?;
        let (context, stream) = (self.stream.context(), self.stream.cu_stream());
        let host_timeout = host_timeout(self.comm.settings.timeout);
        let abort = Arc::clone(&self.comm.abort);
        let limit = WaitLimit { timeout: host_timeout, abort: &abort };
        let all = &mut self.comm.streams.staging;
        // A call that is not cut needs longer blocks than the usual ones.
        let first = pieces(cut).next().map_or([0; 2], |piece| lens(cut, &piece));
        let needed = (first[0].next_multiple_of(LINE) + first[1]).max(BLOCK_BYTES);
        let mut buffers = match all.iter().position(|buffers| buffers.serves(context, needed)) {
            Some(at) => all.swap_remove(at),
            None => StagingBuffers::new(driver, context, needed)?,
        };
        // All blocks are copied in before the stream waits for the host's part of the first piece.
        let mut under_way = from_fn::<_, BLOCK_COUNT, _>(|_| None);
        let mut result = Ok(());
        let none_more = repeat_n(None, BLOCK_COUNT);
        for (at, piece) in pieces(cut).map(Some).chain(none_more).enumerate() {
            let entry = &mut under_way[at % BLOCK_COUNT];
            if let Some((ticket, piece)) = entry.take() {
                result = result.and(buffers.end(stream, &ticket, limit, areas(cut, &piece, LINE)));
            }
            let Some(piece) = piece.filter(|_| result.is_ok()) else { continue };
            match buffers.begin(stream, limit, areas(cut, &piece, LINE)) {
                Ok(ticket) => {
                    *entry = Some((ticket.copy_out(), piece.clone()));
                    self.start_piece(ticket, lens(cut, &piece), call.clone(), piece);
                }
                Err(error) => result = Err(error),
            }
        }
        self.comm.streams.staging.push(buffers);
        if let Err(error) = &result {
            self.give_up(error.clone());
        }
        result
    }

    /// Fails the communicator after a call of which a part may be enqueued: this rank is out of
    /// step with the others. Streams may wait for this rank in direct calls, too.
    pub(super) fn give_up(&mut self, why: Error) {
        let streams = &mut self.comm.streams;
        if let Some(direct) = &streams.direct {
            direct.watchdog().refuse(why.to_string(), None);
        }
        if let Some(domains) = &mut streams.domains {
            domains.give_up(self.stream, &why, None);
        }
        drop(self.comm.nonblocking().start(Some(why), |comm, why| {
            if let (Some(engine), Some(why)) = (&mut comm.engine, why.take()) {
                engine.give_up(why);
            }
            Ok(())
        }));
    }

    /// Starts the host's part of a piece on the communicator's worker.
    fn start_piece(
        &mut self,
        mut ticket: StagingTicket,
        lens: [usize; 2],
        call: HostCall,
        piece: Range<usize>,
    ) {
        let failures = Arc::clone(&self.comm.streams.failures);
        let domain_watchdog = self.comm.streams.domain_watchdog.clone();
        let pending = self.comm.nonblocking().start((), move |comm, ()| {
            let timeout = comm.settings.timeout;
            // A leader's stream waits for its domain, whose watchdog finds the cause of a failure:
            // it gets the time to do so first.
            let most = if domain_watchdog.is_some() { host_timeout(timeout) } else { timeout };
            let done = comm.work_on((&mut ticket, most), |comm, bytes| {
                if domain_watchdog.as_ref().is_some_and(|watchdog| watchdog.has_failed()) {
                    // The watchdog has released the stream, and the bytes are undefined: other
                    // ranks must not get them. The domain's own failure says which rank failed.
                    let first = "the P2P domain of this rank has failed".into();
                    let why = Error::Broken { call: "on_stream", first };
                    comm.engine.iter_mut().for_each(|engine| engine.give_up(why.clone()));
                    return Ok(());
                }
                let second = lens[0].next_multiple_of(LINE).min(bytes.len());
                let (one, other) = bytes.split_at_mut(second);
                call.make(comm, &piece, &mut one[..lens[0]], &mut other[..lens[1]])
            });
            if let Err(mut error) = done {
                // The failure is known before the ticket ends and the stream goes on with the bytes
                // in the block.
                if let Some(watchdog) = domain_watchdog {
                    let culprit = error.peer_mut().map(|peer| peer.rank);
                    watchdog.refuse(error.to_string(), culprit);
                }
                failures.add(error);
            }
            drop(ticket);
            Ok(())
        });
        // Errors are kept in `failures`.
        drop(pending);
    }
}

impl Communicator {
    /// The longest piece in bytes: a staging block; no limit where ranks without a device make
    /// calls whole.
    pub(super) fn max_piece_bytes(&self) -> usize {
        if self.streams.has_host_ranks { isize::MAX as usize } else { BLOCK_BYTES }
    }

    /// Does the host's part when the stream has copied in. If the stream does not come in time,
    /// this rank gives up, so that the others do not wait for it.
    fn work_on(
        &mut self,
        (ticket, most): (&mut StagingTicket, Duration),
        work: impl Fn(&mut Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let abort = Arc::clone(&self.abort);
        match ticket.bytes(WaitLimit { timeout: most, abort: &abort }) {
            Ok(bytes) => work(self, bytes),
            Err(error) => {
                if let Some(engine) = &mut self.engine {
                    engine.give_up(error.clone());
                }
                Err(error)
            }
        }
    }
}
