//! The engine of a communicator makes one call: from plan to bytes on links or in shared memory.
//! The communicator owns its engine, and lends it to the worker thread while operations are
//! pending.
//! Law: a call that succeeds allocates nothing.

mod call_meta;
pub(crate) mod conversion;
mod executor;
pub(crate) mod failure;
pub(crate) mod job_queue;
mod messages;
mod peer_reads;
pub(crate) mod piecewise;
pub(crate) mod registry;
mod undo_copy;
pub(crate) mod worker;

use std::mem::forget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::api::RankInfo;
use crate::api::group::GroupLists;
use crate::api::options::Settings;
use crate::bootstrap::group_construction::GroupFailure;
use crate::error::{Error, Result};
use crate::exec::{Halt, Stop, Wait};
use crate::health::Peers;
use crate::memory::{Buffer, OwnBuffers, Pieces, Scratch};
use crate::messages::Waiting;
use crate::plan::{Plan, Planner};
use crate::recovery::uniform::AllOrNone;
use crate::schedule::{Algorithm, Space};
use crate::sync::Backoff;
use crate::transport::Frame;
pub(crate) use call_meta::{CallMeta, linked_up_to};
pub use conversion::wire_error;
pub(crate) use executor::Executor;
use executor::fold_alone;
use registry::{RegionCall, Registry};

/// A rank's links, its planner, and the memory that calls use again.
pub(super) struct Engine {
    pub(super) planner: Planner,
    pub(super) peers: Peers,
    pub(super) registry: Registry,
    pub(super) backoff: Backoff,
    /// Memory of schedules for data on its way, and of inputs that peers can't read in place.
    pub(super) scratch: Scratch,
    /// Memory of calls that are made in pieces.
    pub(super) piece_memory: Scratch,
    /// A copy of the bytes that a call in place overwrites, if the call must be safe to retry.
    pub(super) undo_copy: Scratch,
    /// Memory for the list of buffers of an `all_reduce_many`; empty between two calls.
    pub(super) buffer_list: Pieces<'static>,
    pub(super) group_lists: GroupLists<'static>,
    /// Memory for the requests of a call of messages; empty between two calls.
    pub(super) message_requests: Vec<Waiting>,
    /// Bytes of the last-level cache. Larger results are stored past it.
    pub(super) cache_bytes: usize,
    pub(super) abort: Arc<AtomicBool>,
    /// Collectives made so far.
    pub(super) sequence: u64,
    /// The first failure, which every later call reports.
    pub(super) broken: Arc<OnceLock<Error>>,
    /// State of the agreement by which all ranks end a failed call alike.
    pub(super) all_or_none: AllOrNone,
    /// The failure cause that this rank sends as its goodbye, if a subgroup has failed.
    pub(super) group_failure: Arc<GroupFailure>,
}

/// The bit that the numbers of the probe's calls have, and no others. The two highest bits of a
/// number say which kind of call it is, for links too.
pub(super) const PROBE_SEQUENCE_BIT: u64 = 1 << 62;

/// Calls from one look at the control channels to the next. A rank that never waits would not read
/// its control messages otherwise, and a channel has room for some hundreds of them.
const CALLS_PER_CONTROL_READ: u64 = 128;

impl Engine {
    pub(super) fn new(
        planner: Planner,
        peers: Peers,
        backoff: Backoff,
        cache_bytes: usize,
    ) -> Self {
        Self {
            planner,
            peers,
            registry: Registry::default(),
            backoff,
            scratch: Scratch::default(),
            piece_memory: Scratch::default(),
            undo_copy: Scratch::default(),
            buffer_list: Pieces::default(),
            group_lists: GroupLists::default(),
            message_requests: Vec::new(),
            cache_bytes,
            abort: Arc::default(),
            sequence: 0,
            broken: Arc::default(),
            all_or_none: AllOrNone::default(),
            group_failure: Arc::default(),
        }
    }

    /// Makes a call over `buffer` by the plan that `plan` asks the planner for, and records it.
    pub(super) fn run(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
        plan: impl FnOnce(&mut Planner) -> Plan<'_>,
    ) -> Result<()> {
        let done = self.run_recorded(rank_info, settings, meta, buffer, |engine| {
            engine.execute(rank_info, settings, meta, buffer, plan).map(|()| true)
        });
        done.map(drop)
    }

