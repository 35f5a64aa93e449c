//! How a thread waits for requests: it looks at the links, yields, then sleeps at the doorbell.

use std::mem::{forget, replace};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::progress::State;
use super::{Messages, Stop};
use crate::error::warn;
use crate::matching::{Expected, Outcome, RequestId};
use crate::sync::{Instant, WaitBackoff, is_interrupted, store_load_fence};
use crate::transport::tcp::keep_up_streams;

/// How often a sleeping thread looks whether peers are alive, and for an abort.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// A thread that has waited so long warns the user once.
const SILENCE_WARNING: Duration = Duration::from_secs(5);
/// A waiting thread looks at all links once in so many looks at the links that it waits for.
const LOOKS_PER_TURN: u32 = 8;

/// An event that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    Send(RequestId),
    Receive(RequestId),
    /// A message that no receive has met.
    Message(Expected),
}

impl Awaited {
    /// The outcome, if it is there; the request is over then.
    pub(super) fn take(self, state: &mut State) -> Option<Outcome> {
        match self {
            // Bytes in the memory of a link only leave while a thread looks after them.
            Self::Send(id) if state.has_unsent_bytes(id) => None,
            Self::Send(id) => state.endpoint.take_send(id),
            Self::Receive(id) => state.endpoint.take_receive(id),
            Self::Message(expected) => {
                let found = state.probe(expected).map(Outcome::Done);
                found.or_else(|| state.no_sender(expected.source))
            }
        }
    }

    /// True if the request has ended.
    pub(super) fn has_ended(self, state: &mut State) -> bool {
        match self {
            Self::Send(id) if state.has_unsent_bytes(id) => false,
            Self::Send(id) => state.endpoint.send_has_ended(id),
            Self::Receive(id) => state.endpoint.receive_has_ended(id),
            Self::Message(expected) => {
                state.probe(expected).is_some() || state.no_sender(expected.source).is_some()
            }
        }
    }

    /// Ends the request, whose buffer nobody uses any more; its outcome if it has ended already. A
    /// [`State::turn`] follows, after the other requests of the call: their peers may have to hear
    /// of it, and a receive that is about to end takes no message that comes by that turn.
    pub(super) fn withdraw(self, state: &mut State) -> Option<Outcome> {
        let ended = match self {
            Self::Send(id) => state.endpoint.take_send(id),
            _ => self.take(state),
        };
        if ended.is_some() {
            return ended;
        }
        match self {
            Self::Send(id) => state.endpoint.withdraw_send(id),
            Self::Receive(id) => state.withdraw_receive(id),
            Self::Message(_) => {}
        }
        None
    }
}

/// A request of a call of the user's, and its outcome once it is over.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) awaited: Awaited,
    /// The rank that it depends on, if it is one.
    pub(crate) peer: Option<usize>,
    pub(crate) outcome: Option<Outcome>,
}

impl Waiting {
    pub(crate) fn new(awaited: Awaited, peer: Option<usize>) -> Self {
        Self { awaited, peer, outcome: None }
    }
}

/// The known ranks that requests wait for.
fn late_peers(requests: &[Waiting]) -> impl Iterator<Item = usize> {
    requests.iter().filter(|it| it.outcome.is_none()).filter_map(|it| it.peer)
}

/// Takes the outcomes that are there; true if none is left to wait for, or one is a failure.
fn take_outcomes(requests: &mut [Waiting], state: &mut State) -> bool {
    let mut is_over = true;
    for request in requests.iter_mut().filter(|it| it.outcome.is_none()) {
        request.outcome = request.awaited.take(state);
        is_over &= request.outcome.is_some();
    }
    is_over || requests.iter().any(|it| !matches!(it.outcome, None | Some(Outcome::Done(_))))
}

/// Withdraws the requests that have no outcome; true if one has none after that.
pub(super) fn withdraw_all(requests: &mut [Waiting], state: &mut State) -> bool {
    let mut is_any_withdrawn = false;
    for request in requests.iter_mut().filter(|it| it.outcome.is_none()) {
        request.outcome = request.awaited.withdraw(state);
        is_any_withdrawn |= request.outcome.is_none();
    }
    if is_any_withdrawn {
        state.turn(None);
    }
    is_any_withdrawn
}

/// A wait that a panic ends, such as one of whoever collects warnings. Its buffers may be borrowed,
/// so its requests end with it.
struct Unwound<'a> {
    messages: &'a Messages,
    requests: &'a mut [Waiting],
}

impl Drop for Unwound<'_> {
    fn drop(&mut self) {
        let mut state = self.messages.lock();
        withdraw_all(self.requests, &mut state);
        self.messages.leave_links(&mut state);
    }
}

