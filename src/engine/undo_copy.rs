//! Undo copies: before a call in place that must be safe to retry, the bytes that it overwrites are
//! copied; after a failure they are copied back.
//! Law: a failed call that is safe to retry leaves its input as it was.

use std::mem::take;

use super::Engine;
use super::call::CheckedCall;
use crate::error::Result;
use crate::kernel::copy;
use crate::memory::{Buffer, Dst, Scratch, Src};
use crate::schedule::Space;

impl Engine {
    /// Copies what a call in place overwrites, if the call must be safe to retry.
    pub(super) fn save(&mut self, call: &CheckedCall<'_>) -> Result<Option<Scratch>> {
        let is_safe = call.settings.preferences.failures.retry_safe && !call.is_internal;
        // A communicator of one rank has nothing to fail.
        let is_alone = self.rank_info.size() == 1;
        if !is_safe || call.settings.is_dry_run || call.buffer.is_out_of_place() || is_alone {
            return Ok(None);
        }
        let mut memory = take(&mut self.undo_copy);
        save(call.buffer, memory.bytes(call.buffer.len(WRITTEN))?, self.cache_bytes);
        Ok(Some(memory))
    }

    /// Copies what was saved back if the call has failed, and keeps the memory for the next call.
    pub(super) fn restore(
        &mut self,
        call: &CheckedCall<'_>,
        saved: Option<Scratch>,
        has_failed: bool,
    ) {
        let Some(mut memory) = saved else { return };
        if has_failed && let Ok(backup) = memory.bytes(call.buffer.len(WRITTEN)) {
            restore(call.buffer, backup);
        }
        self.undo_copy = memory;
    }
}

/// The only space that calls write to.
const WRITTEN: Space = Space::Output;

/// Copies what is written. A copy larger than the cache is stored past it, because nothing reads
/// the copy unless the call fails.
fn save(buffer: &Buffer<'_>, backup: &mut [u8], cache: usize) {
    let len = buffer.len(WRITTEN);
    for part in buffer.pieces([WRITTEN], 0..len) {
        let saved = Dst::from(&mut backup[part.clone()]).streaming(len >= cache);
        copy(saved, None, buffer.src(WRITTEN, part));
    }
}

fn restore(buffer: &Buffer<'_>, backup: &[u8]) {
    for part in buffer.pieces([WRITTEN], 0..buffer.len(WRITTEN)) {
        buffer.dst(WRITTEN, part.clone()).fill(Src::from(&backup[part]));
    }
}
