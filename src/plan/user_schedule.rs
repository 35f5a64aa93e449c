//! Plans by the user's schedules. Law: a schedule is proved (`sim::prove`) before it is added.

use super::planner::partition_of;
use super::{Plan, Planner, Request};
use crate::schedule::{Algorithm, Schedule};

impl Planner {
    /// Adds this rank's schedule; `digest` is that of all ranks' schedules.
    pub fn add_user_schedule(&mut self, schedule: &Schedule, digest: u64) {
        if !self.user_schedules.iter().any(|(known, _)| *known == digest) {
            self.user_schedules.push((digest, schedule.clone()));
        }
    }

    /// The plan for a call by the user's schedules with this digest; by a library algorithm if they
    /// were not added.
    pub fn user_plan(&mut self, request: &Request, digest: u64) -> Plan<'_> {
        let Some(at) = self.user_schedules.iter().position(|(known, _)| *known == digest) else {
            return self.plan(request);
        };
        let slots = self.least_slots();
        let schedule = &self.user_schedules[at].1;
        let partition = partition_of(request, schedule, 0, slots).with_scratch(&schedule.scratch);
        let fingerprint = self.user_fingerprint(request, digest);
        Plan { algorithm: Algorithm::Ring, schedule, partition, fingerprint, parts: None }
    }
}
