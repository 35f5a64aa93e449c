//! The inputs of each rank and the exact results of collectives on them, for every type, reduction
//! and number of ranks. Values repeat with a prime period, so that one period is a table and no
//! misplaced chunk looks right. Floats are small whole numbers, exact in every partial result in
//! any order; integers use all their bits.

use ringreduce::schedule::ChunkResult;
use ringreduce::{DataType, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use crate::measure::case::Case;

/// Elements after which values repeat. A prime, so that no chunk size is a multiple of it.
const PERIOD: usize = 4093;

/// One period of elements as bytes.
struct Pattern {
    bytes: Vec<u8>,
    width: usize,
}

impl Pattern {
    fn new(dtype: DataType, value: impl Fn(usize) -> i128) -> Self {
        let mut bytes = Vec::with_capacity(PERIOD * dtype.size());
        (0..PERIOD).for_each(|k| encode(dtype, value(k), &mut bytes));
        Self { bytes, width: dtype.size() }
    }

    /// The `len` bytes of the repeated pattern from element `first` on, in pieces.
    fn pieces(&self, first: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let mut at = first % PERIOD * self.width;
        let mut left = len;
        std::iter::from_fn(move || {
            let piece = &self.bytes[at..self.bytes.len().min(at + left)];
            at = 0;
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    fn fill(&self, mut out: &mut [u8], first: usize) {
        for piece in self.pieces(first, out.len()) {
            let (head, tail) = out.split_at_mut(piece.len());
            head.copy_from_slice(piece);
            out = tail;
        }
    }

    /// The number of elements of `got` that differ in any bit from the pattern from `first` on.
    fn wrong(&self, mut got: &[u8], first: usize) -> u64 {
        let mut wrong = 0;
        for piece in self.pieces(first, got.len()) {
            let (head, tail) = got.split_at(piece.len());
            if head != piece {
                let pairs = head.chunks(self.width).zip(piece.chunks(self.width));
                wrong += pairs.filter(|(a, b)| a != b).count() as u64;
            }
            got = tail;
        }
        wrong
    }
}

/// A rank's input and right result. `shift` moves the pattern, so that the result of an earlier
/// call is a wrong one.
pub(crate) struct Oracle {
    input: Pattern,
    /// For each part of the result: its pattern, and the part of the inputs that is in it.
    results: Vec<(Pattern, usize)>,
}

impl Oracle {
    pub(crate) fn new(case: &Case) -> Self {
        let Case { dtype, op, rank, ranks, .. } = *case;
        // Elements that are only moved may have any bits.
        let raw = [DataType::U8, DataType::U16, DataType::U32, DataType::U64];
        let bits = raw.into_iter().find(|t| t.size() == dtype.size()).unwrap_or(dtype);
        let given = |rank| match case.verb.reduces() {
            true => Pattern::new(dtype, |k| contribution(case, rank, k)),
            false => Pattern::new(bits, |k| i128::from(hash(rank, k))),
        };
        let folded = |ranks| {
            Pattern::new(dtype, |k| fold(dtype, op, (0..ranks).map(|r| contribution(case, r, k))))
        };
        let result = |result| match result {
            ChunkResult::Sum(chunk) => (folded(ranks), chunk),
            ChunkResult::Prefix { ranks, chunk } => (folded(ranks as usize), chunk),
            ChunkResult::Copy { rank, chunk } => (given(rank as usize), chunk),
            // In place the buffer keeps its input.
            ChunkResult::Untouched => (given(rank), 0),
        };
        let results = case.results().map(result);
        let results = results.map(|(pattern, chunk)| (pattern, chunk as usize)).collect();
        Self { input: given(rank), results }
    }

    pub(crate) fn fill(&self, input: &mut [u8], shift: usize) {
        self.input.fill(input, shift);
    }

    /// The number of elements of the input that differ from what [`Self::fill`] wrote.
    pub(crate) fn damaged_input(&self, input: &[u8], shift: usize) -> u64 {
        self.input.wrong(input, shift)
    }

    pub(crate) fn wrong(&self, case: &Case, result: &[u8], shift: usize) -> u64 {
        let part = (result.len() / self.results.len()).max(1);
        let parts = result.chunks(part).zip(&self.results);
        let wrong = |(part, (pattern, chunk)): (&[u8], &(Pattern, usize))| {
            pattern.wrong(part, chunk * case.count + shift)
        };
        parts.map(wrong).sum()
    }
}

/// Mixed bits of a rank and an index (splitmix64).
fn hash(rank: usize, k: usize) -> u64 {
    let mut z =
        ((rank as u64) << 32 | k as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from `-bound` to `bound`.
fn around_zero(h: u64, bound: usize) -> i128 {
    i128::from(h % (2 * bound as u64 + 1)) - bound as i128
}

/// The magnitude up to which every whole number is exact, less a margin for shares that are rounded
/// up; none for integers, whose arithmetic wraps.
fn exact_bound(dtype: DataType) -> Option<usize> {
    match dtype {
        DataType::BF16 => Some((1 << 8) - 6),
        DataType::F16 => Some((1 << 11) - 6),
        DataType::F8E4M3 => Some((1 << 4) - 4),
        DataType::F8E5M2 => Some((1 << 3) - 3),
        DataType::F32 | DataType::F64 | DataType::C64 | DataType::C128 => Some((1 << 24) - 6),
        _ => None,
    }
}

/// Element `k` of a rank's input. For logical xor of prefixes it is 0 or 1, since the result over
/// one rank is that rank's element unchanged.
fn contribution(case: &Case, rank: usize, k: usize) -> i128 {
    let value = input(case.dtype, case.op, case.ranks, rank, k);
    match case.op {
        ReduceOp::LogicalXor if case.verb.is_prefix() => i128::from(value != 0),
        _ => value,
    }
}

/// Element `k` of a rank's input to a reduction over `ranks`.
fn input(dtype: DataType, op: ReduceOp, ranks: usize, rank: usize, k: usize) -> i128 {
    let h = hash(rank, k);
    // Only one rank in `share` contributes, where more of them would hide each other.
    let every = |number: usize, share: usize| (number + k).is_multiple_of(share.max(1));
    let bit = i128::from(every(rank, ranks / 4)) << (h % (8 * dtype.size() as u64));
    match (op, exact_bound(dtype)) {
        (ReduceOp::MinLoc | ReduceOp::MaxLoc, _) => located(around_zero(h, 20), h >> 32),
        (ReduceOp::LogicalAnd, _) => i128::from(!every(rank, 2 * ranks)),
        (ReduceOp::LogicalOr, _) => i128::from(every(rank, 2 * ranks)),
        (ReduceOp::LogicalXor, _) => i128::from(h % 3),
        (ReduceOp::BitAnd, _) => wrap(dtype, !bit),
        (ReduceOp::BitOr, _) => wrap(dtype, bit),
        // Factors are positive, since with signs the imaginary part could become -0.
        (ReduceOp::Prod, _) if matches!(dtype, DataType::C64 | DataType::C128) => {
            1 + i128::from(every(rank, ranks.div_ceil(64)) && h & 1 != 0)
        }
        // Factors are odd, since products with even ones soon become zero.
        (_, None) => wrap(dtype, i128::from(if op == ReduceOp::Prod { h | 1 } else { h })),
        (_, Some(bound)) => float_input(op, bound, ranks, rank, k),
    }
}

/// A whole number with which no reduction exceeds `bound`. Among many ranks some contribute zero.
fn float_input(op: ReduceOp, bound: usize, ranks: usize, rank: usize, k: usize) -> i128 {
    let h = hash(rank, k);
    let every = |number: usize, share: usize| (number + k).is_multiple_of(share.max(1));
    match op {
        ReduceOp::Prod => {
            // At most eight factors are two; any number of them are negative.
            let two = every(rank, ranks.div_ceil(8)) && h & 2 != 0;
            (if two { 2 } else { 1 }) * (if h & 1 != 0 { -1 } else { 1 })
        }
        ReduceOp::Min | ReduceOp::Max => around_zero(h, bound.min(120)),
        ReduceOp::Avg => {
            // The sum is `ranks` times the common part; the rest cancels out between neighbours.
            let size = (bound / (2 * ranks)).min(500);
            let common = around_zero(hash(usize::MAX, k), size);
            let (pair, rest) = (rank / 2, size.max(1));
            let apart = (rank ^ 1) < ranks && every(pair, (2 * ranks * rest).div_ceil(bound));
            let sign = if rank.is_multiple_of(2) { 1 } else { -1 };
            common + if apart { sign * around_zero(hash(pair, k), rest) } else { 0 }
        }
        _ => {
            let size = (bound / ranks).clamp(3, 1000);
            if every(rank, (size * ranks).div_ceil(bound)) { around_zero(h, size) } else { 0 }
        }
    }
}

fn located(value: i128, index: u64) -> i128 {
    value << 64 | i128::from(index as u32)
}

/// The reduction in exact arithmetic; integers wrap, as the library documents.
fn fold(dtype: DataType, op: ReduceOp, values: impl ExactSizeIterator<Item = i128>) -> i128 {
    let ranks = values.len() as i128;
    let truth = |v: i128| i128::from(v != 0);
    let combined = values.reduce(|a, b| match op {
        ReduceOp::Sum | ReduceOp::Avg => wrap(dtype, a + b),
        ReduceOp::Prod => wrap(dtype, a.wrapping_mul(b)),
        ReduceOp::Min | ReduceOp::MinLoc => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::MaxLoc if a >> 64 == b >> 64 => a.min(b),
        ReduceOp::MaxLoc => a.max(b),
        ReduceOp::BitAnd => a & b,
        ReduceOp::BitOr => a | b,
        ReduceOp::BitXor => a ^ b,
        ReduceOp::LogicalAnd => truth(a) & truth(b),
        ReduceOp::LogicalOr => truth(a) | truth(b),
        ReduceOp::LogicalXor => truth(a) ^ truth(b),
        other => unreachable!("{other} is not known here"),
    });
    let combined = combined.unwrap_or(0);
    match op {
        ReduceOp::Avg => combined / ranks,
        ReduceOp::LogicalAnd | ReduceOp::LogicalOr | ReduceOp::LogicalXor => truth(combined),
        _ => combined,
    }
}

fn wrap(dtype: DataType, v: i128) -> i128 {
    match dtype {
        DataType::I8 => i128::from(v as i8),
        DataType::U8 => i128::from(v as u8),
        DataType::I16 => i128::from(v as i16),
        DataType::U16 => i128::from(v as u16),
        DataType::I32 => i128::from(v as i32),
        DataType::U32 => i128::from(v as u32),
        DataType::I64 => i128::from(v as i64),
        DataType::U64 => i128::from(v as u64),
        _ => v,
    }
}

fn encode(dtype: DataType, v: i128, out: &mut Vec<u8>) {
    match dtype {
        DataType::I8 | DataType::U8 => out.push(v as u8),
        DataType::I16 | DataType::U16 => out.extend((v as u16).to_ne_bytes()),
        DataType::I32 | DataType::U32 => out.extend((v as u32).to_ne_bytes()),
        DataType::I64 | DataType::U64 => out.extend((v as u64).to_ne_bytes()),
        DataType::F16 => out.extend(f16::from_f64(v as f64).to_ne_bytes()),
        DataType::BF16 => out.extend(bf16::from_f64(v as f64).to_ne_bytes()),
        DataType::F32 => out.extend((v as f32).to_ne_bytes()),
        DataType::F64 => out.extend((v as f64).to_ne_bytes()),
        DataType::F8E4M3 => out.push(F8E4M3::from_f32(v as f32).to_bits()),
        DataType::F8E5M2 => out.push(F8E5M2::from_f32(v as f32).to_bits()),
        DataType::C64 => encode_parts([DataType::F32; 2], [v, 0], out),
        DataType::C128 => encode_parts([DataType::F64; 2], [v, 0], out),
        DataType::LocF32 => encode_parts([DataType::F32, DataType::U32], [v >> 64, v], out),
        DataType::LocF64 => encode_parts([DataType::F64, DataType::U64], [v >> 64, v], out),
        DataType::LocI32 => encode_parts([DataType::I32, DataType::U32], [v >> 64, v], out),
        DataType::LocI64 => encode_parts([DataType::I64, DataType::U64], [v >> 64, v], out),
        other => unreachable!("{other} is not known here"),
    }
}

fn encode_parts(types: [DataType; 2], values: [i128; 2], out: &mut Vec<u8>) {
    for (dtype, value) in types.into_iter().zip(values) {
        encode(dtype, value, out);
    }
}

#[cfg(test)]
mod tests;
