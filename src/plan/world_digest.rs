//! The digest of a world: its ring, hosts, links and slots.

use super::Slots;
use super::request::mix;
use crate::schedule::Ring;

/// A digest of everything that all calls depend on; ranks that differ in it would not match.
pub(super) fn of(ring: &Ring, slots: Slots, least_chunk: usize) -> u64 {
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
    use super::of as digest_of;
    use crate::schedule::Ring;

    fn of(ring: &Ring, least_chunk: usize) -> u64 {
        digest_of(ring, Slots::of(false, 4), least_chunk)
    }

    #[test]
    fn different_worlds_have_different_digests() {
        let over = |hosts: &[&[u32]]| {
            let hosts: Vec<_> = hosts.iter().map(|host| host.to_vec()).collect();
            Ring::through(&hosts).unwrap()
        };
        let one = over(&[&[0, 1, 2, 3]]);
        let worlds = [
            of(&one, 256),
            of(&one, 512),
            digest_of(&one, Slots::of(true, 4), 256),
            of(&one.clone().with_all_pairs(2), 256),
            of(&over(&[&[0, 2, 1, 3]]), 256),
            of(&over(&[&[0, 1], &[2, 3]]), 256),
            of(&over(&[&[0, 1, 2], &[3]]), 256),
            of(&over(&[&[2, 3], &[0, 1]]), 256),
        ];
        assert!((1..worlds.len()).all(|at| !worlds[..at].contains(&worlds[at])), "{worlds:x?}");
        // Two descriptions of one world have the same digest.
        assert_eq!(of(&one.with_all_pairs(4), 256), worlds[0]);
        assert_eq!(of(&Ring::natural(4), 256), worlds[0]);
    }
}
