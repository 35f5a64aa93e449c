//! The parts of calls that go by islands, put on a stream one after the other, piece by piece.
//! May touch: as `comm`. Law: what is put follows from what all ranks pass.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::dense::Form;
use super::p2p_domains::{Islands, Own};
use super::{OnStream, Side, Sides};
use crate::api::verb::Verb;
use crate::device::cuda::{after, copy, remember};
use crate::device::p2p_domain::{Area, Leg, Spot};
use crate::element::{DataType, Kind, ReduceOp, Reduction};
use crate::engine::worker;
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

/// Elements of which no fewer fill whole lines of a device, whatever their type.
const LINE: usize = 128;

impl Islands {
    /// A part among the ranks of the island.
    fn within(
        &mut self,
        stream: &Arc<CudaStream>,
        (collective, op): (Collective, Option<Reduction>),
        (from, to, blocks): (Spot, Spot, usize),
        piece: &Piece,
    ) -> Result<()> {
        let ranks = self.island.size();
        let mut on = self.island.on_stream(stream);
        let some = |spot, blocks| piece.of(spot, blocks);
        let verb = Verb { collective, dtype: piece.dtype, op: op.map(|op| parts(op).0) };
        match (collective, op) {
            (Collective::Reduce { .. }, Some(_)) if from == to => {
                on.in_place_at("reduce", verb, some(to, blocks))
            }
            (Collective::Reduce { .. }, Some(_)) => {
                let bufs = [some(from, blocks), some(to, blocks)];
                on.out_of_place_at("reduce_into", verb, bufs, Form::alike_at_root)
            }
            (Collective::Broadcast { .. }, _) => {
                on.in_place_at("broadcast", Verb { op: None, ..verb }, some(to, blocks))
            }
            (Collective::Gather { .. }, _) => {
                let (verb, bufs) = (Verb { op: None, ..verb }, [some(from, 1), some(to, ranks)]);
                on.out_of_place_at("gather", verb, bufs, Form::gathers)
            }
            (Collective::Scatter { .. }, _) => {
                let (verb, bufs) = (Verb { op: None, ..verb }, [some(from, ranks), some(to, 1)]);
                on.out_of_place_at("scatter", verb, bufs, Form::scatters)
            }
            _ => Err(worker::lost(collective.name())),
        }
    }

    /// A part among leaders.
    fn between(
        &mut self,
        stream: &Arc<CudaStream>,
        (collective, op): (Collective, Option<Reduction>),
        (from, to): (Spot, Spot),
        piece: &Piece,
    ) -> Result<()> {
        let Some(leaders) = &mut self.leaders else {
            return Err(worker::lost(collective.name()));
        };
        let (map, mut on) = (&self.map, leaders.on_stream(stream));
        let some = |spot, blocks| piece.of(spot, blocks);
        let counts =
            || -> Vec<_> { map.leaders().map(|leader| map.members(leader) * piece.len).collect() };
        let (all, mine) = (map.size(), self.island.size());
        let verb = Verb { collective, dtype: piece.dtype, op: op.map(|op| parts(op).1) };
        match (collective, op) {
            (Collective::AllReduce, Some(_)) => on.in_place_at("all_reduce", verb, some(to, 1)),
            (Collective::Reduce { .. }, Some(_)) => {
                let bufs = [some(from, 1), some(to, 1)];
                on.out_of_place_at("reduce_into", verb, bufs, Form::alike_at_root)
            }
            (Collective::ReduceScatter, Some(_)) => {
                on.uneven_at(verb, &counts(), [some(from, all), some(to, mine)])
            }
            (Collective::AllGather, _) => {
                let bufs = [some(from, mine), some(to, all)];
                on.uneven_at(Verb { op: None, ..verb }, &counts(), bufs)
            }
            (Collective::Broadcast { .. }, _) => {
                on.in_place_at("broadcast", Verb { op: None, ..verb }, some(to, 1))
            }
            _ => Err(worker::lost(collective.name())),
        }
    }
}

