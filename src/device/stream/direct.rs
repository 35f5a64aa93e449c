//! Direct calls on a stream: the state behind them, the addresses of the buffers at each worker,
//! and the errors of failed calls.
//! Law: all ranks of a call choose the same form, by what they told each other in `use_device` and
//! by arguments that all of them pass.

use std::cell::RefCell;
use std::mem::{forget, take};
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::explain::may_be_by;
use super::memory::SharedAllocation;
use super::scratch::ScratchMemory;
use super::{CallBuffers, OnStream};
use crate::api::Communicator;
use crate::device::algorithm::DeviceAlgorithm;
use crate::device::cuda::{
    CAPTURED_SLOTS, CallFailure, ExportedMemory, FailedCall, KernelReduction, MAX_RANKS, PeerCall,
    PeerExecutor, PeerMemory, Watchdog, is_capturing,
};
use crate::element::{DataType, Reduction, ReductionKind};
use crate::engine::failure::PEER_FAILED;
use crate::engine::settings::Settings;
use crate::error::cause::FailureCause;
use crate::error::{Error, Result, argument_error};
use crate::exec::{Halt, Stop};
use crate::plan::{DeviceCall, DeviceForm, Request, Topology, fingerprint};
use crate::transport::{Fault, MismatchField};

/// The state of a communicator whose ranks' devices access each other's memory.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) executor: PeerExecutor,
    /// For each rank, whether it is a thread of this process.
    pub(super) same_process: Vec<bool>,
    pub(super) reach: Topology,
    /// Memory of this rank that other ranks access. The communicator is used by one thread at a
    /// time.
    pub(super) shared: RefCell<Vec<SharedAllocation>>,
    /// The threads that open and close the memory of other ranks.
    pub(super) memory: PeerMemory,
    /// Scratch memory for other buffers, where ranks are in several processes.
    pub(super) scratch: Option<ScratchMemory>,
    /// Memory of the communicator itself that other ranks may have open.
    pub(super) own_memory: Vec<ExportedMemory>,
    /// The first failure that a call has reported.
    first_error: Option<String>,
}

impl Direct {
    pub(super) fn new(
        executor: PeerExecutor,
        memory: PeerMemory,
        same_process: Vec<bool>,
        reach: Topology,
    ) -> Self {
        Self {
            executor,
            same_process,
            reach,
            shared: RefCell::default(),
            memory,
            scratch: None,
            own_memory: Vec::new(),
            first_error: None,
        }
    }

    pub(super) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.executor.watchdog.shared
    }

    /// Refuses a stream or buffer of another context than `use_device` was given.
    pub(super) fn check_context(
        &self,
        name: &'static str,
        argument: &'static str,
        context: &CudaContext,
    ) -> Result<()> {
        if self.executor.is_of(context) {
            return Ok(());
        }
        let given = "of another context than use_device was given";
        argument_error(name, argument, given, "one of the same")
    }

    /// Refuses a stream on which direct calls can't wait for other ranks.
    pub(super) fn check_stream(
        &self,
        name: &'static str,
        stream: CUstream,
        captures: bool,
    ) -> Result<()> {
        let threads = self.same_process.iter().filter(|&&same_process| same_process).count();
        // Two handles name the default stream.
        if stream.addr() <= 1 && threads > 1 {
            let given = "the default one, which all threads of a device share";
            return argument_error(name, "stream", given, "one of this rank alone");
        }
        if captures && self.executor.are_captured_slots_full() {
            let expected = format!("{CAPTURED_SLOTS} calls in all living graphs of a communicator");
            return argument_error(name, "stream", "captured once more", expected);
        }
        Ok(())
    }

    /// True if all ranks are threads of this process.
    pub(super) fn is_one_process(&self) -> bool {
        self.same_process.iter().all(|&same_process| same_process)
    }

    /// The addresses of both buffers at each worker; none if one is in no shared memory.
    fn buffer_addresses(&self, sides: &CallBuffers) -> Option<[[CUdeviceptr; 2]; MAX_RANKS]> {
        let mut all = [[0; 2]; MAX_RANKS];
        let shared = self.shared.borrow();
        for (number, raw) in user_addresses(sides).into_iter().enumerate() {
            let of = if sides.is_in_place() { 0 } else { number };
            let bytes = sides.sides[of].blocks * sides.block;
            let inside = |entry: &&SharedAllocation| entry.has(raw, bytes);
            let found = shared.iter().find(inside).filter(|_| !self.is_one_process());
            if found.is_none() && !self.is_one_process() && bytes > 0 {
                return None;
            }
            for (worker, &same_process) in self.same_process.iter().enumerate() {
                all[worker][number] = match found {
                    Some(entry) if !same_process => {
                        entry.seen_at[worker] + (raw - entry.range.start)
                    }
                    _ => raw,
                };
            }
        }
        Some(all)
    }
}

/// The user's addresses of the buffer that is read and the buffer that is written.
pub(super) fn user_addresses(sides: &CallBuffers) -> [CUdeviceptr; 2] {
    let [one, other] = sides.sides;
    [one.address, if sides.is_in_place() { one.address } else { other.address }]
}

