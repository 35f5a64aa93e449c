//! How a call fails, and its communicator with it.

use super::Communicator;
use crate::error::Error;
use crate::exec::Halt;

impl Communicator {
    /// Breaks the communicator: every further call fails with `error` as its first cause.
    pub(crate) fn break_with(&mut self, name: &'static str, error: Error) -> Error {
        match self.engine_on_this_thread(name) {
            Ok((engine, _)) => engine.broken_by(error),
            Err(error) => error,
        }
    }

    /// The error of the call `name`, which breaks the communicator.
    pub(crate) fn fail(&mut self, name: &'static str, halt: Halt) -> Error {
        match self.engine_on_this_thread(name) {
            Ok((engine, settings)) => engine.fail(settings, name, halt),
            Err(error) => error,
        }
    }
}
