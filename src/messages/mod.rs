//! The messages of one rank: its links for them, apart from those of collectives, and the requests
//! that are pending. Progress is made by every thread that waits for a request, and while none does
//! by one worker thread; where nothing moves, by one thread of the process, the watch. So no
//! message waits for a collective.
//! `matching` decides which send meets which receive.
//! Law: no lock is held while a thread sleeps, and no code of the user's runs under it.

mod buffers;
mod exchange;
mod failure;
mod links;
mod progress;
mod wait;
mod watch;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) use buffers::{ReceiveBuffer, SendBuffer};
pub(crate) use exchange::{Bytes, Transfer};
pub(crate) use failure::{Context, Stop};
pub(crate) use progress::State;
pub(crate) use wait::{Awaited, Waiting};

use crate::error::communicator_name::CommunicatorName;
use crate::error::{Error, Peer, warn};
use crate::matching::{Endpoint, Envelope, Limits, Status};
use crate::partition::SlotShape;
use crate::schedule::Ring;
use crate::sync::{Backoff, Process};
use crate::transport::{Bell, Doorbell, LinkSet};

/// The longest eager message is a part of a slot, but no shorter than this, in bytes. It is copied
/// once more if its receive comes late, and memory for some is kept for each peer.
const EAGER_PART: usize = 4;
const LEAST_EAGER: usize = 4 << 10;
/// Eager messages of the greatest length that one rank may send to another before their receives.
const EAGER_CREDITS: u64 = 16;
/// The most messages that were never received which are named one by one.
const MOST_NAMED: usize = 8;

/// The links of messages of one rank, and the doorbell at which it sleeps.
pub(crate) struct MessageLinks {
    pub(crate) links: LinkSet,
    pub(crate) slots: SlotShape,
    pub(crate) bell: Doorbell,
    /// The largest world that has links between all pairs.
    most_pairs: u32,
}

impl MessageLinks {
    /// For a rank of this ring, without links yet.
    pub(crate) fn new(ring: &Ring, slots: SlotShape, bell: Arc<Bell>) -> Self {
        let links = LinkSet::new(ring.size() as usize);
        Self { links, slots, bell: Doorbell::at(bell), most_pairs: ring.most_pairs() }
    }
}

/// The messages of a communicator, which end with it.
pub(crate) struct MessageEngine {
    messages: Arc<Messages>,
    lost_flags: Arc<[AtomicBool]>,
    sent: Arc<AtomicU64>,
    process: u32,
}

impl MessageEngine {
    /// For rank `me` of `peers` in the communicator of this name, whose waits follow `backoff`. A
    /// raised `abort` ends all waits.
    pub(crate) fn new(
        links: MessageLinks,
        (me, peers): (usize, Arc<[Peer]>),
        name: &Arc<CommunicatorName>,
        backoff: Backoff,
        abort: &Arc<AtomicBool>,
    ) -> Self {
        let MessageLinks { links, slots, bell, most_pairs } = links;
        let eager = (slots.bytes / EAGER_PART).max(LEAST_EAGER) as u64;
        let limits = Limits { eager, slot: slots.bytes as u64, credit: EAGER_CREDITS * eager };
        let mut endpoint = Endpoint::new(me as u32, peers.len() as u32, limits);
        let linked: Vec<_> = links.peers().collect();
        let others = (0..peers.len()).filter(|peer| *peer != me);
        others.filter(|peer| !linked.contains(peer)).for_each(|it| endpoint.unlink(it as u32));
        let state = State::new(endpoint, links, slots.bytes, peers.len(), backoff);
        let (lost_flags, sent) = (Arc::clone(&state.lost_flags), Arc::clone(&state.sent));
        let messages = Arc::new(Messages {
            me,
            peers,
            name: Arc::clone(name),
            most_pairs,
            bell,
            abort: Arc::clone(abort),
            state: Mutex::new(state),
            work: Condvar::new(),
            process: Process::default(),
        });
        Self { messages, lost_flags, sent, process: std::process::id() }
    }

    /// For each rank, whether it is lost, as far as messages have shown.
    pub(crate) fn lost_flags(&self) -> Arc<[AtomicBool]> {
        Arc::clone(&self.lost_flags)
    }

    /// The bytes of payload that messages have sent.
    pub(crate) fn sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }

    pub(crate) fn shared(&self) -> &Arc<Messages> {
        &self.messages
    }
}

impl Drop for MessageEngine {
    /// Requests that are pending fail. The links of a forked child are its parent's.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The last reference would close the links.
            return std::mem::forget(Arc::clone(&self.messages));
        }
        self.messages.close("its communicator was dropped");
        self.messages.join_worker();
    }
}

/// The messages of a communicator, for any thread.
pub(crate) struct Messages {
    pub(crate) me: usize,
    pub(crate) peers: Arc<[Peer]>,
    name: Arc<CommunicatorName>,
    /// The largest world that has links between all pairs.
    pub(crate) most_pairs: u32,
    bell: Doorbell,
    abort: Arc<AtomicBool>,
    state: Mutex<State>,
    /// Wakes the worker.
    work: Condvar,
    /// The process of this rank.
    pub(crate) process: Process,
}

impl Messages {
    /// Locks the state. After a panic of a thread that moved messages no buffer is touched any
    /// more, because that thread may have given up one that is pending.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.shut("a thread panicked while it moved messages");
            state
        })
    }

    /// As [`Self::lock`], for a user's call, which fails in a forked child.
    pub(crate) fn lock_for(&self, call: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        self.process.check(call)?;
        Ok(self.lock())
    }

    /// Ends all messages: pending requests and later calls fail with this reason, and peers see
    /// that the links are closed.
    pub(crate) fn close(&self, why: &'static str) {
        let mut state = self.lock();
        if state.closed.is_some() {
            return;
        }
        let unexpected = state.close(why);
        drop(state);
        self.work.notify_all();
        self.bell.ring();
        let me = self.me;
        for status in unexpected.iter().take(MOST_NAMED) {
            let Status { source, envelope: Envelope { tag, dtype, bytes } } = status;
            warn(&format!(
                "rank {me} has never received a message of rank {source}: tag {tag}, {bytes} bytes \
                 of {dtype}"
            ));
        }
        if let Some(more @ 1..) = unexpected.len().checked_sub(MOST_NAMED) {
            warn(&format!("rank {me} has never received {more} other messages"));
        }
    }
}
