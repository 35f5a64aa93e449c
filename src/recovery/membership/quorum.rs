//! Who may decide for an epoch. May touch: ranks. Law: of two sets of ranks that may both decide,
//! either has a rank of the other in it, or one has ended as a whole.

use super::ranks::Ranks;

/// May `live` decide for `members`, of whom `gone` have certainly ended? Yes if nobody else can:
/// all others are gone, or they are fewer; of two halves, the one with the lowest rank.
#[must_use]
pub fn quorum(members: Ranks, live: Ranks, gone: Ranks) -> bool {
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
    use super::{Ranks, quorum};

    /// Every two disjoint sets of up to five members: both may decide only if one is gone.
    #[test]
    fn disjoint_sets_never_both_decide() {
        let set = |bits: u64| Ranks::of_words([bits, 0, 0, 0]);
        for size in 1..=5_u32 {
            let all = 1 << size;
            for gone in 0..all {
                for one in 1..all {
                    for other in 1..all {
                        // What is gone acts no more; who is gone counts on neither side.
                        if one & other != 0 || (one | other) & gone != 0 {
                            continue;
                        }
                        let may = |bits| quorum(set(all - 1), set(bits), set(gone));
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
        assert!(quorum(four, set(&[2, 9]), Ranks::NONE));
        assert!(!quorum(four, set(&[3, 5]), Ranks::NONE));
        assert!(quorum(four, set(&[9]), set(&[2, 3, 5])));
        assert!(!quorum(four, set(&[9]), set(&[2, 3])));
        assert!(!quorum(four, Ranks::NONE, four));
    }
}
