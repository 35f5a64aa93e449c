//! The identity of a call, by which ranks that share a region notice that their calls differ.

/// Identifies the call that a rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    /// The number of the call on its communicator, from 1.
    pub(crate) sequence: u64,
    /// A digest of all arguments that must be equal on all ranks.
    pub(crate) fingerprint: u64,
}
