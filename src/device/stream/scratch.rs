//! Scratch memory for direct calls on buffers that other processes can't open: a call is cut into
//! pieces, which are copied through memory that other ranks map.
//! Law: the pieces of a call are direct calls.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use super::CallBuffers;
use super::direct::{Direct, user_addresses};
use super::memory::SharedAllocation;
use super::pieces::{EvenPieces, areas, lens, pieces};
use crate::device::algorithm::{DEVICE_LINE, DeviceAlgorithm};
use crate::device::cuda::{
    CopyArea, ExportedMemory, FailedCall, LastUse, PeerCall, StartedCall, copy_on_device,
};
use crate::error::Result;
use crate::plan::DeviceForm;

/// Bytes of a half, and the number of halves, each with a piece under way: few enough to stay in a
/// device's cache, so that its memory sees each byte once on its way in and once on its way out.
const HALF_BYTES: usize = 4 << 20;
const HALVES: usize = 2;

/// Memory of this rank, and the addresses at which the workers map it.
#[derive(Debug)]
pub(super) struct ScratchMemory {
    /// The owner of the memory, which other ranks have open.
    _held: ExportedMemory,
    seen_at: Arc<[u64]>,
    start: u64,
    last: LastUse,
}

impl ScratchMemory {
    pub(super) const BYTES: usize = HALF_BYTES * HALVES;

    pub(super) fn new(held: ExportedMemory, entry: SharedAllocation, last: LastUse) -> Self {
        let (seen_at, start) = (entry.seen_at, entry.range.start);
        Self { _held: held, seen_at, start, last }
    }

    /// Puts a call on the stream, in pieces.
    pub(super) fn put(
        direct: &mut Direct,
        stream: CUstream,
        call: PeerCall,
        sides: CallBuffers,
    ) -> Result<(), FailedCall> {
        let mut under_way: [Option<Piece>; HALVES] = Default::default();
        let done = Self::put_pieces(direct, stream, call, sides, &mut under_way);
        // After a failure the pieces under way are still to be ended.
        for (started, _) in under_way.into_iter().flatten() {
            direct.executor.abandon(stream, started);
        }
        done
    }

    fn put_pieces(
        direct: &mut Direct,
        stream: CUstream,
        call: PeerCall,
        sides: CallBuffers,
        under_way: &mut [Option<Piece>; HALVES],
    ) -> Result<(), FailedCall> {
        let Direct { executor, scratch, same_process, .. } = direct;
        let Some(scratch) = scratch else {
            return Err(executor.fail_call("there is no scratch memory".into()));
        };
        let element = call.algorithm.element;
        let is_one_shot = call.algorithm.by == DeviceForm::OneShot;
        // A rank in place cuts its call like the ranks with two buffers.
        let step = (HALF_BYTES - DEVICE_LINE) / sides.most.max(2) / element * element;
        let cut = EvenPieces::in_steps(step, sides);
        let start = scratch.start;
        executor.checked(scratch.last.wait(stream))?;
        for (number, piece) in pieces(&cut).map(Some).chain(repeat_n(None, HALVES)).enumerate() {
            let half = number % HALVES;
            let (offset, here) = (half * HALF_BYTES, start + (half * HALF_BYTES) as u64);
            if let Some((started, piece)) = under_way[half].take() {
                executor.end(stream, started)?;
                if !is_one_shot {
                    executor.checked(copy_piece(stream, (&cut, &piece), here, false))?;
                }
            }
            let Some(piece) = piece else { continue };
            executor.checked(copy_piece(stream, (&cut, &piece), here, true))?;
            let algorithm = DeviceAlgorithm { block: piece.len(), ..call.algorithm };
            let user_recv = user_addresses(&sides)[1] + piece.start as u64;
            let second = lens(&cut, &piece)[0].next_multiple_of(DEVICE_LINE);
            let buffers = |worker: usize| {
                let base = if same_process[worker] { start } else { scratch.seen_at[worker] };
                let [send, recv] = [offset, offset + second].map(|at| base + at as u64);
                match (is_one_shot, sides.is_in_place()) {
                    // Each rank stores into its own receive buffer alone.
                    (true, _) => [send, user_recv],
                    (_, in_place) => [send, if in_place { send } else { recv }],
                }
            };
            let started = executor.begin(None, PeerCall { algorithm, ..call }, buffers)?;
            let flushed = executor.flush(stream, &started);
            under_way[half] = Some((started, piece));
            flushed?;
        }
        executor.checked(scratch.last.record(stream))
    }
}

/// A piece whose call has begun, and its bytes of each block.
type Piece = (StartedCall, Range<usize>);

/// Copies a piece into the half of the scratch memory that begins at `start`, or out of it.
fn copy_piece(
    stream: CUstream,
    (cut, piece): (&EvenPieces, &Range<usize>),
    start: u64,
    is_in: bool,
) -> Result<()> {
    let is_copied = |area: &CopyArea| area.len > 0 && if is_in { area.reads } else { area.writes };
    areas(cut, piece, DEVICE_LINE).filter(is_copied).try_for_each(|area| {
        let here = start + area.at as u64;
        let (to, from) = if is_in { (here, area.device) } else { (area.device, here) };
        copy_on_device(stream, to, from, area.len)
    })
}
