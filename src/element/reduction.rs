//! How elements combine: the plain operations, those with a scalar and those of the user, and the
//! one table of what is defined for which type. May touch: nothing.

use core::fmt;

use super::{Class, DataType, Element};

/// Which operand of a reduction is the left one. It matters to operations that do not commute, and
/// to ranks that compute the same expression side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// What came in (of a local step: what is at `src`), then mine.
    #[default]
    IncomingFirst,
    /// Mine (of a local step: what is at `dst`), then what came in.
    LocalFirst,
}

impl Order {
    /// The other one.
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
        /// How two elements combine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum ReduceOp {
            $($(#[$doc])* $op,)*
        }

        impl ReduceOp {
            /// Every operation.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$op),*];

            /// Its name: what nccl-tests prints and takes where it has the operation, else as MPI
            /// calls it.
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
    /// The smaller; a NaN on either side gives NaN.
    Min, "min";
    /// The larger; a NaN on either side gives NaN.
    Max, "max";
    /// The sum divided by the world size; integers wrap in the sum, then truncate towards zero.
    Avg, "avg";
    /// Bits set in both; integers only.
    BitAnd, "band";
    /// Bits set in either; integers only.
    BitOr, "bor";
    /// Bits set in one of both; integers only.
    BitXor, "bxor";
    /// 1 if both are other than zero, else 0.
    LogicalAnd, "land";
    /// 1 if either is other than zero, else 0.
    LogicalOr, "lor";
    /// 1 if one of both is other than zero, else 0.
    LogicalXor, "lxor";
    /// The smaller value with its index; of equal ones the lower index.
    MinLoc, "minloc";
    /// The larger value with its index; of equal ones the lower index.
    MaxLoc, "maxloc";
}

impl ReduceOp {
    /// Can elements of this type be combined so? The one table of it: on integers everything but
    /// minloc and maxloc, on floats no bits either, on complex numbers sum, prod and avg, on values
    /// with an index minloc and maxloc.
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

/// Bytes of the largest element that a function of the user's may have.
pub const LARGEST: usize = 4096;

/// What a collective reduces by: a plain [`ReduceOp`], or one that carries a value.
///
/// ```
/// use ringreduce::{ReduceOp, Reduction};
/// let plain: Reduction = ReduceOp::Sum.into();
/// let scaled = Reduction::premul_sum(0.25_f32);
/// assert_ne!(plain, scaled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction(Kind);

/// What a [`Reduction`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain(ReduceOp),
    /// The scalar's type and bytes.
    PreMulSum(DataType, [u8; 16]),
    /// The function's digest, and bytes of one element.
    User(u64, usize),
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self(Kind::Plain(op))
    }
}

impl Reduction {
    /// The sum of every rank's contribution times `scalar`, which may differ between ranks no more
    /// than any other argument. Its type is that of the buffer.
    #[must_use]
    pub fn premul_sum<T: Element>(scalar: T) -> Self {
        let mut bytes = [0; 16];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&scalar));
        Self(Kind::PreMulSum(T::DTYPE, bytes))
    }

    /// A function of the user's, over elements of `size` bytes.
    #[cfg_attr(not(feature = "host"), expect(dead_code, reason = "verbs are of the host"))]
    pub(crate) const fn user(digest: u64, size: usize) -> Self {
        Self(Kind::User(digest, size))
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }

    /// Can elements of this type be reduced so?
    #[must_use]
    pub fn is_defined_for(self, dtype: DataType) -> bool {
        match self.0 {
            Kind::Plain(op) => op.is_defined_for(dtype),
            Kind::PreMulSum(of, _) => of == dtype && ReduceOp::Sum.is_defined_for(dtype),
            Kind::User(..) => true,
        }
    }

    /// What can be done with `dtype`, for the error that says that this can't.
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
            Kind::Plain(op) => op.fmt(f),
            Kind::PreMulSum(of, _) => write!(f, "premul_sum by a {of}"),
            Kind::User(..) => f.pad("a function of the user's"),
        }
    }
}
