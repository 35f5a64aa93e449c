//! Calls on a stream that go straight to all ranks' buffers: what they are, where the workers see
//! the buffers, and what their failures are called.
//! May touch: as `comm`. Law: all ranks go this way, or none; what they agreed on when they said
//! which devices they use decides it, and their arguments.

use std::mem::{forget, take};
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use cudarc::driver::{CudaContext, CudaStream};

use super::explain::may_be_by;
use super::memory::Held;
use super::scratch::Scratch;
use super::{OnStream, Side, Sides, failure};
use crate::api::Communicator;
use crate::api::options::Settings;
use crate::api::verb::refuse;
use crate::device::algorithm::Form;
use crate::device::cuda::{
    CAPTURED, Call, Claim, Driver, HANDLE, MOST_RANKS, Opened, Together, Trouble, Wanted, Watch,
    is_capturing, locked, reachable,
};
use crate::element::{DataType, Kind, Reduction};
use crate::engine::failure::FAILED;
use crate::engine::worker;
use crate::error::cause::Blame;
use crate::error::{Error, Result};
use crate::exec::{Halt, Stop};
use crate::plan::{DeviceCall, DeviceForm, Reach, Request, fingerprint};
use crate::transport::Fault;

/// What a communicator has whose ranks reach each other's device memory.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) together: Together,
    /// Which ranks are threads of this process.
    pub(super) beside: Vec<bool>,
    pub(super) reach: Reach,
    /// Memory that all ranks have allocated together.
    pub(super) entries: Vec<Entry>,
    /// What this rank has opened: of which allocation and rank.
    pub(super) opened: Vec<(u64, usize, Arc<Opened>)>,
    /// What its users have dropped, and others may still have opened.
    pub(super) retired: Arc<Mutex<Vec<Held>>>,
    /// Allocations so far.
    pub(super) allocations: u64,
    /// What other buffers go through where ranks are several processes.
    pub(super) scratch: Option<Scratch>,
    /// Other memory of the communicator itself, which others may have opened.
    pub(super) kept: Vec<Held>,
    /// The failure that was told.
    told: Option<String>,
}

/// Memory that all ranks have allocated together.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) range: Range<u64>,
    /// Where each worker sees it; 0 where nobody works.
    pub(super) seen: Arc<[u64]>,
    /// Gone when its user has dropped it.
    pub(super) life: Weak<()>,
}

impl Direct {
    pub(super) fn new(together: Together, beside: Vec<bool>, reach: Reach) -> Self {
        Self {
            together,
            beside,
            reach,
            entries: Vec::new(),
            opened: Vec::new(),
            retired: Arc::default(),
            allocations: 0,
            scratch: None,
            kept: Vec::new(),
            told: None,
        }
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.together.guard.watch
    }

    /// Another rank's memory; what is open is not opened again, since several buffers may lie in
    /// one allocation.
    pub(super) fn open(
        &self,
        (driver, context): (Driver, &Arc<CudaContext>),
        rank: usize,
        handle: [u64; HANDLE],
    ) -> Result<Arc<Opened>> {
        let known = self.opened.iter().find(|(_, of, known)| *of == rank && known.is_of(handle));
        match known {
            Some((.., known)) => Ok(Arc::clone(known)),
            None => Opened::new(driver, context, handle).map(Arc::new),
        }
    }

    /// Some of what users have dropped.
    pub(super) fn take_back(&mut self, most: usize) -> Vec<Held> {
        let mut retired = locked(&self.retired);
        let count = retired.len().min(most);
        retired.drain(..count).collect()
    }

    /// Can calls be put on this stream?
    pub(super) fn may_be_put(
        &self,
        name: &'static str,
        stream: CUstream,
        captures: bool,
    ) -> Result<()> {
        let threads = self.beside.iter().filter(|&&beside| beside).count();
        if stream.is_null() && threads > 1 {
            let given = "the default one, which all threads of a device share";
            return refuse(name, "stream", given, "one of this rank alone");
        }
        if captures && self.together.is_graph_full() {
            let expected = format!("{CAPTURED} calls in all living graphs of a communicator");
            return refuse(name, "stream", "captured once more", expected);
        }
        Ok(())
    }

    /// Are all ranks threads of this process?
    pub(super) fn is_one_process(&self) -> bool {
        self.beside.iter().all(|&beside| beside)
    }

    /// Where the workers see these bytes.
    fn place(&self, at: CUdeviceptr, bytes: usize) -> Option<(&Entry, u64)> {
        let inside = |entry: &&Entry| {
            let end = at + bytes as u64;
            entry.range.start <= at && end <= entry.range.end && entry.life.strong_count() > 0
        };
        self.entries.iter().find(inside).map(|entry| (entry, at - entry.range.start))
    }

