//! Which places calls in graphs have: the graph that a call was captured into gives its place back
//! when it and all that was made of it are no more. May touch: board, error, region.
//! Law: a place is used again once all ranks have given it back, and rank 0 says which.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream, CUstreamCaptureStatus};

use super::control_block::{At, Boards, EAGER, PLACES};
use super::driver::{check, knows_graphs};
use super::failure::{Claim, Trouble};
use super::peer_executor::{Failure, Together};
use super::pinned::Pinned;
use crate::error::Result;
use crate::memory::mapping::Region;

/// How long the driver may take to say that a graph is no more.
const GRACE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The word of a board by which its rank claims a place, as the host sees it.
struct Claimed {
    region: Arc<Region>,
    offset: usize,
}

/// The graph is no more. The driver calls this from a thread of its own, where nothing may call it.
unsafe extern "C" fn give_back(claimed: *mut c_void) {
    // SAFETY: `keep` has made it, and it comes back once.
    let claimed = unsafe { Box::from_raw(claimed.cast::<Claimed>()) };
    let word = claimed.region.start().as_ptr().wrapping_add(claimed.offset).cast::<AtomicU64>();
    // SAFETY: a word of the region, which is mapped as long as this has it.
    unsafe { &*word }.store(0, Ordering::Release);
}

/// Lets the graph that a stream is captured into give a place back when it ends. A driver that
/// can't leaves the place to the communicator.
pub(super) fn keep(stream: CUstream, (board, offset): (&Pinned, usize)) -> Result<()> {
    if !knows_graphs() {
        return Ok(());
    }
    let doing = "watching a graph";
    let (mut status, mut graph) =
        (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, null_mut());
    let (id, nodes, count) = (null_mut(), null_mut(), null_mut());
    // SAFETY: it stores two words where it is told; the others are not asked for.
    check(doing, unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream, &raw mut status, id, &raw mut graph, nodes, count)
    })?;
    let claimed = Box::into_raw(Box::new(Claimed { region: board.region(), offset }));
    let (mut object, flags) =
        (null_mut(), sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32);
    // SAFETY: the driver calls the function with this pointer, once.
    let made = unsafe {
        sys::cuUserObjectCreate(&raw mut object, claimed.cast(), Some(give_back), 1, flags)
    };
    if let Err(error) = check(doing, made) {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(claimed) });
        return Err(error);
    }
    let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the graph is the one of the capture, and the object was just made.
    let kept = check(doing, unsafe { sys::cuGraphRetainUserObject(graph, object, 1, moves) });
    if kept.is_err() {
        // SAFETY: the reference is still this function's.
        let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
    }
    kept
}

/// Numbers of a board: rank 0's latest choice, as the number of the call and its place, and the
/// latest call whose place the board's rank has claimed by such a choice.
const CHOSEN: usize = 0;
const PLACE: usize = 1;
const TAKEN: usize = 2;

impl Boards {
    /// Rank 0 chooses a place that no rank claims, once all ranks have claimed the one before.
    fn choose(&self, call: u64) -> Option<usize> {
        let last = self.choice(0, CHOSEN).load(Ordering::Acquire);
        if (0..self.size()).any(|rank| self.choice(rank, TAKEN).load(Ordering::Acquire) < last) {
            return None;
        }
        let free = |rank, place| self.claimed(At { rank, place }).sequence == 0;
        let mut places = EAGER..PLACES;
        let found = places.find(|&place| (0..self.size()).all(|rank| free(rank, place)))?;
        self.choice(0, PLACE).store(found as u64, Ordering::Relaxed);
        self.choice(0, CHOSEN).store(call, Ordering::Release);
        Some(found)
    }

    /// The place that rank 0 has chosen for a call, once this rank has given it back.
    fn chosen(&self, call: u64) -> Option<usize> {
        if self.choice(0, CHOSEN).load(Ordering::Acquire) != call {
            return None;
        }
        let place = self.choice(0, PLACE).load(Ordering::Relaxed) as usize;
        let is_free = self.claimed(At { rank: self.me, place }).sequence == 0;
        is_free.then_some(place)
    }

    /// The rank that keeps the others from a place: it has not claimed the one that was chosen
    /// last, or has none to give; else the one that is waited for.
    fn behind(&self) -> usize {
        let last = self.choice(0, CHOSEN).load(Ordering::Acquire);
        let is_free = |rank, place| self.claimed(At { rank, place }).sequence == 0;
        let is_behind = |&rank: &usize| {
            let took = self.choice(rank, TAKEN).load(Ordering::Acquire);
            took < last || !(EAGER..PLACES).any(|place| is_free(rank, place))
        };
        let waited_for = usize::from(self.me == 0).min(self.size() - 1);
        (0..self.size()).filter(|&rank| rank != self.me).find(is_behind).unwrap_or(waited_for)
    }

    /// This rank has claimed the place of a call.
    pub(super) fn took(&self, call: u64) {
        self.choice(self.me, TAKEN).store(call, Ordering::Release);
    }
}

impl Together {
    /// Have graphs that live as many calls as there are places?
    pub(crate) fn is_graph_full(&self) -> bool {
        let (began, boards) = (Instant::now(), &self.guard.watch.boards);
        let is_free = |&place: &usize| boards.claimed(At { rank: boards.me, place }).sequence == 0;
        while !(EAGER..PLACES).any(|place| is_free(&place)) {
            if !knows_graphs() || began.elapsed() > GRACE {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    /// Where a captured call is made: at a place that no call had before, else at one that graphs
    /// of all ranks have given back, which rank 0 chooses.
    pub(super) fn captured_place(&self, claim: Claim) -> Result<usize, Failure> {
        let watch = &self.guard.watch;
        let used = watch.captured.load(Ordering::Relaxed) as usize;
        if EAGER + used < PLACES {
            watch.captured.fetch_add(1, Ordering::Release);
            return Ok(EAGER + used);
        }
        let (boards, began) = (&watch.boards, Instant::now());
        loop {
            let call = claim.number();
            let found = if boards.me == 0 { boards.choose(call) } else { boards.chosen(call) };
            if let Some(place) = found {
                return Ok(place);
            }
            if let Some(failure) = watch.trouble(claim) {
                return Err(failure);
            }
            if began.elapsed() > watch.timeout() {
                let trouble = Trouble::Late { peer: boards.behind(), after: watch.timeout() };
                watch.fail(claim, trouble.clone());
                return Err((claim, trouble));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
