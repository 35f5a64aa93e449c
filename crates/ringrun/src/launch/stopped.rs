//! Ranks that are stopped by a signal when all others have ended: no process of the job is left
//! that could continue them. Law: a job whose ranks have all ended or are stopped ends.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::rank::Rank;
use super::{Running, sys};
use ringreduce::bootstrap::Instant;

/// How long a user who has stopped the last ranks may leave them so.
const STOPPED_GRACE: Duration = Duration::from_secs(5);
/// How often the launcher looks for stopped ranks, once a rank has ended.
const STOPPED_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Running<'_> {
    /// When to look for stopped ranks again.
    pub(super) fn next_look_for_stopped(&self) -> Option<Instant> {
        let has_ended = self.ranks.iter().any(Rank::has_ended);
        let looks = has_ended && !self.running().is_empty() && self.job.failure().is_none();
        looks.then(|| Instant::now() + STOPPED_POLL_INTERVAL)
    }

    /// Ends the last ranks if all of them have been stopped for a while.
    pub(super) fn end_stopped_ranks(&mut self) {
        let running = self.running();
        if running.is_empty() {
            return;
        }
        if self.next_look_for_stopped().is_none()
            || !running.iter().all(|rank| self.ranks[*rank].is_stopped())
        {
            self.stopped_since = None;
            return;
        }
        let pid = |rank: &usize| self.ranks[*rank].pid();
        if self.terminal.is_some() && running.iter().map(pid).any(sys::has_new_stop) {
            // The rank may want the terminal, which is lent to it next.
            return;
        }
        let now = Instant::now();
        let Some(since) = self.stopped_since else {
            self.stopped_since = Some(now);
            for rank in &running {
                self.request.warn(&format!(
                    "{} is stopped by a signal, and no other rank runs any more: it is ended in \
                     {STOPPED_GRACE:?} unless it goes on (kill -CONT {})",
                    self.ranks[*rank].label(),
                    self.ranks[*rank].pid(),
                ));
            }
            return;
        };
        if now - since >= STOPPED_GRACE {
            self.has_killed_stopped = true;
            for rank in running {
                self.mark_left_behind(rank);
                self.ranks[rank].signal(Signal::SIGKILL);
            }
        }
    }

    fn running(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|rank| !self.ranks[*rank].has_ended()).collect()
    }
}
