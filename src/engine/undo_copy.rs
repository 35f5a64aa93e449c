//! In-place calls that can be made again: what the result overwrites is copied before, and copied
//! back if the call fails. May touch: as `comm`. Law: a failed call leaves its input as it was.

use crate::api::Communicator;
use crate::error::Result;
use crate::kernel::copy;
use crate::memory::{Buffer, Dst, Src};
use crate::schedule::Space;

impl Communicator {
    /// Makes a call over `buffer` by `make`; if that fails, and such calls are to be safe, the
    /// buffer is as it was.
    pub(crate) fn kept(
        &mut self,
        name: &'static str,
        buffer: &Buffer<'_>,
        make: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let wanted = self.settings.failures.retry_safe && !self.settings.rehearses;
        if !wanted || buffer.is_apart() {
            return make(self);
        }
        let (engine, ..) = self.at_home(name)?;
        let (mut backup, cache) = (std::mem::take(&mut engine.backup), engine.cache);
        save(buffer, &mut backup, cache);
        let done = make(self);
        if done.is_err() {
            restore(buffer, &backup);
        }
        if let Some(engine) = &mut self.engine {
            engine.backup = backup;
        }
        done
    }
}

/// Calls only ever write to the output.
const WRITTEN: Space = Space::Output;

/// What is larger than the cache goes past it: nobody reads the copy soon, if ever.
fn save(buffer: &Buffer<'_>, backup: &mut Vec<u8>, cache: usize) {
    let len = buffer.len(WRITTEN);
    backup.resize(backup.len().max(len), 0);
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
