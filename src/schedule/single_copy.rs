//! Single copy: ranks of one host that only move data read it from each other's memory, wherever it
//! lies. Each rank says where its input is, reads what it needs from its peers, and stays in the
//! call until all that read from it have done so, because its input is the user's memory.
//!
//! Source: Goglin and Moreaud, "KNEM: a generic and scalable kernel-assisted intra-node MPI
//! communication framework", JPDC 73 (2013); the system call is `process_vm_readv`.
//! Law: a rank reads its peer's memory only while the peer is in the call: `tests/laws/stages`
//! proves it of the phases of [`StagedCall`](super::StagedCall).
//! # Example
//!
//! A gather of four ranks at rank 0. Each rank shows its input, folds (here: reads) the inputs of
//! the ranks in the second row, and waits in the call until the ranks in the last row have read:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! CopyIn   shows a   shows b   shows c   shows d
//! Fold     1 2 3
//! CopyOut            0         0         0
//! ```

use super::{Collective, Definition, staged};

/// The schedule over links, and its price, are those of the direct messages that move the same
/// bytes; a measured factor corrects the price.
pub(super) const DEFINITION: Definition = Definition {
    name: "single_copy",
    chunks: |collective, order| {
        as_over_links(collective).map_or(1, |same| (same.chunks)(collective, order))
    },
    schedule: |collective, order, me| (as_over_links(collective)?.schedule)(collective, order, me),
    volume: |collective, order| (as_over_links(collective)?.volume)(collective, order),
    cost: |collective, order, bytes, speed| {
        (as_over_links(collective)?.cost)(collective, order, bytes, speed)
    },
    ..Definition::DEFAULT
};

/// The algorithm that moves the same bytes over links; `None` for collectives that reduce.
const fn as_over_links(collective: Collective) -> Option<&'static Definition> {
    if collective.reduces() { None } else { staged::as_over_links(collective) }
}
