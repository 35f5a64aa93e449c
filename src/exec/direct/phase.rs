//! Waiting between ranks that share memory, until a peer's phase is reached: spin, yield, then
//! sleep on a futex; with a deadline, an abort flag, and a look every 10 ms whether all peers are
//! alive and make the same call.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Call, DONE, READY, Walk};
use crate::exec::wait::{
    ABORT_POLL_INTERVAL, Halt, Stop, differ_only_in_direct_bit, warn_of_silence,
};
use crate::memory::{CallId, PhaseFlags};
use crate::trace::{Direction, Position};
use crate::transport::Fault;

impl Walk<'_> {
    /// Waits for all others to be ready with the same claim, or to be done.
    pub(super) fn await_all(&mut self, step: usize) -> Result<(), Halt> {
        let Call { me, size, .. } = *self.call;
        let first = if me == 0 { size - 1 } else { 0 };
        self.wait.record_position(Position::at(step, Direction::Both, first));
        for peer in (me + 1..size).chain(0..me) {
            let reached = self.await_peer(peer, step);
            reached.map_err(|(stop, peer)| Halt { stop, step, peer })?;
            if step == READY
                && let Some(stop) = self.mismatch_with(peer)
            {
                return Err(Halt { stop, step, peer });
            }
        }
        Ok(())
    }

    /// The mismatch between this rank's call and that of a peer that is ready.
    fn mismatch_with(&self, peer: usize) -> Option<Stop> {
        let (ours, theirs) = (self.call.call_id, self.phase_flags.claim(peer));
        let mismatch =
            |field, ours, theirs| Some(Stop::Fault(Fault::Mismatch { field, ours, theirs }));
        // Both ranks made an earlier call over links, and its messages were not compared yet.
        if let Some((ours, theirs)) = self.phase_flags.link_call_mismatch(peer) {
            return mismatch("earlier", ours.fingerprint, theirs.fingerprint);
        }
        let [registered, other] = [ours, theirs].map(CallId::is_registered);
        if ours.sequence != theirs.sequence {
            return mismatch("sequence", ours.sequence, theirs.sequence);
        }
        if registered != other {
            return Some(Stop::Fault(Fault::memory(registered)));
        }
        (ours.fingerprint != theirs.fingerprint)
            .then(|| mismatch("fingerprint", ours.fingerprint, theirs.fingerprint))
            .flatten()
    }

    fn await_peer(&mut self, peer: usize, step: usize) -> Result<(), (Stop, usize)> {
        let reached = |phase_flags: &PhaseFlags| phase_flags.reached(peer, step == DONE);
        if reached(self.phase_flags) {
            return Ok(());
        }
        let mut round = 0_u32;
        let backoff = self.wait.backoff.begin(false);
        while backoff.wait(round) {
            if reached(self.phase_flags) {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) && self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
        }
        self.wait.record_sleep(Direction::Both, peer);
        let done = self.sleep(peer, step, backoff.began());
        self.wait.record_slept(backoff.began().elapsed());
        done
    }

    fn sleep(&mut self, peer: usize, step: usize, began: Instant) -> Result<(), (Stop, usize)> {
        let mut warned = false;
        loop {
            if self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
            self.check_peers(step)?;
            if self.phase_flags.reached(peer, step == DONE) {
                return Ok(());
            }
            let waited = began.elapsed();
            if waited >= self.wait.timeout {
                return Err((Stop::Timeout(self.wait.timeout), peer));
            }
            let times = (waited, self.wait.timeout);
            warn_of_silence(self.peers, self.wait.recorder, times, (peer, 0), &mut warned);
            let limit = ABORT_POLL_INTERVAL.min(self.wait.timeout - waited);
            self.phase_flags.sleep(peer, step == DONE, limit);
        }
    }

    /// Fails if a rank that has not reached the phase cannot reach it any more. A rank that has
    /// reached it may have left since.
    fn check_peers(&mut self, step: usize) -> Result<(), (Stop, usize)> {
        let Call { me, size, .. } = *self.call;
        let phase_flags = &*self.phase_flags;
        let others = || (me + 1..size).chain(0..me);
        if let Some((peer, fault)) = self.peers.local_detector().dead_peer() {
            return Err((Stop::Fault(fault), peer));
        }
        let absent = |peer: &usize| !phase_flags.reached(*peer, step == DONE);
        let link_call =
            |peer| Some((peer, phase_flags.link_call_of(peer, self.call.call_id.sequence)?));
        let on_links = || others().filter(absent).find_map(link_call);
        if let Some((peer, theirs)) = on_links() {
            return Err((self.call.mismatch_with_link_call(theirs), peer));
        }
        if let Some((peer, fault)) = self.peers.cause(None, differ_only_in_direct_bit) {
            // The peer may have published its call over links since the look above.
            if let Some((peer, theirs)) = on_links().filter(|_| fault.is_second_hand()) {
                return Err((self.call.mismatch_with_link_call(theirs), peer));
            }
            // A peer that failed because of this rank's call has published its claim before.
            let ready = step == READY && fault.is_second_hand() && phase_flags.reached(peer, false);
            let stop = if ready { self.mismatch_with(peer) } else { None };
            return Err((stop.unwrap_or(Stop::Other { peer, fault }), peer));
        }
        for peer in others().filter(absent) {
            let lost = match phase_flags.is_closed(peer) {
                true => Err(Fault::Lost("it closed its communicator".into())),
                false => self.peers.links.check_alive(peer),
            };
            // The peer may have reached the phase just before it left.
            if let Err(fault) = lost
                && !phase_flags.reached(peer, step == DONE)
            {
                return Err((Stop::Fault(fault), peer));
            }
        }
        Ok(())
    }
}
