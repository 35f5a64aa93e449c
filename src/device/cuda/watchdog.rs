//! The watchdog of direct calls, in which streams wait for other ranks: a failure detector that
//! finds the peer that failed, is late or makes another call, and then releases this rank's
//! streams.
//! Law: whatever happens at other ranks, this rank's streams go on. After a failure no kernel of
//! this rank starts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::control_block::{
    CAPTURED_SLOTS, ControlBlocks, EAGER_SLOTS, ENQUEUED, ENTERED, FINISHED, MAX_RANKS, SLOT_COUNT,
    SlotRef,
};
use super::failure::{
    CallFailure, FailedCall, OperationHeader, decode_close_reason, encode_close_reason,
    header_mismatch,
};
use super::locked;
use super::release::ContextProbe;
use crate::{sync::Instant, transport::PeerProcess};

/// How often the watchdog looks while a call is unfinished.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often it releases streams after a failure.
pub(super) const RELEASE_INTERVAL: Duration = Duration::from_micros(100);
/// The time without a call after which its thread sleeps until it is woken.
const IDLE_BEFORE_SLEEP: Duration = Duration::from_millis(100);
/// How long a word that another rank's stream has written may take to be visible here.
const VISIBILITY_DELAY: Duration = Duration::from_secs(1);
/// How long this rank's own part of a call may take on a device with much other work.
const BUSY_DEVICE_DELAY: Duration = Duration::from_secs(20);
/// How much longer than the timeout a drop waits for this rank's own streams.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often it asks whether peers' processes live, which takes a system call for each.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(10);
/// How long the last words of a process may take to be visible after it has ended.
const EXIT_GRACE: Duration = Duration::from_millis(20);

/// When the watchdog first saw an event.
struct Observations {
    /// This rank's stream has reached a call, by slot.
    entered_at: [Option<Instant>; SLOT_COUNT],
    /// A rank's process has ended.
    exited_at: [Option<Instant>; MAX_RANKS],
    /// A rank has closed its communicator.
    left_at: [Option<Instant>; MAX_RANKS],
    /// The time of the last look at processes.
    checked_at: Instant,
}

/// The state that the watchdog's thread and the calls share.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pub(crate) blocks: ControlBlocks,
    pub(super) context: ContextProbe,
    /// True if rank 0 is the only worker.
    pub(crate) is_leader_only: bool,
    /// The process of each rank, if it is another one. That one sees by the same stream whether
    /// this process is ending.
    processes: Vec<Option<PeerProcess>>,
    abort: Arc<AtomicBool>,
    /// Nanoseconds that a call may last after its stream has reached it.
    timeout: AtomicU64,
    /// The number of slots that captured calls have used so far.
    pub(crate) captured_slots_used: AtomicU32,
    /// True for a call whose stream takes no more work, so that it will not say that it has ended.
    pub(super) abandoned: [AtomicBool; SLOT_COUNT],
    /// The first failure, and the header of the call in which it was met.
    pub(super) failure: Mutex<Option<FailedCall>>,
    /// True once there is a failure, and true once streams are released because of it.
    pub(super) has_failure: AtomicBool,
    is_releasing: AtomicBool,
    /// True once no more calls are made.
    pub(super) is_ending: AtomicBool,
    /// True once the communicator no longer waits for the watchdog to end.
    pub(super) is_detached: AtomicBool,
    pub(super) is_asleep: AtomicBool,
}

