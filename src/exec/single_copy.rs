//! The single-copy executor: ranks of one host read what they need straight from their peers'
//! memory. It walks the phases of [`StagedCall`], of one block whose payload says where a rank's
//! input is.
//! Law: bytes count only if their owner was still in the call after they were read. A rank closes
//! its region before a failed call returns, so a peer that reads late gets an error.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::direct::RegionCall;
use super::region_wait::RegionWait;
use super::wait::{Halt, Stop, Wait};
use crate::error::Error;
use crate::health::Peers;
use crate::kernel::copy;
use crate::memory::{Buffer, CallId, Dst, HostRegion, Scratch, Src, is_readable_by_peers};
use crate::schedule::{Collective, Completed, Phase, Space, StagedCall};
use crate::transport::Fault;

/// Makes the call over `buffer`, this rank's own. `scratch` holds a copy of an input that peers
/// can't read where it is.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, if its memory
/// can't be read, or if the call is aborted.
pub(crate) fn run(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    (streaming, scratch): (bool, &mut Scratch),
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    let RegionCall { collective, me, size, call_id, .. } = *call;
    let (first, depth) = (region.begin(1), region.shape().depth as u64);
    let phases = StagedCall { collective, size, me, first, blocks: 1, depth, is_single_copy: true };
    let is_read = (0..size).any(|peer| phases.reads_stage(peer, me));
    let mine = if is_read {
        readable_input(call, buffer, scratch, region.is_one_process()).map_err(Halt::no_memory)?
    } else {
        Src::from(&[][..])
    };
    let mut waits = RegionWait { region, peers, wait, call_id, first };
    for (phase, block) in phases.steps() {
        waits.record(phase);
        if phase == Phase::Fold {
            if collective.root().is_none() {
                waits.until_all_begin()?;
            } else {
                waits.compare_with_published(|peer| phases.reads_stage(me, peer))?;
            }
        }
        for peer in waits.others() {
            let needs = phases.needs((phase, block), peer, waits.region.finished());
            for need in needs.into_iter().flatten() {
                waits.until(peer, need)?;
            }
            if phase == Phase::Fold && phases.reads_stage(me, peer) {
                fetch(call, buffer, &mut waits, peer)?;
            }
        }
        match phase {
            Phase::CopyIn => {
                publish(
                    waits.region,
                    block,
                    call_id,
                    [mine.ptr().expose_provenance(), mine.len()].map(|number| number as u64),
                );
            }
            Phase::Fold => {
                if let Some((mine, place)) = own_transfer(call, buffer) {
                    copy(place.streaming(streaming), None, mine);
                }
                waits.region.publish_folded(block + 1);
            }
            Phase::CopyOut => waits.region.publish_copied_out(block + 1),
        }
    }
    Ok(())
}

/// The bytes of the input of `rank` that this rank gets, and their place in this rank's output.
fn transfer(call: &RegionCall<'_>, rank: usize) -> Option<[Range<usize>; 2]> {
    let chunks = call.collective.block_move(rank as u32, call.me as u32)?;
    Some(chunks.map(|number| number as usize * call.bytes..(number as usize + 1) * call.bytes))
}

/// The bytes of this rank's own input that belong into its output, and their place there; `None` if
/// there are none, or if they lie there.
fn own_transfer<'a>(call: &RegionCall<'_>, buffer: &'a Buffer<'_>) -> Option<(Src<'a>, Dst<'a>)> {
    let [from, to] = transfer(call, call.me)?;
    let (mine, mut place) = (buffer.src(Space::Input, from), buffer.dst(Space::Output, to));
    (mine.ptr() != place.ptr().cast_const()).then_some((mine, place))
}

/// The memory that peers read: this rank's input; or a copy, if the call overwrites the input or if
/// peers can't read it.
///
/// # Errors
/// If there is no memory for the copy.
fn readable_input<'a>(
    call: &RegionCall<'_>,
    buffer: &'a Buffer<'_>,
    scratch: &'a mut Scratch,
    is_one_process: bool,
) -> Result<Src<'a>, Error> {
    let input = buffer.src(Space::Input, 0..buffer.len(Space::Input));
    // In place, this rank stores its peers' data beside its own, but in an all-to-all on it.
    let own_stays = call.collective != Collective::AllToAll && own_transfer(call, buffer).is_none();
    let stays = own_stays || buffer.is_out_of_place();
    if stays && (is_one_process || is_readable_by_peers(input)) {
        return Ok(input);
    }
    let copy = scratch.bytes(input.len())?;
    Dst::from(&mut *copy).fill(input);
    Ok(Src::from(&*copy))
}

