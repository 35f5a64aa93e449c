//! The ranks that make the probe's timed calls together: all of them, or those of one host.

use crate::plan::Request;
use crate::schedule::{Algorithm, Ring, Schedule};

/// The ranks that make timed calls together.
pub(super) struct ProbeGroup {
    /// In the order of their ring.
    pub(super) ranks: Vec<u32>,
    /// The number of the ring's links that are of the measured kind (within a host, or between
    /// hosts), and the latency of links of the other kind in seconds.
    pub(super) links_of_kind: f64,
    pub(super) other_latency: f64,
    /// True if there are links between all pairs.
    pub(super) has_all_pairs: bool,
    /// True if the group has all ranks of the communicator.
    pub(super) is_world: bool,
}

impl ProbeGroup {
    /// Ranks in the order of their ring, all of whose links are of one kind.
    pub(super) fn of(ranks: Vec<u32>, has_all_pairs: bool, is_world: bool) -> Self {
        let (links_of_kind, other_latency) = (ranks.len() as f64, 0.0);
        Self { ranks, links_of_kind, other_latency, has_all_pairs, is_world }
    }

    /// A rank's steps of a call among this group's ranks alone.
    pub(super) fn schedule(
        &self,
        request: &Request,
        algorithm: Algorithm,
        rank: usize,
    ) -> Option<Schedule> {
        let at = self.ranks.iter().position(|&one| one as usize == rank)?;
        let ring = Ring::natural(self.ranks.len() as u32);
        let mut schedule = algorithm.schedule(request.collective, &ring, at as u32)?;
        for step in &mut schedule.steps {
            step.from = self.ranks[step.from as usize];
            step.to = self.ranks[step.to as usize];
        }
        Some(schedule)
    }
}
