//! Reductions: the plain operations, those with a scalar and those by the user's function, and the
//! one table that says which is defined for which type.

use core::fmt;

use super::{BlockFormat, Class, DataType, Element};

/// Which operand of a reduction is the left one. It matters for operations that do not commute, and
/// where ranks must compute the same expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Left: the incoming operand (in a local step, the one at `src`). Right: the local one.
    #[default]
    IncomingFirst,
    /// Left: the local operand (in a local step, the one at `dst`). Right: the incoming one.
    LocalFirst,
}

impl Order {
    /// The opposite order.
    #[must_use]
    pub const fn turned(self) -> Self {
        match self {
            Self::IncomingFirst => Self::LocalFirst,
            Self::LocalFirst => Self::IncomingFirst,
        }
    }
}

macro_rules! reduce_ops {
    ($($(#[$doc:meta])* $op:ident, $name:literal;)*) => {
        /// A reduction that needs no further parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum ReduceOp {
            $($(#[$doc])* $op,)*
        }

        impl ReduceOp {
            /// All operations, in the order of their discriminants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$op),*];

            /// The name of the operation, by nccl-tests where it has the operation, or else by MPI.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)*
                }
            }
        }
    };
}

reduce_ops! {
    /// a + b; integers wrap.
    Sum, "sum";
    /// a * b; integers wrap.
    Prod, "prod";
    /// The smaller one; NaN if either is NaN.
    Min, "min";
    /// The larger one; NaN if either is NaN.
    Max, "max";
    /// The sum divided by the number of ranks of the communicator. For integers the sum wraps and
    /// the quotient is truncated towards zero.
    Avg, "avg";
    /// Bitwise AND; integers only.
    BitAnd, "band";
    /// Bitwise OR; integers only.
    BitOr, "bor";
    /// Bitwise exclusive OR; integers only.
    BitXor, "bxor";
    /// 1 if both are non-zero, else 0.
    LogicalAnd, "land";
    /// 1 if either is non-zero, else 0.
    LogicalOr, "lor";
    /// 1 if exactly one is non-zero, else 0.
    LogicalXor, "lxor";
    /// The smaller value with its index; of equal values the lower index.
    MinLoc, "minloc";
    /// The larger value with its index; of equal values the lower index.
    MaxLoc, "maxloc";
}

impl ReduceOp {
    /// True if the operation is defined for the type: for integers all but minloc and maxloc; for
    /// floats no bitwise operations either; for complex numbers sum, prod and avg; for values with
    /// an index minloc and maxloc.
    #[must_use]
    pub const fn is_defined_for(self, dtype: DataType) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Avg => !matches!(dtype.class(), Class::Loc),
            Self::Min | Self::Max | Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor => {
                matches!(dtype.class(), Class::Integer | Class::Float)
            }
            Self::BitAnd | Self::BitOr | Self::BitXor => matches!(dtype.class(), Class::Integer),
            Self::MinLoc | Self::MaxLoc => matches!(dtype.class(), Class::Loc),
        }
    }
}

/// Bytes of the largest element that a user's function may reduce.
pub const LARGEST: usize = 4096;

/// The reduction of a collective: a plain [`ReduceOp`], or one with parameters.
///
/// ```
/// use ringreduce::{ReduceOp, Reduction};
/// let plain: Reduction = ReduceOp::Sum.into();
/// let scaled = Reduction::premul_sum(0.25_f32);
/// assert_ne!(plain, scaled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction(ReductionKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionKind {
    Plain(ReduceOp),
    /// `premul_sum` with a scalar of this type and these bytes.
    PreMulSum(DataType, [u8; 16]),
    /// The operation on `f32` that travel in blocks. The engine alone makes such calls.
    Blocks(BlockFormat, ReduceOp),
    /// A user's function: its digest, and bytes of one element.
    User(u64, usize),
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self(ReductionKind::Plain(op))
    }
}

impl Reduction {
    /// The sum of all ranks' contributions, each multiplied by `scalar`, which must be equal on all
    /// ranks and have the type of the buffer.
    #[must_use]
    pub fn premul_sum<T: Element>(scalar: T) -> Self {
        let mut bytes = [0; 16];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&scalar));
        Self(ReductionKind::PreMulSum(T::DTYPE, bytes))
    }

    /// As [`Self::premul_sum`], with the type known at run time; `None` if `scalar` is not one
    /// element.
    #[must_use]
    pub fn premul_sum_bytes(scalar: &[u8], dtype: DataType) -> Option<Self> {
        let mut bytes = [0; 16];
        bytes.get_mut(..dtype.size())?.copy_from_slice(scalar.get(..dtype.size())?);
        (scalar.len() == dtype.size()).then_some(Self(ReductionKind::PreMulSum(dtype, bytes)))
    }

    /// The reduction by a user's function over elements of `size` bytes.
    #[cfg_attr(not(feature = "host"), expect(dead_code, reason = "verbs are of the host"))]
    pub(crate) const fn user(digest: u64, size: usize) -> Self {
        Self(ReductionKind::User(digest, size))
    }

    /// The reduction of blocks of this format.
    #[cfg_attr(not(feature = "host"), expect(dead_code, reason = "the engine is of the host"))]
    pub(crate) const fn of_blocks(format: BlockFormat, op: ReduceOp) -> Self {
        Self(ReductionKind::Blocks(format, op))
    }

    pub(crate) const fn kind(self) -> ReductionKind {
        self.0
    }

    /// True if the reduction is defined for the type.
    #[must_use]
    pub fn is_defined_for(self, dtype: DataType) -> bool {
        match self.0 {
            ReductionKind::Plain(op) => op.is_defined_for(dtype),
            ReductionKind::PreMulSum(of, _) => of == dtype && ReduceOp::Sum.is_defined_for(dtype),
            ReductionKind::Blocks(_, op) => dtype == DataType::F32 && op.is_defined_for(dtype),
            ReductionKind::User(..) => true,
        }
    }

    /// The reductions that are defined for `dtype`, as text for an error.
    #[must_use]
    pub fn defined_for(dtype: DataType) -> String {
        let plain = ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype));
        let mut names: Vec<&str> = plain.map(ReduceOp::name).collect();
        if ReduceOp::Sum.is_defined_for(dtype) {
            names.push("premul_sum by a scalar of this type");
        }
        names.join(", ")
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ReductionKind::Plain(op) => op.fmt(f),
            ReductionKind::PreMulSum(of, _) => write!(f, "premul_sum by a {of}"),
            ReductionKind::Blocks(format, op) => write!(f, "{op} of {}", format.name()),
            ReductionKind::User(..) => f.pad("a function of the user's"),
        }
    }
}