impl CallBuffers {
    /// True if one buffer is read and written.
    pub(super) fn is_in_place(&self) -> bool {
        self.sides[0].writes
    }
}

impl Drop for Direct {
    /// Closes this rank's mappings after the last call and says so, after which other ranks may
    /// free their memory.
    fn drop(&mut self) {
        if self.executor.finish() {
            self.memory.end();
            self.watchdog().blocks.close(1);
            self.watchdog().blocks.mark_left();
        } else {
            // Graphs, or calls that a stream reaches later, may still use the memory, and to free
            // it would wait.
            self.memory.abandon();
            forget((self.scratch.take(), take(&mut self.own_memory)));
        }
    }
}

/// The kernels' reduction and factor, if kernels can reduce so.
fn kernel_reduction(op: Reduction) -> Option<(KernelReduction, [u8; 16])> {
    match op.kind() {
        ReductionKind::Plain(op) => Some((KernelReduction::Plain(op), [0; 16])),
        ReductionKind::PreMulSum(_, factor) => Some((KernelReduction::PreMulSum, factor)),
        ReductionKind::Blocks(..) | ReductionKind::User(..) => None,
    }
}

impl Communicator {
    /// The reach of calls on streams: all ranks' devices, those of a P2P domain, or the host alone.
    pub(super) fn device_reach(&self) -> &Topology {
        static DOMAINS: Topology = Topology::P2pDomains(Vec::new());
        match (&self.streams.direct, &self.streams.domains) {
            (Some(direct), _) => &direct.reach,
            (None, Some(_)) => &DOMAINS,
            (None, None) => &Topology::Disconnected,
        }
    }

    /// The properties that the choice of a form needs; `has_known_buffers` and `may_be_in_pieces`
    /// as in [`DeviceCall`].
    pub(super) fn device_call(
        &self,
        request: &Request,
        (bytes, known, in_pieces): (usize, bool, bool),
    ) -> DeviceCall {
        let numbers = self.settings.preferences.numbers;
        let as_wire = numbers.wire.is_some() && request.dtype == DataType::F32;
        DeviceCall {
            collective: request.collective,
            bytes,
            has_known_buffers: known,
            may_be_in_pieces: in_pieces,
            is_in_rank_order: numbers.deterministic && request.folds(),
            has_kernels: !as_wire && request.op.is_none_or(|op| kernel_reduction(op).is_some()),
            may_use_domains: self.uses_p2p_domains(request),
        }
    }

    /// Reports the failure of the calls so far, if any.
    pub(super) fn direct_failure(&mut self, call: &'static str) -> Result<()> {
        let Some(direct) = &self.streams.direct else { return Ok(()) };
        match direct.watchdog().failure(direct.executor.latest_header()) {
            Some(failure) => Err(self.direct_error(call, failure)),
            None => Ok(()),
        }
    }

    /// The first failure as an error. After it was reported the communicator is broken.
    #[cold]
    fn direct_error(&mut self, call: &'static str, (header, failure): FailedCall) -> Error {
        let Some(direct) = &self.streams.direct else { return no_peer_access(call) };
        if let Some(first) = &direct.first_error {
            return Error::Broken { call, first: first.clone() };
        }
        // A call by way of the host has failed first, and the watchdog has found the same loss.
        if let Ok((engine, _)) = self.engine_on_this_thread(call)
            && let Err(broken) = engine.check_usable(call)
        {
            return self.streams.failures.report().err().unwrap_or(broken);
        }
        let Some(direct) = &self.streams.direct else { return no_peer_access(call) };
        let (name, count, number) = direct.executor.call_label(header).unwrap_or((call, 0, None));
        let mut error = match failure {
            CallFailure::Refused { reason, .. } => {
                let error = Error::Device { doing: name.into(), reason };
                self.break_with(call, error)
            }
            failure => {
                let mut error = self.failure_error(name, count, &failure);
                if let CallFailure::GaveUp { outside: Some(rank), .. } = failure
                    && let (Some(peer), Some(world)) = (error.peer_mut(), &self.streams.world_peers)
                    && let Some(culprit) = world.get(rank)
                {
                    peer.clone_from(culprit);
                }
                error
            }
        };
        if let Some(place) = error.place_mut() {
            // Direct calls have numbers of their own.
            (place.operation, place.sequence) = (name, number.unwrap_or(header.number()));
        }
        if let Some(direct) = &mut self.streams.direct {
            direct.first_error = Some(error.to_string());
        }
        error
    }

