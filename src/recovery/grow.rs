//! `grow` admits joiners: members fetch the join queue from the launcher's store, agree on the next
//! membership as in `shrink`, and connect with the joiners.
//! Law: all members go on with the joiners, or all without; no wait goes past its deadline by more
//! than the time in which members vote whether all have connected, even if ranks die meanwhile.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::membership::Ranks;
use super::shrink::CLOSING_LIMIT;
use crate::api::{Communicator, Origin};
use crate::bootstrap::{Joiner, MAX_JOINER_LIST_LEN, decode_joiners, join_running_job};
use crate::config::{Config, MAX_TIMEOUT, deadline_after};
use crate::engine::membership_driver::MembershipDriver;
use crate::engine::recovery_frames::{self, ADMITTED, LINKED};
use crate::error::{Error, Result};
use crate::sync::{Instant, WaitNotice, rank_list};
use crate::trace::Recorder;

const CALL: &str = "grow";

impl Communicator {
    /// The number of this membership: 0 where all ranks began together, and larger after each
    /// [`Self::shrink`] and [`Self::grow`]. A rank whose first communicator has a number above 0 is
    /// a joiner, and has to ask the members for their state.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        match &*self.origin {
            Origin::Processes(bootstrap) => bootstrap.epoch,
            Origin::Threads(_) => 0,
        }
    }

    /// The number of ranks that wait in the join queue for [`Self::grow`]. One rank may call this
    /// alone, to tell the others when they shall call `grow`: it costs a question to the launcher,
    /// and no other rank takes part. 0 where there is no join queue. A rank that takes the place of
    /// one that may live, on a host that `ringrun` has lost, counts once that one is known as lost.
    ///
    /// # Errors
    /// [`Error::Store`] if the launcher does not answer: this communicator still works then.
    pub fn queued_joiners(&self) -> Result<usize> {
        match &*self.origin {
            Origin::Processes(bootstrap) => {
                let lost = self.monitor().lost();
                let list = bootstrap.list_joiners(deadline_after(MAX_TIMEOUT), &lost)?;
                Ok(decode_joiners(&list)?.len())
            }
            Origin::Threads(_) => Ok(0),
        }
    }

    /// Admits the ranks in the join queue: a new communicator with them, or `None` if the queue is
    /// empty, and then this communicator stays usable. Under `ringrun --elastic` a lost rank is
    /// started again and waits in [`Self::from_env`] until it is admitted. All ranks call this
    /// together, as often as they wish: an empty queue costs a question to the launcher and a
    /// broadcast.
    ///
    /// Members come first, in their order, then joiners, as with NCCL's `ncclCommGrow`; so rank 0
    /// always has the state of the job. Afterwards this communicator can only be dropped. Members
    /// that die meanwhile are left out as in [`Self::shrink`]; if a joiner dies, or has not
    /// connected by half of the deadline, the new communicator has the members alone. Jobs of other
    /// launchers, and ranks that are threads, have no join queue. Of several communicators of a
    /// job, only the one of all ranks can grow.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use ringreduce::{Communicator, Error};
    ///
    /// const DEADLINE: Duration = Duration::from_secs(10);
    /// let mut comm = Communicator::from_env()?;
    /// let (mut weights, mut step) = ([0.0_f32; 8], [0_u64]);
    /// // A joiner begins with the broadcast that all ranks make after each change.
    /// let mut has_state = comm.epoch() == 0;
    /// let mut train = |comm: &mut Communicator| -> Result<(), Error> {
    ///     if has_state && let Some(larger) = comm.grow(DEADLINE)? {
    ///         (*comm, has_state) = (larger, false);
    ///     }
    ///     if !has_state {
    ///         comm.broadcast(&mut step, 0)?;
    ///         comm.broadcast(&mut weights, 0)?;
    ///         has_state = true;
    ///     }
    ///     // Gradients, an all-reduce, and only then new weights.
    ///     step[0] += 1;
    ///     Ok(())
    /// };
    /// match train(&mut comm) {
    ///     // Some ranks may be a step ahead of others: all continue from rank 0's step.
    ///     Err(Error::PeerLost { .. }) => comm = comm.shrink(DEADLINE)?,
    ///     done => done?,
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If a member is lost while the members exchange the queue: call [`Self::shrink`] then. A
    /// member that has not called by the deadline of the others is named by [`Error::Stalled`], if
    /// they wait for it to exchange the queue, or by [`Error::NotAll`] after that: all call
    /// [`Self::shrink`] or [`Self::evict`] then. [`Error::Store`] if the launcher does not answer:
    /// this communicator still works then. Others as [`Self::shrink`].
    pub fn grow(&mut self, deadline: Duration) -> Result<Option<Self>> {
        if matches!(*self.origin, Origin::Threads(_)) {
            return Ok(None);
        }
        let until = deadline_after(deadline);
        let joiners = self.joiners(until)?;
        if joiners.is_empty() {
            return Ok(None);
        }
        self.change_membership(CALL, until, false, joiners).map(Some)
    }

    /// The join queue, which rank 0 fetches and broadcasts.
    fn joiners(&mut self, until: Instant) -> Result<Vec<Joiner>> {
        self.engine_on_this_thread(CALL)?.0.check_usable(CALL)?;
        let Origin::Processes(bootstrap) = &*self.origin else { return Ok(Vec::new()) };
        let left = until.saturating_duration_since(Instant::now());
        // The others wait for the launcher's answer to rank 0, which comes before their limit.
        let asked = match self.rank() {
            0 => bootstrap.list_joiners(Instant::now() + left / 2, &self.monitor().lost()),
            _ => Ok(Vec::new()),
        };
        let mut length = [asked.as_ref().map_or(u64::MAX, |list| list.len() as u64)];
        let size = self.size();
        let mut comm = self.tagged_calls(CALL);
        let timeout = comm.settings.timeout;
        let limit = || timeout.min(until.saturating_duration_since(Instant::now()) + CLOSING_LIMIT);
        comm.settings.timeout = limit();
        comm.broadcast(&mut length, 0)?;
        let mut list = asked?;
        list.resize(list_bytes(length[0])?, 0);
        if !list.is_empty() {
            comm.settings.timeout = limit();
            comm.broadcast(&mut list, 0)?;
        }
        let mut joiners = decode_joiners(&list)?;
        joiners.truncate((Ranks::CAPACITY as usize).saturating_sub(size));
        Ok(joiners)
    }

    /// Tells joiners, whose ranks follow the `members` first ones, that all have connected: rank 0
    /// tells each of them, and the other members those that they have a channel to.
    pub(super) fn admit(mut self, members: u32) -> Result<Self> {
        let (is_first, joiners) = (self.rank() == 0, members as usize..self.size());
        let has_channel = self.channels_to(CALL, joiners.clone())?;
        let to = joiners.filter(|rank| is_first || has_channel.contains(rank));
        self.send_to_each(CALL, to, ADMITTED)?;
        Ok(self)
    }

    /// Rank 0 waits until each joiner, whose ranks follow the `members` first ones, has all its
    /// links. A member may have all of its own while a joiner still waits for a member that is dead
    /// by now. No member goes on without the vote of rank 0.
    pub(super) fn await_joiners(&mut self, members: u32, until: Instant) -> Result<()> {
        let joiners: Vec<_> = (members as usize..self.size()).collect();
        match joiners.len() {
            all if all > 0 && self.rank() == 0 => {
                self.await_message(CALL, LINKED, &joiners, all, until)
            }
            _ => Ok(()),
        }
    }

    /// The ranks among these to which there is a control channel in use.
    fn channels_to(&mut self, call: &'static str, ranks: Range<usize>) -> Result<Vec<usize>> {
        let (engine, _) = self.engine_on_this_thread(call)?;
        let controls = engine.peers.control_channels();
        Ok(ranks.filter(|&rank| controls.is_in_use(rank)).collect())
    }

    fn send_to_each(
        &mut self,
        call: &'static str,
        to: impl Iterator<Item = usize>,
        kind: u32,
    ) -> Result<()> {
        let (engine, _) = self.engine_on_this_thread(call)?;
        let controls = engine.peers.control_channels();
        let mut to = to.peekable();
        if to.peek().is_some() {
            controls.reach_all()?;
        }
        to.for_each(|rank| recovery_frames::send(controls, rank, kind, &[]));
        Ok(())
    }

    /// The communicator into which the members of a running job admit this rank. If a member dies
    /// or does not connect, this rank returns to the join queue.
    pub(crate) fn join_running_job(config: &Config, recorder: &Arc<Recorder>) -> Result<Self> {
        loop {
            let (bootstrap, members) = join_running_job(config)?;
            let until = deadline_after(config.timeout);
            let joined = Self::from_bootstrap(bootstrap, recorder).and_then(|mut comm| {
                comm.set_timeout(config.timeout);
                comm.await_admission(members, until).map(|()| comm)
            });
            match joined {
                Ok(comm) => return comm.confirm_joined(),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(error) => tracing::warn!("was not admitted, and waits again: {error}"),
            }
        }
    }

    /// Tells the launcher that this rank has joined the job.
    pub(crate) fn confirm_joined(self) -> Result<Self> {
        match &*self.origin {
            Origin::Processes(bootstrap) => bootstrap.report_joined().map(|()| self),
            Origin::Threads(_) => Ok(self),
        }
    }

    /// Tells rank 0 that this rank has all its links, and waits until a member says that all have
    /// connected, or until all have ended that would say so.
    fn await_admission(&mut self, members: usize, until: Instant) -> Result<()> {
        const CALL: &str = "from_env";
        self.send_to_each(CALL, iter::once(0), LINKED)?;
        let from = self.channels_to(CALL, 0..members)?;
        self.await_message(CALL, ADMITTED, &from, 1, until)
    }

    /// Waits until `enough` of the ranks `from` have sent a message of this kind; fails once they
    /// no longer can.
    fn await_message(
        &mut self,
        call: &'static str,
        kind: u32,
        from: &[usize],
        enough: usize,
        until: Instant,
    ) -> Result<()> {
        let began = Instant::now();
        let (awaited, mut notice) = (rank_list(from), WaitNotice::new());
        self.with_driver(call, |driver, peers| {
            loop {
                let has_sent = |driver: &MembershipDriver, rank: usize| {
                    driver.other_messages.iter().any(|it| (it.from, it.kind) == (rank, kind))
                };
                let (sent, silent): (Vec<_>, Vec<_>) =
                    from.iter().partition(|&&rank| has_sent(driver, rank));
                if sent.len() >= enough {
                    return Ok(());
                }
                let may_send = |&&rank: &&usize| !driver.has_lost(&Ranks::only(rank as u32));
                let possible = sent.len() + silent.iter().filter(may_send).count();
                if possible < enough || Instant::now() > until {
                    let ranks = silent.iter().map(|&rank| rank as u32).collect();
                    let missing = driver.at_fault(&ranks, silent);
                    return Err(Error::NotAll { call, missing, after: began.elapsed() });
                }
                driver.check_abort()?;
                notice.tell_if_due(|waited| {
                    format!(
                        "waited {waited:.0?} in {call} for {awaited}: all ranks connect to let \
                         one in"
                    )
                });
                driver.poll(peers);
                driver.discard_verdicts();
            }
        })
    }
}

/// The length of the joiners' list that rank 0 has broadcast; [`u64::MAX`] stands for a failure to
/// fetch the list.
fn list_bytes(length: u64) -> Result<usize> {
    let reason = match usize::try_from(length) {
        Ok(length) if length <= MAX_JOINER_LIST_LEN => return Ok(length),
        _ if length == u64::MAX => "it did not answer rank 0, whose own error says why".into(),
        _ => format!("a list of {length} bytes, as rank 0 tells, is above {MAX_JOINER_LIST_LEN}"),
    };
    Err(Error::Store { address: "the launcher".into(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_joiners_beyond_the_limit_is_refused() {
        assert!(
            [0, 1, MAX_JOINER_LIST_LEN as u64]
                .into_iter()
                .all(|it| list_bytes(it).unwrap() as u64 == it)
        );
        let said = |length| list_bytes(length).unwrap_err().to_string();
        for length in [MAX_JOINER_LIST_LEN as u64 + 1, u64::MAX - 1] {
            assert!(said(length).contains(&length.to_string()), "{}", said(length));
        }
        assert!(said(u64::MAX).contains("rank 0, whose own error"), "{}", said(u64::MAX));
    }
}
