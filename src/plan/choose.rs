//! The choice of an algorithm: the cheapest by the closed forms, for speeds that all ranks agree
//! on. May touch: partition, schedule, sim's Speed. Pure. Law: what is chosen follows from the
//! call, the world and the speeds alone, so that all ranks choose the same.

use super::{Planner, Request};
use crate::partition::SlotShape;
use crate::schedule::{ALL_PAIRS, Algorithm, Collective};
use crate::sim::Speed;

/// An algorithm that could make a call, and what it should cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Seconds that it should take; `None` if there is no closed form for it.
    pub seconds: Option<f64>,
}

impl Algorithm {
    /// Are there links for all its messages among so many ranks? Larger worlds have them on the
    /// ring and between ranks whose numbers differ by a power of two.
    #[must_use]
    pub fn reaches(self, size: u32) -> bool {
        let doubling = matches!(self, Self::RecursiveDoubling | Self::HalvingDoubling);
        matches!(self, Self::Ring | Self::TwoRings)
            || size <= ALL_PAIRS
            || (doubling && size.is_power_of_two())
    }
}

impl Planner {
    /// The algorithms that can make a call, in the order of [`Algorithm::ALL`].
    pub fn candidates(&self, request: &Request) -> impl Iterator<Item = Candidate> {
        let size = self.ring.size();
        let (collective, bytes) = (request.collective, self.bytes(request));
        let can = move |algorithm: &Algorithm| {
            let slots = self.slots.ring.shared(algorithm.window());
            let slots = slots.and(self.slots.other.shared(algorithm.window()));
            let schedule = || algorithm.schedule(collective, &self.ring, self.me);
            let ordered = !self.in_order || algorithm.folds_left(collective);
            ordered && algorithm.reaches(size) && slots.is_some() && schedule().is_some()
        };
        let price = move |algorithm| {
            let slots = self.shape(algorithm, collective);
            let seconds =
                self.speed.and_then(|s| seconds(algorithm, request, size, bytes, slots, s));
            Candidate { algorithm, seconds }
        };
        Algorithm::ALL.into_iter().filter(can).map(price)
    }

    /// The one that makes it: the one asked for, if it can, or else the cheapest.
    pub(super) fn choose(&self, request: &Request) -> Algorithm {
        let mut best = None::<Candidate>;
        for candidate in self.candidates(request) {
            if self.forced == Some(candidate.algorithm) {
                return candidate.algorithm;
            }
            let cheaper = |best: Candidate| match (candidate.seconds, best.seconds) {
                (Some(new), Some(old)) => new < old,
                _ => false,
            };
            if best.is_none_or(cheaper) {
                best = Some(candidate);
            }
        }
        best.map_or(Algorithm::Ring, |best| best.algorithm)
    }

    /// Bytes of the longer one of a rank's input and output.
    fn bytes(&self, request: &Request) -> usize {
        let parts = if request.collective.has_blocks() { self.ring.size() as usize } else { 1 };
        request.count * request.element_size() * parts
    }
}

/// The closed form counts one slice per chunk. Here a chunk is walked in rounds, each of several
/// slices; what follows the first round finds everybody at work and waits for no message.
fn seconds(
    algorithm: Algorithm,
    request: &Request,
    size: u32,
    bytes: usize,
    slots: SlotShape,
    speed: Speed,
) -> Option<f64> {
    let collective = request.collective;
    let chunks = if algorithm.is_whole(collective) { 1 } else { size as usize };
    let chunk = bytes.div_ceil(chunks);
    let piece = slots.bytes * slots.slices_per_round();
    let part = |bytes: usize, latency: f64| {
        let slices = bytes.div_ceil(slots.bytes).saturating_sub(1) as f64;
        let steps = Speed { step: speed.step, latency: 0.0, byte: 0.0, reduce: 0.0 };
        let more = algorithm.cost(collective, size, 0.0, &steps)? * slices;
        let bytes = (bytes * chunks) as f64;
        Some(algorithm.cost(collective, size, bytes, &Speed { latency, ..speed })? + more)
    };
    let first = part(chunk.min(piece), speed.latency)?;
    let (full, rest) = (chunk.saturating_sub(piece) / piece, chunk.saturating_sub(piece) % piece);
    let full = if full > 0 { part(piece, 0.0)? * full as f64 } else { 0.0 };
    Some(first + full + if rest > 0 { part(rest, 0.0)? } else { 0.0 })
}