    /// Where each worker sees both buffers; none if one is not memory that all ranks know.
    fn places(&self, sides: &Sides) -> Option<[[CUdeviceptr; 2]; MOST_RANKS]> {
        let mut all = [[0; 2]; MOST_RANKS];
        for (number, raw) in buffers(sides).into_iter().enumerate() {
            let of = if sides.is_in_place() { 0 } else { number };
            let bytes = sides.sides[of].blocks * sides.block;
            let known = if self.is_one_process() { None } else { self.place(raw, bytes) };
            if known.is_none() && !self.is_one_process() && bytes > 0 {
                return None;
            }
            for (worker, &beside) in self.beside.iter().enumerate() {
                all[worker][number] = match known {
                    Some((entry, at)) if !beside => entry.seen[worker] + at,
                    _ => raw,
                };
            }
        }
        Some(all)
    }
}

/// The addresses that the user gave: of what is read, and of what is written.
pub(super) fn buffers(sides: &Sides) -> [CUdeviceptr; 2] {
    let [one, other] = sides.sides;
    [one.device, if sides.is_in_place() { one.device } else { other.device }]
}

impl Sides {
    /// Is one buffer read and written?
    pub(super) fn is_in_place(&self) -> bool {
        self.sides[0].writes
    }
}

impl Drop for Direct {
    /// When all calls are over this rank gives back what it has opened and says so; then others
    /// may free it.
    fn drop(&mut self) {
        if self.together.finish() {
            self.opened.clear();
            self.watch().boards.close(1);
            self.watch().boards.leave();
        } else {
            // Graphs, or calls whose streams come to them later, may still use it, and to free
            // waits for them.
            forget((take(&mut self.opened), self.scratch.take(), take(&mut self.kept)));
            forget(take(&mut *locked(&self.retired)));
        }
    }
}

/// How kernels reduce so, and by which factor, if they can.
fn wanted(op: Reduction) -> Option<(Wanted, [u8; 16])> {
    match op.kind() {
        Kind::Plain(op) => Some((Wanted::Plain(op), [0; 16])),
        Kind::PreMulSum(_, factor) => Some((Wanted::PreMulSum, factor)),
        Kind::User(..) => None,
    }
}

impl Communicator {
    /// Does a call go straight to the buffers?
    ///
    /// # Errors
    /// If the others might think so, and this rank can't.
    pub(super) fn goes_direct(
        &self,
        name: &'static str,
        stream: &CudaStream,
        request: &Request,
    ) -> Result<bool> {
        let Some(direct) = &self.streams.direct else { return Ok(false) };
        if !direct.together.is_of(stream.context()) {
            let given = "of another context than use_device was given";
            return refuse(name, "stream", given, "one of the same");
        }
        let call = self.device_call(request, (0, false, false));
        let form = direct.reach.choose(self.size(), &call, None);
        Ok(!matches!(form, DeviceForm::Islands | DeviceForm::Host))
    }

    /// What a call asks of its form: `known` and `in_pieces` as in [`DeviceCall`].
    pub(super) fn device_call(
        &self,
        request: &Request,
        (bytes, known, in_pieces): (usize, bool, bool),
    ) -> DeviceCall {
        let numbers = self.settings.numbers;
        let as_wire = numbers.wire.is_some() && request.dtype == DataType::F32;
        DeviceCall {
            collective: request.collective,
            bytes,
            known,
            in_pieces,
            in_order: numbers.deterministic && request.folds(),
            kernels: !as_wire && request.op.is_none_or(|op| wanted(op).is_some()),
            islands: self.goes_by_islands(request),
        }
    }

    /// The failure, if any, of the calls so far.
    pub(super) fn direct_failure(&mut self, call: &'static str) -> Result<()> {
        let Some(direct) = &self.streams.direct else { return Ok(()) };
        match direct.watch().trouble(direct.together.latest()) {
            Some(trouble) => Err(self.direct_failed(call, trouble)),
            None => Ok(()),
        }
    }

    /// The first failure as an error; after that it is the communicator that failed.
    #[cold]
    fn direct_failed(&mut self, call: &'static str, (claim, trouble): (Claim, Trouble)) -> Error {
        let Some(direct) = &mut self.streams.direct else {
            return worker::lost(call);
        };
        if let Some(first) = &direct.told {
            return Error::Broken { call, first: first.clone() };
        }
        let (name, count, number) = direct.together.what(claim).unwrap_or((call, 0, None));
        let mut error = match trouble {
            Trouble::Refused { reason, .. } => {
                let error = Error::Device { doing: name.into(), reason };
                self.broken_by(call, error)
            }
            trouble => {
                let mut error = self.stopped(name, count, &trouble);
                if let Trouble::GaveUp { beyond: Some(rank), .. } = trouble
                    && let (Some(peer), Some(world)) = (error.peer_mut(), &self.streams.world)
                    && let Some(culprit) = world.get(rank)
                {
                    peer.clone_from(culprit);
                }
                error
            }
        };
        if let Some(place) = error.place_mut() {
            // Calls on devices have numbers of their own.
            (place.operation, place.sequence) = (name, number.unwrap_or(claim.number()));
        }
        if let Some(direct) = &mut self.streams.direct {
            direct.told = Some(error.to_string());
        }
        error
    }

