//! The oracle's own tests: floats are exact in any order, and every kind of damage is found.

use super::*;
use crate::measure::case::{Placement, Verb};
use ringreduce::schedule::Collective::{
    AllGather, AllReduce, AllToAll, Exscan, Gather, Reduce, ReduceScatter, Scan, Scatter,
};
use std::ops::Range;

const FLOATS: [DataType; 6] = [
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::F16,
    DataType::BF16,
    DataType::F32,
    DataType::F64,
];

fn ops_of(dtype: DataType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.is_defined_for(dtype))
}

/// True for types too coarse for contributions of many ranks at once.
fn is_coarse(dtype: DataType) -> bool {
    matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2)
}

/// A case whose root is the last rank.
fn case(verb: Verb, dtype: DataType, op: ReduceOp, rank: usize, ranks: usize) -> Case {
    let placement = Placement::OutOfPlace;
    Case { verb: verb.with_root(ranks - 1), dtype, op, count: 10_000, rank, ranks, placement }
}

/// `v` rounded to the type.
fn round(dtype: DataType, v: f64) -> f64 {
    match dtype {
        DataType::F16 => f16::from_f64(v).to_f64(),
        DataType::F8E4M3 => F8E4M3::from_f32(v as f32).to_f32().into(),
        DataType::F8E5M2 => F8E5M2::from_f32(v as f32).to_f32().into(),
        DataType::BF16 => bf16::from_f64(v).to_f64(),
        DataType::F32 => f64::from(v as f32),
        _ => v,
    }
}

#[test]
fn floats_round_nowhere_in_any_fold_order() {
    use ReduceOp::{Avg, Max, Min, Prod, Sum};
    for dtype in FLOATS {
        for op in [Sum, Prod, Min, Max, Avg] {
            for ranks in (1..=66).chain([85, 100, 171, 256, 300, 341, 1000]) {
                for k in (0..PERIOD).step_by(if ranks > 66 { 97 } else { 31 }) {
                    let values: Vec<i128> =
                        (0..ranks).map(|r| input(dtype, op, ranks, r, k)).collect();
                    let exact = fold(dtype, op, values.iter().copied());
                    for order in 0..2 {
                        let mut rest: Vec<f64> =
                            values.iter().map(|&v| round(dtype, v as f64)).collect();
                        if order == 1 {
                            // Sorted values have the largest partial sums.
                            rest.sort_by(f64::total_cmp);
                        }
                        let folded = rest.into_iter().reduce(|a, b| match op {
                            Prod => round(dtype, a * b),
                            Min => a.min(b),
                            Max => a.max(b),
                            _ => round(dtype, a + b),
                        });
                        let mut got = folded.unwrap();
                        if op == Avg {
                            got = round(dtype, got / ranks as f64);
                        }
                        assert_eq!(got, exact as f64, "{dtype} {op} n={ranks} k={k}");
                    }
                }
            }
        }
    }
}

#[test]
fn integers_wrap() {
    let of = |op, v: [i128; 2]| fold(DataType::I8, op, v.into_iter());
    assert_eq!(of(ReduceOp::Sum, [100, 100]), -56);
    assert_eq!(of(ReduceOp::Avg, [100, 100]), -28);
    assert_eq!(of(ReduceOp::Avg, [-2, -1]), -1, "towards zero");
    assert_eq!(of(ReduceOp::Prod, [-128, -1]), -128);
    assert_eq!(of(ReduceOp::Min, [-128, 3]), -128);
    let big = i128::from(u64::MAX);
    assert_eq!(fold(DataType::U64, ReduceOp::Prod, [big, big].into_iter()), 1);
    assert_eq!(fold(DataType::U64, ReduceOp::Max, [big, 0].into_iter()), big);
}

