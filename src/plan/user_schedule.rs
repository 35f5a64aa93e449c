//! Plans by schedules that the user made. May touch: schedule. Law: they are proved before they are
//! adopted; see `sim::prove`.

use super::planner::pieces;
use super::{Plan, Planner, Request};
use crate::schedule::{Algorithm, Schedule};

impl Planner {
    /// Keeps a schedule that is not the library's; all ranks' schedules have this digest.
    pub fn adopt(&mut self, schedule: &Schedule, digest: u64) {
        if !self.adopted.iter().any(|(known, _)| *known == digest) {
            self.adopted.push((digest, schedule.clone()));
        }
    }

    /// The plan for a call by one that was adopted; by the library's own, if it was not.
    pub fn own(&mut self, request: &Request, digest: u64) -> Plan<'_> {
        let Some(at) = self.adopted.iter().position(|(known, _)| *known == digest) else {
            return self.plan(request);
        };
        let slots = self.least_slots();
        let schedule = &self.adopted[at].1;
        let partition = pieces(request, schedule, 0, slots).with_scratch(&schedule.scratch);
        let fingerprint = self.own_fingerprint(request, digest);
        Plan { algorithm: Algorithm::Ring, schedule, partition, fingerprint }
    }
}
