//! The identity of a call, by which ranks that share a region notice that their calls differ.

/// Identifies the call that a rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    /// The number of the call on its communicator, from 1.
    pub(crate) sequence: u64,
    /// A digest of all arguments that must be equal on all ranks. The lowest bit says whether the
    /// call is on registered buffers.
    pub(crate) fingerprint: u64,
}

impl CallId {
    /// The identity of a call on registered buffers; `digest` is of where they are.
    pub(crate) fn registered(self, digest: u64) -> Self {
        Self { fingerprint: digest | 1, ..self }
    }

    /// The identity of a call whose bytes all go over the stages.
    pub(crate) fn staged(self) -> Self {
        Self { fingerprint: self.fingerprint & !1, ..self }
    }

    /// True for a call on registered buffers.
    pub(crate) fn is_registered(self) -> bool {
        self.fingerprint & 1 == 1
    }
}
