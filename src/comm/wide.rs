//! Reductions that travel as another type than their buffers have: 16- and 8-bit floats as f32,
//! which are then rounded once, or f32 as one of those. May touch: as `comm`.
//! Law: a piece at a time, through memory that is kept; each piece is a call of its own.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::Communicator;
use super::engine::Head;
use super::verbs::refuse;
use crate::config::Numbers;
use crate::element::{DataType, Kind, ReduceOp, Reduction};
use crate::error::Result;
use crate::kernel::convert;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::{Algorithm, Collective, Space};

/// Bytes that travel at once, about: few enough to stay in a core's cache.
const PIECE: usize = 1 << 20;

/// How a call travels.
pub(super) struct Travel {
    dtype: DataType,
    op: Reduction,
    /// What contributions are multiplied by as they set off.
    scale: Option<f32>,
}

/// The most by which an element of a sum over `ranks` can be off when f32 travels as `wire`, if
/// none of the contributions is larger than `largest`; infinite if the sum may not fit, or if
/// nothing travels so. An average is off by that divided by the ranks, and by half the distance
/// of two neighbours around it.
///
/// Each contribution is rounded as it sets off, and the sum at each of `ranks - 1` additions.
///
/// ```
/// use ringreduce::{DataType, wire_error};
/// assert!(wire_error(8, DataType::BF16, 1.0) < 0.26);
/// assert_eq!(wire_error(8, DataType::F8E4M3, 100.0), f64::INFINITY);
/// ```
#[must_use]
pub fn wire_error(ranks: usize, wire: DataType, largest: f64) -> f64 {
    // Half a unit of a number's last place, relative to it; the least number; the largest.
    let (unit, least, most) = match wire {
        DataType::F16 => (-11, -24, 65_504.0),
        DataType::BF16 => (-8, -133, f64::from(f32::MAX)),
        DataType::F8E4M3 => (-4, -9, 448.0),
        DataType::F8E5M2 => (-3, -16, 57_344.0),
        _ => return f64::INFINITY,
    };
    // Sums are made in f32 before they are rounded.
    let grown = (1.0 + 2_f64.powi(unit)) * (1.0 + 2_f64.powi(-24));
    let (ranks, grown) = (ranks as f64, grown.powf(ranks as f64));
    if ranks * largest * grown > most {
        return f64::INFINITY;
    }
    ranks * (largest * (grown - 1.0) + 2_f64.powi(least - 1) * grown)
}

impl Travel {
    /// Elements of each of so many parts that travel at once.
    fn most(&self, parts: usize) -> usize {
        (PIECE / self.dtype.size() / parts).max(1)
    }

    /// The calls that `request` is made by, among `size` ranks: so many like the first, and what is
    /// left.
    pub(super) fn pieces(
        &self,
        request: &Request,
        size: usize,
    ) -> (Request, usize, Option<Request>) {
        let parts = if request.collective.has_blocks() { size } else { 1 };
        let most = self.most(parts);
        let piece = |count| Request { count, dtype: self.dtype, op: Some(self.op), ..*request };
        match (request.count / most, request.count % most) {
            (0, count) => (piece(count), 1, None),
            (full, 0) => (piece(most), full, None),
            (full, rest) => (piece(most), full, Some(piece(rest))),
        }
    }
}

impl Communicator {
    /// The other type that the call `name` travels as, if it does; over links, where nobody says
    /// which buffer.
    pub(super) fn travel(
        &mut self,
        name: &'static str,
        request: &Request,
        buffer: Option<&Buffer<'_>>,
    ) -> Result<Option<Travel>> {
        use ReduceOp::{Avg, Max, Min, Prod, Sum};
        let Numbers { deterministic, wide, wire } = self.settings.numbers;
        let Request { collective, dtype, op: Some(op), .. } = *request else { return Ok(None) };
        if let Some(wire) = wire.filter(|wire| !wire.is_narrow_float()) {
            let expected = format!("float, or one of {}", DataType::narrow_floats());
            return refuse(collective.name(), "wire", wire, expected);
        }
        use Collective::{AllReduce, Reduce, ReduceScatter};
        let call = matches!(collective, AllReduce | ReduceScatter | Reduce { .. });
        if !call || self.size() == 1 || !op.is_defined_for(dtype) {
            return Ok(None);
        }
        let (op, scale) = match op.kind() {
            Kind::Plain(op) => (op, None),
            Kind::PreMulSum(_, scalar) => (Sum, Some(scalar)),
            Kind::User(..) => return Ok(None),
        };
        let other = match (dtype, wire) {
            (DataType::F32, Some(wire)) => matches!(op, Sum | Avg | Min | Max).then_some(wire),
            _ if dtype.is_narrow_float() && (wide || deterministic) => {
                // On registered memory they are wide anyway.
                let (engine, _, settings) = self.at_home(name)?;
                let asked = settings.required.or(settings.preferred);
                let otherwise = asked.is_some_and(|it| it != Algorithm::Direct);
                let known =
                    buffer.is_some_and(|buffer| engine.registry.known(request, buffer).is_some());
                let links = otherwise || !known;
                (links && matches!(op, Sum | Avg | Prod)).then_some(DataType::F32)
            }
            _ => None,
        };
        Ok(other.map(|other| {
            let scale = scale.map(|bytes| scalar(dtype, bytes));
            Travel { dtype: other, op: op.into(), scale }
        }))
    }

