//! Every kernel of this CPU equals the scalar one bit for bit, at any length, alignment and
//! layout, and writes nothing else. (`tests/kernel_oracle.rs` holds the scalar one to arithmetic.)
#![allow(missing_docs, clippy::unwrap_used)]

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::kernel::{Kernel, Level, copy};
use ringreduce::memory::{Buffer, Src};
use ringreduce::schedule::Space;
use ringreduce::{DataType, ReduceOp, bf16, f16};

const CANARY: u8 = 0xa5;
const LINE: usize = 64;

/// Bytes at a given offset from a cache line, with canaries around them.
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    fn new(content: &[u8], offset: usize) -> Self {
        Self::amid(CANARY, content, offset)
    }

    /// What is only read lies amid other bytes, or copying too much would not be seen.
    fn only_read(content: &[u8], offset: usize) -> Self {
        Self::amid(!CANARY, content, offset)
    }

    fn amid(around: u8, content: &[u8], offset: usize) -> Self {
        let len = content.len();
        let mut bytes = vec![around; len + 4 * LINE];
        let start = LINE + bytes.as_ptr().align_offset(LINE) + offset;
        bytes[start..start + len].copy_from_slice(content);
        Self { bytes, start, len }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn buffer(&mut self) -> Buffer<'_> {
        Buffer::in_place(&mut self.bytes[self.start..self.start + self.len])
    }

    fn assert_is(&self, expected: &[u8], dtype: DataType, context: &str) {
        for (at, (ours, expected)) in
            self.get().chunks(dtype.size()).zip(expected.chunks(dtype.size())).enumerate()
        {
            let same = ours == expected || (is_nan(ours, dtype) && is_nan(expected, dtype));
            assert!(same, "{context}: element {at} is {ours:x?}, not {expected:x?}");
        }
        let (before, after) = (&self.bytes[..self.start], &self.bytes[self.start + self.len..]);
        let whole = before.iter().chain(after).all(|&byte| byte == CANARY);
        assert!(whole, "{context}: written outside the output");
    }
}

fn is_nan(element: &[u8], dtype: DataType) -> bool {
    match dtype {
        DataType::F16 => bytemuck::pod_read_unaligned::<f16>(element).is_nan(),
        DataType::BF16 => bytemuck::pod_read_unaligned::<bf16>(element).is_nan(),
        DataType::F32 => bytemuck::pod_read_unaligned::<f32>(element).is_nan(),
        DataType::F64 => bytemuck::pod_read_unaligned::<f64>(element).is_nan(),
        _ => false,
    }
}

/// Ordinary values, values that are special for some type, and any bits at all.
fn random_bytes(count: usize, dtype: DataType, random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let ordinary = random.random_range(-1.0..1.0f64);
        let element = match (random.random_range(0..4), dtype) {
            (0, DataType::F16) => u64::from(f16::from_f64(ordinary).to_bits()),
            (0, DataType::BF16) => u64::from(bf16::from_f64(ordinary).to_bits()),
            (0, DataType::F32) => u64::from((ordinary as f32).to_bits()),
            (0, DataType::F64) => ordinary.to_bits(),
            // The upper bits decide: zeros, infinities, quiet NaN, subnormals, integer extremes.
            (1, _) => {
                let bits = 8 * dtype.size();
                let infinity = match dtype {
                    DataType::F16 => 0x7c00,
                    DataType::BF16 => 0x7f80,
                    DataType::F32 => 0x7f80_0000,
                    DataType::F64 => 0x7ff0_0000_0000_0000,
                    _ => (1 << (bits - 1)) - 1,
                };
                let magnitude = [0, 0, 1, 3, infinity, infinity | infinity >> 1 | 1];
                magnitude[random.random_range(0..6)] | random.random_range(0..2) << (bits - 1)
            }
            _ => random.random(),
        };
        bytes.extend_from_slice(&element.to_le_bytes()[..dtype.size()]);
    }
    bytes
}

/// Where the outputs lie.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Apart,
    ApartAlso,
    InPlace,
    InPlaceAlso,
    AlsoIsLocal,
    Past,
    PastAlso,
    PastAlsoIsLocal,
}