impl Messages {
    /// Looks whether a request has ended, without waiting.
    pub(crate) fn try_take(&self, state: &mut State, awaited: Awaited) -> Option<Outcome> {
        state.turn(None);
        self.wake_due_sleepers(state);
        awaited.take(state)
    }

    /// True if a request has ended, or never will; makes progress.
    pub(crate) fn has_ended(&self, awaited: Awaited) -> bool {
        if !self.process.is_current() {
            return true;
        }
        let mut state = self.lock();
        state.turn(None);
        self.wake_due_sleepers(&mut state);
        awaited.has_ended(&mut state) || state.closed.is_some()
    }

    /// Gives a request up.
    pub(crate) fn cancel(&self, awaited: Awaited) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.lock();
        awaited.withdraw(&mut state);
        state.turn(None);
        self.wake_due_sleepers(&mut state);
    }

    /// Tells the threads that sleep of a request that was started: it may be what a waiting thread
    /// sleeps for, and its bytes may wait for a socket that the worker does not poll yet.
    pub(crate) fn tell_sleepers(&self, state: &mut State) {
        if state.sleepers > 0 && (state.lookers > 0 || state.has_unsent()) {
            self.bell.ring();
        } else {
            self.wake_due_sleepers(state);
        }
    }

    /// Rings if a thread sleeps for a request that has ended: another thread may have taken its
    /// packets. A ring wakes one sleeper at least, and each one that wakes looks here again.
    pub(super) fn wake_due_sleepers(&self, state: &mut State) {
        if !state.slept_for.is_empty() && state.is_sleeper_due() {
            self.bell.ring();
        }
    }

    /// Waits for one request, for at most `timeout`; after that it is withdrawn. `peer` is the rank
    /// that it depends on, if it is one.
    pub(crate) fn wait(
        &self,
        state: MutexGuard<'_, State>,
        awaited: Awaited,
        peer: Option<usize>,
        timeout: Duration,
    ) -> Result<Outcome, Stop> {
        let mut request = [Waiting::new(awaited, peer)];
        self.wait_for_all(state, &mut request, timeout, &mut |_, _| true)?;
        let [Waiting { outcome, .. }] = request;
        outcome.ok_or(Stop::Timeout(timeout))
    }

    /// Waits until all requests have ended or one has failed, for at most `timeout`. Requests
    /// without an outcome are withdrawn then. `observer` hears now and then, while the thread
    /// sleeps, of each rank that it waits for, and for how long it has waited; it returns false if
    /// the rank will not answer.
    pub(crate) fn wait_for_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        requests: &mut [Waiting],
        timeout: Duration,
        observer: &mut dyn FnMut(usize, Duration) -> bool,
    ) -> Result<(), Stop> {
        // A later call like this one, which may be the first to sleep, allocates nothing.
        state.slept_for.reserve(requests.len());
        let is_over = take_outcomes(requests, &mut state) || {
            state.turn_of_all(requests);
            take_outcomes(requests, &mut state)
        };
        let done = if is_over {
            Ok(())
        } else {
            let unwound = Unwound { messages: self, requests: &mut *requests };
            let done;
            (state, done) = self.wait_in_turns(state, unwound.requests, timeout, observer);
            forget(unwound);
            done
        };
        let is_cut_off = withdraw_all(requests, &mut state);
        self.wake_due_sleepers(&mut state);
        if is_cut_off { done } else { Ok(()) }
    }

    /// Looks at links and sleeps in turns.
    fn wait_in_turns<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        requests: &mut [Waiting],
        timeout: Duration,
        observer: &mut dyn FnMut(usize, Duration) -> bool,
    ) -> (MutexGuard<'a, State>, Result<(), Stop>) {
        state.lookers += 1;
        state.announce_sleep(false);
        let policy = state.backoff.clone();
        let is_syscall_backed = requests.iter().any(|it| state.is_syscall_backed(it.peer));
        drop(state);
        let (began, mut has_warned) = (Instant::now(), false);
        let mut checked = began;
        let mut state = self.look(requests, policy.begin(is_syscall_backed), began);
        let done = loop {
            if take_outcomes(requests, &mut state) {
                break Ok(());
            }
            if let Some(stop) = self.stop(&state, began, timeout) {
                break Err(stop);
            }
            if began.elapsed() > SILENCE_WARNING && !replace(&mut has_warned, true) {
                // Whoever collects warnings may use messages.
                drop(state);
                self.warn_of_silence(requests);
                state = self.lock();
                continue;
            }
            if checked.elapsed() > CHECK_INTERVAL {
                checked = Instant::now();
                state.check_alive();
                drop(state);
                keep_up_streams();
                let goes_on = late_peers(requests).all(|peer| observer(peer, began.elapsed()));
                let is_over = is_interrupted();
                state = self.lock();
                if is_over {
                    break Err(Stop::Aborted);
                }
                if !goes_on {
                    break Err(Stop::PeerFailed);
                }
            }
            let left = timeout.saturating_sub(began.elapsed());
            state = self.sleep(state, left.min(CHECK_INTERVAL), requests);
            if state.has_moved {
                drop(state);
                state = self.look(requests, policy.begin(is_syscall_backed), Instant::now());
            }
        };
        state.backoff = policy;
        self.leave_links(&mut state);
        (state, done)
    }

    /// Lets a thread that sleeps, or the worker, take the place of this one.
    fn leave_links(&self, state: &mut State) {
        state.lookers -= 1;
        state.looks += 1;
        // The watch polls no socket for writing, and so leaves what is unsent to the worker.
        if state.sleepers > 0 && (!state.is_announced || state.is_watched && state.has_unsent()) {
            self.bell.ring();
        }
        if state.lookers == 0 && state.worker_rests {
            self.work.notify_all();
        }
    }

    fn warn_of_silence(&self, requests: &[Waiting]) {
        let other =
            late_peers(requests).next().map_or("any rank".into(), |it| self.peers[it].to_string());
        let (me, name, after) = (self.me, &self.name, SILENCE_WARNING);
        warn(&format!(
            "rank {me}{name} has waited for {after:.0?} for a message from or to {other}"
        ));
    }

    /// Looks at links, and yields between looks, until the requests have ended or nothing has moved
    /// for as long as looking pays; until a check is due though packets of others still move.
    fn look<'a>(
        &'a self,
        requests: &mut [Waiting],
        backoff: WaitBackoff<'_>,
        began: Instant,
    ) -> MutexGuard<'a, State> {
        let (mut looks, mut round) = (0_u32, 0);
        loop {
            looks = looks.wrapping_add(1);
            let is_full_turn = looks.is_multiple_of(LOOKS_PER_TURN);
            let mut has_moved = false;
            // The lock is let go after each turn, for other threads to start requests.
            if let Ok(mut state) = self.state.try_lock() {
                has_moved = match is_full_turn {
                    true => state.turn(None),
                    false => state.turn_of_all(requests),
                };
                let is_over = take_outcomes(requests, &mut state);
                if has_moved {
                    self.wake_due_sleepers(&mut state);
                }
                if is_over {
                    return state;
                }
            }
            let is_check_due = is_full_turn
                && (self.abort.load(Ordering::Relaxed)
                    || has_moved && began.elapsed() >= CHECK_INTERVAL);
            round = if has_moved { 0 } else { round + 1 };
            if is_check_due || !has_moved && !backoff.wait(round) {
                return self.lock();
            }
        }
    }

    /// Why a wait ends before its request.
    fn stop(&self, state: &State, began: Instant, timeout: Duration) -> Option<Stop> {
        match state.closed {
            Some(why) => Some(Stop::Closed(why)),
            None if self.abort.load(Ordering::Relaxed) => Some(Stop::Aborted),
            None if began.elapsed() >= timeout => Some(Stop::Timeout(timeout)),
            None => None,
        }
    }

    /// Sleeps until something may have moved, for at most `limit`; may return early. The thread
    /// waits for `requests`; the worker waits for none.
    pub(super) fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
        requests: &[Waiting],
    ) -> MutexGuard<'a, State> {
        state.announce_sleep(true);
        store_load_fence();
        state.has_moved = state.turn(None);
        if state.has_moved {
            self.wake_due_sleepers(&mut state);
            if state.sleepers == 0 {
                state.announce_sleep(false);
            }
            return state;
        }
        let [readable, writable] = state.descriptors();
        state.sleepers += 1;
        let sleep = state.note_sleep(requests);
        drop(state);
        self.bell.sleep(&readable, &writable, limit);
        let mut state = self.lock();
        state.return_descriptors([readable, writable]);
        state.sleepers -= 1;
        state.slept_for.retain(|&(other, _)| other != sleep);
        if state.sleepers == 0 {
            state.announce_sleep(false);
        }
        state.has_moved = state.turn(None);
        if !state.has_moved {
            state.check_alive();
        }
        // This thread may have taken the ring that was meant for another one.
        self.wake_due_sleepers(&mut state);
        state
    }
}

#[cfg(test)]
mod tests;