impl Watchdog {
    pub(crate) fn new(
        (blocks, context): (ControlBlocks, ContextProbe),
        is_leader_only: bool,
        processes: Vec<Option<PeerProcess>>,
        abort: Arc<AtomicBool>,
    ) -> Self {
        Self {
            blocks,
            context,
            is_leader_only,
            processes,
            abort,
            timeout: AtomicU64::new(u64::MAX),
            captured_slots_used: AtomicU32::new(0),
            abandoned: [const { AtomicBool::new(false) }; SLOT_COUNT],
            failure: Mutex::new(None),
            has_failure: AtomicBool::new(false),
            is_releasing: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_worker(&self, rank: usize) -> bool {
        !self.is_leader_only || rank == 0
    }

    /// Sets how long the calls from here on may last.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.timeout.store(nanos, Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// The first failure and the call it was met in, if there is one. Another rank's failure counts
    /// even if it was in a call that is finished here, for the result of that call may be wrong.
    pub(crate) fn failure(&self, latest: OperationHeader) -> Option<FailedCall> {
        if !self.has_failure.load(Ordering::Acquire) {
            let peer = self.others().find(|&peer| self.blocks.close_reason(peer) > 1)?;
            let slots = (0..EAGER_SLOTS).filter(|&slot| self.own_header(slot).sequence > 0);
            let differing = slots.filter_map(|slot| Some((slot, self.mismatch(slot)?)));
            let (header, failure) = match differing.last() {
                Some((slot, failure)) => (self.own_header(slot), failure),
                None => (latest, self.peer_close_failure(peer)?),
            };
            self.fail(header, failure);
        }
        locked(&self.failure).clone()
    }

    /// Fails this call and all later ones, at this rank and the others.
    pub(crate) fn fail(&self, header: OperationHeader, failure: CallFailure) {
        let (culprit, aborted, outside) = match &failure {
            CallFailure::Lost { peer, .. }
            | CallFailure::Late { peer, .. }
            | CallFailure::CaptureMismatch { peer, .. }
            | CallFailure::Mismatch { peer, .. } => (*peer, false, None),
            CallFailure::GaveUp { peer, aborted, outside, .. } => (*peer, *aborted, *outside),
            CallFailure::Refused { outside, .. } => (self.blocks.me, false, *outside),
            CallFailure::Aborted => (self.blocks.me, true, None),
        };
        locked(&self.failure).get_or_insert((header, failure));
        // The failure is published before kernels are stopped, so that a rank that meets a kernel's
        // missing work finds the reason.
        self.has_failure.store(true, Ordering::Release);
        self.blocks.close(encode_close_reason(culprit, aborted, outside));
        self.blocks.stop_kernels();
        self.is_releasing.store(true, Ordering::Release);
    }

    /// Fails all calls because something that they depend on failed; `outside` is the rank of the
    /// world that is the cause, where it is no rank of this communicator.
    pub(crate) fn refuse(&self, reason: String, outside: Option<usize>) {
        self.fail(OperationHeader::NONE, CallFailure::Refused { reason, outside });
    }

    /// The failure that a peer has published, if any.
    pub(super) fn peer_close_failure(&self, by: usize) -> Option<CallFailure> {
        let (peer, aborted, outside) = decode_close_reason(self.blocks.close_reason(by))?;
        Some(CallFailure::GaveUp { peer, by, aborted, outside })
    }

    /// True if a call has failed, here or at another rank.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failure.load(Ordering::Acquire)
            || self.others().any(|peer| self.blocks.close_reason(peer) > 1)
    }

    /// The eager slots, and the slots that captured calls have used.
    pub(super) fn slots_in_use(&self) -> impl Iterator<Item = usize> {
        let captured = self.captured_slots_used.load(Ordering::Acquire) as usize;
        (0..EAGER_SLOTS).chain(EAGER_SLOTS..EAGER_SLOTS + captured.min(CAPTURED_SLOTS))
    }

    /// True if living graphs have calls of this rank.
    fn has_captured_calls(&self) -> bool {
        self.slots_in_use().skip(EAGER_SLOTS).any(|slot| self.own_header(slot).sequence > 0)
    }

    pub(super) fn own_header(&self, slot: usize) -> OperationHeader {
        self.blocks.header(self.blocks.own(slot))
    }

    /// This rank's unfinished calls: the slot, and whether the stream has reached the call.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (usize, bool)> {
        self.slots_in_use().filter_map(|slot| {
            let reached = self.blocks.state(self.blocks.own(slot));
            let is_open = if slot < EAGER_SLOTS { reached != FINISHED } else { reached == ENTERED };
            let is_open = is_open && !self.abandoned[slot].load(Ordering::Acquire);
            (self.own_header(slot).sequence > 0 && is_open).then_some((slot, reached == ENTERED))
        })
    }

    /// True if this rank's stream has reached a call that is unfinished.
    pub(crate) fn is_in_call(&self) -> bool {
        self.unfinished().any(|(_, entered)| entered)
    }

