//! Undo copies: before a call in place that must be safe to retry, the bytes that it overwrites are
//! copied; after a failure they are copied back.
//! Law: a failed call that is safe to retry leaves its input as it was.

use crate::api::Communicator;
use crate::error::Result;
use crate::kernel::copy;
use crate::memory::{Buffer, Dst, Src};
use crate::schedule::Space;

impl Communicator {
    /// Makes a call over `buffer` by `make`. If the call fails and must be safe to retry, the
    /// buffer is restored.
    pub(crate) fn with_undo_copy(
        &mut self,
        name: &'static str,
        buffer: &Buffer<'_>,
        make: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let must_copy = self.settings.preferences.failures.retry_safe && !self.settings.is_dry_run;
        // A communicator of one rank has nothing to fail.
        if !must_copy || buffer.is_out_of_place() || self.size() == 1 {
            return make(self);
        }
        let (engine, ..) = self.engine_on_this_thread(name)?;
        let (mut memory, cache) = (std::mem::take(&mut engine.undo_copy), engine.cache_bytes);
        let backup = match memory.bytes(buffer.len(WRITTEN)) {
            Ok(backup) => backup,
            Err(error) => {
                let error = engine.broken_by(error);
                // The communicator is broken, so this only agrees with the ranks of a uniform call.
                let _ = make(self);
                return Err(error);
            }
        };
        save(buffer, backup, cache);
        let done = make(self);
        if done.is_err() {
            restore(buffer, backup);
        }
        memory.end_call();
        if let Some(engine) = &mut self.engine {
            engine.undo_copy = memory;
        }
        done
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
