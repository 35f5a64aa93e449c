//! Plans by the user's schedules. Law: a schedule is proved (`sim::prove`) before it is added.

use super::planner::partition_of;
use super::{Plan, Planner, Request};
use crate::schedule::{Algorithm, Schedule};

/// The most schedules of a user's that stay; a program makes a few and repeats them.
const KEPT_SCHEDULES: usize = 64;

impl Planner {
    /// Adds this rank's schedule for the next call; `digest` is that of all ranks' schedules. The
    /// schedules that were added last stay for later calls.
    pub fn add_user_schedule(&mut self, schedule: &Schedule, digest: u64) {
        if !self.user_schedules.iter().any(|(known, _)| *known == digest) {
            if self.user_schedules.len() == KEPT_SCHEDULES {
                self.user_schedules.remove(0);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Distance, Slots};
    use crate::schedule::{Collective, Ring};

    #[test]
    fn the_schedules_that_were_added_last_stay() {
        let ring = Ring::natural(4);
        let schedule = Collective::AllReduce.schedule(&ring, 1);
        let mut planner = Planner::new(ring, 1, Slots::of(Distance::Memory, 4, true), 64);
        for digest in 0..1000 {
            planner.add_user_schedule(&schedule, digest);
        }
        let kept: Vec<_> = planner.user_schedules.iter().map(|(digest, _)| *digest).collect();
        assert_eq!(kept, (1000 - KEPT_SCHEDULES as u64..1000).collect::<Vec<_>>());
    }
}
