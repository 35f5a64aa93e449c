//! Tests of blocks with a scale: rounding, bounds, extremes, and reductions on each level.

use super::*;
use crate::element::{DataType, Order, ReduceOp, Reduction};
use crate::kernel::{FoldStep, Kernel, Level};
use crate::memory::{Dst, Src};

/// The bound of the error in a block, as a share of its largest magnitude.
const SHARES: [(BlockFormat, f64); 2] =
    [(BlockFormat::Int8, 1.0001 / 254.0), (BlockFormat::F8E4M3, 1.0 / 16.0)];

fn narrowed(level: Level, format: BlockFormat, from: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; from.len() / LEN * BYTES];
    // SAFETY: callers name available levels.
    unsafe { (level.conversions(format).narrow)(from, &mut blocks) };
    blocks
}

fn widened(format: BlockFormat, blocks: &[u8]) -> Vec<f32> {
    let mut wide = vec![0.0; blocks.len() / BYTES * LEN];
    // SAFETY: the CPU has the best of its levels.
    unsafe { (Level::best().conversions(format).widen)(blocks, &mut wide) };
    wide
}

/// The block of these numbers, and zeros, as it comes back.
fn rounded(format: BlockFormat, numbers: &[f32]) -> Vec<f32> {
    let mut block = [0.0; LEN];
    block[..numbers.len()].copy_from_slice(numbers);
    widened(format, &narrowed(Level::best(), format, &block))[..numbers.len()].to_vec()
}

/// Random numbers: a block of one magnitude, of many magnitudes, or of any bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn block(&mut self) -> [f32; LEN] {
        let (kind, power) = (self.next() % 4, self.next() % 254);
        std::array::from_fn(|_| {
            let word = self.next();
            let bits = (word >> 32) as u32;
            let exponent = match kind {
                0 => power as u32,
                1 => (power as u32).saturating_sub(word as u32 % 12),
                2 => bits >> 23 & 0xff,
                _ => word as u32 % 3,
            };
            f32::from_bits(bits & 0x807f_ffff | exponent << 23)
        })
    }
}

#[test]
fn a_block_has_the_bytes_that_its_format_says() {
    assert_eq!(size_of::<Scaled<Int8>>(), 36);
    let mut block = [0.0; LEN];
    (block[0], block[1], block[2]) = (127.0, -1.0, 0.5);
    let bytes = narrowed(Level::best(), BlockFormat::Int8, &block);
    assert_eq!(bytes[..4], 1.0_f32.to_ne_bytes());
    assert_eq!(bytes[4..8], [127, 0xff, 0, 0], "one half is rounded to even");
    block[2] = 1.5;
    assert_eq!(narrowed(Level::best(), BlockFormat::Int8, &block)[6], 2);
}

#[test]
fn rounding_again_changes_no_bit_and_all_levels_agree() {
    let mut random = Random(7);
    for format in BlockFormat::ALL {
        for _ in 0..20_000 {
            let block = random.block();
            let bytes = narrowed(Level::Scalar, format, &block);
            for level in Level::available() {
                assert_eq!(narrowed(level, format, &block), bytes, "{level:?} {block:?}");
            }
            let again = narrowed(Level::best(), format, &widened(format, &bytes));
            assert_eq!(again, bytes, "{format:?} {block:?}");
        }
    }
}

#[test]
fn errors_are_within_the_share_of_the_largest_number() {
    let mut random = Random(9);
    for (format, share) in SHARES {
        let most = most(format);
        let mut worst = 0.0_f64;
        for _ in 0..20_000 {
            let block = random.block();
            let finite = || block.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x).abs());
            let largest = finite().fold(0.0, f64::max);
            if largest > most {
                continue;
            }
            let bound = largest * share + 2_f64.powi(-127);
            for (x, got) in block.iter().zip(rounded(format, &block)) {
                let off = (f64::from(*x) - f64::from(got)).abs();
                assert!(!x.is_finite() || off <= bound, "{format:?}: {got} for {x} in {block:?}");
                if x.is_finite() && largest > 1e-30 {
                    worst = worst.max(off / largest);
                }
            }
        }
        assert!(worst > 0.9 * share, "{format:?}: a bound of {worst} would do");
    }
}