/// A lost, a doubled and a foreign contribution must each change many results.
#[test]
fn every_contribution_changes_the_result() {
    for dtype in DataType::ALL.into_iter().filter(|&dtype| !is_coarse(dtype)) {
        for op in ops_of(dtype) {
            for ranks in [2, 3, 8, 64] {
                let values =
                    |k| (0..ranks).map(|r| input(dtype, op, ranks, r, k)).collect::<Vec<_>>();
                for victim in [0, ranks / 2, ranks - 1] {
                    let seen = |damage: &dyn Fn(&mut Vec<i128>)| {
                        let changed = |k: &usize| {
                            let (good, mut bad) = (values(*k), values(*k));
                            damage(&mut bad);
                            fold(dtype, op, good.into_iter()) != fold(dtype, op, bad.into_iter())
                        };
                        (0..PERIOD).filter(changed).count()
                    };
                    let foreign = seen(&|v| v[victim] = v[(victim + 1) % ranks]);
                    assert!(foreign > 20, "{dtype} {op} n={ranks} {victim} foreign: {foreign}");
                    if matches!(op, ReduceOp::Sum | ReduceOp::Prod) {
                        let neutral = i128::from(op == ReduceOp::Prod);
                        let lost = seen(&|v| v[victim] = neutral);
                        assert!(lost > 1000, "{dtype} {op} n={ranks} {victim} lost: {lost}");
                        let twice = seen(&|v| v.push(v[victim]));
                        assert!(twice > 100, "{dtype} {op} n={ranks} {victim} twice: {twice}");
                    }
                }
            }
        }
    }
}

/// The right result, computed from the inputs.
fn right_result(case: &Case, shift: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let value = |r, i: usize| contribution(case, r, (i + shift) % PERIOD);
    let mine = case.rank * case.count..(case.rank + 1) * case.count;
    let mut reduced = |over: usize, of: Range<usize>| {
        for i in of {
            let folded = fold(case.dtype, case.op, (0..over).map(|r| value(r, i)));
            encode(case.dtype, folded, &mut out);
        }
    };
    match case.verb {
        Verb::Of(AllReduce | Reduce { .. }) => reduced(case.ranks, 0..case.count),
        Verb::Of(ReduceScatter) => reduced(case.ranks, mine),
        Verb::Of(Scan) => reduced(case.rank + 1, 0..case.count),
        Verb::Of(Exscan) => reduced(case.rank, 0..case.count),
        verb => {
            let root = case.ranks - 1..case.ranks;
            let (ranks, of) = match verb {
                Verb::Of(AllGather | Gather { .. }) => (0..case.ranks, 0..case.count),
                Verb::Of(AllToAll) => (0..case.ranks, mine),
                Verb::Of(Scatter { .. }) => (root, mine),
                Verb::SendRecv => (case.rank - 1..case.rank, 0..case.count),
                Verb::Of(_) => (root, 0..case.count),
            };
            for rank in ranks {
                let mut input = vec![0; case.ranks * case.count * case.dtype.size()];
                Oracle::new(&Case { rank, ..*case }).fill(&mut input, shift);
                out.extend(&input[of.start * case.dtype.size()..of.end * case.dtype.size()]);
            }
        }
    }
    out
}

#[test]
fn right_results_pass_and_damaged_ones_do_not() {
    for verb in Verb::all().into_iter().filter(|verb| !verb.is_barrier()) {
        for dtype in DataType::ALL {
            for op in ops_of(dtype) {
                // Rank 2 of 3 is the root.
                let is_at_root = matches!(verb, Verb::Of(Reduce { .. } | Gather { .. }));
                let rank = if is_at_root { 2 } else { 1 };
                let case = case(verb, dtype, op, rank, 3);
                let oracle = Oracle::new(&case);
                let mut got = right_result(&case, 977);
                assert_eq!(oracle.wrong(&case, &got, 977), 0, "{case:?}");
                // Of the result of an earlier call most elements are wrong.
                let stale = oracle.wrong(&case, &got, 2 * 977);
                assert!(is_coarse(dtype) || stale > 1000, "{case:?}: {stale}");
                let last = got.len() - 1;
                got[0] ^= 1;
                got[last] ^= 0x40;
                assert_eq!(oracle.wrong(&case, &got, 977), 2, "{case:?}");
            }
        }
    }
}

#[test]
fn chunks_in_the_wrong_place_are_seen() {
    let case = case(Verb::Of(AllGather), DataType::F32, ReduceOp::Sum, 0, 4);
    let oracle = Oracle::new(&case);
    let mut got = right_result(&case, 0);
    let part = got.len() / 4;
    got.rotate_left(part);
    assert!(oracle.wrong(&case, &got, 0) > 39_000);
    let case = Case { verb: Verb::Of(AllReduce), ..case };
    let mut got = right_result(&case, 0);
    got.rotate_left(4096);
    assert!(Oracle::new(&case).wrong(&case, &got, 0) > 9_000);
}
