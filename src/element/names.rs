//! The names of types and reductions: printing and parsing.

use core::fmt;
use core::str::FromStr;

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
        name: name.into(),
        known: all.iter().map(|&x| name_of(x)).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for DataType {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("data type", &Self::ALL, Self::name, name)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("reduction", &Self::ALL, Self::name, name)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
