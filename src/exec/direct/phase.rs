//! Where ranks that share memory wait for each other: look, spin, give way, park; with a deadline,
//! an abort flag and, now and then, a look whether everybody can still come.
//! May touch: shared, link.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Call, DONE, READY, Walk};
use crate::exec::wait::{GLANCE, Halt, Stop, differ_by_lines, remind};
use crate::memory::{Claim, Control};
use crate::trace::{Toward, Where};
use crate::transport::Fault;

impl Walk<'_> {
    /// Waits for all others to be ready with the same claim, or to be done.
    pub(super) fn all_reach(&mut self, step: usize) -> Result<(), Halt> {
        let Call { me, size, .. } = *self.call;
        self.wait.at(Where::at(step, Toward::Both, if me == 0 { size - 1 } else { 0 }));
        for peer in (me + 1..size).chain(0..me) {
            let reached = self.reach(peer, step);
            reached.map_err(|(stop, peer)| Halt { stop, step, peer })?;
            if step == READY
                && let Some(stop) = self.difference(peer)
            {
                return Err(Halt { stop, step, peer });
            }
        }
        Ok(())
    }

    /// In what the call of a rank that is ready differs from this one's.
    fn difference(&self, peer: usize) -> Option<Stop> {
        let (ours, theirs) = (self.call.claim, self.control.claim(peer));
        let differs =
            |field, ours, theirs| Some(Stop::Fault(Fault::Mismatch { field, ours, theirs }));
        // A call before this one, that left messages which nobody has looked at yet.
        if let Some((ours, theirs)) = self.control.differed(peer) {
            return differs("earlier", ours.fingerprint, theirs.fingerprint);
        }
        let [registered, other] = [ours, theirs].map(Claim::is_registered);
        if ours.sequence != theirs.sequence {
            return differs("sequence", ours.sequence, theirs.sequence);
        }
        if registered != other {
            return Some(Stop::Fault(Fault::memory(registered)));
        }
        (ours.fingerprint != theirs.fingerprint)
            .then(|| differs("fingerprint", ours.fingerprint, theirs.fingerprint))
            .flatten()
    }

    fn reach(&mut self, peer: usize, step: usize) -> Result<(), (Stop, usize)> {
        let reached = |control: &Control| control.reached(peer, step == DONE);
        if reached(self.control) {
            return Ok(());
        }
        let mut round = 0_u32;
        let patience = self.wait.patience.begin(false);
        while patience.wait(round) {
            if reached(self.control) {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) && self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
        }
        self.wait.sleeps(Toward::Both, peer);
        let done = self.parked(peer, step, patience.began());
        self.wait.slept(patience.began().elapsed());
        done
    }

    fn parked(&mut self, peer: usize, step: usize, began: Instant) -> Result<(), (Stop, usize)> {
        let mut said = false;
        loop {
            if self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
            self.all_come(step)?;
            if self.control.reached(peer, step == DONE) {
                return Ok(());
            }
            let waited = began.elapsed();
            if waited >= self.wait.timeout {
                return Err((Stop::Timeout(self.wait.timeout), peer));
            }
            let times = (waited, self.wait.timeout);
            remind(self.links, self.wait.flight, times, (peer, 0), &mut said);
            let limit = GLANCE.min(self.wait.timeout - waited);
            self.control.sleep(peer, step == DONE, limit);
        }
    }

    /// Can all others still come? Whoever is there already may leave.
    fn all_come(&mut self, step: usize) -> Result<(), (Stop, usize)> {
        let Call { me, size, .. } = *self.call;
        let control = &*self.control;
        let others = || (me + 1..size).chain(0..me);
        if let Some((peer, evidence)) = self.links.lives().dead() {
            return Err((Stop::Fault(Fault::Lost(evidence)), peer));
        }
        let absent = |peer: &usize| !control.reached(*peer, step == DONE);
        let apart = |peer| Some((peer, control.elsewhere(peer, self.call.claim.sequence)?));
        let elsewhere = || others().filter(absent).find_map(apart);
        if let Some((peer, theirs)) = elsewhere() {
            return Err((self.call.apart_from(theirs), peer));
        }
        if let Some((peer, fault)) = self.links.cause(None, differ_by_lines) {
            // What that one has failed of may have come about since the look before.
            if let Some((peer, theirs)) = elsewhere().filter(|_| fault.is_hearsay()) {
                return Err((self.call.apart_from(theirs), peer));
            }
            // Who failed because of this rank's call says in what they differ.
            let ready = step == READY && fault.is_hearsay() && control.reached(peer, false);
            let stop = if ready { self.difference(peer) } else { None };
            return Err((stop.unwrap_or(Stop::Other { peer, fault }), peer));
        }
        for peer in others().filter(absent) {
            let lost = match control.is_closed(peer) {
                true => Err(Fault::Lost("it closed its communicator".into())),
                false => self.links.check_alive(peer),
            };
            // It may have got there just before it left.
            if let Err(fault) = lost
                && !control.reached(peer, step == DONE)
            {
                return Err((Stop::Fault(fault), peer));
            }
        }
        Ok(())
    }
}
