//! The quorum: the sets of ranks that may decide for an epoch.
//! Law: two quorums have a rank in common, or all ranks of one of them have ended.

use super::ranks::Ranks;

/// True if `live` ranks may decide for `members`, of which `gone` have certainly ended: if all
/// others are gone, or are fewer. Of two halves, the one with the lowest rank may.
#[must_use]
pub fn is_quorum(members: Ranks, live: Ranks, gone: Ranks) -> bool {
    let live = live & members;
    if (members - gone - live).is_empty() {
        return !live.is_empty();
    }
    match (2 * live.len()).cmp(&members.len()) {
        core::cmp::Ordering::Less => false,
        core::cmp::Ordering::Equal => live.lowest() == members.lowest(),
        core::cmp::Ordering::Greater => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{Ranks, is_quorum};

    /// Of two disjoint sets of up to five members, only one may decide.
    #[test]
    fn disjoint_sets_never_both_decide() {
        let set = |bits: u64| Ranks::of_words([bits, 0, 0, 0]);
        for size in 1..=5_u32 {
            let all = 1 << size;
            for gone in 0..all {
                for one in 1..all {
                    for other in 1..all {
                        // A rank that has ended is on neither side.
                        if one & other != 0 || (one | other) & gone != 0 {
                            continue;
                        }
                        let may = |bits| is_quorum(set(all - 1), set(bits), set(gone));
                        assert!(!(may(one) && may(other)), "{size} {gone:b} {one:b} {other:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn halves_go_by_the_lowest_rank_and_deaths_may_leave_one() {
        let set = |ranks: &[u32]| ranks.iter().copied().collect::<Ranks>();
        let four = set(&[2, 3, 5, 9]);
        assert!(is_quorum(four, set(&[2, 9]), Ranks::NONE));
        assert!(!is_quorum(four, set(&[3, 5]), Ranks::NONE));
        assert!(is_quorum(four, set(&[9]), set(&[2, 3, 5])));
        assert!(!is_quorum(four, set(&[9]), set(&[2, 3])));
        assert!(!is_quorum(four, Ranks::NONE, four));
    }
}