    fn stopped(&mut self, call: &'static str, count: usize, trouble: &Trouble) -> Error {
        let rank = self.rank();
        let (peer, stop) = match *trouble {
            // The guard knows the first cause: no other is looked for.
            Trouble::Lost { peer, ref evidence } => {
                (peer, Stop::Other { peer, fault: Fault::Lost(evidence.clone()) })
            }
            Trouble::GaveUp { peer, aborted: true, .. } => {
                (peer, Stop::Other { peer, fault: Fault::GaveUp(Box::new(Blame::aborted(peer))) })
            }
            Trouble::GaveUp { peer, by, beyond, .. } => {
                let evidence = match beyond {
                    None if peer == by => FAILED.into(),
                    _ => format!("rank {} gave up on it", self.peers()[by].rank),
                };
                (peer, Stop::Other { peer, fault: Fault::Lost(evidence) })
            }
            Trouble::Late { peer, after } => (peer, Stop::Timeout(after)),
            Trouble::Differs { peer, ours, theirs } => {
                let [ours, theirs] = fingerprint::alike_in_memory([ours, theirs]);
                (peer, Stop::Fault(Fault::Mismatch { field: "fingerprint", ours, theirs }))
            }
            Trouble::Captured { peer, ours } => {
                let field = "captured into a graph";
                let (ours, theirs) = (u64::from(ours), u64::from(!ours));
                (peer, Stop::Fault(Fault::Mismatch { field, ours, theirs }))
            }
            Trouble::Aborted | Trouble::Refused { .. } => (rank, Stop::Aborted),
        };
        let halt = Halt { stop, step: 0, peer };
        match self.at_home(call) {
            Ok((engine, seat, settings)) => {
                engine.fail_of(seat, settings, (call, Some(count)), halt)
            }
            Err(error) => error,
        }
    }
}

impl OnStream<'_> {
    /// Puts a call on the stream that goes straight to the buffers. The context is current.
    pub(super) fn put_direct(
        &mut self,
        name: &'static str,
        request: &Request,
        sides: Sides,
    ) -> Result<()> {
        self.comm.direct_failure(name)?;
        // Of a call that went by way of the host, too.
        failure(&self.comm.streams.failed).take().map_or(Ok(()), Err)?;
        let Settings { numbers, timeout, preferred, required, part_of, .. } = self.comm.settings;
        let forced = required.or(preferred);
        let (name, number) = part_of.map_or((name, None), |(name, number)| (name, Some(number)));
        // Parts differ if the calls do, and it is in these that ranks are told where they differ.
        let whole = self.comm.streams.whole.unwrap_or(*request);
        let (stream, deterministic) = (self.stream.cu_stream(), numbers.deterministic);
        let captures = is_capturing(stream)?;
        let size = self.comm.size();
        let Some(direct) = &mut self.comm.streams.direct else { return Err(worker::lost(name)) };
        direct.may_be_put(name, stream, captures)?;
        direct.watch().set_timeout(timeout);
        for Side { device, blocks, .. } in sides.sides {
            reachable(name, device, blocks * sides.block)?;
        }
        let places = direct.places(&sides);
        if captures && places.is_none() {
            let expected = "memory from alloc_device or register_device: the stream is captured";
            return refuse(name, "buf", "memory that other processes can't open", expected);
        }
        let in_pieces = direct.scratch.is_some() && !captures;
        let asked = self.comm.device_call(request, (sides.block, places.is_some(), in_pieces));
        let Some(direct) = &mut self.comm.streams.direct else { return Err(worker::lost(name)) };
        let by = direct.reach.choose(size, &asked, forced);
        may_be_by(name, required, by)?;
        let element = request.dtype.size();
        let known = !direct.is_one_process() && places.is_some();
        let call = Call {
            form: Form { collective: request.collective, size, block: sides.block, element, by },
            name,
            count: whole.count,
            number,
            fingerprint: fingerprint::on_devices(&whole, deterministic, (known, by)),
            reduction: request.op.and_then(wanted).map(|(op, by)| (request.dtype, op, by)),
        };
        let done = match places.filter(|_| by != DeviceForm::OneShot) {
            Some(places) => {
                let begun = direct
                    .together
                    .begin(captures.then_some(stream), call, |worker| places[worker]);
                begun.and_then(|begun| direct.together.end(stream, begun))
            }
            None => Scratch::put(direct, stream, call, sides),
        };
        done.map_err(|failure| self.comm.direct_failed(name, failure))
    }
}
