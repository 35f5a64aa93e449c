//! Tests of the names of mismatches, and of what fingerprints tell apart.

use super::*;
use crate::element::DataType;

const HOW: Variant =
    Variant { algorithm: Some(Algorithm::Ring), in_order: false, part: false, uneven: false };

fn sum(count: usize) -> Request {
    let (collective, dtype) = (Collective::AllReduce, DataType::F32);
    Request { collective, count, dtype, op: Some(ReduceOp::Sum.into()) }
}

/// "field: theirs there, ours here".
fn difference_of(ours: (&Request, &Variant), theirs: (&Request, &Variant)) -> String {
    let [one, other] = [ours, theirs].map(|(request, how)| of(request, how, 5));
    let (field, here, there) = describe_mismatch((one, Some(ours.0.count)), other, 5);
    format!("{field}: {there} there, {here} here")
}

#[test]
fn every_value_fits_its_field() {
    assert_eq!((REST.at, KIND.at + KIND.bits), (1, 64));
    assert!((Algorithm::ALL.len() as u64) < USER_SCHEDULE);
    assert!((ReduceOp::ALL.len() as u64) < SCALED && Wire::F8E4M3_BLOCK.number() < 32);
    let kinds: Vec<_> = Collective::all(1).into_iter().map(Collective::number).collect();
    assert!((1..kinds.len()).all(|at| !kinds[..at].contains(&kinds[at])));
    assert!(kinds.iter().all(|&kind| 0 < kind && kind < REGISTERING));
}

#[test]
fn a_difference_is_named_in_words() {
    let ours = sum(1000);
    let of = |theirs: Request, how: Variant| difference_of((&ours, &HOW), (&theirs, &how));
    for (theirs, how, want) in [
        (sum(1001), HOW, "the count: 1001 there, 1000 here"),
        (sum(0), HOW, "the count: 0 there, 1000 here"),
        (
            sum(1 << 20),
            Variant { algorithm: Some(Algorithm::Bruck), ..HOW },
            "the count: 1048576 there, 1000 here",
        ),
        (Request { dtype: DataType::F64, ..ours }, HOW, "the type: double there, float here"),
        (
            Request { op: Some(ReduceOp::Max.into()), ..ours },
            HOW,
            "the operation: max there, sum here",
        ),
        (
            ours,
            Variant { algorithm: Some(Algorithm::Bruck), ..HOW },
            "the algorithm: bruck there, ring here",
        ),
        (ours, Variant { in_order: true, ..HOW }, "deterministic: on there, off here"),
        (
            Request { dtype: DataType::I32, op: Some(ReduceOp::Min.into()), ..sum(3) },
            Variant { algorithm: Some(Algorithm::AllPairs), in_order: true, ..HOW },
            "the call: all_reduce of int32, min, by all_pairs, deterministic there, \
             all_reduce of float, sum, by ring here",
        ),
    ] {
        assert_eq!(of(theirs, how), want);
    }
    let rooted = |root| Request { collective: Collective::Broadcast { root }, ..ours };
    for (root, want) in [(1, "1 there, 0 here"), (254, "254 there"), (9000, "255 or above")] {
        let text = difference_of((&rooted(0), &HOW), (&rooted(root), &HOW));
        assert!(text.contains("the root") && text.contains(want), "{text}");
    }
    let text = difference_of((&rooted(9000), &HOW), (&rooted(9001), &HOW));
    assert!(text.contains("there"), "{text}");
}

#[test]
fn counts_alone_never_collide_and_other_digests_are_named() {
    let print = |count| of(&sum(count), &HOW, 77);
    let powers = (0..=REST.bits).map(|it| print(1 << it)).chain([print(0), print(3 << 31)]);
    assert_eq!(powers.collect::<std::collections::HashSet<_>>().len(), 36);
    // A rank that makes neither call does not know the counts.
    let (field, ours, theirs) = describe_mismatch((print(7), None), print(1 << 32), 77);
    assert_eq!([field, &ours, &theirs], ["the count", "7", "4294967296"]);
    // Nor does a rank know counts above the field, or which of them another rank has.
    let large = |count: usize| print((1 << 33) + count);
    let (field, ours, theirs) = describe_mismatch((print(7), Some(7)), large(7), 77);
    assert_eq!([field, &ours, &theirs], ["the count", "below 2^33", "2^33 or more"]);
    for count in [None, Some(1 << 33)] {
        let (field, ..) = describe_mismatch((large(0), count), large(1 << 40), 77);
        assert_eq!(field, "a digest of the count and the order of ranks");
    }
    let scaled = |by: f32| Request { op: Some(Reduction::premul_sum(by)), ..sum(10) };
    let text = difference_of((&scaled(1.0), &HOW), (&scaled(2.0), &HOW));
    assert!(text.starts_with("a digest of the count and the scalar: "), "{text}");
    let uneven = Variant { uneven: true, ..HOW };
    let [ours, theirs] = [1, 2].map(|rest| of(&sum(0), &uneven, rest));
    assert_eq!(describe_mismatch((ours, None), theirs, 0).0, "a digest of the counts");
}
