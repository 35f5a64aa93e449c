//! Arithmetic instructions as functions of bits, found by name when a module is loaded. Registers
//! hold bits, the lowest first; each function cuts its operands to their type.

use super::{convert, float, int};

pub(crate) type F1 = fn(u64) -> u64;
pub(crate) type F2 = fn(u64, u64) -> u64;
pub(crate) type F3 = fn(u64, u64, u64) -> u64;

/// A function by the number of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    One(F1),
    Two(F2),
    Three(F3),
}

/// The known types of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
    Pred,
}

impl Type {
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "u8" | "b8" => Self::U8,
            "u16" | "b16" => Self::U16,
            "u32" | "b32" => Self::U32,
            "u64" | "b64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::S8 | Self::Pred => 1,
            Self::U16 | Self::S16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Extends a loaded value to 64 bits.
    pub(crate) fn extend(self) -> F1 {
        match self {
            Self::S8 => |a| a as i8 as u64,
            Self::S16 => |a| a as i16 as u64,
            Self::S32 => |a| a as i32 as u64,
            _ => |a| a,
        }
    }
}

/// The function of the instruction `name`, whose types are its last words.
pub(crate) fn function(name: &str) -> Option<Function> {
    if let Some(words) = name.strip_prefix("cvt.") {
        return convert::function(words).map(Function::One);
    }
    let (rest, last) = name.rsplit_once('.')?;
    let ty = Type::by_name(last)?;
    match ty {
        Type::F32 => float::f32(rest),
        Type::F64 => float::f64(rest),
        Type::Pred => predicate(rest),
        _ => int::function(rest, ty),
    }
}

/// Logic of predicates, by the name without `.pred`.
fn predicate(name: &str) -> Option<Function> {
    use Function::{One, Two};
    Some(match name {
        "mov" => One(|a| a & 1),
        "not" => One(|a| !a & 1),
        "and" => Two(|a, b| a & b & 1),
        "or" => Two(|a, b| (a | b) & 1),
        "xor" => Two(|a, b| (a ^ b) & 1),
        _ => return None,
    })
}

/// A comparison `setp.<op>.<type>`.
pub(crate) fn comparison(op: &str, ty: Type) -> Option<F2> {
    match ty {
        Type::Pred => None,
        Type::F32 => float::compare_f32(op),
        Type::F64 => float::compare_f64(op),
        _ => int::compare(op, ty),
    }
}
