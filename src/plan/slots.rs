//! The slots of links, and the shortest message worth sending. Law: all ranks compute the same.

use crate::partition::SlotShape;

/// How far from each other the ranks of a communicator are at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// All links are in memory.
    Memory,
    /// Some link runs over TCP.
    Tcp,
    /// Some link runs over TCP to a host to which a round trip takes milliseconds.
    WideArea,
}

impl Distance {
    /// The distance where links need TCP, and where hosts are a wide-area network apart.
    #[must_use]
    pub fn of(needs_tcp: bool, is_wide_area: bool) -> Self {
        match (needs_tcp, is_wide_area) {
            (false, _) => Self::Memory,
            (true, false) => Self::Tcp,
            (true, true) => Self::WideArea,
        }
    }
}

/// The slots of a communicator's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Links from each rank to the next on the ring.
    pub ring: SlotShape,
    /// All other links, of which there are many.
    pub other: SlotShape,
}

impl Slots {
    /// The slots for a world of `size` ranks that are so far apart.
    ///
    /// On shared memory 64 KiB x 16 stays in a core's cache and was the best, or nearly, for every
    /// size and world measured. The n-1 other links of a rank share about as much again; the
    /// shorter their slots, the more often ranks on one CPU take turns. With TCP each slot costs a
    /// system call, so slots are larger; but those of all ranks on a CPU, and the bytes of half of
    /// them that are on their way, should fit its cache (ARCHITECTURE.md has the measurement).
    ///
    /// Over TCP the other links of up to 512 ranks have 32 MiB at most for each rank, where there
    /// are links between all pairs: with 64 KiB for each slot, each of 224 ranks took 195 MB for
    /// its first measurement.
    ///
    /// Each step of a round takes at least the time from one host to the other, so rounds over a
    /// wide-area network are long, and their slots are short, so that a rank passes bytes on early:
    /// at 1 Gbit/s and 20 ms, 32 MiB between two hosts took 780 ms by the slots of TCP and 335 ms
    /// by these. Near ranks would be slower by them (ARCHITECTURE.md has the measurement).
    #[must_use]
    pub fn of(distance: Distance, size: usize, has_all_pairs: bool) -> Self {
        let size = size.next_power_of_two();
        let over_tcp = if has_all_pairs { (4 << 20) / size } else { 64 << 10 };
        let over_tcp = over_tcp.clamp(8 << 10, 64 << 10);
        match distance {
            Distance::Memory => Self {
                ring: SlotShape { bytes: 64 << 10, capacity: 16 },
                other: SlotShape {
                    bytes: ((128 << 10) / size).clamp(8 << 10, 32 << 10),
                    capacity: 8,
                },
            },
            Distance::Tcp => Self {
                ring: SlotShape { bytes: 256 << 10, capacity: 4 },
                other: SlotShape { bytes: over_tcp, capacity: 8 },
            },
            Distance::WideArea => Self {
                ring: SlotShape { bytes: 128 << 10, capacity: 256 },
                other: SlotShape { bytes: over_tcp, capacity: (1024 / size).clamp(8, 128) },
            },
        }
    }
}

/// The slots of the links of messages, of which each pair of linked ranks has one in each direction
/// beside those of collectives. Those of a rank share 4 MiB. In shared memory 1 MiB between two
/// ranks took 110 us by 16 slots of 16 KiB and 37 us by 64 KiB; over TCP 340 us by 4 slots of 64
/// KiB and 190 to 220 us by 256 KiB.
#[must_use]
pub fn message_slots(tcp: bool, size: usize) -> SlotShape {
    let share = |bytes: usize| bytes / size.next_power_of_two();
    match tcp {
        true => SlotShape { bytes: share(2 << 20).clamp(64 << 10, 256 << 10), capacity: 4 },
        false => SlotShape { bytes: share(256 << 10).clamp(4 << 10, 64 << 10), capacity: 16 },
    }
}

/// The longest one-shot call, in bytes: in a longer one it costs too much that each rank folds
/// everything for itself.
pub(super) const MOST_ONE_SHOT: usize = 16 << 10;

/// The fewest bytes of registered memory, for each rank, for which it is worth that ranks write
/// each other's buffers, which saves copies and takes a second hand-over: the more ranks share a
/// CPU, the more it costs. ARCHITECTURE.md has the measurement.
pub(super) const LEAST_REGISTERED_PER_RANK: usize = 2 << 10;

/// The shortest chunk, in bytes, worth a message of its own, with `crowding` ranks per CPU. Ranks
/// that share a CPU pay for each message with a turn on it, and a ring sends 2n(n-1) messages
/// unless it leaves chunks empty. ARCHITECTURE.md has the measurement.
#[must_use]
pub fn least_chunk(tcp: bool, crowding: usize) -> usize {
    let (alone, crowded) = if tcp { (4 << 10, 4 << 10) } else { (256, 1 << 10) };
    if crowding == 1 { alone } else { (crowded * crowding * crowding).min(64 << 10) }
}

#[cfg(test)]
mod tests {
    use super::{Distance, Slots};
    use crate::schedule::Algorithm;

    /// Where there are links between all pairs, the memory of a rank does not grow with them.
    #[test]
    fn links_between_all_pairs_have_bounded_memory() {
        for size in 1..=512 {
            let Slots { other, .. } = Slots::of(Distance::Tcp, size, true);
            assert!(size * other.bytes * other.capacity <= 32 << 20, "{size} ranks: {other:?}");
        }
    }

    /// No algorithm's window needs more slots than links have, however far ranks are apart.
    #[test]
    fn all_links_have_slots_for_every_window() {
        let all = [Distance::Memory, Distance::Tcp, Distance::WideArea];
        let worlds = all.into_iter().flat_map(|far| (1..300).map(move |size| (far, size)));
        for ((far, size), pairs) in worlds.flat_map(|it| [false, true].map(|pairs| (it, pairs))) {
            let Slots { ring, other } = Slots::of(far, size, pairs);
            for algorithm in Algorithm::ALL {
                for slots in [ring, other] {
                    let shared = slots.shared(algorithm.window());
                    let fits = shared.is_some_and(|it| {
                        it.slices_per_round() * algorithm.window() <= slots.capacity
                    });
                    assert!(fits, "{algorithm} {slots:?}");
                }
            }
        }
    }
}
