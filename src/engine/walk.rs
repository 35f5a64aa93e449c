//! The walk of a planned call: the plan by the rules in force, the mark by which peers see the
//! call, and the executor.

use std::sync::atomic::Ordering;

use super::Engine;
use super::call::CheckedCall;
use super::executor::{Executor, fold_alone};
use super::make::StageResult;
use crate::error::Result;
use crate::exec::{Halt, Stop, Wait};
use crate::memory::OwnBuffers;
use crate::schedule::{Algorithm, Space};

/// Calls from one look at the control channels to the next. A rank that never waits would not read
/// its control messages otherwise, and a channel has room for some hundreds of them.
const CALLS_PER_CONTROL_READ: u64 = 128;

impl Engine {
    /// The registered buffers of a call that is to be made directly if all ranks have such buffers.
    pub(super) fn registered_memory(&mut self, call: &CheckedCall<'_>) -> Option<OwnBuffers> {
        let CheckedCall { request, buffer, settings, .. } = *call;
        if call.is_internal {
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
        let is_long = request.longest(self.planner.ring().size()) >= least;
        is_long.then(|| self.registry.lookup(request, buffer, least)).flatten()
    }

    /// Reads control messages, if that is due; before the first call tests what ranks can do, and
    /// measures speeds.
    fn prepare(&mut self, call: &CheckedCall<'_>) -> Result<()> {
        if self.sequence.is_multiple_of(CALLS_PER_CONTROL_READ) {
            self.peers.control_channels().receive();
        }
        if self.planner.speeds().is_none() {
            self.peers.local_detector().enter(self.sequence + 1, 0);
            if self.planner.shares_host() {
                self.test_peer_reads(call.settings)?;
            }
            self.measure_speeds(call.settings)?;
        }
        Ok(())
    }

    /// Plans a call and makes it; a dry run ends before it is numbered. False if the call is for
    /// registered memory alone, and is still to be made.
    pub(super) fn walk(&mut self, call: &CheckedCall<'_>) -> StageResult<bool> {
        let CheckedCall { name, request, buffer, settings, .. } = *call;
        let is_alone = self.rank_info.size() == 1;
        let is_marked = !is_alone && !settings.is_dry_run;
        if is_marked {
            self.prepare(call)?;
        }
        let registered = self.registered_memory(call);
        let kernel = self.last_kernel.of(call, self.rank_info.size())?;
        self.planner.set_rules(call.rules(registered.is_some()));
        let plan = call.plan(&mut self.planner);
        if !is_alone && !call.permits(plan.algorithm) {
            let algorithm = plan.algorithm;
            // Clear the mark: a refused call was never entered.
            self.peers.local_detector().enter(self.sequence, 0);
            return Err(Box::new(call.refused(algorithm, self.planner.ring())));
        }
        let is_aborted = self.abort.load(Ordering::Relaxed);
        if is_marked {
            // With the fingerprint 0, peers compare their call with none: they are told of an abort
            // and not of a mismatch, and may have to make the call in pieces.
            let is_compared = !is_aborted && !call.is_direct_only();
            let fingerprint = if is_compared { plan.fingerprint } else { 0 };
            self.peers.local_detector().enter(self.sequence + 1, fingerprint);
        }
        if settings.is_dry_run {
            return Ok(true);
        }
        let record = &self.rank_info.record;
        record.set_plan(plan.algorithm, plan.link_steps());
        self.sequence += 1;
        let sequence = self.sequence;
        let bytes = buffer.len(Space::Output);
        let _span = settings.tag.as_deref().map(|tag| {
            let rank = self.rank_info.rank;
            tracing::debug_span!("call", name, tag, rank, sequence, bytes).entered()
        });
        if is_aborted {
            let halt = Halt { stop: Stop::Aborted, step: 0, peer: self.rank_info.rank };
            return Err(Box::new(self.fail(settings, name, halt)));
        }
        if is_alone && request.folds() {
            // A single rank's result is the reduction of its one contribution.
            fold_alone(kernel, buffer, bytes);
            return Ok(true);
        }
        let wait = Wait::new(&self.backoff, settings.timeout, &self.abort).with_recorder(record);
        let executor = Executor {
            kernel,
            registered,
            local_size: self.rank_info.local_size,
            cache_bytes: self.cache_bytes,
            registry: &mut self.registry,
            peers: &mut self.peers,
            scratch: &mut self.scratch,
        };
        let done = executor.execute(&plan, call, sequence, &wait);
        match done {
            Ok(true) if is_marked => self.peers.local_detector().leave(sequence),
            Ok(false) => self.sequence -= 1,
            _ => {}
        }
        let count = Some(request.count);
        done.map_err(|halt| Box::new(self.fail_with_count(settings, (name, count), halt)))
    }
}
