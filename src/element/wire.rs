//! The forms in which `f32` travels between ranks: as a float type, or as blocks of numbers that
//! share a scale.

use super::{DataType, Reduction, ReductionKind, named};

/// The form of a block: 32 numbers as one byte each, and an `f32` that scales them.
///
/// A block of this length has 28 % of the bytes of its numbers. Longer blocks save little more, and
/// lose more: the largest number of a block decides the error of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum BlockFormat {
    /// Integers from -127 to 127. The scale is a 127th of the largest magnitude of the block.
    Int8,
    /// Numbers of [`F8E4M3`](super::F8E4M3). The scale is a power of two.
    F8E4M3,
}

impl BlockFormat {
    /// All formats, in the order of their discriminants.
    pub const ALL: [Self; 2] = [Self::Int8, Self::F8E4M3];
    /// Numbers of a block.
    pub const LEN: usize = 32;
    /// Bytes of a block.
    pub const BYTES: usize = size_of::<f32>() + Self::LEN;

    /// The name of the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8-block",
            Self::F8E4M3 => "f8e4m3-block",
        }
    }
}

/// The form in which `f32` travels in reductions; a [`DataType`] converts into it.
///
/// ```
/// use ringreduce::{DataType, Wire};
/// assert_eq!("int8-block".parse(), Ok(Wire::INT8_BLOCK));
/// assert_eq!(Wire::from(DataType::BF16).to_string(), "bfloat16");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// Numbers of this type.
    Type(DataType),
    /// Blocks of numbers that share a scale.
    Blocks(BlockFormat),
}

impl From<DataType> for Wire {
    fn from(dtype: DataType) -> Self {
        Self::Type(dtype)
    }
}

impl Wire {
    /// Blocks of 8-bit integers: see [`BlockFormat::Int8`].
    pub const INT8_BLOCK: Self = Self::Blocks(BlockFormat::Int8);
    /// Blocks of 8-bit floats: see [`BlockFormat::F8E4M3`].
    pub const F8E4M3_BLOCK: Self = Self::Blocks(BlockFormat::F8E4M3);
    /// All forms that `f32` may travel in; the first is `f32` itself.
    pub const ALL: [Self; 7] = [
        Self::Type(DataType::F32),
        Self::Type(DataType::F16),
        Self::Type(DataType::BF16),
        Self::Type(DataType::F8E4M3),
        Self::Type(DataType::F8E5M2),
        Self::INT8_BLOCK,
        Self::F8E4M3_BLOCK,
    ];

    /// The name of the form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Type(dtype) => dtype.name(),
            Self::Blocks(format) => format.name(),
        }
    }

    /// True if each reduction in this form rounds its result.
    #[must_use]
    pub const fn is_narrow(self) -> bool {
        match self {
            Self::Type(dtype) => dtype.is_narrow_float(),
            Self::Blocks(_) => true,
        }
    }

    /// The narrow forms, as text for an error.
    #[cfg_attr(not(feature = "host"), expect(dead_code, reason = "settings are of the host"))]
    pub(crate) fn narrow_names() -> String {
        let narrow = Self::ALL.into_iter().filter(|wire| wire.is_narrow());
        narrow.map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// The form in which the elements of a request with this type and reduction travel.
    pub(crate) fn of(dtype: DataType, op: Option<Reduction>) -> Self {
        match op.map(Reduction::kind) {
            Some(ReductionKind::Blocks(format, _)) => Self::Blocks(format),
            _ => Self::Type(dtype),
        }
    }

    /// A number from 1 to 31 that identifies the form.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Type(dtype) => dtype as u64 + 1,
            Self::Blocks(format) => (DataType::ALL.len() + 1) as u64 + format as u64,
        }
    }

    /// The form with this number.
    pub(crate) fn by_number(number: u64) -> Option<Self> {
        let types = DataType::ALL.into_iter().map(Self::Type);
        let mut all = types.chain(BlockFormat::ALL.into_iter().map(Self::Blocks));
        all.find(|wire| wire.number() == number)
    }

    /// Elements of a buffer that travel as one: those of a block, or 1.
    pub(crate) const fn elements(self) -> usize {
        match self {
            Self::Type(_) => 1,
            Self::Blocks(_) => BlockFormat::LEN,
        }
    }

    /// Bytes of as many elements.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Type(dtype) => dtype.size(),
            Self::Blocks(_) => BlockFormat::BYTES,
        }
    }
}

named!(Wire: "form on the wire");