impl OnStream<'_> {
    /// All parts. Has any begun?
    pub(super) fn put_legs(
        &mut self,
        islands: &mut Islands,
        request: &Request,
        sides: &Sides,
        begun: &mut bool,
    ) -> Result<()> {
        let stream = self.stream.cu_stream();
        let [Side { device: from, writes: in_place, .. }, other] = sides.sides;
        let to = if in_place { from } else { other.device };
        let (count, call, me) = (request.count, request.collective, self.comm.rank());
        let whole = matches!(call, Collective::AllReduce | Collective::Broadcast { .. });
        if whole && !in_place {
            copy(stream, to, from, sides.block)?;
        }
        let most = Own::HALF / request.dtype.size() / self.comm.size();
        // Blocks of pieces begin where a device's lines do, if they are as long.
        let most = if most > LINE { most / LINE * LINE } else { most };
        let most = if whole { count.max(1) } else { most };
        if !whole && islands.own.used {
            after(stream, &islands.own.last)?;
        }
        for number in 0..count.div_ceil(most).max(1) {
            let start = number * most;
            let len = most.min(count - start);
            let (own, dtype) = (islands.own.start, request.dtype);
            let piece = Piece { send: from, recv: to, own, count, start, len, dtype };
            for leg in islands.map.legs(call, me, len == count, start + len == count) {
                self.put_leg(islands, leg, request.op, &piece)?;
                *begun = true;
            }
        }
        if !whole {
            islands.own.used = true;
            remember(stream, &islands.own.last)?;
        }
        Ok(())
    }

    fn put_leg(
        &mut self,
        islands: &mut Islands,
        leg: Leg,
        op: Option<Reduction>,
        piece: &Piece,
    ) -> Result<()> {
        let stream = self.stream;
        match leg {
            Leg::Copy { from, to, blocks } => piece.copy(stream, from, to, blocks),
            Leg::Within { what, from, to, blocks } => {
                islands.within(stream, (what, op), (from, to, blocks), piece)
            }
            Leg::Between { what, from, to } => {
                islands.between(stream, (what, op), (from, to), piece)
            }
            Leg::Send { to, from, blocks } => self.send_at(piece.dtype, piece.of(from, blocks), to),
            Leg::Recv { from, to, blocks } => self.recv_at(piece.dtype, piece.of(to, blocks), from),
        }
    }
}

/// A piece of a call on blocks of `count` elements: so many of each, from one on.
struct Piece {
    send: CUdeviceptr,
    recv: CUdeviceptr,
    own: CUdeviceptr,
    count: usize,
    start: usize,
    len: usize,
    dtype: DataType,
}

impl Piece {
    /// Where a piece of a block is, and elements from there to that of the next block.
    fn at(&self, Spot { area, at }: Spot) -> (CUdeviceptr, usize) {
        let (base, start, stride) = match area {
            Area::Send => (self.send, self.start, self.count),
            Area::Recv => (self.recv, self.start, self.count),
            Area::Whole => (self.recv, 0, self.count),
            Area::One => (self.own, 0, self.len),
            Area::Other => (self.own + Own::HALF as u64, 0, self.len),
        };
        (base + ((at * stride + start) * self.dtype.size()) as u64, stride)
    }

    /// So many blocks that lie side by side: where, and how many bytes.
    fn of(&self, spot: Spot, blocks: usize) -> (CUdeviceptr, usize) {
        let len = if spot.area == Area::Whole { self.count } else { self.len };
        (self.at(spot).0, blocks * len * self.dtype.size())
    }

    fn copy(&self, stream: &CudaStream, from: Spot, to: Spot, blocks: usize) -> Result<()> {
        let (stream, bytes) = (stream.cu_stream(), self.len * self.dtype.size());
        let [(from, given), (to, taken)] = [from, to].map(|spot| self.at(spot));
        if bytes == 0 {
            return Ok(());
        }
        if given == taken {
            return copy(stream, to, from, blocks * bytes);
        }
        (0..blocks).try_for_each(|block| {
            let at = |start, stride| start + (block * stride * self.dtype.size()) as u64;
            copy(stream, at(to, taken), at(from, given), bytes)
        })
    }
}

/// What a reduction is within islands, and between them, where an average is divided by all ranks.
fn parts(op: Reduction) -> (Reduction, Reduction) {
    match op.kind() {
        Kind::Plain(ReduceOp::Avg) => (ReduceOp::Sum.into(), op),
        Kind::PreMulSum(..) => (op, ReduceOp::Sum.into()),
        _ => (op, op),
    }
}
