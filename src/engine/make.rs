//! A collective call from its value to its result, stage by stage. Each stage is a function of the
//! engine: `pieces` (conversion), `save` and `restore` (undo_copy), `make_piecewise`, and for each
//! piece or for the whole `walk`, between `enter` and `finish`. Most calls have the last ones alone
//! (`has_stages`).
//! Law: a call goes down once; no stage makes the same call by an earlier stage. (The barrier of a
//! uniform call is a call of its own, and a call in pieces is tried directly before.)

use std::mem::forget;

use super::Engine;
use super::call::{CheckedCall, PlanBy};
use crate::error::{Error, Result};
use crate::schedule::Space;

/// The result of a stage. The error is boxed, since each stage would copy its many bytes.
pub(super) type StageResult<T> = std::result::Result<T, Box<Error>>;

impl Engine {
    /// Makes a collective call.
    pub(crate) fn make(&mut self, call: &CheckedCall<'_>) -> Result<()> {
        let unwound = UnwoundCall { engine: self, call: call.name };
        let made = match call.has_stages() {
            true => unwound.engine.make_in_stages(call),
            false => {
                debug_assert!(matches!(unwound.engine.pieces(call), Ok(None)), "{}", call.name);
                unwound.engine.make_at_once(call).map(drop)
            }
        };
        forget(unwound);
        self.scratch.end_call();
        self.undo_copy.end_call();
        made.map_err(|error| *error)
    }

    fn make_in_stages(&mut self, call: &CheckedCall<'_>) -> StageResult<()> {
        let pieces = self.pieces(call)?.filter(|_| !call.settings.is_dry_run);
        // A direct call reduces narrow floats as f32 anyway, and rounds once.
        if pieces.is_some()
            && call.request.dtype.is_narrow_float()
            && self.registered_memory(call).is_some()
            && self.make_at_once(&CheckedCall { plan_by: PlanBy::DirectOnly, ..*call })?
        {
            return Ok(());
        }
        let saved = self.save(call).map_err(|error| {
            let error = self.broken_by(error);
            // The communicator is broken, so this only agrees with the ranks of a uniform call.
            let _ = self.make_at_once(call);
            error
        })?;
        let made = match &pieces {
            Some(pieces) => self.make_piecewise(call, pieces),
            None => self.make_at_once(call).map(drop),
        };
        self.restore(call, saved, made.is_err());
        made
    }

    /// Makes a call, or a piece of one, by its plan; false if the call is for registered memory
    /// alone, and is still to be made.
    pub(super) fn make_at_once(&mut self, call: &CheckedCall<'_>) -> StageResult<bool> {
        let usable = self.check_callable(call);
        if call.settings.is_dry_run || usable.is_err() && !self.is_uniform(call) {
            return usable.and_then(|()| self.walk(call));
        }
        let number = self.enter(call);
        match usable.and_then(|()| self.walk(call)) {
            Ok(false) => {
                self.rank_info.record.leave(None);
                Ok(false)
            }
            made => self.finish(call, number, made.map(drop)).map(|()| true),
        }
    }

    #[inline]
    fn check_callable(&mut self, call: &CheckedCall<'_>) -> StageResult<()> {
        self.check_usable(call.name)?;
        if self.is_uniform(call) && !call.settings.is_dry_run {
            self.check_revoked(call)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn is_uniform(&self, call: &CheckedCall<'_>) -> bool {
        call.settings.preferences.failures.uniform && self.rank_info.size() > 1
    }

    /// Records the start of a call, and gives the number that it will have.
    #[inline]
    fn enter(&self, call: &CheckedCall<'_>) -> u64 {
        let (number, bytes) = (self.sequence + 1, call.buffer.len(Space::Output));
        let name = (call.name, call.blocks().is_some());
        self.rank_info.record.enter(name, Some(call.request), number, bytes);
        number
    }

    /// Makes the outcome of a call the same at all ranks, if it has to be, and records it.
    #[inline]
    fn finish(
        &mut self,
        call: &CheckedCall<'_>,
        number: u64,
        made: StageResult<()>,
    ) -> StageResult<()> {
        let done = if self.is_uniform(call) {
            self.make_uniform(call, (number, made.map_err(|error| *error))).map_err(Box::new)
        } else {
            if made.is_ok() {
                self.all_or_none.last_ok = number;
            }
            made
        };
        if done.is_ok() {
            self.stalled_message = None;
        }
        self.rank_info.record.leave(done.as_ref().err().map(Box::as_ref));
        done
    }
}

/// A call that a panic ends, such as one of a subscriber of warnings. Peers may be reading the
/// caller's memory, so the communicator closes before that memory is the caller's again.
struct UnwoundCall<'a> {
    engine: &'a mut Engine,
    call: &'static str,
}

impl Drop for UnwoundCall<'_> {
    fn drop(&mut self) {
        let first = format!("a panic ended {} of this rank half made", self.call);
        self.engine.give_up(Error::Broken { call: self.call, first });
    }
}
