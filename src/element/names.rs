//! The names of types and reductions: printing and parsing.

use super::{DataType, ReduceOp};

/// The error for a name that is not a [`DataType`], [`ReduceOp`],
/// [`Algorithm`](crate::schedule::Algorithm) or
/// [`Collective`](crate::schedule::Collective).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`: one of {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

/// The value with this name among `all`; `kind` is used in the error.
pub(crate) fn by_name<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|&x| name_of(x) == name).ok_or_else(|| UnknownName {
        kind,
        // Whoever chose the name may not command the terminal that shows the error.
        name: name.escape_debug().to_string(),
        known: all.iter().map(|&x| name_of(x)).collect::<Vec<_>>().join(", "),
    })
}

/// Makes a type print its name, and parse it among all values.
macro_rules! named {
    ($type:ty: $kind:literal) => {
        impl core::str::FromStr for $type {
            type Err = $crate::element::UnknownName;
            fn from_str(name: &str) -> Result<Self, $crate::element::UnknownName> {
                $crate::element::by_name($kind, &Self::ALL, Self::name, name)
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use named;

named!(DataType: "data type");
named!(ReduceOp: "reduction");
