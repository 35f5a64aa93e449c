//! The threads of a communicator that open the memory that other processes announce, and that close
//! and free memory its users have dropped.
//! Law: no thread waits here for another rank's program. Memory is opened by a thread of its own,
//! as an owner waits for that, while to close and to free may wait for streams.

mod announcements;
mod exported;
mod quiescence;

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cudarc::driver::CudaContext;

use super::context::RelaxedCapture;
use super::driver::Driver;
use super::ipc::{DeviceAllocation, HANDLE_WORDS, PeerMapping};
use super::locked;
use super::watchdog::Watchdog;
use crate::error::{Error, Result};
use crate::sync::FencedBy;
pub(crate) use announcements::Announcement;
use announcements::MAX_ANNOUNCEMENTS;
pub(super) use announcements::announcements_bytes;
pub(crate) use exported::ExportedMemory;
use quiescence::while_idle;
pub(super) use quiescence::{add_watchdog, wait_for_releases};

/// How often a thread looks whether dropped memory may be closed or freed.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The longest sleep of a thread that waits for work.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// The memory of ranks of several processes, or of one.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(crate) shared: Arc<MemoryExchange>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that the threads share with the communicator and with its users' memory.
#[derive(Debug)]
pub(crate) struct MemoryExchange {
    driver: Driver,
    context: Arc<CudaContext>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The ranks of other processes whose memory this rank opens.
    owners: Vec<usize>,
    /// The ranks of other processes that open this rank's memory.
    pub(crate) openers: Arc<[usize]>,
    /// The number of announcements so far.
    announced: AtomicU64,
    /// Memory of other ranks that is open here.
    mappings: Mutex<Vec<(Announcement, Arc<PeerMapping>)>>,
    /// Memory that its users have dropped.
    dropped: Mutex<Vec<DroppedMemory>>,
    /// The number of dropped buffers that are not freed yet.
    dropped_count: AtomicUsize,
    is_ending: AtomicBool,
}

/// Memory that its user has dropped.
#[derive(Debug)]
struct DroppedMemory {
    memory: ExportedMemory,
    /// The number of the latest call that may use the memory; `None` if that is not known yet.
    last_call: Option<u64>,
    /// True once that call is finished and the openers were asked to close the memory.
    is_retired: bool,
}

impl PeerMemory {
    /// Starts the threads; `owners` and `openers` as in [`MemoryExchange`].
    pub(crate) fn new(
        (driver, context): (Driver, &Arc<CudaContext>),
        watchdog: &Arc<Watchdog>,
        owners: Vec<usize>,
        openers: Arc<[usize]>,
    ) -> Result<Self> {
        let shared = Arc::new(MemoryExchange {
            driver,
            context: Arc::clone(context),
            watchdog: Arc::clone(watchdog),
            owners,
            openers,
            announced: AtomicU64::new(0),
            mappings: Mutex::default(),
            dropped: Mutex::default(),
            dropped_count: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
        });
        let mut started = Self { shared, threads: Vec::new() };
        if !started.shared.owners.is_empty() {
            started.spawn("ringreduce-open", MemoryExchange::open_announced)?;
        }
        started.spawn("ringreduce-free", MemoryExchange::release_dropped)?;
        Ok(started)
    }

    fn spawn(&mut self, name: &str, work: fn(&MemoryExchange)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            // Calls of these threads are no part of a graph, whichever stream is captured.
            let _relaxed = RelaxedCapture::new();
            work(&shared);
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(run);
        let doing = "starting a thread for other ranks' device memory";
        self.threads.push(spawned.map_err(|error| Error::no_thread(doing, error))?);
        Ok(())
    }

    /// Ends the threads after the last call, and closes the memory of other ranks.
    pub(crate) fn end(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        locked(&self.shared.mappings).clear();
    }

    /// Leaves all memory open that streams or graphs may still use, and frees none.
    pub(crate) fn abandon(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.threads.clear();
        forget(Arc::clone(&self.shared));
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end();
        }
    }
}

impl MemoryExchange {
    /// Announces memory of this rank to the ranks that open it.
    ///
    /// # Errors
    /// If the table is full.
    pub(crate) fn announce(&self, handle: [u64; HANDLE_WORDS]) -> Result<Announcement, String> {
        let serial = self.announced.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(at) = self.watchdog.blocks.announce(serial, handle) else {
            return Err(format!(
                "other ranks have {MAX_ANNOUNCEMENTS} buffers of this rank open, the most that a \
                 communicator can have, {} of which were dropped and are not closed yet; use parts \
                 of fewer, longer buffers",
                self.dropped_count()
            ));
        };
        self.openers.iter().for_each(|&opener| self.watchdog.blocks.wake_for_memory(opener));
        Ok(at)
    }

    /// The owner of announced memory; `memory` is none where that is the user's.
    pub(crate) fn exported(
        &self,
        memory: Option<DeviceAllocation>,
        at: Announcement,
    ) -> ExportedMemory {
        ExportedMemory::announced(memory, at, &self.openers, &self.watchdog)
    }

