//! The quorum: the sets of ranks that may decide for an epoch.
//! Law: two quorums have a rank in common, or one of them ended before it could decide.

use super::ranks::Ranks;

/// True if `live` ranks may decide for `members`, of which `gone` have certainly ended and have no
/// part in a decision without `live`: if they are more than half of the rest, or half of it with
/// its lowest rank.
///
/// The sets of two ballots always have a rank in common, even if each leader knows of other ends.
/// A rank that the leader of the lower ballot counts as `gone` has promised no higher one, so it is
/// not in the set of the higher ballot. One that the leader of the higher ballot counts as `gone`
/// has accepted no value that was decided without a rank of this set. So both sets are among the
/// members without all those ranks, of which each is half.
#[must_use]
pub fn is_quorum(members: &Ranks, live: &Ranks, gone: &Ranks) -> bool {
    let rest = members - gone;
    let live = live & &rest;
    match (2 * live.len()).cmp(&rest.len()) {
        core::cmp::Ordering::Less => false,
        core::cmp::Ordering::Equal => !live.is_empty() && live.lowest() == rest.lowest(),
        core::cmp::Ordering::Greater => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{Ranks, is_quorum};

    /// Of two disjoint sets of up to five members only one may decide, whatever ends each knows of.
    #[test]
    fn disjoint_sets_never_both_decide() {
        let set = |bits: u64| Ranks::of_words(&[bits]);
        for all in (1..=5).map(|size| (1_u64 << size) - 1) {
            for (one, gone) in (1..=all).flat_map(|one| (0..=all).map(move |gone| (one, gone))) {
                if one & gone != 0 || !is_quorum(&set(all), &set(one), &set(gone)) {
                    continue;
                }
                for other in (1..=all).filter(|other| other & (one | gone) == 0) {
                    for gone in (0..=all).filter(|gone| gone & (one | other) == 0) {
                        assert!(
                            !is_quorum(&set(all), &set(other), &set(gone)),
                            "{one:b} {other:b}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn halves_go_by_the_lowest_rank_and_deaths_may_leave_one() {
        let set = |ranks: &[u32]| ranks.iter().copied().collect::<Ranks>();
        let four = &set(&[2, 3, 5, 9]);
        assert!(is_quorum(four, &set(&[2, 9]), &Ranks::NONE));
        assert!(!is_quorum(four, &set(&[3, 5]), &Ranks::NONE));
        assert!(is_quorum(four, &set(&[9]), &set(&[2, 3, 5])));
        // Of two that are left, the lower one may.
        assert!(!is_quorum(four, &set(&[9]), &set(&[2, 3])));
        assert!(is_quorum(four, &set(&[5]), &set(&[2, 3])));
        assert!(is_quorum(four, &set(&[5, 9]), &set(&[2])));
        assert!(!is_quorum(four, &set(&[2]), &set(&[2, 3])), "it has ended");
        assert!(!is_quorum(four, &Ranks::NONE, four));
    }
}
