//! The executor of one planned call: directly through shared memory, or step by step over links.

use super::PROBE_SEQUENCE_BIT;
use super::call::CheckedCall;
use super::registry::{PlannedCall, Registry};
use crate::exec::{self, Halt, LinkCall, Wait};
use crate::health::Peers;
use crate::kernel::Kernel;
use crate::memory::{Buffer, OwnBuffers, Scratch};
use crate::plan::{ExecutedBy, Plan};
use crate::schedule::{Algorithm, Collective, Space};
use crate::transport::Frame;

/// The parts of the engine that executing a plan needs, and facts about this rank.
pub(crate) struct Executor<'a> {
    pub(crate) kernel: &'a Kernel<'a>,
    /// The call's buffers, if they are registered.
    pub(crate) registered: Option<OwnBuffers>,
    /// Ranks on this host.
    pub(crate) local_size: usize,
    /// Bytes of the last-level cache.
    pub(crate) cache_bytes: usize,
    pub(crate) registry: &'a mut Registry,
    pub(crate) peers: &'a mut Peers,
    pub(crate) scratch: &'a mut Scratch,
}

impl Executor<'_> {
    /// Makes the call with this number; false if the call is for registered memory alone, which a
    /// rank does not pass.
    #[inline]
    pub(crate) fn execute(
        self,
        plan: &Plan<'_>,
        call: &CheckedCall<'_>,
        sequence: u64,
        wait: &Wait<'_>,
    ) -> Result<bool, Halt> {
        let Plan { algorithm, schedule, ref partition, fingerprint, .. } = *plan;
        let CheckedCall { request, buffer, .. } = *call;
        let is_direct_only = call.is_direct_only();
        let frame = Frame { len: 0, sequence, fingerprint };
        let streaming = self.bypasses_cache(call);
        let Self { kernel, registered, registry, peers, scratch, .. } = self;
        let call = LinkCall { schedule, partition, frame, kernel, streaming };
        if let Some(own) = &registered {
            let algorithm = Algorithm::Direct;
            let call = PlannedCall { algorithm, request, frame, kernel, streaming };
            if registry.run_registered(&call, (own, buffer), peers, wait)? {
                wait.record_algorithm(algorithm);
                return Ok(true);
            }
        }
        if is_direct_only {
            return Ok(false);
        }
        match plan.executed_by() {
            ExecutedBy::HostRegion => {
                let call = PlannedCall { algorithm, request, frame, kernel, streaming };
                if let Some(done) = registry.run(call, (buffer, scratch), peers, wait) {
                    return done.map(|()| true);
                }
            }
            ExecutedBy::TwoLevel(parts) => {
                // This rank's part is read again when the ranks of its host gather all parts.
                let between = (&LinkCall { streaming: false, ..call }, streaming);
                let call = (request, parts);
                return registry.run_two_level(call, between, buffer, peers, wait).map(|()| true);
            }
            ExecutedBy::Links => {}
        }
        // All ranks make the probe's calls by the same algorithm.
        if sequence & PROBE_SEQUENCE_BIT == 0 {
            registry.announce_link_call(sequence, fingerprint);
        }
        let scratch = scratch.bytes(partition.scratch_bytes()).map_err(Halt::no_memory)?;
        exec::run(&call, &buffer.with_scratch(scratch), peers, wait).map_err(|halt| {
            // A peer that makes this call in shared memory sends nothing on links: that peer is the
            // cause, then.
            let caller = registry.region_caller(sequence, fingerprint);
            caller.map_or(halt, |(peer, stop)| Halt { stop, step: 0, peer })
        })?;
        Ok(true)
    }

    /// True if results are stored past the cache: if they are larger than it. Copies of all ranks
    /// of a host share the cache, and their sources are not in it. All-to-alls of four ranks, 16
    /// MiB each, took 6.6 to 9.6 ms through the cache and 4.5 to 5.8 ms past it; in place, where
    /// only this rank's bytes count, 3.0 and 3.5 ms.
    fn bypasses_cache(&self, call: &CheckedCall<'_>) -> bool {
        let buffer = call.buffer;
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let is_apart = read.end <= written.start || written.end <= read.start;
        // A broadcast is in place, and stores where nobody has read.
        let is_broadcast = matches!(call.request.collective, Collective::Broadcast { .. });
        let copies = (is_apart || is_broadcast) && call.request.op.is_none();
        written.len() * if copies { self.local_size } else { 1 } >= self.cache_bytes
    }
}

/// The reduction of a single contribution, in a communicator of one rank.
pub(super) fn fold_alone(kernel: &Kernel<'_>, buffer: &Buffer<'_>, bytes: usize) {
    for part in buffer.pieces([Space::Input, Space::Output], 0..bytes) {
        let out = buffer.dst(Space::Output, part.clone());
        kernel.fold(true, &mut [out], &[buffer.src(Space::Input, part)]);
    }
}
