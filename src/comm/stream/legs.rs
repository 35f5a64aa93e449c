//! The parts of calls that go by islands, put on a stream one after the other, piece by piece.
//! May touch: as `comm`. Law: what is put follows from what all ranks pass.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::islands::{Islands, Own};
use super::{DeviceRef, OnStream, Side, Sides};
use crate::comm::worker;
use crate::device::cuda::{after, copy, remember};
use crate::device::island::{Area, Leg, Spot};
use crate::element::{Element, Kind, ReduceOp, Reduction};
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

/// Elements of which no fewer fill whole lines of a device, whatever their type.
const LINE: usize = 128;

impl Islands {
    /// A part among the ranks of the island.
    fn within<T: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        (what, op): (Collective, Option<Reduction>),
        (from, to, blocks): (Spot, Spot, usize),
        piece: &Piece<T>,
    ) -> Result<()> {
        let ranks = self.island.size();
        let mut on = self.island.on_stream(stream);
        let some = |spot, blocks| piece.of(stream, spot, blocks);
        match (what, op) {
            (Collective::Reduce { root }, Some(op)) if from == to => {
                on.reduce(&mut some(to, blocks), parts(op).0, root as usize)
            }
            (Collective::Reduce { root }, Some(op)) => {
                let (send, mut recv) = (some(from, blocks), some(to, blocks));
                on.reduce_into(&send, &mut recv, parts(op).0, root as usize)
            }
            (Collective::Broadcast { root }, _) => {
                on.broadcast(&mut some(to, blocks), root as usize)
            }
            (Collective::Gather { root }, _) => {
                on.gather(&some(from, 1), &mut some(to, ranks), root as usize)
            }
            (Collective::Scatter { root }, _) => {
                on.scatter(&some(from, ranks), &mut some(to, 1), root as usize)
            }
            _ => Err(worker::lost(what.name())),
        }
    }

    /// A part among leaders.
    fn between<T: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        (what, op): (Collective, Option<Reduction>),
        (from, to): (Spot, Spot),
        piece: &Piece<T>,
    ) -> Result<()> {
        let Some(leaders) = &mut self.leaders else { return Err(worker::lost(what.name())) };
        let (map, mut on) = (&self.map, leaders.on_stream(stream));
        let some = |spot, blocks| piece.of(stream, spot, blocks);
        let counts =
            || -> Vec<_> { map.leaders().map(|leader| map.members(leader) * piece.len).collect() };
        let (all, mine) = (map.size(), self.island.size());
        match (what, op) {
            (Collective::AllReduce, Some(op)) => on.all_reduce(&mut some(to, 1), parts(op).1),
            (Collective::Reduce { root }, Some(op)) => {
                on.reduce_into(&some(from, 1), &mut some(to, 1), parts(op).1, root as usize)
            }
            (Collective::ReduceScatter, Some(op)) => {
                let (send, mut recv) = (some(from, all), some(to, mine));
                on.reduce_scatter_v(&send, &mut recv, &counts(), parts(op).1)
            }
            (Collective::AllGather, _) => {
                on.all_gather_v(&some(from, mine), &mut some(to, all), &counts())
            }
            (Collective::Broadcast { root }, _) => on.broadcast(&mut some(to, 1), root as usize),
            _ => Err(worker::lost(what.name())),
        }
    }
}

impl OnStream<'_> {
    /// All parts. Has any begun?
    pub(super) fn put_legs<T: Element>(
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
        let most = Own::HALF / size_of::<T>() / self.comm.size();
        // Blocks of pieces begin where a device's lines do, if they are as long.
        let most = if most > LINE { most / LINE * LINE } else { most };
        let most = if whole { count.max(1) } else { most };
        if !whole && islands.own.used {
            after(stream, &islands.own.last)?;
        }
        for number in 0..count.div_ceil(most).max(1) {
            let start = number * most;
            let len = most.min(count - start);
            let own = islands.own.start;
            let piece =
                Piece { send: from, recv: to, own, count, start, len, of: PhantomData::<T> };
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

    fn put_leg<T: Element>(
        &mut self,
        islands: &mut Islands,
        leg: Leg,
        op: Option<Reduction>,
        piece: &Piece<T>,
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
            Leg::Send { to, from, blocks } => self.send(&piece.of(stream, from, blocks), to),
            Leg::Recv { from, to, blocks } => self.recv(&mut piece.of(stream, to, blocks), from),
        }
    }
}

/// A piece of a call on blocks of `count` elements: so many of each, from one on.
struct Piece<T> {
    send: CUdeviceptr,
    recv: CUdeviceptr,
    own: CUdeviceptr,
    count: usize,
    start: usize,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Element> Piece<T> {
    /// Where a piece of a block is, and elements from there to that of the next block.
    fn at(&self, Spot { area, at }: Spot) -> (CUdeviceptr, usize) {
        let (base, start, stride) = match area {
            Area::Send => (self.send, self.start, self.count),
            Area::Recv => (self.recv, self.start, self.count),
            Area::Whole => (self.recv, 0, self.count),
            Area::One => (self.own, 0, self.len),
            Area::Other => (self.own + Own::HALF as u64, 0, self.len),
        };
        (base + ((at * stride + start) * size_of::<T>()) as u64, stride)
    }

    /// So many blocks that lie side by side.
    fn of(&self, stream: &Arc<CudaStream>, spot: Spot, blocks: usize) -> DeviceRef<T> {
        let len = if spot.area == Area::Whole { self.count } else { self.len };
        DeviceRef::of_call(self.at(spot).0, blocks * len, stream)
    }

    fn copy(&self, stream: &CudaStream, from: Spot, to: Spot, blocks: usize) -> Result<()> {
        let (stream, bytes) = (stream.cu_stream(), self.len * size_of::<T>());
        let [(from, given), (to, taken)] = [from, to].map(|spot| self.at(spot));
        if bytes == 0 {
            return Ok(());
        }
        if given == taken {
            return copy(stream, to, from, blocks * bytes);
        }
        (0..blocks).try_for_each(|block| {
            let at = |start, stride| start + (block * stride * size_of::<T>()) as u64;
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
