//! What the slots of links are like, and what is worth a message. May touch: partition, schedule.
//! Pure.
//! Law: all ranks of a communicator compute the same.

use crate::partition::SlotShape;
use crate::schedule::Ring;

/// What the slots of a communicator's links are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// From each rank to the next on the ring.
    pub ring: SlotShape,
    /// Between all others; there are many of those.
    pub other: SlotShape,
}

impl Slots {
    /// In a world of `size`, of which some ranks may be on other hosts (`tcp`).
    ///
    /// On shared memory 64 KiB x 16 stays in a core's cache and was best or near it for every size
    /// and world measured. The other ranks' links share about as much again: there are n-1 of them,
    /// but the less fits one, the more often ranks on one CPU take turns. A system call per slot
    /// wants larger ones, as soon as any link runs over TCP.
    #[must_use]
    pub fn of(tcp: bool, size: usize) -> Self {
        if tcp {
            return Self {
                ring: SlotShape { bytes: 1 << 20, capacity: 4 },
                other: SlotShape { bytes: 64 << 10, capacity: 8 },
            };
        }
        let share = (128 << 10) / size.next_power_of_two();
        Self {
            ring: SlotShape { bytes: 64 << 10, capacity: 16 },
            other: SlotShape { bytes: share.clamp(8 << 10, 32 << 10), capacity: 8 },
        }
    }
}

/// Bytes that each of so many ranks lays open for all others from the start, if they are on one
/// host: two pages, and an element of any size on each of them. Large worlds would spend too much
/// on it.
#[must_use]
pub fn stage(ring: &Ring) -> usize {
    if ring.size() > 1 && ring.all_pairs() { 16 << 10 } else { 0 }
}

/// The shortest chunk worth a message of its own, with so many ranks to a CPU. Where ranks have to
/// take turns on a CPU each message costs a turn, and a ring makes 2n(n-1) of them unless it leaves
/// chunks empty: with four ranks a CPU, 512 bytes over TCP took 510 us in eight chunks and 115 us
/// in one.
#[must_use]
pub fn least_chunk(tcp: bool, crowding: usize) -> usize {
    let (alone, crowded) = if tcp { (4 << 10, 4 << 10) } else { (256, 1 << 10) };
    if crowding == 1 { alone } else { (crowded * crowding * crowding).min(64 << 10) }
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use crate::schedule::Algorithm;

    /// Over sockets as over memory: no algorithm asks for more slots than links have.
    #[test]
    fn all_links_have_slots_for_every_window() {
        for (tcp, size) in [false, true].into_iter().flat_map(|tcp| (1..40).map(move |n| (tcp, n)))
        {
            let Slots { ring, other } = Slots::of(tcp, size);
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
