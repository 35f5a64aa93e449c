//! Buffers that other processes can't see: they are copied, a piece at a time, through memory that
//! they can. May touch: as `comm`.
//! Law: as the direct way; the pieces of a call are calls.

use std::sync::Arc;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUstream;

use super::direct::{Direct, Entry, buffers};
use super::memory::Held;
use super::{Side, Sides};
use crate::device::algorithm::Form;
use crate::device::cuda::{Begun, Call, Failure, after, copy, remember};
use crate::error::{Error, Result};
use crate::plan::DeviceForm;

/// Bytes of a piece, and how many are under way: few enough to stay in a device's cache, so that
/// its memory sees each byte once on its way in and once on its way out.
const SLOT: usize = 4 << 20;
const SLOTS: usize = 2;
/// Where the second buffer of a piece begins behind the first.
const LINE: usize = 128;

/// The memory.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Kept for what others have opened.
    _held: Held,
    seen: Arc<[u64]>,
    start: u64,
    /// Where the stream of the last call was at its end, if there was one.
    last: CudaEvent,
    used: bool,
}

impl Scratch {
    pub(super) const BYTES: usize = SLOT * SLOTS;

    pub(super) fn new(held: Held, entry: Entry, last: CudaEvent) -> Self {
        let (seen, start) = (entry.seen, entry.range.start);
        Self { _held: held, seen, start, last, used: false }
    }

    /// Puts a call on the stream, in pieces.
    pub(super) fn put(
        direct: &mut Direct,
        stream: CUstream,
        call: Call,
        sides: Sides,
    ) -> Result<(), Failure> {
        let mut begun: [Option<Begun>; SLOTS] = Default::default();
        let done = Self::put_pieces(direct, stream, call, sides, &mut begun);
        // After a failure nobody ends what was begun.
        begun.into_iter().flatten().for_each(|begun| direct.together.abandon(stream, begun));
        done
    }

    fn put_pieces(
        direct: &mut Direct,
        stream: CUstream,
        call: Call,
        sides: Sides,
        begun: &mut [Option<Begun>; SLOTS],
    ) -> Result<(), Failure> {
        let Direct { together, scratch, beside, .. } = direct;
        let Some(scratch) = scratch else {
            return Err(together.refused("there is no memory for pieces".into()));
        };
        let element = call.form.element;
        let alone = call.form.by == DeviceForm::OneShot;
        // As many for who gives another buffer than it gets as for who has one.
        let step = (SLOT - LINE) / sides.most.max(2) / element * element;
        let pieces = sides.block.div_ceil(step).max(1);
        let refused = |error: Error| together.refused(error.to_string());
        if scratch.used {
            after(stream, &scratch.last).map_err(refused)?;
        }
        for at in 0..pieces + SLOTS {
            let slot = at % SLOTS;
            let piece = |piece: usize| Piece::new(scratch.start, slot, piece, step, &sides);
            if let Some(begun) = begun[slot].take() {
                together.end(stream, begun)?;
                let done = if alone { Ok(()) } else { piece(at - SLOTS).copy(stream, false) };
                done.map_err(|error| together.refused(error.to_string()))?;
            }
            if at >= pieces {
                continue;
            }
            let piece = piece(at);
            piece.copy(stream, true).map_err(|error| together.refused(error.to_string()))?;
            let form = Form { block: piece.len, ..call.form };
            let own = buffers(&sides)[1] + piece.from as u64;
            let seen = |worker: usize| {
                let base = if beside[worker] { scratch.start } else { scratch.seen[worker] };
                let [send, recv] = piece.at.map(|at| base + at as u64);
                match (alone, sides.is_in_place()) {
                    // Only its own rank writes it.
                    (true, _) => [send, own],
                    (_, in_place) => [send, if in_place { send } else { recv }],
                }
            };
            let started = together.begin(None, Call { form, ..call }, seen)?;
            let flushed = together.flush(stream, &started);
            begun[slot] = Some(started);
            flushed?;
        }
        scratch.used = true;
        remember(stream, &scratch.last).map_err(|error| together.refused(error.to_string()))
    }
}

/// A piece of a call: where its buffers are in the scratch memory.
struct Piece {
    start: u64,
    at: [usize; 2],
    from: usize,
    len: usize,
    sides: Sides,
}

impl Piece {
    fn new(start: u64, slot: usize, number: usize, step: usize, sides: &Sides) -> Self {
        let from = number * step;
        let len = step.min(sides.block - from);
        let at = slot * SLOT;
        let second = at + (sides.sides[0].blocks * len).next_multiple_of(LINE);
        Self { start, at: [at, second], from, len, sides: *sides }
    }

    /// Copies it in or out.
    fn copy(&self, stream: CUstream, into: bool) -> Result<()> {
        let Sides { sides, block, .. } = self.sides;
        for (Side { device, blocks, reads, writes }, at) in sides.into_iter().zip(self.at) {
            if self.len == 0 || !(if into { reads } else { writes }) {
                continue;
            }
            for number in 0..blocks {
                let user = device + (number * block + self.from) as u64;
                let here = self.start + (at + number * self.len) as u64;
                let (to, from) = if into { (here, user) } else { (user, here) };
                copy(stream, to, from, self.len)?;
            }
        }
        Ok(())
    }
}
