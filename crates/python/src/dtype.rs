//! Element types as the array protocols name them.

use std::fmt;

use ringreduce::DataType;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) dtype: DataType,
    /// Elements are a byte that is 0 or 1.
    pub(crate) is_bool: bool,
}

impl Elements {
    const BOOL: Self = Self { dtype: DataType::U8, is_bool: true };

    pub(crate) const fn of(dtype: DataType) -> Self {
        Self { dtype, is_bool: false }
    }

    /// A kind and a size, as `__array_interface__` and DLPack have them.
    pub(crate) fn of_kind(kind: char, bytes: usize) -> Option<Self> {
        use DataType::{C64, C128, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        Some(Self::of(match (kind, bytes) {
            ('b', 1) => return Some(Self::BOOL),
            ('i', 1) => I8,
            ('i', 2) => I16,
            ('i', 4) => I32,
            ('i', 8) => I64,
            ('u', 1) => U8,
            ('u', 2) => U16,
            ('u', 4) => U32,
            ('u', 8) => U64,
            ('f', 2) => F16,
            ('f', 4) => F32,
            ('f', 8) => F64,
            ('c', 8) => C64,
            ('c', 16) => C128,
            _ => return None,
        }))
    }

    /// A format of the buffer protocol, as the module `struct` writes it.
    pub(crate) fn of_format(format: &str, bytes: usize) -> Option<Self> {
        let other_order = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '<'] };
        if format.starts_with(other_order) {
            return None;
        }
        let kind = match format.trim_start_matches(['@', '=', '<', '>', '!']) {
            "?" => 'b',
            "b" | "h" | "i" | "l" | "q" | "n" => 'i',
            "B" | "H" | "I" | "L" | "Q" | "N" => 'u',
            "e" | "f" | "d" => 'f',
            "Zf" | "Zd" => 'c',
            _ => return Self::of_record(format),
        };
        Self::of_kind(kind, bytes)
    }

    /// A value and its index: the records of the reductions minloc and maxloc. Names of fields are
    /// between colons.
    fn of_record(format: &str) -> Option<Self> {
        let fields = format.strip_prefix("T{")?.strip_suffix('}')?;
        let types: String = fields.split(':').step_by(2).collect();
        Some(Self::of(match types.replace(['<', '=', '@'], "").as_str() {
            "fI" => DataType::LocF32,
            "dQ" | "dL" => DataType::LocF64,
            "iI" => DataType::LocI32,
            "qQ" | "lL" => DataType::LocI64,
            _ => return None,
        }))
    }

    /// A name of the library, or `bool`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if name == "bool" { Some(Self::BOOL) } else { name.parse().ok().map(Self::of) }
    }

    /// The name of a type that NumPy itself does not have: those of `ml_dtypes`.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(Self::of(match name {
            "bfloat16" => DataType::BF16,
            "float8_e4m3fn" => DataType::F8E4M3,
            "float8_e5m2" => DataType::F8E5M2,
            _ => return None,
        }))
    }

    /// A type code and bits of DLPack.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<Self> {
        let bytes = usize::from(bits) / 8;
        match (code, bits) {
            (0, _) => Self::of_kind('i', bytes),
            (1, _) => Self::of_kind('u', bytes),
            (2, _) => Self::of_kind('f', bytes),
            (5, _) => Self::of_kind('c', bytes),
            (6, 8) => Some(Self::BOOL),
            (4, 16) => Self::of_name("bfloat16"),
            (10, 8) => Self::of_name("float8_e4m3fn"),
            (12, 8) => Self::of_name("float8_e5m2"),
            _ => None,
        }
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_bool { f.write_str("bool") } else { self.dtype.fmt(f) }
    }
}
