//! Errors of arguments.

use super::{Error, Result};

impl Error {
    /// An [`Error::Argument`], for libraries that check arguments before they pass them on.
    #[cold]
    pub fn argument(
        call: &'static str,
        argument: &'static str,
        given: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Argument { call, argument, given: given.into(), expected: expected.into() }
    }
}

/// The error for an argument that does not fit.
pub(crate) fn argument_error<T>(
    call: &'static str,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T> {
    Err(Error::argument(call, argument, given.to_string(), expected.to_string()))
}
