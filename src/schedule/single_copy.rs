//! Single copy: ranks of one host read each other's memory, wherever it lies. Each rank says where
//! its input is, and reads what it needs from its peers: to reduce, it folds its part of all inputs
//! into its output, and in an all-reduce then reads the other parts of the result from its peers.
//! It stays in the call until all that read from it have done so, because its memory is the user's.
//!
//! Source: Goglin and Moreaud, "KNEM: a generic and scalable kernel-assisted intra-node MPI
//! communication framework", JPDC 73 (2013); the system call is `process_vm_readv`. The all-reduce
//! is the two-shot of MSCCL++.
//! Law: a rank reads its peer's memory only while the peer is in the call: `tests/laws/stages`
//! proves it of the phases of [`StagedCall`](super::StagedCall).
//! # Example
//!
//! An all-reduce of four ranks. Each rank shows its memory, folds its part of all inputs, reads the
//! parts of the ranks in the third row, and leaves once those in the last row have read its own:
//!
//! ```text
//!          rank 0        rank 1        rank 2        rank 3
//! CopyIn   shows a       shows b       shows c       shows d
//! Fold     0 = a+b+c+d   1 = a+b+c+d   2 = a+b+c+d   3 = a+b+c+d
//! CopyOut  1 2 3         0 2 3         0 1 3         0 1 2
//! leaves   1 2 3         0 2 3         0 1 3         0 1 2
//! ```

use super::{Collective, Definition, ReadOrder, staged};

/// The schedule over links, and its price, are those of the direct messages that move the same
/// bytes; a measured factor corrects the price.
pub(super) const DEFINITION: Definition = Definition {
    name: "single_copy",
    read_order: ReadOrder::Sequential,
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

/// The algorithm that moves the same bytes over links. `None` for a reduce, for whose parts no rank
/// but the root has memory, and for a gather: it took as long as over links.
const fn as_over_links(collective: Collective) -> Option<&'static Definition> {
    match collective {
        Collective::Reduce { .. } | Collective::Gather { .. } => None,
        _ => staged::as_over_links(collective),
    }
}
