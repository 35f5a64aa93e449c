//! Direct calls on registered buffers. Each rank offers its buffers; if all do, each reads its
//! peers' in place and writes results into them. All-reduce is two-shot: each rank folds one part
//! of all buffers and writes it to all; in a broadcast each rank copies one part of the root's
//! buffer to all. Bytes outside of the pages that all ranks have registered go over the stages.
//!
//! A rank knows whether there are such bytes only after all ranks have offered. Memory of `alloc`
//! has none; for other memory the further hand-over costs little beside a copy of it. In the first
//! call on new memory the ranks also tell each other whether they could map it.
//! Law: a rank that does not go on has changed nothing but its own chunk of its own all-gather, or
//! the root's output of a broadcast.

use super::{RegionCall, Walk, hand_over_edges};
use crate::error::Error;
use crate::exec::region_wait::RegionWait;
use crate::exec::wait::{Halt, Stop, Wait};
use crate::health::Peers;
use crate::memory::{Buffer, Dst, HostRegion, Offer, OwnBuffers, PeerBuffers, Src};
use crate::schedule::{Completed, Phase};
use crate::transport::Fault;

/// Makes the call over `own`, which is `buffer`, if all ranks offer registered buffers for it;
/// false if they do not, and the call is still to be made. `mapped` has the buffers of the peers.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, if its memory
/// is no longer where it was, or if the call is aborted. Peers can't access the buffers any more
/// then, and no peer has written to them if the ranks do not all make the same call.
pub(crate) fn run(
    call: &RegionCall<'_>,
    (own, buffer): (&OwnBuffers, &Buffer<'_>),
    (region, mapped): (&mut HostRegion, &mut PeerBuffers),
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<bool, Halt> {
    call.copy_own_chunk(buffer);
    let mut exposed = Exposed { own, is_over: false };
    let offer = own.offer();
    let is_new = offer.is_new || mapped.must_agree();
    region.publish_offer(call.call_id, &Offer { is_new, ..offer });
    let Some(is_new) = until_all_offer(call, region, peers, wait)? else {
        exposed.is_over = true;
        return Ok(false);
    };
    let mapping = map_all(call, (own, is_new), region, mapped);
    if is_new {
        let is_mapped = mapping.is_ok();
        if !agree(call, is_mapped, region, peers, wait)? {
            exposed.is_over = true;
            return Ok(false);
        }
        own.set_mapped();
        mapped.set_agreed();
    } else if let Err((peer, error)) = mapping {
        return Err(unusable(region, peer, &error));
    }
    let window = mapped.window(call.element);
    let rest = call.bytes - window.len();
    if rest > region.shape().block {
        // All ranks see the same offers, and come to this together.
        exposed.is_over = true;
        return Ok(false);
    }
    region.make_room(rest).map_err(Halt::no_memory)?;
    let first = region.begin(1);
    let mut waits = RegionWait { region, peers, wait, call_id: call.call_id, first };
    if rest > 0 {
        hand_over_edges(call, buffer, &mut waits, &window)?;
    }
    let in_place = !window.is_empty();
    Walk::new(call, buffer, (waits.region, first), (Some(mapped), window)).execute();
    waits.region.publish_finished(first + 1);
    if in_place {
        waits.record(Phase::Fold);
        for peer in waits.others() {
            waits.until(peer, Completed { phase: Phase::Fold, blocks: first + 1 })?;
        }
    }
    exposed.is_over = true;
    Ok(true)
}

/// Waits until this rank knows whether all ranks offer their buffers for the call. If they do: true
/// if a buffer is new to the ranks.
fn until_all_offer(
    call: &RegionCall<'_>,
    region: &HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<Option<bool>, Halt> {
    let (call_id, first) = (call.call_id, region.next_block());
    let mut waits = RegionWait { region, peers, wait, call_id, first };
    waits.record(Phase::CopyIn);
    let all_offer = waits.until_all_answer()?;
    let is_new = || (0..region.size()).any(|rank| region.offer(rank).0.is_new);
    Ok(all_offer.then(is_new))
}

/// Takes the buffers of all ranks into the call; the peer whose buffers can't be mapped, and why.
/// `agrees`: the ranks tell each other before they go on.
fn map_all(
    call: &RegionCall<'_>,
    (own, agrees): (&OwnBuffers, bool),
    region: &HostRegion,
    mapped: &mut PeerBuffers,
) -> Result<(), (usize, Error)> {
    mapped.set_own(call.me, own);
    for peer in (0..call.size).filter(|&peer| peer != call.me) {
        let (offer, released) = region.offer(peer);
        let done = mapped.set_peer(region.file(), peer, (&offer, released, agrees), call.bytes);
        done.map_err(|error| (peer, error))?;
    }
    Ok(())
}

/// Tells all ranks whether this one has mapped all buffers; true if all have. A rank may lack
/// address space that the others have, and no rank may write before all can.
#[cold]
fn agree(
    call: &RegionCall<'_>,
    is_mapped: bool,
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<bool, Halt> {
    let first = region.begin(1);
    let mut waits = RegionWait { region, peers, wait, call_id: call.call_id, first };
    waits.until_slot_is_free()?;
    waits.region.my_slot(first, 1, 0..1).fill(Src::from(&[u8::from(is_mapped)][..]));
    waits.region.publish_block(first, call.call_id);
    waits.until_all_begin()?;
    let has_mapped = |rank: usize| {
        let mut found = [0];
        Dst::from(&mut found[..]).fill(waits.region.slot(rank, first, 1, 0..1));
        found == [1]
    };
    let all = (0..call.size).all(has_mapped);
    waits.region.publish_finished(first + 1);
    Ok(all)
}

/// The end of a call that can't use the registered memory of a peer.
#[cold]
fn unusable(region: &HostRegion, peer: usize, why: &Error) -> Halt {
    let evidence = format!("its registered memory can't be used: {why}");
    let stop = Stop::Fault(Fault::Lost(evidence));
    Halt { stop, step: Phase::CopyIn as usize, peer: region.rank(peer) }
}

/// Guard of a call in which peers read and write this rank's buffers. If the call ends early (a
/// failure, or a panic in a user's reduction), the guard withdraws them, so that a late peer cannot
/// write there.
struct Exposed<'a> {
    own: &'a OwnBuffers,
    is_over: bool,
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.own.withdraw();
        }
    }
}