const LAYOUTS: [Layout; 8] = [
    Layout::Apart,
    Layout::ApartAlso,
    Layout::InPlace,
    Layout::InPlaceAlso,
    Layout::AlsoIsLocal,
    Layout::Past,
    Layout::PastAlso,
    Layout::PastAlsoIsLocal,
];

struct Case<'a> {
    kernel: Kernel,
    dtype: DataType,
    last: bool,
    local: &'a [u8],
    incoming: &'a [u8],
    expected: &'a [u8],
    context: String,
}

impl Case<'_> {
    fn check(&self, layout: Layout, random: &mut SmallRng) {
        let mut offset = || random.random_range(0..=LINE);
        let len = self.local.len();
        let mut local = Guarded::new(self.local, offset());
        let incoming = Guarded::only_read(self.incoming, offset());
        let mut out = Guarded::new(&vec![0; len], offset());
        let mut also = Guarded::new(&vec![0; len], offset());
        {
            let (local, out, also) = (local.buffer(), out.buffer(), also.buffer());
            let all = 0..len;
            let (to, second) = match layout {
                Layout::Apart => (out.dst(Space::Output, all.clone()), None),
                Layout::ApartAlso => (
                    out.dst(Space::Output, all.clone()),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::InPlace => (local.dst(Space::Output, all.clone()), None),
                Layout::InPlaceAlso => (
                    local.dst(Space::Output, all.clone()),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::AlsoIsLocal => (
                    out.dst(Space::Output, all.clone()),
                    Some(local.dst(Space::Output, all.clone())),
                ),
                Layout::Past => (out.dst(Space::Output, all.clone()).streaming(true), None),
                Layout::PastAlso => (
                    out.dst(Space::Output, all.clone()).streaming(true),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::PastAlsoIsLocal => (
                    out.dst(Space::Output, all.clone()).streaming(true),
                    Some(local.dst(Space::Output, all.clone())),
                ),
            };
            self.kernel.reduce(
                self.last,
                to,
                second,
                local.src(Space::Output, all),
                Src::from(incoming.get()),
            );
        }
        let context = format!("{} {layout:?} last {}, {len} bytes", self.context, self.last);
        let zeros = vec![0; len];
        let (in_out, in_also, in_local) = match layout {
            Layout::Apart | Layout::Past => (self.expected, &zeros[..], self.local),
            Layout::ApartAlso | Layout::PastAlso => (self.expected, self.expected, self.local),
            Layout::InPlace => (&zeros[..], &zeros[..], self.expected),
            Layout::InPlaceAlso => (&zeros[..], self.expected, self.expected),
            Layout::AlsoIsLocal | Layout::PastAlsoIsLocal => {
                (self.expected, &zeros[..], self.expected)
            }
        };
        out.assert_is(in_out, self.dtype, &context);
        also.assert_is(in_also, self.dtype, &context);
        local.assert_is(in_local, self.dtype, &context);
        assert_eq!(incoming.get(), self.incoming, "{context}: incoming was written");
    }
}

fn check_type(dtype: DataType) {
    let mut random = SmallRng::seed_from_u64(dtype as u64);
    let counts: Vec<usize> = (0..=67).chain([95, 127, 128, 129, 255, 257, 1000, 4097]).collect();
    for op in ReduceOp::ALL {
        for &count in &counts {
            let world = [1, 3, 8, 1000, 1 << 31][random.random_range(0..5)];
            let local = random_bytes(count, dtype, &mut random);
            let incoming = random_bytes(count, dtype, &mut random);
            for last in [false, true] {
                let mut expected = vec![0; local.len()];
                Kernel::select_for(Level::Scalar, dtype, op, world).unwrap().reduce(
                    last,
                    Buffer::in_place(&mut expected).dst(Space::Output, 0..local.len()),
                    None,
                    Src::from(&local[..]),
                    Src::from(&incoming[..]),
                );
                for level in Level::available() {
                    let case = Case {
                        kernel: Kernel::select_for(level, dtype, op, world).unwrap(),
                        dtype,
                        last,
                        local: &local,
                        incoming: &incoming,
                        expected: &expected,
                        context: format!("{level:?} {dtype} {op}, world {world}"),
                    };
                    for layout in LAYOUTS {
                        case.check(layout, &mut random);
                    }
                }
            }
        }
    }
}

macro_rules! types {
    ($($name:ident: $dtype:ident;)*) => {$(
        #[test]
        fn $name() {
            check_type(DataType::$dtype);
        }
    )*};
}

types! {
    every_level_equals_scalar_i8: I8;
    every_level_equals_scalar_u8: U8;
    every_level_equals_scalar_i16: I16;
    every_level_equals_scalar_u16: U16;
    every_level_equals_scalar_i32: I32;
    every_level_equals_scalar_u32: U32;
    every_level_equals_scalar_i64: I64;
    every_level_equals_scalar_u64: U64;
    every_level_equals_scalar_f16: F16;
    every_level_equals_scalar_bf16: BF16;
    every_level_equals_scalar_f32: F32;
    every_level_equals_scalar_f64: F64;
}

#[test]
fn the_selected_kernel_is_one_of_the_levels() {
    let levels = Level::available();
    assert_eq!(levels[0], Level::Scalar);
    for level in [Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Neon] {
        let kernel = Kernel::select_for(level, DataType::F32, ReduceOp::Sum, 2);
        assert_eq!(kernel.is_some(), levels.contains(&level));
    }
}

#[test]
fn copies_reach_both_outputs_and_nothing_else() {
    let mut random = SmallRng::seed_from_u64(7);
    for len in (0..=200).chain([4095, 4096, 4097, 10_000]) {
        let content = random_bytes(len, DataType::U8, &mut random);
        let mut offset = || random.random_range(0..=LINE);
        let from = Guarded::only_read(&content, offset());
        let mut out = Guarded::new(&vec![0; len], offset());
        let mut also = Guarded::new(&vec![0; len], offset());
        copy(
            out.buffer().dst(Space::Output, 0..len),
            Some(also.buffer().dst(Space::Output, 0..len)),
            Src::from(from.get()),
        );
        out.assert_is(&content, DataType::U8, "copy");
        also.assert_is(&content, DataType::U8, "copy, also");

        let mut out = Guarded::new(&vec![0; len], offset());
        copy(out.buffer().dst(Space::Output, 0..len), None, Src::from(from.get()));
        out.assert_is(&content, DataType::U8, "copy alone");

        let mut out = Guarded::new(&vec![0; len], offset());
        copy(out.buffer().dst(Space::Output, 0..len).streaming(true), None, Src::from(from.get()));
        out.assert_is(&content, DataType::U8, "streaming copy");

        let mut out = Guarded::new(&vec![0; len], offset());
        let mut also = Guarded::new(&vec![0; len], offset());
        copy(
            out.buffer().dst(Space::Output, 0..len).streaming(true),
            Some(also.buffer().dst(Space::Output, 0..len)),
            Src::from(from.get()),
        );
        out.assert_is(&content, DataType::U8, "streaming copy");
        also.assert_is(&content, DataType::U8, "streaming copy, also");
    }
}

#[test]
fn lengths_that_disagree_are_refused() {
    let refused = |out: usize, also: usize, local: usize, incoming: usize| {
        let (mut to, mut second) = (vec![0; out], vec![0; also]);
        let (local, incoming) = (vec![0; local], vec![0; incoming]);
        std::panic::catch_unwind(move || {
            Kernel::select(DataType::F32, ReduceOp::Sum, 2).reduce(
                false,
                Buffer::in_place(&mut to).dst(Space::Output, 0..out),
                Some(Buffer::in_place(&mut second).dst(Space::Output, 0..also)),
                Src::from(&local[..]),
                Src::from(&incoming[..]),
            );
        })
        .is_err()
    };
    assert!(!refused(8, 8, 8, 8));
    assert!(refused(4, 8, 8, 8));
    assert!(refused(8, 4, 8, 8));
    assert!(refused(8, 8, 4, 8));
    assert!(refused(8, 8, 8, 4));
    assert!(refused(6, 6, 6, 6), "a part of an element");
}
