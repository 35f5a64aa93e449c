//! The executor of direct calls between devices with peer access. Each rank's stream says that it
//! has reached the call, the workers wait for all ranks, launch their kernels and say so, and each
//! rank waits for all workers.
//! Law: every rank puts calls on streams in the same order, so that a device with one hardware
//! queue for all streams makes progress.

use std::sync::{Arc, Mutex};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::control_block::{EAGER_SLOTS, ENQUEUED, ENTERED, FINISHED, SlotRef};
use super::failure::{CAPTURED_BIT, CallFailure, FailedCall, OperationHeader};
use super::graphs::release_slot_with_graph;
use super::kernel_names::KernelReduction;
use super::memory_ops::MemoryOps;
use super::module::{FoldKernel, Kernels, MoveKernel};
use super::peer_memory::wait_for_releases;
use super::ring_executor::RingCalls;
use super::stream_order::{WaitLimit, pause, wait_idle};
use super::watchdog_thread::WatchdogThread;
use crate::device::algorithm::DeviceAlgorithm;
use crate::element::DataType;
use crate::error::Error;
use crate::plan::DeviceForm;
use crate::sync::Instant;

/// Calls whose names and lengths are remembered for errors.
const REMEMBERED_CALLS: usize = 2 * EAGER_SLOTS;

/// The name, the length in elements, and the number in a whole call of which it is a part: for
/// errors.
pub(crate) type CallLabel = (&'static str, usize, Option<u64>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCall {
    pub(crate) algorithm: DeviceAlgorithm,
    /// The name, and elements as the caller counts them: for errors.
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    /// The number of the whole call, where this is a part of one.
    pub(crate) number: Option<u64>,
    pub(crate) fingerprint: u64,
    /// The type, the reduction and the factor of a scaled sum, in a call that reduces.
    pub(crate) reduction: Option<(DataType, KernelReduction, [u8; 16])>,
}

/// A call whose beginning is enqueued.
#[derive(Debug)]
#[must_use = "its stream still has to wait for the others"]
pub(crate) struct StartedCall {
    pub(super) call: PeerCall,
    header: OperationHeader,
    pub(super) slot: usize,
    /// True if this rank's own contribution already lies in its place of the receive buffer.
    pub(super) is_in_position: bool,
}

/// The direct calls of one rank.
#[derive(Debug)]
pub(crate) struct PeerExecutor {
    context: Arc<CudaContext>,
    pub(crate) watchdog: WatchdogThread,
    pub(super) kernels: Arc<Mutex<Kernels>>,
    pub(super) fold_kernels: Vec<((DataType, KernelReduction), FoldKernel)>,
    pub(super) move_kernel: Option<MoveKernel>,
    pub(super) ops: MemoryOps,
    /// The ring, where the devices form one.
    pub(super) ring: Option<RingCalls>,
    /// The number of calls so far.
    calls: u64,
    /// Names, lengths and numbers of the latest calls.
    labels: [CallLabel; REMEMBERED_CALLS],
    /// The most blocks of threads of a kernel.
    pub(super) most_blocks: u32,
}

