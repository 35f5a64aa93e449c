//! The phases of calls by P2P domains, put on a stream one after the other. All-reduce and
//! broadcast are one piece; other calls are cut into pieces that fit half of the scratch, and each
//! piece goes through all phases.
//! Law: the phases follow from arguments that all ranks pass.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::p2p_domains::{DomainScratch, P2pDomains};
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts};
use crate::device::cuda::copy_on_device;
use crate::device::p2p_domain::{BlockArea, BlockRef, DomainMap, DomainPhase};
use crate::element::{DataType, ReduceOp, Reduction, ReductionKind};
use crate::error::{Error, Result};
use crate::plan::Request;
use crate::schedule::Collective;

/// Elements in a multiple of a device's cache line of 128 bytes, whatever their type.
const LINE_ELEMENTS: usize = 128;

impl P2pDomains {
    /// Puts a collective of this rank's domain on the stream.
    fn within(
        &mut self,
        stream: &Arc<CudaStream>,
        (collective, op): (Collective, Option<Reduction>),
        (from, to, blocks): (BlockRef, BlockRef, usize),
        piece: &Piece,
    ) -> Result<()> {
        let sides = collective.shape(self.domain.size() as u32);
        let mut on = self.domain.on_stream(stream);
        let call = Call::new(collective, piece.dtype);
        let call = Call { op: op.map(|op| split_reduction(op).0), ..call };
        if from == to {
            return on.put_in_place(&call, piece.of(to, blocks));
        }
        let [sent, received] = sides.map(|side| side as usize * blocks);
        on.put_between(&call, [piece.of(from, sent), piece.of(to, received)])
    }

    /// Puts a collective of the leaders of all domains on the stream.
    fn between(
        &mut self,
        stream: &Arc<CudaStream>,
        (collective, op): (Collective, Option<Reduction>),
        (from, to): (BlockRef, BlockRef),
        piece: &Piece,
    ) -> Result<()> {
        let Some(leaders) = &mut self.leaders else {
            let state = "a phase between P2P domains at a rank that leads none";
            return Err(Error::Bug { call: collective.name(), state });
        };
        let (map, mut on) = (&self.map, leaders.on_stream(stream));
        let call = Call::new(collective, piece.dtype);
        let call = Call { op: op.map(|op| split_reduction(op).1), ..call };
        if from == to {
            return on.put_in_place(&call, piece.of(to, 1));
        }
        if !collective.has_blocks() {
            return on.put_between(&call, [piece.of(from, 1), piece.of(to, 1)]);
        }
        let counts: Vec<_> = map.leaders().map(|leader| map.members(leader) * piece.len).collect();
        let blocks = |is_whole| if is_whole { map.size() } else { self.domain.size() };
        let [sent, received] = collective.shape(2).map(|side| blocks(side > 1));
        let sides = [piece.of(from, sent), piece.of(to, received)];
        on.put_between(&call.with(Counts::Parts(&counts)), sides)
    }
}

