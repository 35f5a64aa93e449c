//! Integer instructions. Law: wraps, as the hardware does; a division by zero is all ones.

use super::arith::{F2, Function, Type};

/// Per type: the instructions named without it. `$t` the type, `$u` its unsigned form, `$w` twice
/// as wide, `$uw` that unsigned.
macro_rules! integers {
    ($($of:ident $compare:ident $t:ident $u:ident $w:ident $uw:ident;)*) => {$(
        fn $of(name: &str) -> Option<Function> {
            use Function::{One, Three, Two};
            Some(match name {
                "abs" => One(|a| (a as $t).wrapping_abs() as $u as u64),
                "neg" => One(|a| (a as $t).wrapping_neg() as $u as u64),
                "not" => One(|a| !(a as $u) as u64),
                "cnot" => One(|a| u64::from(a as $u == 0)),
                "mov" => One(|a| a as $u as u64),
                "popc" => One(|a| u64::from((a as $u).count_ones())),
                "clz" => One(|a| u64::from((a as $u).leading_zeros())),
                "brev" => One(|a| (a as $u).reverse_bits() as u64),
                "add" => Two(|a, b| (a as $t).wrapping_add(b as $t) as $u as u64),
                "add.sat" => Two(|a, b| (a as $t).saturating_add(b as $t) as $u as u64),
                "sub" => Two(|a, b| (a as $t).wrapping_sub(b as $t) as $u as u64),
                "sub.sat" => Two(|a, b| (a as $t).saturating_sub(b as $t) as $u as u64),
                "mul.lo" => Two(|a, b| (a as $t).wrapping_mul(b as $t) as $u as u64),
                "mul.hi" => Two(|a, b| high(a as $t as $w * b as $t as $w) as $u as u64),
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
                // What shifts all bits out shifts by no more than all of them.
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
                "mad.hi" => Three(|a, b, c| {
                    (high(a as $t as $w * b as $t as $w) as $t).wrapping_add(c as $t) as $u as u64
                }),
                "mad.wide" => Three(|a, b, c| {
                    (a as $t as $w * b as $t as $w).wrapping_add(c as $w) as $uw as u64
                }),
                "sad" => Three(|a, b, c| {
                    (c as $u).wrapping_add((a as $t).abs_diff(b as $t)) as u64
                }),
                "selp" => Three(|a, b, p| if p & 1 == 1 { a as $u as u64 } else { b as $u as u64 }),
                "bfe" => Three(|a, at, length| {
                    let (at, length) = (at as u32 & 255, length as u32 & 255);
                    let signed = <$t>::MIN != 0;
                    let top = (at.saturating_add(length).wrapping_sub(1)).min($u::BITS - 1);
                    let sign = signed && length > 0 && (a as $u >> top) & 1 == 1;
                    let bits = (a as $u).checked_shr(at).unwrap_or(0);
                    // Beyond the top there is the sign.
                    let have = length.min($u::BITS.saturating_sub(at));
                    let mask = $u::MAX.checked_shr($u::BITS - have).unwrap_or(0);
                    ((bits & mask) | if sign { !mask } else { 0 }) as u64
                }),
                _ => return None,
            })
        }

        fn $compare(op: &str) -> Option<F2> {
            Some(match op {
                "eq" => |a, b| u64::from(a as $t == b as $t),
                "ne" => |a, b| u64::from(a as $t != b as $t),
                "lt" | "lo" => |a, b| u64::from((a as $t) < b as $t),
                "le" | "ls" => |a, b| u64::from(a as $t <= b as $t),
                "gt" | "hi" => |a, b| u64::from(a as $t > b as $t),
                "ge" | "hs" => |a, b| u64::from(a as $t >= b as $t),
                _ => return None,
            })
        }
    )*};
}

/// The upper half of a product.
trait High {
    fn half(self) -> Self;
}

macro_rules! high {
    ($($t:ident)*) => {$(
        impl High for $t {
            fn half(self) -> Self {
                self >> (Self::BITS / 2)
            }
        }
    )*};
}

high! { u16 u32 u64 u128 i16 i32 i64 i128 }

fn high<T: High>(product: T) -> T {
    product.half()
}

/// Unsigned integers want these two as well, to be written like the signed ones.
trait Unsigned {
    fn wrapping_abs(self) -> Self;
}

macro_rules! unsigned {
    ($($t:ident)*) => {$(
        impl Unsigned for $t {
            fn wrapping_abs(self) -> Self {
                self
            }
        }
    )*};
}

unsigned! { u8 u16 u32 u64 }

integers! {
    of_u8 compare_u8 u8 u8 u16 u16;
    of_u16 compare_u16 u16 u16 u32 u32;
    of_u32 compare_u32 u32 u32 u64 u64;
    of_u64 compare_u64 u64 u64 u128 u128;
    of_i8 compare_i8 i8 u8 i16 u16;
    of_i16 compare_i16 i16 u16 i32 u32;
    of_i32 compare_i32 i32 u32 i64 u64;
    of_i64 compare_i64 i64 u64 i128 u128;
}

pub(super) fn function(name: &str, ty: Type) -> Option<Function> {
    match ty {
        Type::U8 => of_u8(name),
        Type::U16 => of_u16(name),
        Type::U32 => of_u32(name),
        Type::U64 => of_u64(name),
        Type::S8 => of_i8(name),
        Type::S16 => of_i16(name),
        Type::S32 => of_i32(name),
        Type::S64 => of_i64(name),
        Type::F16 | Type::F32 | Type::F64 | Type::Pred => None,
    }
}

pub(super) fn compare(op: &str, ty: Type) -> Option<F2> {
    match ty {
        Type::U8 => compare_u8(op),
        Type::U16 => compare_u16(op),
        Type::U32 => compare_u32(op),
        Type::U64 => compare_u64(op),
        Type::S8 => compare_i8(op),
        Type::S16 => compare_i16(op),
        Type::S32 => compare_i32(op),
        Type::S64 => compare_i64(op),
        Type::F16 | Type::F32 | Type::F64 | Type::Pred => None,
    }
}
