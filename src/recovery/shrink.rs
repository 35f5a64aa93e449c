//! `shrink`, `evict`, `agree` and `revoke`: after a failure, survivors agree on a value or on a new
//! membership, and go on in a new communicator without the dead.
//! Law: the state machine of `membership` decides; every wait ends, at the latest `CLOSING_LIMIT`
//! after the caller's deadline.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::membership::{Input, Ranks, Verdict};
use crate::api::Communicator;
use crate::bootstrap::Joiner;
use crate::config::deadline_after;
use crate::engine::membership_driver::{MembershipDriver, connect_limit, limit_among};
use crate::error::cause::FailureReason;
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::sync::Instant;

/// How long up to 32 members wait at least, after the limit of their connecting, for each other's
/// votes on whether all have connected.
pub(super) const CLOSING_LIMIT: Duration = Duration::from_secs(2);
/// How long up to 32 members wait for each other's next attempt, where some could not connect.
const RETRY_WAIT: Duration = Duration::from_secs(2);

/// How the closing of a change has ended.
enum Closing {
    /// All members go on.
    Closed,
    /// By a decision of all, none goes on. These members have ended, or lack links.
    Undone(Ranks),
    /// This rank has given up the wait for these members. Its vote may close the change yet.
    GivenUp(Ranks),
}

/// The end of a wait for a change.
enum Decided {
    /// The next epoch, of these members.
    Change(u32, Ranks),
    /// All members go on with this communicator.
    Closed(Box<Communicator>, Ranks),
}

