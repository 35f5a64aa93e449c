//! Ranks that are stopped by a signal when all others have ended: no process of the job is left
//! that could continue them. Law: a job whose ranks have all ended or are stopped ends.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Running;
use crate::launch::local_process::LocalProcess;
use crate::launch::rank::Rank;
use crate::launch::sys;
use ringreduce::bootstrap::Instant;

/// How long a user who has stopped the last ranks may leave them so.
const STOPPED_GRACE: Duration = Duration::from_secs(5);
/// How often the launcher looks for stopped ranks, once a rank has ended.
const STOPPED_POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct StoppedRanks {
    /// When all ranks that have not ended were first seen to be stopped.
    since: Option<Instant>,
    /// The stopped ranks that were killed.
    pub(super) killed: Vec<usize>,
}

impl Running<'_> {
    /// When to look for stopped ranks again.
    pub(super) fn next_look_for_stopped(&self) -> Option<Instant> {
        let ended = self.ranks.iter().filter(|rank| rank.has_ended()).count();
        let looks = 0 < ended && ended < self.ranks.len() && self.job.failure().is_none();
        looks.then(|| Instant::now() + STOPPED_POLL_INTERVAL)
    }

    /// Ends the last ranks if all of them have been stopped for a while.
    pub(super) fn end_stopped_ranks(&mut self) {
        let running = || self.ranks.iter().filter(|rank| !rank.has_ended());
        if self.next_look_for_stopped().is_none() || !running().all(Rank::is_stopped) {
            self.stopped.since = None;
            return;
        }
        let has_new_stop = |process: &LocalProcess| sys::has_new_stop(process.pid());
        if self.terminal.is_some() && running().filter_map(Rank::here).any(has_new_stop) {
            // The rank may want the terminal, which is lent to it next.
            return;
        }
        let now = Instant::now();
        let Some(since) = self.stopped.since else {
            self.stopped.since = Some(now);
            for rank in running() {
                self.request.warn(&format!(
                    "{} is stopped by a signal, and no other rank runs any more: it is ended in \
                     {STOPPED_GRACE:?} unless it goes on (kill -CONT {}, on its host)",
                    rank.label(),
                    rank.pid(),
                ));
            }
            return;
        };
        if now - since >= STOPPED_GRACE {
            for rank in running() {
                self.stopped.killed.push(rank.placement.rank);
                // The members go on without a rank that the launcher ends.
                if let Some(restarter) = &mut self.restarter {
                    restarter.policy.mark_left_behind(rank.placement.rank);
                }
                rank.signal(Signal::SIGKILL);
            }
        }
    }
}
