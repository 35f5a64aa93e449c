//! Integer instructions. Law: results wrap, as the hardware's do; a division by zero is all ones.

use super::arith::{F2, Function, Type};

/// Instructions of a type, by the name without it. `$t` is the type, `$u` its unsigned form, `$w`
/// twice as wide, `$uw` that unsigned.
macro_rules! integers {
    ($($of:ident $compare:ident $t:ident $u:ident $w:ident $uw:ident;)*) => {$(
        fn $of(name: &str) -> Option<Function> {
            use Function::{One, Three, Two};
            Some(match name {
                "abs" if <$t>::MIN != 0 => One(|a| (a as $t as i64).unsigned_abs() as $u as u64),
                "neg" => One(|a| (a as $t).wrapping_neg() as $u as u64),
                "mov" => One(|a| a as $u as u64),
                "add" => Two(|a, b| (a as $t).wrapping_add(b as $t) as $u as u64),
                "sub" => Two(|a, b| (a as $t).wrapping_sub(b as $t) as $u as u64),
                "mul.lo" => Two(|a, b| (a as $t).wrapping_mul(b as $t) as $u as u64),
                "mul.wide" => Two(|a, b| (a as $t as $w * b as $t as $w) as $uw as u64),
                "div" => Two(|a, b| match b as $t {
                    0 => $u::MAX as u64,
                    b => (a as $t).wrapping_div(b) as $u as u64,
                }),
                "rem" => Two(|a, b| match b as $t {
                    0 => a as $u as u64,
                    b => (a as $t).wrapping_rem(b) as $u as u64,
                }),
                "min" => Two(|a, b| (a as $t).min(b as $t) as $u as u64),
                "max" => Two(|a, b| (a as $t).max(b as $t) as $u as u64),
                "and" => Two(|a, b| (a & b) as $u as u64),
                "or" => Two(|a, b| (a | b) as $u as u64),
                "xor" => Two(|a, b| (a ^ b) as $u as u64),
                // A shift by more than all bits is one by all bits.
                "shl" => Two(|a, b| match b as u32 {
                    b if b < $u::BITS => ((a as $u) << b) as u64,
                    _ => 0,
                }),
                "shr" => Two(|a, b| {
                    let (b, top) = ((b as u32).min($u::BITS), $u::BITS - 1);
                    let half = (b / 2).min(top);
                    ((a as $t >> half) >> (b - half).min(top)) as $u as u64
                }),
                "mad.lo" => Three(|a, b, c| {
                    (a as $t).wrapping_mul(b as $t).wrapping_add(c as $t) as $u as u64
                }),
                "selp" => Three(|a, b, p| if p & 1 == 1 { a as $u as u64 } else { b as $u as u64 }),
                // Of signed types, bits beyond the number would be its sign.
                "bfe" if <$t>::MIN == 0 => Three(|a, at, length| {
                    let (at, length) = (at as u32 & 255, length as u32 & 255);
                    let bits = (a as $u).checked_shr(at).unwrap_or(0);
                    let mask = $u::MAX.checked_shr($u::BITS.saturating_sub(length)).unwrap_or(0);
                    (bits & mask) as u64
                }),
                _ => return None,
            })
        }

        fn $compare(op: &str) -> Option<F2> {
            Some(match op {
                "eq" => |a, b| u64::from(a as $t == b as $t),
                "ne" => |a, b| u64::from(a as $t != b as $t),
                "lt" => |a, b| u64::from((a as $t) < b as $t),
                "le" => |a, b| u64::from(a as $t <= b as $t),
                "gt" => |a, b| u64::from(a as $t > b as $t),
                "ge" => |a, b| u64::from(a as $t >= b as $t),
                _ => return None,
            })
        }
    )*};
}

integers! {
    of_u16 compare_u16 u16 u16 u32 u32;
    of_u32 compare_u32 u32 u32 u64 u64;
    of_u64 compare_u64 u64 u64 u128 u128;
    of_i16 compare_i16 i16 u16 i32 u32;
    of_i32 compare_i32 i32 u32 i64 u64;
    of_i64 compare_i64 i64 u64 i128 u128;
}

macro_rules! by_type {
    ($ty:ident, $argument:ident, $($name:ident $of:ident)*) => {
        match $ty {
            $(Type::$name => $of($argument),)*
            _ => None,
        }
    };
}

pub(super) fn function(name: &str, ty: Type) -> Option<Function> {
    by_type!(ty, name, U16 of_u16 U32 of_u32 U64 of_u64 S16 of_i16 S32 of_i32 S64 of_i64)
}

pub(super) fn compare(op: &str, ty: Type) -> Option<F2> {
    by_type!(ty, op, U16 compare_u16 U32 compare_u32 U64 compare_u64
        S16 compare_i16 S32 compare_i32 S64 compare_i64)
}