impl OnStream<'_> {
    /// Puts all phases on the stream; `begun` becomes true with the first.
    pub(super) fn put_phases(
        &mut self,
        domains: &mut P2pDomains,
        request: &Request,
        sides: &CallBuffers,
        begun: &mut bool,
    ) -> Result<()> {
        let stream = self.stream.cu_stream();
        let [BlockBuffer { address: from, writes: in_place, .. }, other] = sides.sides;
        let to = if in_place { from } else { other.address };
        let (count, call, me) = (request.count, request.collective, self.comm.rank());
        let is_whole = DomainMap::is_in_place(call);
        if is_whole && !in_place {
            copy_on_device(stream, to, from, sides.block)?;
        }
        let most = DomainScratch::HALF_BYTES / request.dtype.size() / self.comm.size();
        // Blocks of a piece begin at cache lines of the device, if they are at least one line long.
        let most = if most > LINE_ELEMENTS { most / LINE_ELEMENTS * LINE_ELEMENTS } else { most };
        let most = if is_whole { count.max(1) } else { most };
        if !is_whole {
            domains.scratch.last.wait(stream)?;
        }
        for number in 0..count.div_ceil(most).max(1) {
            let start = number * most;
            let len = most.min(count - start);
            let (scratch, dtype) = (domains.scratch.start, request.dtype);
            let piece = Piece { send: from, recv: to, scratch, count, start, len, dtype };
            for phase in domains.map.phases(call, me, len == count, start + len == count) {
                self.put_phase(domains, phase, request.op, &piece)?;
                *begun = true;
            }
        }
        if !is_whole {
            domains.scratch.last.record(stream)?;
        }
        Ok(())
    }

    /// Puts a call in place on memory of the library's.
    fn put_in_place(&mut self, call: &Call<'_>, buf: DeviceRef) -> Result<()> {
        let call = self.start(call, Buffers::InPlace(buf.bytes))?;
        self.put(call, [buf.start; 2])
    }

    /// Puts a call between buffers, which may overlap, on the stream.
    fn put_between(&mut self, call: &Call<'_>, [send, recv]: [DeviceRef; 2]) -> Result<()> {
        let lens = Buffers::OutOfPlace { send: send.bytes, recv: recv.bytes };
        let call = self.start(call, lens)?;
        self.put(call, [send.start, recv.start])
    }

    fn put_phase(
        &mut self,
        domains: &mut P2pDomains,
        phase: DomainPhase,
        op: Option<Reduction>,
        piece: &Piece,
    ) -> Result<()> {
        let stream = self.stream;
        match phase {
            DomainPhase::Copy { from, to, blocks } => piece.copy(stream, from, to, blocks),
            DomainPhase::Within { what, from, to, blocks } => {
                domains.within(stream, (what, op), (from, to, blocks), piece)
            }
            DomainPhase::Between { what, from, to } => {
                domains.between(stream, (what, op), (from, to), piece)
            }
            DomainPhase::Send { to, from, blocks } => {
                self.send_bytes(piece.of(from, blocks), piece.dtype, to)
            }
            DomainPhase::Recv { from, to, blocks } => {
                self.recv_bytes(piece.of(to, blocks), piece.dtype, from)
            }
        }
    }
}

/// The elements from `start` on, `len` of each block, of a call on blocks of `count` elements.
struct Piece {
    send: CUdeviceptr,
    recv: CUdeviceptr,
    scratch: CUdeviceptr,
    count: usize,
    start: usize,
    len: usize,
    dtype: DataType,
}

impl Piece {
    /// The address of a piece of a block, and the elements from there to the same piece of the next
    /// block.
    fn at(&self, BlockRef { area, at }: BlockRef) -> (CUdeviceptr, usize) {
        let (base, start, stride) = match area {
            BlockArea::Send => (self.send, self.start, self.count),
            BlockArea::Recv => (self.recv, self.start, self.count),
            BlockArea::RecvWhole => (self.recv, 0, self.count),
            BlockArea::ScratchA => (self.scratch, 0, self.len),
            BlockArea::ScratchB => (self.scratch + DomainScratch::HALF_BYTES as u64, 0, self.len),
        };
        (base + ((at * stride + start) * self.dtype.size()) as u64, stride)
    }

    /// The bytes of `blocks` contiguous blocks.
    fn of(&self, spot: BlockRef, blocks: usize) -> DeviceRef {
        let len = if spot.area == BlockArea::RecvWhole { self.count } else { self.len };
        DeviceRef::new(self.at(spot).0, blocks * len * self.dtype.size())
    }

    fn copy(&self, stream: &CudaStream, from: BlockRef, to: BlockRef, blocks: usize) -> Result<()> {
        let (stream, bytes) = (stream.cu_stream(), self.len * self.dtype.size());
        let [(from, given), (to, taken)] = [from, to].map(|spot| self.at(spot));
        if bytes == 0 {
            return Ok(());
        }
        if given == taken {
            return copy_on_device(stream, to, from, blocks * bytes);
        }
        (0..blocks).try_for_each(|block| {
            let at = |start, stride| start + (block * stride * self.dtype.size()) as u64;
            copy_on_device(stream, at(to, taken), at(from, given), bytes)
        })
    }
}

/// The reduction within domains, and the one between them, where an average is divided by the
/// number of all ranks.
fn split_reduction(op: Reduction) -> (Reduction, Reduction) {
    match op.kind() {
        ReductionKind::Plain(ReduceOp::Avg) => (ReduceOp::Sum.into(), op),
        ReductionKind::PreMulSum(..) => (op, ReduceOp::Sum.into()),
        _ => (op, op),
    }
}
