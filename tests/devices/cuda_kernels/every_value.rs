//! Every pair of values of the 8-bit types, every value of the 16-bit floats, and conversions.

use harness::share;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Element, F8E4M3, F8E5M2, bf16, f16};

use super::fold::{Case, Layout};
use super::host::{Call, Grid, Host, Machine};

const GRID: Grid = Grid { threads: 32, blocks: 2, rows: 1 };

/// Folds two lists by every reduction that is defined for the type. A share has one of the four
/// numbers of contributions, which come with other random parameters; another one for other types.
fn check_pairs<T: Element>(test: &str, a: &[T], b: &[T]) {
    let Some(mut host) = Host::start(&format!("cuda_kernels::every_value::{test}")) else { return };
    let mut memory: Vec<u8> = bytemuck::cast_slice(a).to_vec();
    let len = memory.len();
    memory.extend_from_slice(bytemuck::cast_slice(b));
    memory.extend(vec![0; len]);
    let (sources, outs, bytes) = (vec![0, len], vec![2 * len], memory.len());
    let layout = Layout { sources, outs, at: [0; 2], stop: None, bytes };
    for seed in (0..4).filter(|seed| share::has(seed + T::DTYPE as u64, 4)) {
        for case in Case::all::<T>(&mut SmallRng::seed_from_u64(seed)) {
            let last = [0, 2, 3, 1000][seed as usize];
            case.check(&mut host, &layout, (a.len(), last, GRID), &memory);
        }
    }
}

/// Every pair of a value of `some` and one of `others`.
fn pairs<T: Copy>(some: &[T], others: &[T]) -> (Vec<T>, Vec<T>) {
    some.iter().flat_map(|&a| others.iter().map(move |&b| (a, b))).unzip()
}

macro_rules! bytes {
    ($($name:ident: $type:ty;)*) => {$(
        #[test]
        fn $name() {
            let all: Vec<u8> = (0..=u8::MAX).collect();
            let all: &[$type] = bytemuck::cast_slice(&all);
            let (a, b) = pairs(all, all);
            check_pairs(stringify!($name), &a, &b);
        }
    )*};
}

bytes! {
    pairs_of_i8: i8;
    pairs_of_u8: u8;
    pairs_of_e4m3: F8E4M3;
    pairs_of_e5m2: F8E5M2;
}

macro_rules! halves {
    ($($name:ident: $half:ident;)*) => {$(
        #[test]
        fn $name() {
            let mut random = SmallRng::seed_from_u64(5);
            let all: Vec<$half> = (0..=u16::MAX).map($half::from_bits).collect();
            let mut others = vec![$half::ZERO, -$half::ZERO, $half::ONE, $half::INFINITY];
            others.extend([$half::NAN, $half::MAX, $half::from_bits(1), $half::MIN_POSITIVE]);
            others.extend((0..4).map(|_| $half::from_bits(random.random())));
            let (a, b) = pairs(&all, &others);
            check_pairs(stringify!($name), &a, &b);
        }
    )*};
}

halves! {
    values_of_f16: f16;
    values_of_bf16: bf16;
}

/// Floats on each side of every tie of every narrow type, and all kinds of special values.
fn floats() -> Vec<f32> {
    const LOWER: [u32; 12] =
        [0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let each = |upper: u32| LOWER.map(|lower| f32::from_bits(upper << 16 | lower));
    (0..=0xffff).flat_map(each).collect()
}

/// Widens every narrow value, and narrows the floats above.
fn check_conversions<T: Element + PartialEq>(
    host: &mut Host,
    name: &str,
    values: &[T],
    widen: fn(T) -> f32,
    narrow: fn(f32) -> T,
    is_nan: fn(T) -> bool,
) {
    let mut convert = |kernel: &str, from: &[u8], count: usize, size: usize| {
        let mut memory = from.to_vec();
        memory.resize(from.len() + count * size, 0);
        let (sources, outs) = (&[0], &[from.len()]);
        let grid = Grid { threads: 1, blocks: 1, rows: 1 };
        let (at, last, scalar, stop) = ([0; 2], 0, None, None);
        let call = Call { kernel, sources, outs, at, count, last, scalar, stop, grid };
        host.call(&call, &mut memory);
        memory.split_off(from.len())
    };
    let wide = convert(&format!("widen_{name}"), bytemuck::cast_slice(values), values.len(), 4);
    for (&value, wide) in values.iter().zip(wide.chunks(4)) {
        let (wide, expected) = (bytemuck::pod_read_unaligned::<f32>(wide), widen(value));
        let same = wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan());
        assert!(same, "{name} {:x?}: {wide:e}", bytemuck::bytes_of(&value));
    }
    let floats = floats();
    let size = size_of::<T>();
    let bytes =
        convert(&format!("narrow_{name}"), bytemuck::cast_slice(&floats), floats.len(), size);
    for (&float, made) in floats.iter().zip(bytes.chunks(size)) {
        let (made, expected): (T, T) = (bytemuck::pod_read_unaligned(made), narrow(float));
        let same = bytemuck::bytes_of(&made) == bytemuck::bytes_of(&expected);
        let (a, b) = (bytemuck::bytes_of(&made), bytemuck::bytes_of(&expected));
        let both_nan = is_nan(made) && is_nan(expected);
        assert!(
            same || both_nan,
            "{name} of {float:e} ({:x}): {a:x?}, not {b:x?}",
            float.to_bits()
        );
    }
}

#[test]
fn conversions() {
    let Some(mut host) = Host::start("cuda_kernels::every_value::conversions") else { return };
    let host = &mut host;
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let words: Vec<u16> = (0..=u16::MAX).collect();
    let (e4m3, e5m2) = (bytemuck::cast_slice(&bytes), bytemuck::cast_slice(&bytes));
    let (f16s, bf16s) = (bytemuck::cast_slice(&words), bytemuck::cast_slice(&words));
    check_conversions(host, "e4m3", e4m3, F8E4M3::to_f32, F8E4M3::from_f32, F8E4M3::is_nan);
    check_conversions(host, "e5m2", e5m2, F8E5M2::to_f32, F8E5M2::from_f32, F8E5M2::is_nan);
    check_conversions(host, "f16", f16s, f16::to_f32, f16::from_f32, f16::is_nan);
    check_conversions(host, "bf16", bf16s, bf16::to_f32, bf16::from_f32, bf16::is_nan);
}
