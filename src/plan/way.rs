//! A world as its calls see it. May touch: schedule, slots. Pure.

use super::Slots;
use super::request::mix;
use crate::schedule::Ring;

/// A digest of what all calls of a world go by: two ranks that differ in any of it would walk
/// different schedules.
pub(super) fn way(ring: &Ring, slots: Slots, least_chunk: usize) -> u64 {
    let lengths = [slots.ring, slots.other].map(|slots| [slots.bytes, slots.capacity]);
    let lengths = lengths.into_iter().flatten().chain([least_chunk, ring.all_pairs().into()]);
    let hosts = ring.hosts().flat_map(|host| {
        [host.len() as u32].into_iter().chain(host.iter().copied()).map(u64::from)
    });
    lengths.map(|length| length as u64).chain(hosts).fold(0, |digest, word| mix(digest ^ word))
}

#[cfg(test)]
mod tests {
    use super::super::Slots;
    use super::way;
    use crate::schedule::Ring;

    fn of(ring: &Ring, least_chunk: usize) -> u64 {
        way(ring, Slots::of(false, 4), least_chunk)
    }

    #[test]
    fn worlds_are_told_apart() {
        let over = |hosts: &[&[u32]]| {
            let hosts: Vec<_> = hosts.iter().map(|host| host.to_vec()).collect();
            Ring::through(&hosts).unwrap()
        };
        let one = over(&[&[0, 1, 2, 3]]);
        let worlds = [
            of(&one, 256),
            of(&one, 512),
            way(&one, Slots::of(true, 4), 256),
            of(&one.clone().with_all_pairs(2), 256),
            of(&over(&[&[0, 2, 1, 3]]), 256),
            of(&over(&[&[0, 1], &[2, 3]]), 256),
            of(&over(&[&[0, 1, 2], &[3]]), 256),
            of(&over(&[&[2, 3], &[0, 1]]), 256),
        ];
        assert!((1..worlds.len()).all(|at| !worlds[..at].contains(&worlds[at])), "{worlds:x?}");
        // What makes no difference is none.
        assert_eq!(of(&one.with_all_pairs(4), 256), worlds[0]);
        assert_eq!(of(&Ring::natural(4), 256), worlds[0]);
    }
}
