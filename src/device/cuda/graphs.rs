//! Operation slots of calls that are captured into CUDA graphs. A destructor of the graph frees the
//! slot of each call in it, when the graph and all its instances are destroyed.
//! Law: a slot is used again after all ranks have freed it, and rank 0 chooses which.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{self, CUstream, CUstreamCaptureStatus};

use super::control_block::{ControlBlocks, EAGER_SLOTS, SLOT_COUNT, SlotRef};
use super::driver::{check, has_graph_callbacks};
use super::failure::{CallFailure, FailedCall, OperationHeader};
use super::peer_executor::PeerExecutor;
use super::pinned::Pinned;
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::sync::Instant;

/// How long the driver may take to call the destructor of a destroyed graph.
const DESTROY_GRACE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The word by which a rank owns a slot: a host mapping, and a byte offset in it.
struct CapturedSlot {
    region: Arc<Region>,
    offset: usize,
}

/// The destructor of a graph. The driver calls it on a thread of its own, on which no call of the
/// driver is allowed.
unsafe extern "C" fn release_slot(captured: *mut c_void) {
    // SAFETY: `release_slot_with_graph` has made the pointer, and the driver gives it back once.
    let captured = unsafe { Box::from_raw(captured.cast::<CapturedSlot>()) };
    let word = captured.region.start().as_ptr().wrapping_add(captured.offset).cast::<AtomicU64>();
    // SAFETY: a word of the region, which is mapped as long as this has it.
    unsafe { &*word }.store(0, Ordering::Release);
}

/// Makes the graph that a stream is captured into free a slot when it is destroyed. With a driver
/// that has no destructors, the slot stays taken as long as the communicator.
pub(super) fn release_slot_with_graph(
    stream: CUstream,
    (block, offset): (&Pinned, usize),
) -> Result<()> {
    if !has_graph_callbacks() {
        return Ok(());
    }
    let doing = "attaching a destructor to a graph";
    let (mut status, mut graph) =
        (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, null_mut());
    let (id, nodes, count) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the driver stores two words where it is told; null pointers ask for nothing.
    check(doing, unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream, &raw mut status, id, &raw mut graph, nodes, count)
    })?;
    let captured = Box::into_raw(Box::new(CapturedSlot { region: block.region(), offset }));
    let (mut object, flags) =
        (null_mut(), sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32);
    // SAFETY: the driver calls the function with this pointer, once.
    let made = unsafe {
        sys::cuUserObjectCreate(&raw mut object, captured.cast(), Some(release_slot), 1, flags)
    };
    if let Err(error) = check(doing, made) {
        // SAFETY: the driver did not take the pointer.
        drop(unsafe { Box::from_raw(captured) });
        return Err(error);
    }
    let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the graph is the one of the capture, and the object was just made.
    let retained = check(doing, unsafe { sys::cuGraphRetainUserObject(graph, object, 1, moves) });
    if retained.is_err() {
        // SAFETY: the reference is still this function's.
        let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
    }
    retained
}

/// Numbers of a control block: the call that rank 0 last chose a slot for, that slot, and the last
/// call for which the rank of the block has taken the slot so chosen.
const CHOSEN_CALL: usize = 0;
const CHOSEN_SLOT: usize = 1;
const TAKEN_CALL: usize = 2;

impl ControlBlocks {
    /// Chooses, at rank 0, a slot that is free at all ranks, after all have taken the one chosen
    /// before.
    fn choose_slot(&self, call: u64) -> Option<usize> {
        let last = self.slot_choice(0, CHOSEN_CALL).load(Ordering::Acquire);
        if (0..self.size())
            .any(|rank| self.slot_choice(rank, TAKEN_CALL).load(Ordering::Acquire) < last)
        {
            return None;
        }
        let free = |rank, slot| self.is_free(SlotRef { rank, slot });
        let mut slots = EAGER_SLOTS..SLOT_COUNT;
        let found = slots.find(|&slot| (0..self.size()).all(|rank| free(rank, slot)))?;
        self.slot_choice(0, CHOSEN_SLOT).store(found as u64, Ordering::Relaxed);
        self.slot_choice(0, CHOSEN_CALL).store(call, Ordering::Release);
        Some(found)
    }

    /// The slot that rank 0 has chosen for a call, after this rank has freed it.
    fn chosen_slot(&self, call: u64) -> Option<usize> {
        if self.slot_choice(0, CHOSEN_CALL).load(Ordering::Acquire) != call {
            return None;
        }
        let slot = self.slot_choice(0, CHOSEN_SLOT).load(Ordering::Relaxed) as usize;
        let is_free = self.is_free(self.own(slot));
        is_free.then_some(slot)
    }

    /// The rank that keeps the others from a slot: it has not taken the one chosen last, or has
    /// none free; else the rank that this one waits for.
    fn slot_blocker(&self) -> usize {
        let last = self.slot_choice(0, CHOSEN_CALL).load(Ordering::Acquire);
        let is_free = |rank, slot| self.is_free(SlotRef { rank, slot });
        let is_behind = |&rank: &usize| {
            let took = self.slot_choice(rank, TAKEN_CALL).load(Ordering::Acquire);
            took < last || !(EAGER_SLOTS..SLOT_COUNT).any(|slot| is_free(rank, slot))
        };
        let waited_for = usize::from(self.me == 0).min(self.size() - 1);
        (0..self.size()).filter(|&rank| rank != self.me).find(is_behind).unwrap_or(waited_for)
    }

    /// Publishes that this rank has taken the slot of a call.
    pub(super) fn mark_taken(&self, call: u64) {
        self.slot_choice(self.me, TAKEN_CALL).store(call, Ordering::Release);
    }
}

impl PeerExecutor {
    /// True if living graphs have a call in every slot.
    pub(crate) fn are_captured_slots_full(&self) -> bool {
        let (began, blocks) = (Instant::now(), &self.watchdog.shared.blocks);
        let is_free = |&slot: &usize| blocks.is_free(blocks.own(slot));
        while !(EAGER_SLOTS..SLOT_COUNT).any(|slot| is_free(&slot)) {
            if !has_graph_callbacks() || began.elapsed() > DESTROY_GRACE {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    /// The slot of a captured call: one that no call has used, or else one that all ranks' graphs
    /// have freed, which rank 0 chooses.
    pub(super) fn captured_slot(&self, header: OperationHeader) -> Result<usize, FailedCall> {
        let watchdog = &self.watchdog.shared;
        let used = watchdog.captured_slots_used.load(Ordering::Relaxed) as usize;
        if EAGER_SLOTS + used < SLOT_COUNT {
            watchdog.captured_slots_used.fetch_add(1, Ordering::Release);
            return Ok(EAGER_SLOTS + used);
        }
        let (blocks, began) = (&watchdog.blocks, Instant::now());
        loop {
            let call = header.number();
            let found =
                if blocks.me == 0 { blocks.choose_slot(call) } else { blocks.chosen_slot(call) };
            if let Some(slot) = found {
                return Ok(slot);
            }
            if let Some(failure) = watchdog.failure(header) {
                return Err(failure);
            }
            if began.elapsed() > watchdog.timeout() {
                let failure =
                    CallFailure::Late { peer: blocks.slot_blocker(), after: watchdog.timeout() };
                watchdog.fail(header, failure.clone());
                return Err((header, failure));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
