//! `cvt`: conversions between types. Law: integers from floats saturate, and from a NaN are as the
//! PTX manual says; a NaN result of 16 bits is 0x7fff, and one of 32 bits is 0x7fffffff.

use half::f16;

use super::arith::{F1, Type};
use super::float::{bits_of_f32, f32_of, f64_of};

/// By the words after `cvt.`: rounding, `sat`, the type of the result, the type of the operand.
pub(super) fn function(words: &str) -> Option<F1> {
    let (rest, from) = words.rsplit_once('.')?;
    let (modifiers, to) = rest.rsplit_once('.').unwrap_or(("", rest));
    let (to, from) = (Type::by_name(to)?, Type::by_name(from)?);
    match (is_float(to), is_float(from)) {
        (false, false) => integers(modifiers, to, from),
        (true, true) => floats(modifiers, to, from),
        (true, false) if modifiers == "rn" => float_of_integer(to, from),
        (false, true) => integer_of_float(modifiers, to, from),
        _ => None,
    }
}

fn is_float(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::F32 | Type::F64)
}

fn half_of(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits() })
}

fn floats(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    use Type::{F16, F32, F64};
    Some(match (modifiers, to, from) {
        ("", F32, F16) => |a| bits_of_f32(f16::from_bits(a as u16).to_f32()),
        ("rn", F16, F32) => |a| half_of(f32_of(a)),
        ("rz", F32, F64) => |a| bits_of_f32(toward_zero(f64_of(a))),
        _ => return None,
    })
}

fn toward_zero(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near).abs() > value.abs() { f32::from_bits(near.to_bits() - 1) } else { near }
}

macro_rules! by_integer {
    ($ty:expr, $macro:ident) => {
        match $ty {
            Type::U8 => $macro!(u8),
            Type::U16 => $macro!(u16),
            Type::U32 => $macro!(u32),
            Type::U64 => $macro!(u64),
            Type::S8 => $macro!(i8),
            Type::S16 => $macro!(i16),
            Type::S32 => $macro!(i32),
            Type::S64 => $macro!(i64),
            _ => return None,
        }
    };
}

fn float_of_integer(to: Type, from: Type) -> Option<F1> {
    macro_rules! single {
        ($t:ident) => {
            |a| u64::from((a as $t as f32).to_bits())
        };
    }
    macro_rules! double {
        ($t:ident) => {
            |a| (a as $t as f64).to_bits()
        };
    }
    Some(match to {
        Type::F32 => by_integer!(from, single),
        Type::F64 => by_integer!(from, double),
        _ => return None,
    })
}

fn integer_of_float(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    macro_rules! rounded {
        ($round:expr) => {{
            macro_rules! of_single {
                ($t:ident) => {
                    |a| saturate!($round(f64::from(f32_of(a))), $t, false)
                };
            }
            macro_rules! of_double {
                ($t:ident) => {
                    |a| saturate!($round(f64_of(a)), $t, true)
                };
            }
            Some(match from {
                Type::F32 => by_integer!(to, of_single),
                Type::F64 => by_integer!(to, of_double),
                _ => return None,
            })
        }};
    }
    macro_rules! saturate {
        ($value:expr, $t:ident, $double:literal) => {{
            let value: f64 = $value;
            if value.is_nan() && ($double || $t::BITS == 64) {
                1 << ($t::BITS - 1)
            } else {
                value as $t as u64
            }
        }};
    }
    match modifiers {
        "rni" => rounded!(f64::round_ties_even),
        "rzi" => rounded!(f64::trunc),
        _ => None,
    }
}

fn integers(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    macro_rules! by_operand {
        ($t:ident) => {
            match to {
                Type::U8 => convert!($t, u8),
                Type::U16 => convert!($t, u16),
                Type::U32 => convert!($t, u32),
                Type::U64 => convert!($t, u64),
                Type::S8 => convert!($t, i8),
                Type::S16 => convert!($t, i16),
                Type::S32 => convert!($t, i32),
                Type::S64 => convert!($t, i64),
                _ => return None,
            }
        };
    }
    macro_rules! convert {
        ($from:ident, $to:ident) => {
            match modifiers {
                "" => |a| a as $from as $to as u64,
                "sat" => {
                    |a| i128::from(a as $from).clamp($to::MIN.into(), $to::MAX.into()) as $to as u64
                }
                _ => return None,
            }
        };
    }
    Some(by_integer!(from, by_operand))
}

#[cfg(test)]
mod tests {
    use super::function;

    fn run(name: &str, bits: u64) -> u64 {
        function(name).expect(name)(bits)
    }

    #[test]
    fn integers_and_floats() {
        assert_eq!(run("s64.s32", 0xffff_fffe), -2_i64 as u64);
        assert_eq!(run("u64.u32", 0xffff_ffff_ffff_fffe), 0xffff_fffe);
        assert_eq!(run("rzi.s32.f32", u64::from((-1.9_f32).to_bits())) as u32 as i32, -1);
        assert_eq!(run("rni.s32.f32", u64::from(2.5_f32.to_bits())), 2);
        assert_eq!(run("rzi.u32.f32", u64::from(f32::NAN.to_bits())), 0);
        assert_eq!(run("rzi.s64.f64", f64::NAN.to_bits()), 1 << 63);
        assert_eq!(run("sat.u8.s32", 300), 255);
        assert_eq!(run("sat.u8.s32", u64::from(u32::MAX)), 0);
        assert_eq!(run("rn.f16.f32", u64::from(65520.0_f32.to_bits())), 0x7c00);
        assert_eq!(run("rn.f16.f32", u64::from(f32::NAN.to_bits())), 0x7fff);
        assert_eq!(
            run("rn.f32.u64", u64::MAX),
            u64::from(18_446_744_073_709_551_615_f32.to_bits())
        );
        assert!(function("rm.f32.f64").is_none());
    }

    #[test]
    fn cut_toward_zero() {
        let tie = 1.0 + f64::from(f32::EPSILON) * 0.75;
        assert_eq!(run("rz.f32.f64", tie.to_bits()), u64::from(1.0_f32.to_bits()));
        let most = f64::MAX;
        assert_eq!(run("rz.f32.f64", most.to_bits()), u64::from(f32::MAX.to_bits()));
    }
}
