//! `cvt`: from each type to each. Law: integers from floats saturate, and from a NaN are what the
//! PTX manual says; a half NaN is 0x7fff and a single one 0x7fffffff.

use half::f16;

use super::arith::{F1, Type};

/// By the words after `cvt.`: rounding, `sat`, the type to, the type from.
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

fn h(bits: u64) -> f16 {
    f16::from_bits(bits as u16)
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn of_h(value: f16) -> u64 {
    u64::from(if value.is_nan() { 0x7fff } else { value.to_bits() })
}

fn of_f(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

fn floats(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    use Type::{F16, F32, F64};
    Some(match (modifiers, to, from) {
        ("", F32, F16) => |a| of_f(h(a).to_f32()),
        ("", F64, F16) => |a| h(a).to_f64().to_bits(),
        ("", F64, F32) => |a| f64::from(f(a)).to_bits(),
        ("rn", F16, F32) => |a| of_h(f16::from_f32(f(a))),
        ("rn", F16, F64) => |a| of_h(f16::from_f64(d(a))),
        ("rn", F32, F64) => |a| of_f(d(a) as f32),
        ("rz", F32, F64) => |a| of_f(toward_zero(d(a))),
        // To a whole number of the same type.
        ("rni", F32, F32) => |a| of_f(f(a).round_ties_even()),
        ("rzi", F32, F32) => |a| of_f(f(a).trunc()),
        ("rmi", F32, F32) => |a| of_f(f(a).floor()),
        ("rpi", F32, F32) => |a| of_f(f(a).ceil()),
        ("rni", F64, F64) => |a| d(a).round_ties_even().to_bits(),
        ("rzi", F64, F64) => |a| d(a).trunc().to_bits(),
        ("rmi", F64, F64) => |a| d(a).floor().to_bits(),
        ("rpi", F64, F64) => |a| d(a).ceil().to_bits(),
        ("sat", F32, F32) => |a| of_f(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 }),
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
    macro_rules! half {
        // What an f64 does not hold exactly is infinite as a half anyway.
        ($t:ident) => {
            |a| of_h(f16::from_f64(a as $t as f64))
        };
    }
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
        Type::F16 => by_integer!(from, half),
        Type::F32 => by_integer!(from, single),
        Type::F64 => by_integer!(from, double),
        _ => return None,
    })
}

fn integer_of_float(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    macro_rules! rounded {
        ($round:expr) => {{
            macro_rules! of_half {
                ($t:ident) => {
                    |a| whole!($round(h(a).to_f64()), $t, false)
                };
            }
            macro_rules! of_single {
                ($t:ident) => {
                    |a| whole!($round(f64::from(f(a))), $t, false)
                };
            }
            macro_rules! of_double {
                ($t:ident) => {
                    |a| whole!($round(d(a)), $t, true)
                };
            }
            Some(match from {
                Type::F16 => by_integer!(to, of_half),
                Type::F32 => by_integer!(to, of_single),
                _ => by_integer!(to, of_double),
            })
        }};
    }
    macro_rules! whole {
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
        "rmi" => rounded!(f64::floor),
        "rpi" => rounded!(f64::ceil),
        _ => None,
    }
}

fn integers(modifiers: &str, to: Type, from: Type) -> Option<F1> {
    macro_rules! plain {
        ($t:ident) => {
            match to {
                Type::U8 => |a| a as $t as u8 as u64,
                Type::U16 => |a| a as $t as u16 as u64,
                Type::U32 => |a| a as $t as u32 as u64,
                Type::U64 | Type::S64 => |a| a as $t as u64,
                Type::S8 => |a| a as $t as i8 as u64,
                Type::S16 => |a| a as $t as i16 as u64,
                Type::S32 => |a| a as $t as i32 as u64,
                _ => return None,
            }
        };
    }
    macro_rules! saturated {
        ($t:ident) => {
            match to {
                Type::U8 => |a| i128::from(a as $t).clamp(0, 0xff) as u64,
                Type::U16 => |a| i128::from(a as $t).clamp(0, 0xffff) as u64,
                Type::U32 => |a| i128::from(a as $t).clamp(0, u32::MAX.into()) as u64,
                Type::U64 => |a| i128::from(a as $t).clamp(0, u64::MAX.into()) as u64,
                Type::S8 => |a| i128::from(a as $t).clamp(i8::MIN.into(), i8::MAX.into()) as u64,
                Type::S16 => |a| i128::from(a as $t).clamp(i16::MIN.into(), i16::MAX.into()) as u64,
                Type::S32 => |a| i128::from(a as $t).clamp(i32::MIN.into(), i32::MAX.into()) as u64,
                Type::S64 => |a| i128::from(a as $t).clamp(i64::MIN.into(), i64::MAX.into()) as u64,
                _ => return None,
            }
        };
    }
    match modifiers {
        "" => Some(by_integer!(from, plain)),
        "sat" => Some(by_integer!(from, saturated)),
        _ => None,
    }
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
