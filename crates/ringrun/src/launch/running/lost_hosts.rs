//! Lost hosts in the launcher's loop: the launcher of an elastic job starts a new agent on each of
//! them, and ranks that found no free slot elsewhere are let in again.
//! Laws: a lost host is sought until it is back or the job ends, after pauses that grow: its former
//! agent may live, with the host's ranks, and only a new one can end them; no rank spends a restart
//! by that.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Running;
use crate::launch::agents::Agents;
use crate::launch::message::name_ranks;
use crate::launch::restart_policy::HostState;
use ringreduce::bootstrap::Instant;

/// The longest pause between two attempts to reach a host.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// The hosts without an agent, and the attempts to start one.
#[derive(Debug, Default)]
pub(super) struct LostHosts(BTreeMap<usize, Attempts>);

#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    /// The attempts that have failed since the host was lost.
    failed: u32,
    /// When the next one is due; none while one is made.
    due: Option<Instant>,
}

impl LostHosts {
    pub(super) fn contains(&self, host_number: usize) -> bool {
        self.0.contains_key(&host_number)
    }

    /// Adds a host, which is tried at once unless it is sought already.
    fn add(&mut self, now: Instant, host_number: usize) {
        self.0.entry(host_number).or_insert(Attempts { failed: 0, due: Some(now) });
    }

    /// True if the host was sought.
    fn remove(&mut self, host_number: usize) -> bool {
        self.0.remove(&host_number).is_some()
    }

    /// A host for which an attempt is due: the caller makes it.
    fn take_due(&mut self, now: Instant) -> Option<usize> {
        let mut all = self.0.iter_mut();
        let (host, attempts) = all.find(|(_, it)| it.due.is_some_and(|due| due <= now))?;
        attempts.due = None;
        Some(*host)
    }

    /// Records that an attempt has failed, and gives how many have.
    fn fail(&mut self, now: Instant, host_number: usize) -> u32 {
        let attempts = self.0.entry(host_number).or_default();
        let pause = LONGEST_PAUSE.min(Duration::from_secs(1 << attempts.failed.min(5)));
        attempts.failed = attempts.failed.saturating_add(1);
        attempts.due = Some(now + pause);
        attempts.failed
    }

    /// When the next attempt is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(|attempts| attempts.due).min()
    }
}

impl Running<'_> {
    fn ranks_of_host(&self, host_number: usize) -> Vec<usize> {
        let placements = self.ranks.iter().map(|rank| &rank.placement);
        let own = placements.filter(|placement| placement.host_number == host_number);
        own.map(|placement| placement.rank).collect()
    }

    /// Lets the restarts of a lost host's ranks wait for the host, if it can be sought, or for
    /// another one's free slots.
    pub(super) fn set_host_lost(&mut self, host_number: usize) {
        let may_start_again =
            Agents::can_be_reached(self.request) || self.request.has_spare_slots();
        let lost = if may_start_again { HostState::Lost } else { HostState::LostForGood };
        self.set_host(host_number, lost);
    }

    fn set_host(&mut self, host_number: usize, state: HostState) {
        let ranks = self.ranks_of_host(host_number);
        if let Some(restarter) = &mut self.restarter {
            ranks.into_iter().for_each(|rank| restarter.policy.set_host(rank, state));
        }
    }

    /// The ranks that wait for a lost host.
    fn awaiting_host(&self) -> Vec<usize> {
        self.restarter.as_ref().map(|it| it.policy.awaiting_host()).unwrap_or_default()
    }

    /// Gives the ranks of a lost host the free slots of others, and begins to seek the host, if
    /// that can be done from here. Else gives up the ranks that are left.
    pub(super) fn replace_host(&mut self, host_number: usize) {
        // A job without ranks has no output any more.
        if self.job.failure().is_some() || self.output.is_none() {
            return;
        }
        self.use_free_slots();
        if Agents::can_be_reached(self.request) {
            self.lost_hosts.add(Instant::now(), host_number);
        } else {
            self.awaiting_host().into_iter().for_each(|rank| self.give_up_rank(rank));
        }
    }

    /// Seeks the hosts without ranks that could not be reached when the job began.
    pub(super) fn seek_missing_hosts(&mut self) {
        let is_over = |host: &usize| self.agents.is_over(*host);
        for missing in (0..self.request.hosts.len()).filter(is_over) {
            self.lost_hosts.fail(Instant::now(), missing);
        }
    }

    /// Starts agents on the lost hosts for which that is due.
    pub(super) fn reach_lost_hosts(&mut self) {
        while let Some(host_number) = self.lost_hosts.take_due(Instant::now()) {
            let job = (self.request, self.spawner.id);
            if let Err(failure) = self.agents.reach(job, host_number, &mut self.orphans) {
                self.not_reached(host_number, &failure.to_string());
            }
        }
    }

    /// An attempt to reach a lost host has failed: the first one is told.
    pub(super) fn not_reached(&mut self, host_number: usize, why: &str) {
        if self.lost_hosts.fail(Instant::now(), host_number) == 1 {
            let host = &self.request.hosts[host_number].name;
            self.request.warn(&format!(
                "host {host} can't be reached yet and is tried again until the job ends: {why}"
            ));
        }
    }

    /// A new agent of a host is ready. One that comes too late ends with this launcher.
    pub(super) fn host_is_back(&mut self, host_number: usize) {
        if !self.lost_hosts.remove(host_number) {
            return;
        }
        let mut own = self.awaiting_host();
        own.retain(|&rank| self.ranks[rank].placement.host_number == host_number);
        if self.request.has_spare_slots() {
            // No rank of the job runs there, and local ranks below these may have gone elsewhere:
            // programs take it that a host has a local rank 0.
            let local_ranks = own.iter().zip(0..);
            local_ranks.for_each(|(&rank, at)| self.ranks[rank].placement.local_rank = at);
        }
        self.agents.set_back(host_number);
        self.set_host(host_number, HostState::Reached);
        let host = &self.request.hosts[host_number].name;
        let can_start = match own.as_slice() {
            [] => String::new(),
            own => format!(": {} can be started there again", name_ranks(own)),
        };
        self.request.warn(&format!("host {host} is back{can_start}"));
        self.use_free_slots();
    }

    /// The job ends: no host is sought any more, though these ranks waited for one.
    pub(super) fn leave_lost_hosts(&mut self, waiting: &[usize]) {
        self.seek_no_host();
        if self.job.failure().is_none() && !waiting.is_empty() {
            let ranks = name_ranks(waiting);
            self.request.warn(&format!(
                "the job ends without {ranks}: the lost hosts did not come back before"
            ));
        }
    }

    pub(super) fn seek_no_host(&mut self) {
        self.lost_hosts = LostHosts::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_host_is_tried_at_once_and_then_after_growing_pauses() {
        let (now, mut lost) = (Instant::now(), LostHosts::default());
        lost.add(now, 3);
        assert_eq!((lost.take_due(now), lost.take_due(now)), (Some(3), None));
        assert_eq!(lost.deadline(), None);
        for (count, seconds) in (1..).zip([1, 2, 4, 8, 16, 32, 32]) {
            assert_eq!(lost.fail(now, 3), count);
            let due = now + Duration::from_secs(seconds);
            assert_eq!(lost.deadline(), Some(due));
            assert_eq!((lost.take_due(now), lost.take_due(due)), (None, Some(3)));
        }
        assert!(lost.contains(3) && lost.remove(3) && !lost.remove(3));
    }
}