    /// Looks at all calls and peers once; true if a call is unfinished.
    fn poll(&self, seen: &mut Observations) -> bool {
        if seen.checked_at.elapsed() > LIVENESS_INTERVAL && self.unfinished().next().is_some() {
            for (rank, ended) in (0..self.blocks.size()).zip(&mut seen.exited_at) {
                *ended = self.is_ending(rank).then(|| ended.unwrap_or_else(Instant::now));
            }
            seen.checked_at = Instant::now();
        }
        let mut busy = false;
        let mut is_entered = [false; SLOT_COUNT];
        // Only the first call that the stream has reached can be late: a late rank may not have
        // made the calls behind it.
        let entered = self.unfinished().filter(|&(_, entered)| entered);
        let first = entered.map(|(slot, _)| slot).min_by_key(|&it| self.own_header(it).number());
        for (slot, entered) in self.unfinished() {
            (busy, is_entered[slot]) = (true, entered);
            // A graph makes the same call again.
            if entered && self.blocks.acknowledge_entry(slot) {
                seen.entered_at[slot] = None;
            }
            if self.abort.load(Ordering::Relaxed) {
                self.fail(self.own_header(slot), CallFailure::Aborted);
            } else if let Some(failure) = self.peer_failure_in(slot, seen) {
                self.fail(self.own_header(slot), failure);
            } else if entered {
                let began = *seen.entered_at[slot].get_or_insert_with(Instant::now);
                let after = self.timeout();
                if first == Some(slot) && began.elapsed() > after {
                    let peer = self.missing_peer(slot);
                    self.fail(self.own_header(slot), CallFailure::Late { peer, after });
                }
            }
        }
        let captured = |&slot: &usize| self.own_header(slot).is_captured();
        if let Some((slot, failure)) =
            (0..EAGER_SLOTS).filter(captured).find_map(|slot| Some((slot, self.mismatch(slot)?)))
        {
            self.fail(self.own_header(slot), failure);
        }
        for (since, entered) in seen.entered_at.iter_mut().zip(is_entered) {
            *since = since.filter(|_| entered);
        }
        busy
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.blocks.size()).filter(|&rank| rank != self.blocks.me)
    }

    /// True if a rank's process, another one, is ending or has ended. It may have memory open.
    pub(crate) fn is_ending(&self, rank: usize) -> bool {
        self.processes[rank].as_ref().is_some_and(PeerProcess::is_ending)
    }

    /// True if a rank has unmapped the memory of others, or its process has ended.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        let has_ended = || self.processes[rank].as_ref().is_some_and(PeerProcess::has_ended);
        self.blocks.has_left(rank) || has_ended()
    }

    /// The failure if another rank's header in a slot contradicts this rank's.
    pub(crate) fn mismatch(&self, slot: usize) -> Option<CallFailure> {
        let ours = self.own_header(slot);
        self.others().find_map(|peer| {
            header_mismatch(peer, ours, self.blocks.header(SlotRef { rank: peer, slot }))
        })
    }

    /// The failure of a peer that keeps this call from its end, if there is one.
    fn peer_failure_in(&self, slot: usize, seen: &mut Observations) -> Option<CallFailure> {
        let ours = self.own_header(slot);
        for peer in self.others() {
            // The close reason is read before the header: of a closed rank the header read then is
            // the last one.
            let closed = self.blocks.close_reason(peer);
            let theirs = self.blocks.header(SlotRef { rank: peer, slot });
            if let Some(failure) = header_mismatch(peer, ours, theirs) {
                return Some(failure);
            }
            if let Some(failure) = self.peer_close_failure(peer) {
                return Some(failure);
            }
            // A closed rank has finished all its calls. A captured call that it launched with the
            // others is about to finish here; one that it did not launch never will, and then the
            // ready word that this rank's stream has set there stays set. A call around a ring has
            // no such word, so that it gets more time.
            let left = (closed == 1).then(|| *seen.left_at[peer].get_or_insert_with(Instant::now));
            let unheard =
                self.is_worker(peer) && self.blocks.has_pending_ready(SlotRef { rank: peer, slot });
            let long = |at: Instant| {
                at.elapsed() > if unheard { VISIBILITY_DELAY } else { BUSY_DEVICE_DELAY }
            };
            let stays = || seen.entered_at[slot].is_some_and(long) && left.is_some_and(long);
            let never = match slot < EAGER_SLOTS {
                true => theirs.sequence != ours.sequence,
                // The peer may have freed the slot with its graph.
                false => stays() && self.blocks.state(self.blocks.own(slot)) == ENTERED,
            };
            if left.is_some() && never {
                let evidence = "it closed its communicator".into();
                return Some(CallFailure::Lost { peer, evidence });
            }
            // A process that has finished this call may have ended after it: then the call finishes
            // here at once.
            if left.is_none() && seen.exited_at[peer].is_some_and(|at| at.elapsed() > EXIT_GRACE) {
                return Some(CallFailure::Lost { peer, evidence: "its process ended".into() });
            }
        }
        None
    }

    /// The rank that a call waits for: one that has not made it, or whose stream has not reached
    /// it, or a worker that has not done its part.
    fn missing_peer(&self, slot: usize) -> usize {
        let ours = self.own_header(slot);
        let at = |rank| SlotRef { rank, slot };
        let uncalled = |&peer: &usize| self.blocks.header(at(peer)).number() < ours.number();
        let not_come = |&peer: &usize| {
            let same = self.blocks.header(at(peer)).sequence == ours.sequence;
            let reached = self.blocks.state(at(peer));
            // In a later launch of a graph, the state of the launch before is still there.
            same && (reached == ENQUEUED || slot >= EAGER_SLOTS && reached == FINISHED)
        };
        let undone = |&peer: &usize| self.blocks.has_waiting_streams(at(peer));
        let first = self.others().find(uncalled).or_else(|| self.others().find(not_come));
        let first = first.or_else(|| self.others().find(undone)).or_else(|| self.others().next());
        first.unwrap_or(self.blocks.me)
    }

    /// The loop of the watchdog's thread, until the communicator ends; true if no stream will touch
    /// the control blocks any more.
    pub(super) fn run(&self) -> bool {
        let mut seen = Observations {
            entered_at: [None; SLOT_COUNT],
            exited_at: [None; MAX_RANKS],
            left_at: [None; MAX_RANKS],
            checked_at: Instant::now(),
        };
        let (mut idle, mut dropped, mut failed_at) = (Instant::now(), None, None);
        loop {
            let failed = self.is_releasing.load(Ordering::Acquire);
            let busy = if failed {
                self.release(*failed_at.get_or_insert_with(Instant::now))
            } else {
                self.poll(&mut seen)
            };
            let captured = self.has_captured_calls();
            if busy {
                idle = Instant::now();
            }
            if self.is_ending.load(Ordering::Acquire) {
                let dropped: &mut Instant = dropped.get_or_insert_with(Instant::now);
                let timeout = if self.is_in_call() { self.timeout() } else { Duration::ZERO };
                if !busy && !captured {
                    return true;
                }
                let is_late = dropped.elapsed() > timeout.saturating_add(SHUTDOWN_GRACE);
                if !self.is_detached.load(Ordering::Acquire) && (is_late || !busy) {
                    self.detach(busy);
                }
            }
            // A graph may be launched at any time, and nothing tells the watchdog.
            match (busy, failed) {
                (true, true) => thread::sleep(RELEASE_INTERVAL),
                (false, _) if !captured && idle.elapsed() > IDLE_BEFORE_SLEEP => self.sleep(),
                (false, true) => thread::sleep(10 * POLL_INTERVAL),
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Gives up waiting at the end of the communicator. Streams may reach calls later, or graphs
    /// may be launched, so that the thread goes on.
    fn detach(&self, busy: bool) {
        if busy {
            self.refuse("the communicator was dropped".into(), None);
        } else {
            // All calls so far are finished and good; only launches from here on fail.
            self.blocks.close(1);
            self.blocks.stop_kernels_of(self.blocks.me);
            self.is_releasing.store(true, Ordering::Release);
        }
        self.is_detached.store(true, Ordering::Release);
    }

    /// Sleeps until a call wakes the thread. A call publishes its header before it looks whether
    /// the thread sleeps.
    fn sleep(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.unfinished().next().is_none() && !self.is_ending.load(Ordering::SeqCst) {
            thread::park();
        }
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}