impl Communicator {
    /// A new communicator of the surviving ranks, in the order of their ranks here. All survivors
    /// call this after a rank was lost, each once its own calls have failed. Survivors that die
    /// meanwhile are left out too. Afterwards this communicator can only be dropped.
    ///
    /// A rank whose death is certain (its process shares memory with a survivor, or `ringrun` has
    /// seen it end) is left out in any case. Where ranks only went silent, such as those of a host
    /// without network, survivors need a quorum: more than half of the rest, or half of
    /// it with the lowest rank. So two parts of a divided job never both go on. The model is
    /// MPI's `MPIX_Comm_shrink`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// # let mut sum = [1.0_f32];
    /// while comm.all_reduce(&mut sum, ReduceOp::Sum).is_err() {
    ///     comm = comm.shrink(Duration::from_secs(10))?;
    ///     sum = [1.0];
    /// }
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAll`] with the ranks that neither called nor ended within `deadline`, gave up
    /// their calls, or did not connect: call this again, or [`Self::evict`]. The call ends at the
    /// latest two seconds after `deadline`, by which all members have voted whether they have
    /// connected. [`Error::QuorumLost`] without a quorum. [`Error::Evicted`] if the others went on
    /// without this rank. [`Error::Argument`] for ranks that are threads,
    /// or that have no port for each other where not all pairs have links.
    pub fn shrink(&mut self, deadline: Duration) -> Result<Self> {
        self.change_membership("shrink", deadline_after(deadline), false, Vec::new())
    }

    /// As [`Self::shrink`], but ranks that have not called in time are evicted, and learn so from
    /// their next call. The last ten seconds until the deadline are left for the other ranks to
    /// connect, with more than 32 ranks proportionally more, or the second half of a shorter time.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::from_env()?;
    /// comm = comm.evict(Duration::from_secs(10))?;
    /// println!("{} ranks go on", comm.size());
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::shrink`]. [`Error::NotAll`] names ranks that have called, but did not answer or
    /// connect by the deadline: call this again.
    pub fn evict(&mut self, deadline: Duration) -> Result<Self> {
        self.change_membership("evict", deadline_after(deadline), true, Vec::new())
    }

    /// The bitwise AND of the `flags` of all survivors. Every rank that returns a result returns
    /// the same, even if ranks die meanwhile. All survivors call this, also after a failure. The
    /// model is MPI's `MPIX_Comm_agree`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// let done = comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum);
    /// let all_are_done = comm.agree(u64::from(done.is_ok()), Duration::from_secs(10))? == 1;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::shrink`]. [`Error::NotAll`] comes before the deadline if a [`Self::shrink`] that
    /// this rank had given up was decided all the same: it names the ranks that wait there for this
    /// one, which calls [`Self::shrink`] again.
    pub fn agree(&mut self, flags: u64, deadline: Duration) -> Result<u64> {
        self.clear_abort("agree")?;
        const CALL: &str = "agree";
        let until = deadline_after(deadline);
        self.with_driver(CALL, |driver, peers| {
            let deadline = Some(driver.time(until));
            driver.step(peers, None, Input::Agree { flags, deadline });
            driver.verdict(CALL, peers, until + CLOSING_LIMIT, |verdict| match verdict {
                Verdict::Agreed { flags, .. } => Some(*flags),
                _ => None,
            })
        })
    }

    /// Clears the abort flag of calls that have already failed, so that the flag aborts this call.
    fn clear_abort(&mut self, call: &'static str) -> Result<()> {
        let (engine, _) = self.engine_on_this_thread(call)?;
        if engine.broken.get().is_some() {
            engine.abort.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for the votes of all members on whether they have their links. All have connected or
    /// given up by `connected`.
    fn close_change(
        &mut self,
        call: &'static str,
        (epoch, is_linked): (u32, bool),
        (connected, last): (Instant, Instant),
        evict_missing: bool,
    ) -> Result<Closing> {
        // Members that evict one which has not voted still have to agree on that, and those that
        // give up have to settle whether they may. A change may be decided after the deadline.
        let time = CLOSING_LIMIT / 2;
        let latest = (connected + time).clamp(last, last + time);
        let until = match evict_missing {
            true => latest.min(connected + limit_among(self.size(), time)),
            false => latest,
        };
        self.with_driver(call, |driver, peers| {
            let deadline = Some(driver.time(until));
            driver.step(peers, None, Input::Close { epoch, is_linked, deadline, evict_missing });
            driver.verdict(call, peers, latest + time, |verdict| match verdict {
                Verdict::Closed { .. } => Some(Closing::Closed),
                Verdict::Undone { missing, .. } => Some(Closing::Undone(missing.clone())),
                Verdict::TimedOut { missing } => Some(Closing::GivenUp(missing.clone())),
                _ => None,
            })
        })
    }

    /// Ends all calls of this communicator at all ranks: they fail with [`Error::Aborted`] by this
    /// rank, and the ranks may [`Self::shrink`]. The model is MPI's `MPIX_Comm_revoke`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::from_env()?;
    /// # let is_wrong = true;
    /// if is_wrong {
    ///     comm.revoke()?;
    ///     comm = comm.shrink(Duration::from_secs(10))?;
    /// }
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an operation panicked and took the engine with it.
    pub fn revoke(&mut self) -> Result<()> {
        let (engine, _) = self.engine_on_this_thread("revoke")?;
        // A failure that was reported before stays the cause.
        engine.peers.report_own_failure(FailureReason::Aborted);
        let first = "revoked by this rank".into();
        engine.give_up(Error::Broken { call: "revoke", first });
        self.rank_info.messages.shared().close("this rank has revoked its communicator");
        Ok(())
    }

    /// Runs `work` with the recovery driver and the links.
    pub(super) fn with_driver<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut MembershipDriver, &mut Peers) -> Result<T>,
    ) -> Result<T> {
        let (engine, settings) = self.engine_on_this_thread(call)?;
        engine.with_driver(settings, call, work)
    }

    /// A communicator of the survivors, and of these joiners if all survivors name them.
    pub(super) fn change_membership(
        &mut self,
        call: &'static str,
        last: Instant,
        evict: bool,
        mut joiners: Vec<Joiner>,
    ) -> Result<Self> {
        let began = Instant::now();
        // Ranks are evicted in time for the others to connect by the deadline.
        let time = last.saturating_duration_since(began);
        let connecting =
            if evict { connect_limit(self.size()).min(time / 2) } else { Duration::ZERO };
        let mut until = began + (time - connecting);
        self.clear_abort(call)?;
        if joiners.is_empty() {
            // No operation under way can go on into the new membership. A caller of `grow` has
            // waited for its operations already.
            self.revoke()?;
        }
        // Where ranks are evicted, members have this time to come to the next attempt.
        let retry_wait = match evict {
            true => limit_among(self.size(), RETRY_WAIT).min(time / 4).max(RETRY_WAIT),
            false => Duration::ZERO,
        };
        // The communicator of an epoch whose closing this rank has given up.
        let mut given_up: Option<(u32, Self, Ranks)> = None;
        loop {
            let decided = self.decide_change(call, (until, last), evict, given_up.take())?;
            let (epoch, members) = match decided {
                Decided::Change(epoch, members) => (epoch, members),
                Decided::Closed(comm, all) => return self.go_on(call, (*comm, &all), evict),
            };
            self.revoke()?;
            // A joiner that does not come, or a member that can be evicted, leaves half of the time
            // to connect without it.
            let left = last.saturating_duration_since(Instant::now());
            let time = if joiners.is_empty() { left } else { left / 2 };
            let most = connect_limit(members.len() as usize + joiners.len());
            let limit = Instant::now() + time.min(if evict { most / 2 } else { most });
            let (joined, limit) = self.join_survivors(call, (epoch, &members), &joiners, limit);
            if members.len() == 1 && (joined.is_ok() || joiners.is_empty()) {
                return self.go_on(call, (joined?, &members), evict);
            }
            // Either all members go on with the new communicator, or none does. One that died
            // meanwhile may have left a joiner without a link.
            let closing = self.close_change(call, (epoch, joined.is_ok()), (limit, last), evict)?;
            let (mut voted, is_linked) = (Instant::now(), joined.is_ok());
            let is_late = voted + retry_wait >= last;
            let (missing, is_over) = match (closing, joined) {
                (Closing::Closed, joined) => return self.go_on(call, (joined?, &members), evict),
                (Closing::GivenUp(missing), joined) => {
                    // Others may still connect. News that all go on needs no time for that.
                    let is_over = if is_linked { voted >= last } else { is_late };
                    voted = voted.max(limit);
                    given_up = joined.ok().map(|comm| (epoch, comm, members.clone()));
                    (missing, is_over)
                }
                (Closing::Undone(_), Err(error)) if is_late => return Err(error),
                (Closing::Undone(missing), _) => (missing, is_late),
            };
            if is_over {
                return Err(self.not_all(call, (&members, missing), began));
            }
            // The next attempt is without the joiners: one of them may be the reason. They return
            // to the join queue.
            joiners.clear();
            // By now each remaining member has voted, and will call again soon.
            until = until.max((voted + retry_wait).min(last));
        }
    }

    /// The error for `members` of which these did not vote or connect. Where a later change has
    /// undone theirs, nothing tells who lacked links.
    fn not_all(
        &self,
        call: &'static str,
        (members, missing): (&Ranks, Ranks),
        began: Instant,
    ) -> Error {
        let others = members.without(self.rank() as u32);
        let missing = if missing.is_empty() { others } else { missing };
        let missing = missing.iter().map(|rank| rank as usize).collect();
        Error::NotAll { call, missing, after: began.elapsed() }
    }

    /// Waits for the next decision. The closing of the epoch that this rank has `given_up`, whose
    /// communicator it has, may be decided all the same: the others had its vote, and go on.
    fn decide_change(
        &mut self,
        call: &'static str,
        (until, last): (Instant, Instant),
        evict: bool,
        given_up: Option<(u32, Self, Ranks)>,
    ) -> Result<Decided> {
        let decided = self.with_driver(call, |driver, peers| {
            let deadline = Some(driver.time(until));
            let change = Input::Change { deadline, evict_missing: evict };
            // Messages that have come may say that the others have given up the last change.
            driver.poll(peers);
            driver.step(peers, None, change);
            driver.verdict(call, peers, last + CLOSING_LIMIT, |verdict| match verdict {
                Verdict::Membership { epoch, members, .. } => Some(Ok((*epoch, members.clone()))),
                Verdict::Closed { epoch } => Some(Err(*epoch)),
                _ => None,
            })
        })?;
        match (decided, given_up) {
            (Ok((epoch, members)), _) => Ok(Decided::Change(epoch, members)),
            (Err(closed), Some((epoch, comm, members))) if closed == epoch => {
                Ok(Decided::Closed(Box::new(comm), members))
            }
            (Err(epoch), _) => Err(Error::Evicted { call, epoch }),
        }
    }

    /// Goes on with the new communicator: tells the launcher and the joiners.
    fn go_on(
        &mut self,
        call: &'static str,
        (comm, members): (Self, &Ranks),
        evict: bool,
    ) -> Result<Self> {
        self.report_excluded(call, members, evict)?;
        comm.admit(members.len())
    }
}