    fn failure_error(&mut self, call: &'static str, count: usize, failure: &CallFailure) -> Error {
        let rank = self.rank();
        let (peer, stop) = match *failure {
            // The watchdog knows the first cause, so that no other is looked for.
            CallFailure::Lost { peer, ref evidence } => {
                (peer, Stop::Other { peer, fault: Fault::Lost(evidence.clone()) })
            }
            CallFailure::GaveUp { peer, aborted: true, .. } => (
                peer,
                Stop::Other { peer, fault: Fault::GaveUp(Box::new(FailureCause::aborted(peer))) },
            ),
            CallFailure::GaveUp { peer, by, outside, .. } => {
                let evidence = match outside {
                    None if peer == by => PEER_FAILED.into(),
                    _ => format!("rank {} gave up on it", self.peers()[by].rank),
                };
                (peer, Stop::Other { peer, fault: Fault::Lost(evidence) })
            }
            CallFailure::Late { peer, after } => (peer, Stop::Timeout(after)),
            CallFailure::Mismatch { peer, ours, theirs } => {
                let [ours, theirs] = fingerprint::without_memory_bits([ours, theirs]);
                let field = MismatchField::DeviceCall;
                (peer, Stop::Fault(Fault::Mismatch { field, ours, theirs }))
            }
            CallFailure::CaptureMismatch { peer, ours } => {
                let (field, ours, theirs) = (MismatchField::Captured, ours.into(), (!ours).into());
                (peer, Stop::Fault(Fault::Mismatch { field, ours, theirs }))
            }
            CallFailure::Aborted | CallFailure::Refused { .. } => (rank, Stop::Aborted),
        };
        let halt = Halt { stop, step: 0, peer };
        match self.engine_on_this_thread(call) {
            Ok((engine, settings)) => engine.fail_with_count(settings, (call, Some(count)), halt),
            Err(error) => error,
        }
    }
}

/// The error of a direct call where devices do not reach each other.
fn no_peer_access(call: &'static str) -> Error {
    Error::Bug { call, state: "a direct call without peer access" }
}

impl OnStream<'_> {
    /// The form of a call by what is known before its buffers are: by the host, by domains, or by
    /// kernels on all buffers. Which form of kernels it is depends on the buffers.
    ///
    /// # Errors
    /// If the call is direct at the other ranks, and can't be here.
    pub(super) fn form(&self, name: &'static str, request: &Request) -> Result<DeviceForm> {
        if let Some(direct) = &self.comm.streams.direct {
            direct.check_context(name, "stream", self.stream.context())?;
        }
        let call = self.comm.device_call(request, (0, false, false));
        Ok(self.comm.device_reach().choose(self.comm.size(), &call, None))
    }

    /// Puts a direct call on the stream. The context is current.
    pub(super) fn put_direct(
        &mut self,
        name: &'static str,
        request: &Request,
        sides: CallBuffers,
    ) -> Result<()> {
        self.comm.direct_failure(name)?;
        // A call by way of the host may have failed, too.
        self.comm.streams.failures.report()?;
        let Settings { preferences, timeout, required, parent_call: part_of, .. } =
            self.comm.settings;
        let forced = required.or(preferences.algorithm);
        let (name, number) = part_of.map_or((name, None), |(name, number)| (name, Some(number)));
        // Fingerprints are those of the whole call, and a mismatch is found in the first of its
        // parts.
        let whole_request = self.comm.streams.whole_request.unwrap_or(*request);
        let (stream, deterministic) = (self.stream.cu_stream(), preferences.numbers.deterministic);
        let captures = is_capturing(stream)?;
        let size = self.comm.size();
        self.check_memory(name, &sides)?;
        let Some(direct) = &mut self.comm.streams.direct else {
            return Err(no_peer_access(name));
        };
        direct.check_stream(name, stream, captures)?;
        direct.watchdog().set_timeout(timeout);
        let places = direct.buffer_addresses(&sides);
        if captures && places.is_none() {
            let expected = "memory from alloc_device or register_device: the stream is captured";
            return argument_error(name, "buf", "memory that other processes can't open", expected);
        }
        let in_pieces = direct.scratch.is_some() && !captures;
        let asked = self.comm.device_call(request, (sides.block, places.is_some(), in_pieces));
        let Some(direct) = &mut self.comm.streams.direct else {
            return Err(no_peer_access(name));
        };
        let by = direct.reach.choose(size, &asked, forced);
        may_be_by(name, required, by)?;
        let element = request.dtype.size();
        let is_shared = !direct.is_one_process() && places.is_some();
        let call = PeerCall {
            algorithm: DeviceAlgorithm {
                collective: request.collective,
                size,
                block: sides.block,
                element,
                by,
            },
            name,
            count: whole_request.count,
            number,
            fingerprint: fingerprint::of_device_call(
                &whole_request,
                deterministic,
                (is_shared, by),
            ),
            reduction: request
                .op
                .and_then(kernel_reduction)
                .map(|(op, by)| (request.dtype, op, by)),
        };
        let done = match places.filter(|_| by != DeviceForm::OneShot) {
            Some(places) => {
                let begun = direct
                    .executor
                    .begin(captures.then_some(stream), call, |worker| places[worker]);
                begun.and_then(|begun| direct.executor.end(stream, begun))
            }
            None => ScratchMemory::put(direct, stream, call, sides),
        };
        done.map_err(|failure| self.comm.direct_error(name, failure))
    }
}