/// Reads this rank's bytes from the input of `peer`, which has published where the input is.
fn fetch(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    waits: &mut RegionWait<'_>,
    peer: usize,
) -> Result<(), Halt> {
    let Some([from, to]) = transfer(call, peer) else { return Ok(()) };
    let [address, len] = published(waits.region, peer, waits.first);
    let rank = waits.region.rank(peer);
    let lost = |evidence| Halt {
        stop: Stop::Fault(Fault::Lost(evidence)),
        step: Phase::Fold as usize,
        peer: rank,
    };
    if from.end as u64 > len {
        return Err(lost(format!("its input has {len} bytes instead of {}", from.end)));
    }
    let out = buffer.dst(Space::Output, to);
    let read = waits.region.read_memory(peer, address.wrapping_add(from.start as u64), out);
    // A rank that has left the call may have written its input before it was read, and the number
    // of a process that has ended may be another one's.
    fence(Ordering::Acquire);
    if waits.region.is_closed(peer) || waits.peers.local_detector().has_ended(rank) {
        return Err(lost("it left the call while its memory was read".into()));
    }
    read.map_err(|error| lost(format!("its memory can't be read: {error}")))
}

/// Bytes of the payload of a block: two words.
const PAYLOAD: usize = 2 * WORD;
const WORD: usize = size_of::<u64>();

/// Publishes a block with these words.
fn publish(region: &HostRegion, block: u64, call_id: CallId, words: [u64; 2]) {
    for (at, word) in [0, WORD].into_iter().zip(words) {
        let slot = region.my_slot(block, PAYLOAD, at..at + WORD);
        slot.fill(Src::from(&word.to_ne_bytes()[..]));
    }
    region.publish_block(block, call_id);
}

/// The words that `rank` has published in a block.
fn published(region: &HostRegion, rank: usize, block: u64) -> [u64; 2] {
    [0, WORD].map(|at| {
        let mut word = [0; WORD];
        Dst::from(&mut word[..]).fill(region.slot(rank, block, PAYLOAD, at..at + WORD));
        u64::from_ne_bytes(word)
    })
}

/// Two ranks of which one can't read the memory of the other, and the system's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedRead {
    pub(crate) reader: usize,
    pub(crate) owner: usize,
    pub(crate) error: i32,
}

/// Finds out, in a call of all ranks with this number, whether every rank can read the memory of
/// every other: the first refused read, which all ranks find alike. Containers, Yama, seccomp and
/// changed user ids may forbid it.
///
/// Each rank reads the next one alone. Where any read is forbidden, one round the ring is: seccomp
/// forbids all reads of a rank, a process that may not be dumped all reads of it, users and
/// containers those from one to another, which the ring crosses, and Yama those of processes that
/// are no descendants, of which no ring consists.
///
/// # Errors
/// As [`run`].
pub(crate) fn test_reads(
    me: usize,
    sequence: u64,
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<Option<RefusedRead>, Halt> {
    let call_id = CallId { sequence, fingerprint: 0 };
    let first = region.begin(2);
    let mut waits = RegionWait { region, peers, wait, call_id, first };
    // A random word tells this process from another one that has its number elsewhere.
    let word = black_box(RandomState::new().hash_one(me));
    let address = black_box(&raw const word).expose_provenance() as u64;
    publish(waits.region, first, call_id, [address, word]);
    waits.until_all_begin()?;
    let region = waits.region;
    let peer = (region.me() + 1) % region.size();
    let [address, word] = published(region, peer, first);
    let mut found = [0; WORD];
    let refused = match region.read_memory(peer, address, Dst::from(&mut found[..])) {
        Ok(()) if u64::from_ne_bytes(found) == word => None,
        Ok(()) => Some([peer as u64 + 1, 0]),
        Err(error) => Some([peer as u64 + 1, error.raw_os_error().unwrap_or(0) as u64]),
    };
    publish(region, first + 1, call_id, refused.unwrap_or_default());
    // The word stays in place until all ranks have read it.
    for peer in waits.others() {
        waits.until(peer, Completed { phase: Phase::CopyIn, blocks: first + 2 })?;
    }
    let refused = (0..waits.region.size()).find_map(|reader| {
        let [owner, error] = published(waits.region, reader, first + 1);
        let owner = (owner as usize).checked_sub(1)?;
        Some(RefusedRead { reader, owner, error: error as i32 })
    });
    waits.region.publish_finished(first + 2);
    Ok(refused)
}
