//! The single-copy executor: ranks of one host read what they need straight from their peers'
//! memory. It walks the phases of [`StagedCall`], of one block whose payload says where a rank's
//! memory is. Where a rank's memory can't be read, or the call would overwrite it too early, all
//! ranks make the call over stages. Reductions are in `fold`.
//! Law: bytes count only if their owner was still in the call after they were read. A rank closes
//! its region before a failed call returns, so a peer that reads late gets an error.

mod fold;

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::direct::RegionCall;
use super::region_wait::RegionWait;
use super::staged;
use super::wait::{Halt, Stop, Wait};
use crate::health::Peers;
use crate::kernel::copy;
use crate::memory::{Buffer, CallId, Dst, HostRegion, Scratch, Src};
use crate::schedule::{Algorithm, Collective, Completed, Phase, Space, StagedCall};
use crate::transport::Fault;

/// Makes the call over `buffer`, this rank's own. `scratch` holds the pieces that are folded.
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
    let is_shown = is_read(&phases, me) && shows_buffer(call, buffer, region);
    let shown = if is_shown { Shown::of(buffer) } else { Shown::NOTHING };
    let mut waits = RegionWait { region, peers, wait, call_id, first };
    for (phase, block) in phases.steps() {
        waits.record(phase);
        if phase == Phase::Fold && !all_show(&phases, &mut waits)? {
            waits.region.publish_finished(block + 1);
            wait.record_algorithm(Algorithm::Staged);
            return staged::run(call, buffer, streaming, region, peers, wait);
        }
        for peer in waits.others() {
            let needs = phases.needs((phase, block), peer, waits.region.finished());
            for need in needs.into_iter().flatten() {
                waits.until(peer, need)?;
            }
            match phase {
                Phase::Fold if !collective.reduces() && phases.reads_stage(me, peer) => {
                    fetch(call, buffer, &mut waits, peer)?;
                }
                Phase::CopyOut if phases.reads_result(me, peer) => {
                    fold::fetch_result(call, buffer, &mut waits, peer)?;
                }
                _ => {}
            }
        }
        match phase {
            Phase::CopyIn => publish(waits.region, block, call_id, shown.0),
            Phase::Fold => {
                if collective.reduces() {
                    let memory = scratch.bytes(fold::room(call)).map_err(Halt::no_memory)?;
                    fold::fold(call, (buffer, streaming), &mut waits, memory)?;
                } else if let Some((mine, place)) = own_transfer(call, buffer) {
                    copy(place.streaming(streaming), None, mine);
                }
                waits.region.publish_folded(block + 1);
            }
            Phase::CopyOut => waits.region.publish_copied_out(block + 1),
        }
    }
    for peer in waits.others() {
        if let Some(left) = phases.leaves_after(peer) {
            waits.until(peer, left)?;
        }
    }
    Ok(())
}

/// True if any rank reads the memory of `rank`.
fn is_read(phases: &StagedCall, rank: usize) -> bool {
    (0..phases.size).any(|peer| phases.reads_stage(peer, rank))
}

