//! What survivors do together after a failure: they agree, and go on without the dead in a new
//! communicator. May touch: as `comm`, and membership. Law: what decides is the pure machine of
//! `membership`, told of messages, of deaths and of the time; nothing waits past its deadline.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::driver::{CONNECTING, Council};
use super::membership::{Input, Ranks, Verdict};
use crate::api::Communicator;
use crate::bootstrap::Newcomer;
use crate::config::deadline_after;
use crate::error::cause::Why;
use crate::error::{Error, Result};
use crate::health::Links;

/// How long members wait for each other where not all could connect.
const AGAIN: Duration = Duration::from_secs(2);

impl Communicator {
    /// A communicator of those who are left, in the order of their ranks here, after a rank was
    /// lost. All survivors call this, each once its own calls have ended, as they do after a
    /// failure; it also ends well if more of them die meanwhile, without those. This communicator
    /// can do no more then but be dropped.
    ///
    /// A rank whose death is certain (a process that shares memory with this one, or that `ringrun`
    /// started and has seen end) is left out whatever else there is. Of ranks that only went
    /// silent, such as those of a host that is cut off, more than half must be left, or half with
    /// the lowest rank of all: never do two parts go on. After MPI's `MPIX_Comm_shrink`.
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
    /// [`Error::NotAll`] with those who neither called nor ended within `deadline`: call it again,
    /// or [`Self::evict`]; [`Error::QuorumLost`]; [`Error::Evicted`] if the others went on without
    /// this rank; and for ranks that are threads, or that have no links between all pairs.
    pub fn shrink(&mut self, deadline: Duration) -> Result<Self> {
        self.change("shrink", deadline, false, Vec::new())
    }

    /// As [`Self::shrink`], but who has not called by the deadline is left behind, and is told so
    /// when it does; the others connect then, for up to twenty seconds more.
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
    /// As [`Self::shrink`], but for [`Error::NotAll`].
    pub fn evict(&mut self, deadline: Duration) -> Result<Self> {
        self.change("evict", deadline, true, Vec::new())
    }

    /// The bitwise and of what all survivors say: the same at all that return it, whoever dies
    /// meanwhile. All survivors call it, also after a failure. After MPI's `MPIX_Comm_agree`.
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
    /// As [`Self::shrink`].
    pub fn agree(&mut self, flags: u64, deadline: Duration) -> Result<u64> {
        self.answer_aborts("agree")?;
        self.all_agree(flags, deadline)
    }

    /// What was aborted has been told: from now on it is this call that may be.
    fn answer_aborts(&mut self, call: &'static str) -> Result<()> {
        let (engine, ..) = self.at_home(call)?;
        if engine.broken.is_some() {
            engine.abort.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn all_agree(&mut self, flags: u64, deadline: Duration) -> Result<u64> {
        const CALL: &str = "agree";
        let until = deadline_after(deadline);
        self.in_council(CALL, |council, links| {
            let deadline = Some(council.time(until));
            council.step(links, None, Input::Agree { flags, deadline });
            council.verdict(CALL, links, until, |verdict| match verdict {
                Verdict::Agreed { flags, .. } => Some(*flags),
                _ => None,
            })
        })
    }

    /// Ends all calls of this communicator, here and at all ranks: they fail with
    /// [`Error::Aborted`] by this rank, and the ranks may [`Self::shrink`]. After MPI's
    /// `MPIX_Comm_revoke`.
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
    /// If the engine is lost to an operation that panicked.
    pub fn revoke(&mut self) -> Result<()> {
        let (engine, ..) = self.at_home("revoke")?;
        // What is said first counts.
        engine.links.fail(Why::Aborted);
        engine.give_up("revoked by this rank".into());
        Ok(())
    }

    /// With the machine, and what it hears and speaks by.
    pub(super) fn in_council<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut Council, &mut Links) -> Result<T>,
    ) -> Result<T> {
        let (engine, seat, settings) = self.at_home(call)?;
        engine.in_council(seat, settings, call, work)
    }

    /// A communicator of the survivors, and of these newcomers if all survivors name them.
    pub(super) fn change(
        &mut self,
        call: &'static str,
        deadline: Duration,
        evict: bool,
        mut newcomers: Vec<Newcomer>,
    ) -> Result<Self> {
        let (began, mut until) = (Instant::now(), deadline_after(deadline));
        // Who is left behind is so at the deadline: the others connect after it, and once more if
        // one of them can't at first.
        let last = if evict { until + 2 * CONNECTING } else { until };
        self.answer_aborts(call)?;
        if newcomers.is_empty() {
            // What is under way can't be part of what comes. Who lets others in has ended it.
            self.revoke()?;
        }
        loop {
            let (epoch, members) = self.in_council(call, |council, links| {
                let deadline = Some(council.time(until));
                let joiners = Ranks::NONE;
                let change = Input::Change { joiners, deadline, evict_missing: evict };
                council.step(links, None, change);
                council.verdict(call, links, until, |verdict| match *verdict {
                    Verdict::Membership { epoch, members, .. } => Some((epoch, members)),
                    _ => None,
                })
            })?;
            self.revoke()?;
            let joined = self.join_survivors(call, (epoch, members), &newcomers, last);
            if members.len() == 1 && (joined.is_ok() || newcomers.is_empty()) {
                let comm = joined?;
                if evict {
                    self.leaves_behind(call, members)?;
                }
                return comm.welcome(members.len());
            }
            let flags = u64::from(joined.is_ok());
            let left = last.saturating_duration_since(Instant::now());
            // All go on, or none does.
            let all = self.all_agree(flags, left.max(CONNECTING))?;
            match joined {
                Ok(comm) if all & 1 == 1 => {
                    if evict {
                        self.leaves_behind(call, members)?;
                    }
                    return comm.welcome(members.len());
                }
                joined if Instant::now() >= last => {
                    joined?;
                    let (missing, after) = (Vec::new(), began.elapsed());
                    return Err(Error::NotAll { call, missing, after });
                }
                // They wait outside again, unless they are the cause.
                _ => newcomers.clear(),
            }
            if evict {
                // All who are left have just spoken, and come again.
                until = until.max(Instant::now() + AGAIN);
            }
        }
    }
}