    /// Takes memory that its user has dropped. It is freed later, by a thread of this.
    pub(crate) fn take_back(&self, memory: ExportedMemory) {
        self.dropped_count.fetch_add(1, Ordering::Relaxed);
        locked(&self.dropped).push(DroppedMemory { memory, last_call: None, is_retired: false });
        self.wake();
    }

    /// The number of dropped buffers that other ranks may have open, or that are not freed yet.
    pub(crate) fn dropped_count(&self) -> usize {
        self.dropped_count.load(Ordering::Acquire)
    }

    fn wake(&self) {
        self.watchdog.blocks.wake_for_memory(self.watchdog.blocks.me);
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Sleeps until there may be work: until this rank is woken and `has_work`.
    fn sleep(&self, limit: Duration, has_work: impl Fn() -> bool) {
        let blocks = &self.watchdog.blocks;
        let is_awaited = || self.is_ending() || has_work();
        blocks.memory_waiters(blocks.me).sleep(limit, FencedBy::Publishers, is_awaited);
    }

    fn announcements(&self) -> impl Iterator<Item = Announcement> {
        self.owners.iter().flat_map(|&owner| self.watchdog.blocks.announcements(owner))
    }

    /// Memory that other ranks have announced, and that this rank has not tried to open.
    fn unopened(&self) -> impl Iterator<Item = Announcement> {
        let blocks = &self.watchdog.blocks;
        self.announcements().filter(|&at| blocks.opening(at, blocks.me).is_none())
    }

    /// Opened memory that its owner has dropped, and that this rank has not closed.
    fn unclosed(&self) -> impl Iterator<Item = Announcement> {
        let blocks = &self.watchdog.blocks;
        self.announcements().filter(|&at| {
            let is_open = blocks.opening(at, blocks.me).is_some();
            is_open && blocks.is_retired(at) && !blocks.is_closed_by(at, blocks.me)
        })
    }

    /// The loop of the thread that opens memory, until the communicator ends.
    fn open_announced(&self) {
        while !self.is_ending() {
            for at in self.unopened() {
                self.open(at);
            }
            self.sleep(MAX_SLEEP, || self.unopened().next().is_some());
        }
    }

    /// Opens memory and answers where. Several buffers may be in one allocation, which is opened
    /// once.
    fn open(&self, at: Announcement) {
        let blocks = &self.watchdog.blocks;
        let handle = blocks.announced_handle(at);
        let mut mappings = locked(&self.mappings);
        let open = mappings.iter().find(|(of, it)| of.owner == at.owner && it.is_of(handle));
        let opened = match open {
            Some((_, open)) => Ok(Arc::clone(open)),
            None => PeerMapping::new(self.driver, &self.context, handle).map(Arc::new),
        };
        let answer = opened.as_ref().map(|it| it.start()).map_err(|&answer| answer);
        mappings.extend(opened.ok().map(|it| (at, it)));
        drop(mappings);
        blocks.answer(at, answer);
    }

    /// The loop of the thread that closes and frees dropped memory, until the communicator ends.
    fn release_dropped(&self) {
        while !self.is_ending() {
            let unclosed: Vec<_> = self.unclosed().collect();
            unclosed.into_iter().for_each(|at| self.close(at));
            self.advance_dropped();
            let has_work = || self.dropped_count() > 0 || self.unclosed().next().is_some();
            if has_work() {
                thread::sleep(RELEASE_POLL_INTERVAL);
            } else {
                self.sleep(MAX_SLEEP, has_work);
            }
        }
    }

    /// Closes memory that its owner has dropped, unless a call is under way, and tells the owner.
    fn close(&self, at: Announcement) {
        let take = || {
            let mut mappings = locked(&self.mappings);
            let found = mappings.iter().position(|(of, _)| *of == at);
            found.map(|found| mappings.swap_remove(found))
        };
        if while_idle(|| drop(take())).is_some() {
            self.watchdog.blocks.answer_closed(at);
        }
    }

    /// Asks other ranks to close dropped memory that no call uses any more, and frees what all have
    /// closed.
    fn advance_dropped(&self) {
        locked(&self.dropped).retain_mut(|one| {
            let last_call = *one.last_call.get_or_insert_with(|| self.watchdog.latest_unfinished());
            if self.watchdog.has_unfinished_up_to(last_call) {
                return true;
            }
            one.memory.retire();
            one.is_retired = true;
            let is_over = !one.memory.is_allocated() && one.memory.is_closed();
            if is_over {
                one.memory.free_entry();
                self.dropped_count.fetch_sub(1, Ordering::Release);
            }
            !is_over
        });
        while let Some(true) = while_idle(|| self.free_one()) {}
    }

    /// Frees dropped memory that all have closed; false if there is none. A user who drops memory
    /// does not wait for that.
    fn free_one(&self) -> bool {
        let take = || {
            let mut dropped = locked(&self.dropped);
            let is_closed = |one: &DroppedMemory| one.is_retired && one.memory.is_closed();
            let found = dropped.iter().position(is_closed);
            found.map(|found| dropped.swap_remove(found))
        };
        let Some(mut taken) = take() else { return false };
        taken.memory.free_entry();
        drop(taken);
        self.dropped_count.fetch_sub(1, Ordering::Release);
        true
    }
}