impl Algorithm {
    /// Is the buffer one chunk, and not one for each rank?
    fn is_whole(self, collective: Collective) -> bool {
        let token = matches!(collective, Collective::Broadcast { .. } | Collective::Barrier);
        let exchanged = matches!(self, Self::AllPairs | Self::RecursiveDoubling);
        token || (exchanged && collective == Collective::AllReduce)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Planner, Request, Slots};
    use crate::element::{DataType, ReduceOp};
    use crate::partition::SlotShape;
    use crate::schedule::{Algorithm, Collective, Ring};
    use crate::sim::Speed;

    const SLOTS: Slots = Slots {
        ring: SlotShape { bytes: 64 << 10, capacity: 16 },
        other: SlotShape { bytes: 8 << 10, capacity: 8 },
    };
    const SPEED: Speed = Speed { latency: 1e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };

    fn planner(size: u32, me: u32) -> Planner {
        let mut planner = Planner::new(Ring::natural(size), me, SLOTS, 256);
        planner.set_speed(SPEED);
        planner
    }

    fn all_reduce(bytes: usize) -> Request {
        let (collective, dtype) = (Collective::AllReduce, DataType::F32);
        Request { collective, count: bytes / 4, dtype, op: Some(ReduceOp::Sum.into()) }
    }

    #[test]
    fn small_messages_take_few_hops_and_large_ones_few_bytes() {
        for size in [3, 4, 8, 16] {
            let planner = planner(size, 0);
            assert_ne!(planner.choose(&all_reduce(8)), Algorithm::Ring, "{size}");
            assert_eq!(planner.choose(&all_reduce(256 << 20)), Algorithm::Ring, "{size}");
        }
    }

    #[test]
    fn all_ranks_choose_the_same() {
        for size in 2..=20 {
            for power in 3..=28 {
                let request = all_reduce(1 << power);
                let first = planner(size, 0).choose(&request);
                assert!((1..size).all(|me| planner(size, me).choose(&request) == first));
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_taken_where_it_can_be() {
        let mut planner = planner(4, 1);
        planner.force(Some(Algorithm::TwoShot));
        assert_eq!(planner.choose(&all_reduce(8)), Algorithm::TwoShot);
        let scan = Request { collective: Collective::Scan, ..all_reduce(8) };
        assert_eq!(planner.choose(&scan), Algorithm::Ring);
    }

    #[test]
    fn without_speeds_it_is_the_ring() {
        let planner = Planner::new(Ring::natural(4), 0, SLOTS, 256);
        assert_eq!(planner.choose(&all_reduce(8)), Algorithm::Ring);
    }

    /// Whatever links are missing in large worlds, no algorithm is chosen that needs them.
    #[test]
    fn every_step_of_a_choice_has_its_link() {
        for size in [3, 16, 17, 24, 32, 64] {
            for me in [0, 1, size / 2, size - 1] {
                let mut planner = planner(size, me);
                for power in [3, 12, 20] {
                    let request = all_reduce(1 << power);
                    let peers = planner.peers();
                    let steps = planner.plan(&request).schedule.steps.clone();
                    for step in steps {
                        assert!(!step.op.sends() || peers.contains(&step.to), "{size} {me}");
                        assert!(!step.op.receives() || peers.contains(&step.from), "{size} {me}");
                    }
                }
            }
        }
    }
}