/// The largest magnitude that is rounded within the bound.
fn most(format: BlockFormat) -> f64 {
    match format {
        BlockFormat::Int8 => f64::from(f32::MAX) * (1.0 - 2_f64.powi(-16)),
        BlockFormat::F8E4M3 => 1.75 * 2_f64.powi(127),
    }
}

#[test]
fn zeros_and_the_largest_numbers_stay_and_subnormal_ones_are_rounded() {
    for format in BlockFormat::ALL {
        assert_eq!(rounded(format, &[0.0; LEN]), [0.0; LEN]);
        let large = rounded(format, &[f32::MAX, f32::MIN, 1.0]);
        assert!(large.iter().all(|x| x.is_finite()) && large[0] == -large[1], "{large:?}");
        let small = rounded(format, &[f32::from_bits(1), f32::MIN_POSITIVE, -3e-38]);
        let units = if format == BlockFormat::Int8 { -3.0 } else { -2.5 };
        assert_eq!(small[..2], [0.0, f32::MIN_POSITIVE]);
        assert!((small[2] / f32::MIN_POSITIVE - units).abs() < 0.51, "{small:?}");
    }
    let powers = rounded(BlockFormat::F8E4M3, &[1.0, 0.5, -0.25, 448.0]);
    assert_eq!(powers, [1.0, 0.5, -0.25, 448.0]);
}

#[test]
fn numbers_that_are_not_finite_become_nan_alone() {
    for format in BlockFormat::ALL {
        for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
            let got = rounded(format, &[1.0, odd, -1.0]);
            assert!(got[1].is_nan(), "{format:?}: {got:?}");
            assert!((got[0] - 1.0).abs() < 1e-6 && got[2] == -got[0], "{got:?}");
            assert!(rounded(format, &[odd; LEN]).iter().all(|x| x.is_nan()));
        }
    }
}

/// A sum of two blocks and a fold of three have the bits of the same in f32, rounded once; a sum
/// that overflows is NaN.
#[test]
fn reductions_are_made_in_f32_and_rounded_once() {
    let mut random = Random(11);
    for format in BlockFormat::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max] {
            let by = Reduction::of_blocks(format, op);
            let blocks: Vec<Vec<f32>> =
                (0..3).map(|_| (0..7).flat_map(|_| random.block()).collect::<Vec<_>>()).collect();
            let bytes: Vec<_> =
                blocks.iter().map(|it| narrowed(Level::Scalar, format, it)).collect();
            let wide: Vec<_> = bytes.iter().map(|it| widened(format, it)).collect();
            let of = |count: usize, i: usize| {
                let all = wide[..count].iter().map(|it| it[i]);
                match op {
                    ReduceOp::Sum => all.reduce(|a, b| a + b).unwrap(),
                    ReduceOp::Avg => all.reduce(|a, b| a + b).unwrap() / 3.0,
                    _ if all.clone().any(f32::is_nan) => f32::NAN,
                    ReduceOp::Min => all.fold(f32::INFINITY, f32::min),
                    _ => all.fold(f32::NEG_INFINITY, f32::max),
                }
            };
            let want = |count| {
                let all: Vec<_> = (0..wide[0].len()).map(|i| of(count, i)).collect();
                widened(format, &narrowed(Level::Scalar, format, &all))
            };
            let same = |got: &[u8], want: &[f32]| {
                let pairs = widened(format, got).into_iter().zip(want.to_vec());
                pairs.into_iter().all(|(a, b)| a == b || a.is_nan() && b.is_nan())
            };
            for level in Level::available() {
                let kernel = Kernel::select_for(level, DataType::F32, by, 3).unwrap();
                let mut out = bytes[0].clone();
                let step = FoldStep { is_last: true, order: Order::default(), is_own: true };
                let [local, incoming] = [0, 1].map(|i: usize| Src::from(&*bytes[i]));
                kernel.reduce(step, Dst::from(&mut *out), None, local, incoming);
                assert!(same(&out, &want(2)), "{level:?} {format:?} {op}");
                let sources: Vec<_> = bytes.iter().map(|it| Src::from(&**it)).collect();
                kernel.fold(true, &mut [Dst::from(&mut *out)], &sources);
                assert!(same(&out, &want(3)), "{level:?} {format:?} {op}");
            }
        }
    }
    assert!(Kernel::for_blocks(BlockFormat::Int8, ReduceOp::Prod, 2).is_none());
}
