//! Reductions of single copy: a rank folds its part of the inputs of all ranks, piece by piece: it
//! reads a piece of each peer's input into memory of its own, which stays in its cache. In an
//! all-reduce it then reads the parts that its peers have folded.
//! Law: the fold is in rank order.

use super::{RegionCall, RegionWait, read};
use crate::exec::direct::LINE;
use crate::exec::wait::Halt;
use crate::memory::{Buffer, Dst, Src};
use crate::schedule::{Collective, Phase, Space, StageShape};

/// Bytes of a piece at least, at most, and of the pieces of all peers. The kernel reads a page of a
/// peer in about the time of the system call itself.
const PIECE: [usize; 2] = [16 << 10, 128 << 10];
const ALL_PIECES: usize = 512 << 10;
/// Pieces of two peers begin five lines apart, modulo a page: at equal places they would share a
/// few sets of each cache.
const APART: usize = 5 * LINE;
const PAGE: usize = 4 << 10;

/// Bytes of a piece: whole pages, unless the element is no part of one.
fn piece_len(call: &RegionCall<'_>) -> usize {
    let [least, most] = PIECE;
    let len = (ALL_PIECES / (call.size - 1).max(1)).clamp(least, most);
    let granule = if PAGE.is_multiple_of(call.element) { PAGE } else { call.element };
    (len - len % granule).max(call.element)
}

/// Bytes that [`fold`] needs for the pieces.
pub(super) fn room(call: &RegionCall<'_>) -> usize {
    (call.size - 1) * (piece_len(call).min(call.bytes) + APART)
}

/// Folds this rank's part; `streaming` is true if results are stored past the cache.
pub(super) fn fold(
    call: &RegionCall<'_>,
    of: (&Buffer<'_>, bool),
    waits: &mut RegionWait<'_>,
    pieces: &mut [u8],
) -> Result<(), Halt> {
    // The views are arrays on the stack, so that a call allocates nothing.
    match call.size {
        0..=8 => fold_of_up_to::<8>(call, of, waits, pieces),
        9..=64 => fold_of_up_to::<64>(call, of, waits, pieces),
        _ => fold_of_up_to::<{ StageShape::MOST_RANKS }>(call, of, waits, pieces),
    }
}

fn fold_of_up_to<const MAX: usize>(
    call: &RegionCall<'_>,
    (buffer, streaming): (&Buffer<'_>, bool),
    waits: &mut RegionWait<'_>,
    pieces: &mut [u8],
) -> Result<(), Halt> {
    let RegionCall { collective, me, size, kernel, is_last, .. } = *call;
    let is_shared = collective == Collective::AllReduce;
    // Where this rank's part begins in the inputs, and in its output.
    let folded = call.part_of(me, call.bytes);
    let (len, input, output) = match is_shared {
        true => (folded.len(), folded.start, folded.start),
        false => (call.bytes, me * call.bytes, 0),
    };
    let longest = piece_len(call);
    for from in (0..len).step_by(longest) {
        let piece = longest.min(len - from);
        let own = input + from..input + from + piece;
        let mut sources = [buffer.src(Space::Input, own); MAX];
        let peers = (0..size).filter(|&rank| rank != me);
        for (peer, room) in peers.zip(pieces.chunks_exact_mut(longest.min(call.bytes) + APART)) {
            let room = &mut room[..piece];
            let at = (Space::Input, input + from);
            read((waits, Phase::Fold), peer, at, Dst::from(&mut *room))?;
            sources[peer] = Src::from(&*room);
        }
        let result = buffer.dst(Space::Output, output + from..output + from + piece);
        // Peers read the result of an all-reduce soon.
        let result = result.streaming(streaming && !is_shared);
        kernel.fold(is_last, &mut [result], &sources[..size]);
    }
    Ok(())
}

/// Reads what `peer` has folded of an all-reduce into the same place of `buffer`.
pub(super) fn fetch_result(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    waits: &mut RegionWait<'_>,
    peer: usize,
) -> Result<(), Halt> {
    let part = call.part_of(peer, call.bytes);
    let out = buffer.dst(Space::Output, part.clone());
    read((waits, Phase::CopyOut), peer, (Space::Output, part.start), out)
}
