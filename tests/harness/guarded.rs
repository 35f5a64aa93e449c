//! Elements of every type to reduce, and memory that detects writes beside it.

use rand::RngExt;
use rand::rngs::SmallRng;
use ringreduce::memory::Buffer;
use ringreduce::{DataType, Element, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

const CANARY: u8 = 0xa5;
pub const LINE: usize = 64;

/// Bytes at a given offset from a cache line, with canaries around them.
pub struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    pub fn new(content: &[u8], offset: usize) -> Self {
        Self::surrounded(CANARY, content, offset)
    }

    /// Memory to read from. Its surroundings differ from the canaries, or a copy of too many bytes
    /// would not be seen.
    pub fn read_only(content: &[u8], offset: usize) -> Self {
        Self::surrounded(!CANARY, content, offset)
    }

    fn surrounded(around: u8, content: &[u8], offset: usize) -> Self {
        let len = content.len();
        let mut bytes = vec![around; len + 4 * LINE];
        let start = LINE + bytes.as_ptr().align_offset(LINE) + offset;
        bytes[start..start + len].copy_from_slice(content);
        Self { bytes, start, len }
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn buffer(&mut self) -> Buffer<'_> {
        Buffer::in_place(&mut self.bytes[self.start..self.start + self.len])
    }

    pub fn assert_is(&self, expected: &[u8], dtype: DataType, context: &str) {
        // One part of a complex number may be NaN without the other.
        let part = parts(dtype)[0];
        let dtype = if parts(dtype) == [part; 2] { part } else { dtype };
        for (at, (ours, expected)) in
            self.get().chunks(dtype.size()).zip(expected.chunks(dtype.size())).enumerate()
        {
            let same = ours == expected || (is_nan(ours, dtype) && is_nan(expected, dtype));
            assert!(same, "{context}: element {at} is {ours:x?}, not {expected:x?}");
        }
        let (before, after) = (&self.bytes[..self.start], &self.bytes[self.start + self.len..]);
        let intact = before.iter().chain(after).all(|&byte| byte == CANARY);
        assert!(intact, "{context}: written outside the output");
    }
}

fn is_nan(element: &[u8], dtype: DataType) -> bool {
    match dtype {
        DataType::F16 => bytemuck::pod_read_unaligned::<f16>(element).is_nan(),
        DataType::BF16 => bytemuck::pod_read_unaligned::<bf16>(element).is_nan(),
        DataType::F32 => bytemuck::pod_read_unaligned::<f32>(element).is_nan(),
        DataType::F64 => bytemuck::pod_read_unaligned::<f64>(element).is_nan(),
        DataType::F8E4M3 => F8E4M3::from_bits(element[0]).is_nan(),
        DataType::F8E5M2 => F8E5M2::from_bits(element[0]).is_nan(),
        _ => false,
    }
}

/// The numbers that an element consists of.
pub fn parts(dtype: DataType) -> Vec<DataType> {
    match dtype {
        DataType::C64 => vec![DataType::F32; 2],
        DataType::C128 => vec![DataType::F64; 2],
        DataType::LocF32 => vec![DataType::F32, DataType::U32],
        DataType::LocF64 => vec![DataType::F64, DataType::U64],
        DataType::LocI32 => vec![DataType::I32, DataType::U32],
        DataType::LocI64 => vec![DataType::I64, DataType::U64],
        plain => vec![plain],
    }
}

/// Ordinary values, values that are special for some type, and any bits at all.
pub fn random_bytes(count: usize, dtype: DataType, random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for dtype in (0..count).flat_map(|_| parts(dtype)) {
        let ordinary = random.random_range(-1.0..1.0f64);
        let element = match (random.random_range(0..4), dtype) {
            (0, DataType::F16) => u64::from(f16::from_f64(ordinary).to_bits()),
            (0, DataType::BF16) => u64::from(bf16::from_f64(ordinary).to_bits()),
            (0, DataType::F32) => u64::from((ordinary as f32).to_bits()),
            (0, DataType::F64) => ordinary.to_bits(),
            (0, DataType::F8E4M3) => u64::from(F8E4M3::from_f32(ordinary as f32).to_bits()),
            (0, DataType::F8E5M2) => u64::from(F8E5M2::from_f32(ordinary as f32).to_bits()),
            // The upper bits are those of zeros, infinities, quiet NaN, subnormals, integer
            // extremes.
            (1, _) => {
                let bits = 8 * dtype.size();
                let infinity = match dtype {
                    DataType::F16 => 0x7c00,
                    DataType::BF16 => 0x7f80,
                    DataType::F32 => 0x7f80_0000,
                    DataType::F64 => 0x7ff0_0000_0000_0000,
                    DataType::F8E4M3 => 0x7f,
                    DataType::F8E5M2 => 0x7c,
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

/// Every reduction that is defined for a type; premul_sum has a random scalar.
pub fn reductions<T: Element>(random: &mut SmallRng) -> Vec<Reduction> {
    let scalar = bytemuck::pod_read_unaligned(&random_bytes(1, T::DTYPE, random));
    let plain = ReduceOp::ALL.into_iter().map(Reduction::from);
    let all = plain.chain([Reduction::premul_sum::<T>(scalar)]);
    all.filter(|reduction| reduction.is_defined_for(T::DTYPE)).collect()
}