    /// Makes the call in pieces that travel so.
    pub(super) fn run_as(
        &mut self,
        travel: &Travel,
        head: &Head<'_>,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        let name = head.name;
        let parts = if request.collective.has_blocks() { self.size() } else { 1 };
        let most = travel.most(parts);
        let mine = if parts > 1 { self.rank() } else { 0 };
        let mut memory = std::mem::take(&mut self.at_home(name)?.0.travelling);
        memory.resize(memory.len().max(PIECE.max(parts * 4) / 4), 0.0);
        let mut done = Ok(());
        // Once at least: an empty buffer too is a call that the others are told of.
        for at in (0..request.count.max(1)).step_by(most) {
            let count = most.min(request.count - at);
            done = self.piece(travel, (head, request), buffer, (at, count, mine), &mut memory);
            if done.is_err() {
                break;
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.travelling = memory;
        }
        done
    }

    /// Elements `at..at + count` of each part; the result is that of part `mine`.
    fn piece(
        &mut self,
        travel: &Travel,
        (whole, request): (&Head<'_>, &Request),
        buffer: &Buffer<'_>,
        (at, count, mine): (usize, usize, usize),
        memory: &mut [f32],
    ) -> Result<()> {
        let (size, len) = (request.dtype.size(), count * travel.dtype.size());
        let parts = if request.collective.has_blocks() { self.size() } else { 1 };
        let memory = &mut cast_slice_mut(memory)[..parts * len];
        let all = Buffer::in_place(&mut *memory);
        for part in 0..parts {
            let from = (part * request.count + at) * size;
            for piece in buffer.pieces([Space::Input], from..from + count * size) {
                let to = part * len + (piece.start - from) / size * travel.dtype.size();
                let source = |bytes| buffer.src(Space::Input, after(piece.start, &bytes));
                let target = |bytes| all.dst(Space::Output, after(to, &bytes));
                let count = piece.len() / size;
                convert(count, travel.scale, (request.dtype, source), (travel.dtype, target));
            }
        }
        let places = Buffer::within(memory, 0..parts * len, mine * len..(mine + 1) * len);
        let inner = Request { count, dtype: travel.dtype, op: Some(travel.op), ..*request };
        let stands_for = request.digest() ^ whole.stands_for;
        let kernel = self.kernel(&inner)?;
        let head = Head { name: whole.name, stands_for, ..Head::of(&inner, kernel) };
        self.walk(&head, &places, |planner| planner.plan(&inner))?;
        if request.collective.root().is_some_and(|root| root as usize != self.rank()) {
            return Ok(());
        }
        for piece in buffer.pieces([Space::Output], at * size..(at + count) * size) {
            let from = (piece.start / size - at) * travel.dtype.size();
            let source = |bytes| places.src(Space::Output, after(from, &bytes));
            let target = |bytes| buffer.dst(Space::Output, after(piece.start, &bytes));
            let count = piece.len() / size;
            convert(count, None, (travel.dtype, source), (request.dtype, target));
        }
        Ok(())
    }
}

/// The same bytes, counted from `start` on.
fn after(start: usize, bytes: &Range<usize>) -> Range<usize> {
    start + bytes.start..start + bytes.end
}

/// The scalar of a reduction.
fn scalar(dtype: DataType, bytes: [u8; 16]) -> f32 {
    let mut scalar = [0; 4];
    let buffer = Buffer::apart(&bytes, &mut scalar);
    let source = |bytes| buffer.src(Space::Input, bytes);
    let target = |bytes| buffer.dst(Space::Output, bytes);
    convert(1, None, (dtype, source), (DataType::F32, target));
    f32::from_ne_bytes(scalar)
}
