//! The strategies, as rows of one table: how gradients are reduced, who updates the parameters, and
//! which sums of gradients a rank keeps. All else follows from these three.

use std::fmt;
use std::ops::Range;

/// Where gradients are reduced, and where parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Every rank has the parameters and updates them itself (TensorFlow's `MirroredStrategy` and
    /// `MultiWorkerMirroredStrategy`; PyTorch's `DistributedDataParallel`).
    Mirrored(CrossDeviceOp),
    /// Rank 0 has the parameters and updates them; all ranks compute gradients (TensorFlow's
    /// `CentralStorageStrategy`).
    CentralStorage,
    /// Rank 0 adds up copies of all gradients and sends copies of the sum to all ranks: the
    /// baseline of the field's lessons.
    Naive,
    /// Each rank has the state of the optimizer for a part of the parameters, and updates that part
    /// (Rajbhandari et al., ZeRO, 2020, stage 1).
    ShardedOptimizer,
    /// The same, and each rank keeps the reduced gradients of its part alone: buckets take turns in
    /// the memory of two of them (ZeRO, stage 2).
    ShardedGradients,
}

/// How mirrored ranks get the sum of their gradients (TensorFlow's `CrossDeviceOps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CrossDeviceOp {
    /// An all-reduce by the algorithm that suits the length: TensorFlow's `NcclAllReduce`.
    #[default]
    AllReduce,
    /// Pairs of ranks add up along a binomial tree, and the sum goes back along the same tree:
    /// `HierarchicalCopyAllReduce`.
    HierarchicalCopy,
    /// A reduction to rank 0, then a broadcast: `ReductionToOneDevice`.
    ReductionToOneDevice,
}

/// How the gradients of a bucket are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// All ranks get the sum.
    AllReduce,
    /// Rank 0 gets the sum, and broadcasts it.
    ReduceBroadcast,
    /// Rank 0 gets the sum.
    Reduce,
    /// Each rank gets the sum of its slice.
    ReduceScatter,
    /// Ranks add up copies along a binomial tree, and copy the sum back.
    Tree,
    /// Rank 0 adds up the copies of all ranks, and copies the sum back.
    Star,
}

/// Which rank updates an element of a bucket and has the state of the optimizer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Every rank.
    All,
    /// Rank 0.
    Root,
    /// The rank of the slice.
    Slice,
}

/// A row of the table.
struct Row {
    name: &'static str,
    reduction: Reduction,
    owner: Owner,
    /// Whether a rank keeps the sums of its own elements alone, so that buckets take turns.
    keeps_own_sums: bool,
}

const fn row(name: &'static str, reduction: Reduction, owner: Owner, keeps_own_sums: bool) -> Row {
    Row { name, reduction, owner, keeps_own_sums }
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 7] = [
        Self::Mirrored(CrossDeviceOp::AllReduce),
        Self::Mirrored(CrossDeviceOp::HierarchicalCopy),
        Self::Mirrored(CrossDeviceOp::ReductionToOneDevice),
        Self::CentralStorage,
        Self::Naive,
        Self::ShardedOptimizer,
        Self::ShardedGradients,
    ];

    /// The table.
    const fn row(self) -> Row {
        use CrossDeviceOp::{HierarchicalCopy, ReductionToOneDevice};
        use Owner::{All, Root, Slice};
        use Reduction::{AllReduce, Reduce, ReduceBroadcast, ReduceScatter, Star, Tree};
        match self {
            Self::Mirrored(CrossDeviceOp::AllReduce) => row("mirrored", AllReduce, All, false),
            Self::Mirrored(HierarchicalCopy) => row("mirrored-hierarchical-copy", Tree, All, false),
            Self::Mirrored(ReductionToOneDevice) => {
                row("mirrored-one-device", ReduceBroadcast, All, false)
            }
            Self::CentralStorage => row("central-storage", Reduce, Root, false),
            Self::Naive => row("naive", Star, All, false),
            Self::ShardedOptimizer => row("sharded-optimizer", ReduceScatter, Slice, false),
            Self::ShardedGradients => row("sharded-gradients", ReduceScatter, Slice, true),
        }
    }

    /// The name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    pub(crate) const fn reduction(self) -> Reduction {
        self.row().reduction
    }

    pub(crate) const fn owner(self) -> Owner {
        self.row().owner
    }

    pub(crate) const fn keeps_own_sums(self) -> bool {
        self.row().keeps_own_sums
    }

    /// Whether each rank updates a part of the parameters.
    #[must_use]
    pub const fn is_sharded(self) -> bool {
        matches!(self.owner(), Owner::Slice)
    }

    /// Whether ranks get the parameters that other ranks have updated.
    pub(crate) const fn has_parts(self) -> bool {
        !matches!(self.owner(), Owner::All)
    }

    /// The elements of a bucket that a rank updates, once the exchange is over.
    pub(crate) fn owned(self, rank: usize, size: usize, len: usize) -> Range<usize> {
        match self.owner() {
            Owner::Root if rank > 0 => 0..0,
            Owner::All | Owner::Root => 0..len,
            Owner::Slice => len / size * rank..len / size * (rank + 1),
        }
    }

    /// The elements of a bucket whose moments a rank keeps a copy of, in case their owner is lost:
    /// those of the rank before it.
    pub(crate) fn copied(self, rank: usize, size: usize, len: usize) -> Range<usize> {
        if !self.has_parts() || size == 1 {
            return 0..0;
        }
        self.owned((rank + size - 1) % size, size, len)
    }

    /// The ranks whose copies a rank adds up by hand.
    pub(crate) fn children(self, rank: usize, size: usize) -> Vec<usize> {
        match self.reduction() {
            Reduction::Tree => {
                let levels = if rank == 0 { usize::BITS } else { rank.trailing_zeros() };
                let child = |level| rank.saturating_add(1_usize << level);
                (0..levels).map(child).filter(|child| *child < size).collect()
            }
            Reduction::Star if rank == 0 => (1..size).collect(),
            _ => Vec::new(),
        }
    }

    /// The rank that adds up this one's copy by hand.
    pub(crate) const fn parent(self, rank: usize) -> Option<usize> {
        match self.reduction() {
            // The parent's number has one bit less.
            Reduction::Tree if rank > 0 => Some(rank & (rank - 1)),
            Reduction::Star if rank > 0 => Some(0),
            _ => None,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
