//! Every kernel of this CPU equals the scalar one bit for bit, at any length, alignment and layout,
//! and writes nothing else. (`scalar` compares the scalar kernels with arithmetic.)

pub(crate) mod fold;
pub(crate) mod pair;
pub(crate) mod user_functions;

use harness::guarded::{Guarded, LINE, random_bytes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::kernel::{Kernel, Level, copy};
use ringreduce::memory::Src;
use ringreduce::schedule::Space;
use ringreduce::{DataType, ReduceOp, Reduction};

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
fn there_are_kernels_for_just_the_defined_reductions() {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for level in Level::available() {
                let kernel = Kernel::select_for(level, dtype, op, 2);
                assert_eq!(kernel.is_some(), op.is_defined_for(dtype), "{level:?} {op} {dtype}");
            }
        }
    }
    let by_float = Reduction::premul_sum(1.0_f32);
    assert!(Kernel::select(DataType::F32, by_float, 2).is_some());
    assert!(Kernel::select(DataType::F64, by_float, 2).is_none());
}

#[test]
fn copies_reach_both_outputs_and_nothing_else() {
    let mut random = SmallRng::seed_from_u64(7);
    for len in (0..=200).chain([4095, 4096, 4097, 10_000]) {
        let content = random_bytes(len, DataType::U8, &mut random);
        let mut offset = || random.random_range(0..=LINE);
        let from = Guarded::read_only(&content, offset());
        for (streaming, both) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut out = Guarded::new(&vec![0; len], offset());
            let mut also = Guarded::new(&vec![0; len], offset());
            {
                let (first, second) = (out.buffer(), also.buffer());
                copy(
                    first.dst(Space::Output, 0..len).streaming(streaming),
                    both.then(|| second.dst(Space::Output, 0..len)),
                    Src::from(from.get()),
                );
            }
            let context = format!("streaming {streaming}, both {both}");
            out.assert_is(&content, DataType::U8, &context);
            let expected = if both { &content } else { &vec![0; len] };
            also.assert_is(expected, DataType::U8, &context);
        }
    }
}