    /// Makes a call directly, if all ranks pass registered memory; false if they do not, and the
    /// call is still to be made.
    pub(super) fn run_registered(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
    ) -> Result<bool> {
        match self.registered_memory(settings, meta, buffer) {
            None => Ok(false),
            Some(own) => self.run_recorded(rank_info, settings, meta, buffer, |engine| {
                engine.execute_registered(rank_info, settings, meta, (&own, buffer))
            }),
        }
    }

    /// Records a call; `make` makes it, and returns false if it was not made after all.
    fn run_recorded(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
        make: impl FnOnce(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let unwound = UnwoundCall { engine: self, call: meta.name };
        let done = unwound.engine.record(rank_info, settings, meta, buffer, make);
        forget(unwound);
        self.scratch.end_call();
        self.undo_copy.end_call();
        done
    }

    fn record(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
        make: impl FnOnce(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let is_uniform = settings.preferences.failures.uniform && rank_info.peers.len() > 1;
        let usable = self.check_usable(meta.name);
        if settings.is_dry_run || usable.is_err() && !is_uniform {
            return usable.and_then(|()| make(self));
        }
        let (number, bytes) = (self.sequence + 1, buffer.len(Space::Output));
        rank_info.record.enter((meta.name, meta.is_uneven), Some(meta.request), number, bytes);
        let made = usable.and_then(|()| make(self));
        let is_made = !matches!(made, Ok(false));
        let mut done = made.map(drop);
        if is_uniform && is_made {
            done = self.make_uniform(rank_info, settings, meta, (number, done));
        } else if done.is_ok() && is_made {
            self.all_or_none.last_ok = number;
        }
        rank_info.record.leave(&done);
        done.map(|()| is_made)
    }

    /// The registered buffers of a call that is to be made directly if all ranks have such.
    fn registered_memory(
        &mut self,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
    ) -> Option<OwnBuffers> {
        if meta.is_internal || settings.is_dry_run {
            return None;
        }
        // Peers write directly to registered memory until they know that this rank failed, so a
        // call that must be safe to retry goes over links.
        if settings.preferences.failures.retry_safe || !self.planner.shares_host() {
            return None;
        }
        let asked = settings.required.or(settings.preferences.algorithm);
        let least = match asked {
            None => self.planner.least_registered(),
            Some(Algorithm::Direct) => 0,
            Some(_) => return None,
        };
        // A short call does not look up its buffer, which takes 0.02 us.
        let is_long = meta.request.longest(self.planner.ring().size()) >= least;
        is_long.then(|| self.registry.lookup(meta.request, buffer, least)).flatten()
    }

    /// Reads control messages, if that is due; before the first call tests what ranks can do, and
    /// measures speeds.
    fn prepare(&mut self, rank_info: &RankInfo, settings: &Settings) -> Result<()> {
        if self.sequence.is_multiple_of(CALLS_PER_CONTROL_READ) {
            self.peers.control_channels().receive();
        }
        if self.planner.speeds().is_none() {
            self.peers.local_detector().enter(self.sequence + 1, 0);
            if self.planner.shares_host() {
                self.test_peer_reads(rank_info, settings)?;
            }
            self.measure_speeds(rank_info, settings)?;
        }
        Ok(())
    }

    pub(super) fn execute(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        buffer: &Buffer<'_>,
        plan: impl FnOnce(&mut Planner) -> Plan<'_>,
    ) -> Result<()> {
        let CallMeta { name, kernel, request, .. } = *meta;
        let is_alone = rank_info.peers.len() == 1;
        let is_marked = !is_alone && !settings.is_dry_run;
        if is_marked {
            self.prepare(rank_info, settings)?;
        }
        let registered = self.registered_memory(settings, meta, buffer);
        self.planner.set_rules(meta.rules(settings, registered.is_some()));
        let limits = meta.link_limits(settings, self.planner.ring());
        let plan = plan(&mut self.planner);
        if !is_alone {
            meta.check_algorithm(settings, plan.algorithm, limits).inspect_err(|_| {
                // Clear the mark: a refused call was never entered.
                self.peers.local_detector().enter(self.sequence, 0);
            })?;
        }
        let is_aborted = self.abort.load(Ordering::Relaxed);
        if is_marked {
            // Peers compare an aborted call with none of theirs: the abort is what they are told.
            let fingerprint = if is_aborted { 0 } else { plan.fingerprint };
            self.peers.local_detector().enter(self.sequence + 1, fingerprint);
        }
        if settings.is_dry_run {
            return Ok(());
        }
        rank_info.record.set_plan(plan.algorithm, plan.link_steps());
        self.sequence += 1;
        let sequence = self.sequence;
        let bytes = buffer.len(Space::Output);
        let _span = settings.tag.as_deref().map(|tag| {
            tracing::debug_span!("call", name, tag, rank = rank_info.rank, sequence, bytes)
                .entered()
        });
        if is_aborted {
            let halt = Halt { stop: Stop::Aborted, step: 0, peer: rank_info.rank };
            return Err(self.fail(rank_info, settings, name, halt));
        }
        if is_alone && request.folds() {
            // A single rank's result is the reduction of its one contribution.
            fold_alone(&kernel, buffer, bytes);
            return Ok(());
        }
        let wait = Wait::new(&self.backoff, settings.timeout, &self.abort);
        let wait = wait.with_recorder(&rank_info.record);
        let executor = Executor {
            registered,
            local_size: rank_info.local_size,
            cache_bytes: self.cache_bytes,
            registry: &mut self.registry,
            peers: &mut self.peers,
            scratch: &mut self.scratch,
        };
        let done = executor.execute(&plan, meta, sequence, buffer, &wait);
        if is_marked && done.is_ok() {
            self.peers.local_detector().leave(sequence);
        }
        let count = Some(request.count);
        done.map_err(|halt| self.fail_with_count(rank_info, settings, (name, count), halt))
    }
}

impl Engine {
    /// As [`Self::execute`], if all ranks pass registered memory; false if they do not.
    fn execute_registered(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        (own, buffer): (&OwnBuffers, &Buffer<'_>),
    ) -> Result<bool> {
        let request = meta.request;
        self.prepare(rank_info, settings)?;
        self.planner.set_rules(meta.rules(settings, true));
        let algorithm = Algorithm::Direct;
        let fingerprint = self.planner.fingerprint(request, algorithm);
        // The fingerprint of the call that is made if this one is not is another one.
        self.peers.local_detector().enter(self.sequence + 1, 0);
        self.sequence += 1;
        let (sequence, streaming) = (self.sequence, false);
        let wait = Wait::new(&self.backoff, settings.timeout, &self.abort);
        let wait = wait.with_recorder(&rank_info.record);
        let frame = Frame { len: 0, sequence, fingerprint };
        let call = RegionCall { algorithm, request, frame, kernel: meta.kernel, streaming };
        let done = match self.abort.load(Ordering::Relaxed) {
            true => Err(Halt { stop: Stop::Aborted, step: 0, peer: rank_info.rank }),
            false => self.registry.run_registered(&call, (own, buffer), &mut self.peers, &wait),
        };
        match done {
            Ok(true) => {
                rank_info.record.set_plan(algorithm, 0);
                self.peers.local_detector().leave(sequence);
                Ok(true)
            }
            Ok(false) => {
                self.sequence -= 1;
                Ok(false)
            }
            Err(halt) => {
                let of = (meta.name, Some(request.count));
                Err(self.fail_with_count(rank_info, settings, of, halt))
            }
        }
    }
}

/// A call that a panic ends, such as one of a subscriber of warnings. Peers may be reading the
/// caller's memory, so the communicator closes before that memory is the caller's again.
struct UnwoundCall<'a> {
    engine: &'a mut Engine,
    call: &'static str,
}

impl Drop for UnwoundCall<'_> {
    fn drop(&mut self) {
        let first = format!("a panic ended {} of this rank half made", self.call);
        self.engine.give_up(Error::Broken { call: self.call, first });
    }
}

impl Drop for Engine {
    /// Takes leave of the survivors of a failure, so that they need not wait for this rank's vote.
    fn drop(&mut self) {
        if let Some(mut driver) = self.all_or_none.driver.take() {
            driver.leave(&mut self.peers);
        }
    }
}