impl PeerExecutor {
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        watchdog: WatchdogThread,
        kernels: Arc<Mutex<Kernels>>,
        ring: Option<RingCalls>,
        (most_blocks, flushes): (u32, bool),
    ) -> Self {
        Self {
            context: Arc::clone(context),
            watchdog,
            kernels,
            fold_kernels: Vec::new(),
            move_kernel: None,
            ops: MemoryOps::new(flushes),
            ring,
            calls: 0,
            labels: [("", 0, None); REMEMBERED_CALLS],
            most_blocks,
        }
    }

    pub(crate) fn is_of(&self, context: &CudaContext) -> bool {
        self.context.cu_ctx() == context.cu_ctx()
    }

    /// The label of a call, if it is one of the latest.
    pub(crate) fn call_label(&self, header: OperationHeader) -> Option<CallLabel> {
        let is_known = (1..=self.calls).contains(&header.number())
            && self.calls - header.number() < REMEMBERED_CALLS as u64;
        is_known.then(|| self.labels[header.number() as usize % REMEMBERED_CALLS])
    }

    /// Waits until all calls are finished; false if some are not, so that what they use must stay.
    /// The kernels then stay loaded.
    pub(crate) fn finish(&mut self) -> bool {
        let finished = self.watchdog.finish();
        if !finished {
            std::mem::forget(Arc::clone(&self.kernels));
        }
        finished
    }

    /// The ranks that launch kernels for a call.
    fn workers_of(&self, call: &PeerCall) -> std::ops::Range<usize> {
        0..call.algorithm.workers()
    }

    /// Enqueues the beginning of a call: this rank's buffers, at the addresses `buffers` for each
    /// worker, may be used. The operations go to the stream with those of [`Self::end`], or by
    /// [`Self::flush`].
    pub(crate) fn begin(
        &mut self,
        captures: Option<CUstream>,
        call: PeerCall,
        buffers: impl Fn(usize) -> [CUdeviceptr; 2],
    ) -> Result<StartedCall, FailedCall> {
        let mut slot = self.next_slot()?;
        if call.algorithm.workers() > self.watchdog.shared.blocks.me {
            // Loading a kernel may wait for streams, so that it comes before any stream waits for
            // this rank.
            let loaded = self.load_kernels(&call);
            self.checked(loaded)?;
        }
        self.calls += 1;
        self.labels[self.calls as usize % REMEMBERED_CALLS] = (call.name, call.count, call.number);
        let sequence = self.calls | if captures.is_some() { CAPTURED_BIT } else { 0 };
        let header = OperationHeader { sequence, fingerprint: call.fingerprint };
        if captures.is_some() {
            // Ranks that do not capture the call look at the header of the eager slot.
            self.publish_header(slot, header, FINISHED)?;
            slot = self.captured_slot(header)?;
        }
        self.publish_header(slot, header, ENQUEUED)?;
        wait_for_releases();
        let watchdog = Arc::clone(&self.watchdog.shared);
        let blocks = &watchdog.blocks;
        if let Some(stream) = captures {
            blocks.mark_taken(header.number());
            self.checked(release_slot_with_graph(stream, blocks.sequence_word(slot)))?;
        }
        self.ops.write(blocks.state_word(blocks.own(slot)), ENTERED);
        let is_in_position = if call.algorithm.by == DeviceForm::Ring {
            self.begin_ring(&call, slot, &buffers)
        } else {
            self.announce_buffers(&call, slot, &buffers);
            false
        };
        self.watchdog.wake();
        Ok(StartedCall { call, header, slot, is_in_position })
    }

    /// Tells the workers the addresses of this rank's buffers, and that they may be used.
    fn announce_buffers(
        &mut self,
        call: &PeerCall,
        slot: usize,
        buffers: &impl Fn(usize) -> [CUdeviceptr; 2],
    ) {
        let watchdog = Arc::clone(&self.watchdog.shared);
        let blocks = &watchdog.blocks;
        for worker in self.workers_of(call) {
            let at = SlotRef { rank: worker, slot };
            let [send, recv] = buffers(worker);
            blocks.write_buffers(at, [send, recv]);
            if !call.algorithm.is_reduction() {
                for peer in 0..blocks.size() {
                    let (maker, index) = call.algorithm.move_position(blocks.me, peer);
                    if maker == worker {
                        let moved = call.algorithm.block_move(blocks.me, peer);
                        blocks.write_move_source(at, index, send, moved);
                    }
                    let (maker, index) = call.algorithm.move_position(peer, blocks.me);
                    if maker == worker {
                        let moved = call.algorithm.block_move(peer, blocks.me);
                        blocks.write_move_target(at, index, recv, moved);
                    }
                }
            }
            if worker != blocks.me {
                self.ops.write(blocks.ready_word(at, blocks.me), 1);
            }
        }
    }

    /// The slot of the next call outside graphs, after its last call has finished.
    fn next_slot(&self) -> Result<usize, FailedCall> {
        let watchdog = &self.watchdog.shared;
        let none = OperationHeader::numbered(self.calls + 1);
        let slot = (self.calls % EAGER_SLOTS as u64) as usize;
        let own = watchdog.blocks.own(slot);
        let (mut round, began) = (0, Instant::now());
        loop {
            if let Some(failure) = watchdog.failure(none) {
                return Err(failure);
            }
            // In a call that the stream has reached the watchdog finds the late rank.
            if began.elapsed() > watchdog.timeout() && !watchdog.is_in_call() {
                let why = format!("{EAGER_SLOTS} calls are under way; the stream reached none");
                return Err(self.fail_with(none, why));
            }
            if watchdog.blocks.is_free(own) || watchdog.blocks.state(own) == FINISHED {
                return Ok(slot);
            }
            pause(&mut round);
        }
    }

    /// Publishes this rank's header, and compares it with the other ranks' headers.
    fn publish_header(
        &self,
        slot: usize,
        header: OperationHeader,
        state: u32,
    ) -> Result<(), FailedCall> {
        let watchdog = &self.watchdog.shared;
        watchdog.blocks.write_header(slot, header, state);
        match watchdog.mismatch(slot) {
            None => Ok(()),
            Some(failure) => {
                // The stream gets no work of the call.
                watchdog.blocks.write_header(slot, header, FINISHED);
                watchdog.fail(header, failure.clone());
                Err((header, failure))
            }
        }
    }

    /// Fails the call that this rank is in.
    pub(crate) fn fail_call(&self, why: String) -> FailedCall {
        self.fail_with(OperationHeader::numbered(self.calls), why)
    }

    /// Fails the call that this rank is in, if an operation for it failed.
    pub(crate) fn checked<T>(&self, done: Result<T, Error>) -> Result<T, FailedCall> {
        done.map_err(|error| self.fail_call(error.to_string()))
    }

    fn fail_with(&self, header: OperationHeader, why: String) -> FailedCall {
        let failure = CallFailure::Refused { reason: why, outside: None };
        self.watchdog.shared.fail(header, failure.clone());
        (header, failure)
    }

    /// Puts the operations so far on the stream.
    pub(crate) fn flush(
        &mut self,
        stream: CUstream,
        started: &StartedCall,
    ) -> Result<(), FailedCall> {
        self.ops.enqueue(stream).map_err(|error| self.fail_with(started.header, error.to_string()))
    }

    /// Enqueues the end of a call: this rank's part, and the wait for the others' parts.
    pub(crate) fn end(&mut self, stream: CUstream, started: StartedCall) -> Result<(), FailedCall> {
        self.enqueue_end(stream, &started).map_err(|error| {
            let failure = self.fail_with(started.header, error.to_string());
            self.abandon(stream, started);
            failure
        })
    }

    /// Ends a call that failed, without this rank's part. The other ranks' kernels may still use
    /// its buffers, so that its stream waits for them, or for the watchdog.
    pub(crate) fn abandon(&mut self, stream: CUstream, started: StartedCall) {
        let StartedCall { call, slot, header, .. } = started;
        let blocks = &self.watchdog.shared.blocks;
        let mine = blocks.own(slot);
        // In a graph this may be all of the call, and the watchdog has to see the stream reach it.
        self.ops.write(blocks.state_word(mine), ENTERED);
        self.ops.write(blocks.running_word(mine), 0);
        if self.enqueue_wait(stream, &call, slot).is_ok() {
            return;
        }
        let watchdog = &self.watchdog.shared;
        watchdog.abandon(slot);
        // No operation on the stream says that its kernels have ended. Kernels of a graph start
        // later, and find the stop word set.
        if header.is_captured() {
            watchdog.blocks.write_header(slot, OperationHeader::NONE, FINISHED);
        } else if wait_idle(stream, WaitLimit::of(watchdog.timeout())).is_ok() {
            watchdog.blocks.clear_running(slot);
        }
    }

    /// The header of the latest call, for a failure that is found between two calls.
    pub(crate) fn latest_header(&self) -> OperationHeader {
        OperationHeader::numbered(self.calls)
    }

    fn enqueue_end(&mut self, stream: CUstream, started: &StartedCall) -> Result<(), Error> {
        let &StartedCall { call, slot, .. } = started;
        let watchdog = Arc::clone(&self.watchdog.shared);
        let (blocks, me) = (&watchdog.blocks, watchdog.blocks.me);
        let mine = blocks.own(slot);
        if call.algorithm.by == DeviceForm::Ring {
            return self.enqueue_ring(stream, started);
        }
        if self.workers_of(&call).contains(&me) {
            watchdog.others().for_each(|rank| self.ops.wait(blocks.ready_word(mine, rank), 1));
            self.ops.enqueue(stream)?;
            let mut jobs = call.algorithm.jobs(me);
            jobs.try_for_each(|job| self.enqueue_job(stream, &call, mine, &job))?;
            self.ops.write(blocks.running_word(mine), 0);
            for rank in watchdog.others() {
                self.ops.write(blocks.ready_word(mine, rank), 0);
                self.ops.write(blocks.done_word(mine, rank), 1);
            }
        }
        self.enqueue_wait(stream, &call, slot)
    }

    /// Enqueues the wait for the other ranks' parts.
    pub(super) fn enqueue_wait(
        &mut self,
        stream: CUstream,
        call: &PeerCall,
        slot: usize,
    ) -> Result<(), Error> {
        let watchdog = Arc::clone(&self.watchdog.shared);
        let (blocks, me) = (&watchdog.blocks, watchdog.blocks.me);
        let (mine, workers) = (blocks.own(slot), self.workers_of(call));
        let is_ring = call.algorithm.by == DeviceForm::Ring;
        let successor_fetches = is_ring && self.successor_fetches(call);
        let mut wait = |word| {
            self.ops.wait(word, 1);
            self.ops.write(word, 0);
        };
        if successor_fetches {
            wait(blocks.all_fetched_word(mine));
        }
        if !is_ring {
            let others = workers.filter(|&worker| worker != me);
            others.for_each(|rank| wait(blocks.done_word(SlotRef { rank, slot }, me)));
        }
        self.ops.write(blocks.state_word(mine), FINISHED);
        self.ops.enqueue(stream)
    }
}