/// True if all ranks that are read show their memory. All ranks come to the same answer, since each
/// waits for the words of all that are read.
fn all_show(phases: &StagedCall, waits: &mut RegionWait<'_>) -> Result<bool, Halt> {
    let StagedCall { size, me, first, .. } = *phases;
    if phases.collective.root().is_none() {
        waits.until_all_begin()?;
    } else {
        waits.compare_with_published(|peer| phases.reads_stage(me, peer))?;
        for peer in waits.others().filter(|&peer| phases.reads_stage(me, peer)) {
            waits.until(peer, Completed { phase: Phase::CopyIn, blocks: first + 1 })?;
        }
    }
    let shows = |rank| Shown(published(waits.region, rank, first)) != Shown::NOTHING;
    Ok((0..size).filter(|&rank| is_read(phases, rank)).all(shows))
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

/// True if peers can read this rank's buffer where it is, and the call stores to what they read
/// only after they have read it.
fn shows_buffer(call: &RegionCall<'_>, buffer: &Buffer<'_>, region: &HostRegion) -> bool {
    let is_whole = |space| buffer.contiguous_len(space, 0, buffer.len(space)) == buffer.len(space);
    if ![Space::Input, Space::Output].into_iter().all(is_whole) {
        return false;
    }
    let is_readable = |space| region.may_show(buffer.src(space, 0..buffer.len(space)));
    let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
    let stays = match call.collective {
        // A part is stored to by its owner after the fold, and by others once the owner has folded.
        Collective::AllReduce => read == written,
        // No other rank reads the part that this rank gets.
        Collective::ReduceScatter => written.start == read.start + call.me * call.bytes,
        // In place, a rank stores its peers' data on its own.
        Collective::AllToAll => false,
        // In place, a rank stores its peers' data beside its own.
        _ => own_transfer(call, buffer).is_none(),
    };
    let shares_result = call.collective == Collective::AllReduce && read != written;
    (stays || buffer.is_out_of_place())
        && is_readable(Space::Input)
        && (!shares_result || is_readable(Space::Output))
}

/// Reads this rank's bytes from the input of `peer`, which has published where the input is.
fn fetch(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    waits: &mut RegionWait<'_>,
    peer: usize,
) -> Result<(), Halt> {
    let Some([from, to]) = transfer(call, peer) else { return Ok(()) };
    let out = buffer.dst(Space::Output, to);
    read((waits, Phase::Fold), peer, (Space::Input, from.start), out)
}

/// Fills `out` with the bytes of `peer`, which has published where its memory is, from byte `from`
/// of a space on.
fn read(
    (waits, phase): (&mut RegionWait<'_>, Phase),
    peer: usize,
    (space, from): (Space, usize),
    out: Dst<'_>,
) -> Result<(), Halt> {
    let shown = Shown(published(waits.region, peer, waits.first));
    let rank = waits.region.rank(peer);
    let lost = |evidence| Halt {
        stop: Stop::Fault(Fault::Lost(evidence)),
        step: phase as usize,
        peer: rank,
    };
    let (end, len) = ((from + out.len()) as u64, shown.len());
    if end > len {
        return Err(lost(format!("its memory has {len} bytes instead of {end}")));
    }
    let read = waits.region.read_memory(peer, shown.start(space).wrapping_add(from as u64), out);
    // A rank that has left the call may have written its memory before it was read, and the number
    // of a process that has ended may be another one's.
    fence(Ordering::Acquire);
    if waits.region.is_closed(peer) || waits.peers.local_detector().has_ended(rank) {
        return Err(lost("it left the call while its memory was read".into()));
    }
    read.map_err(|error| {
        lost(format!(
            "its memory can't be read: {error}; RINGREDUCE_ALGO=staged does without reading it"
        ))
    })
}

/// Where a rank's memory is: the addresses of its input and its output, and the bytes of its input.
#[derive(PartialEq, Eq)]
struct Shown([u64; WORDS]);

impl Shown {
    /// No memory, as nobody reads it, or as it can't be read where it is.
    const NOTHING: Self = Self([0; WORDS]);

    fn of(buffer: &Buffer<'_>) -> Self {
        let len = buffer.len(Space::Input);
        let input = buffer.src(Space::Input, 0..len).ptr();
        let output = buffer.dst(Space::Output, 0..buffer.len(Space::Output)).ptr();
        // Threads read at these addresses.
        Self([input.expose_provenance(), output.expose_provenance(), len].map(|it| it as u64))
    }

    fn start(&self, space: Space) -> u64 {
        self.0[usize::from(space == Space::Output)]
    }

    fn len(&self) -> u64 {
        self.0[2]
    }
}

/// The words of a payload.
const WORDS: usize = 3;
const WORD: usize = size_of::<u64>();
const PAYLOAD: usize = WORDS * WORD;

/// Publishes a block with these words.
fn publish(region: &HostRegion, block: u64, call_id: CallId, words: [u64; WORDS]) {
    for (at, word) in words.into_iter().enumerate() {
        let slot = region.my_slot(block, PAYLOAD, at * WORD..(at + 1) * WORD);
        slot.fill(Src::from(&word.to_ne_bytes()[..]));
    }
    region.publish_block(block, call_id);
}

/// The words that `rank` has published in a block.
fn published(region: &HostRegion, rank: usize, block: u64) -> [u64; WORDS] {
    std::array::from_fn(|at| {
        let mut word = [0; WORD];
        let part = at * WORD..(at + 1) * WORD;
        Dst::from(&mut word[..]).fill(region.slot(rank, block, PAYLOAD, part));
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
    publish(waits.region, first, call_id, [address, word, 0]);
    waits.until_all_begin()?;
    let region = waits.region;
    let peer = (region.me() + 1) % region.size();
    let [address, word, _] = published(region, peer, first);
    let mut found = [0; WORD];
    let refused = match region.read_memory(peer, address, Dst::from(&mut found[..])) {
        Ok(()) if u64::from_ne_bytes(found) == word => None,
        Ok(()) => Some([peer as u64 + 1, 0, 0]),
        Err(error) => Some([peer as u64 + 1, error.raw_os_error().unwrap_or(0) as u64, 0]),
    };
    publish(region, first + 1, call_id, refused.unwrap_or_default());
    // The word stays in place until all ranks have read it.
    for peer in waits.others() {
        waits.until(peer, Completed { phase: Phase::CopyIn, blocks: first + 2 })?;
    }
    let refused = (0..waits.region.size()).find_map(|reader| {
        let [owner, error, _] = published(waits.region, reader, first + 1);
        let owner = (owner as usize).checked_sub(1)?;
        Some(RefusedRead { reader, owner, error: error as i32 })
    });
    waits.region.publish_finished(first + 2);
    Ok(refused)
}
