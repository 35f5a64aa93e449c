//! The communicator of a new membership. Its members announce themselves over the control channels,
//! which a failure leaves open (`announcements`). Then they go on over the connections that they
//! have, as a subgroup does. With joiners, or where subgroups have connections of their own, each
//! member also announces where it listens, and all connect as at start-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::announcements::{self, MemberAnnouncement};
use super::membership::Ranks;
use super::origin::Recovery;
use crate::api::{Communicator, Origin};
use crate::bootstrap::shared_group::memory::RESERVED_NONE;
use crate::bootstrap::split::{no_listener_error, subgroup_number};
use crate::bootstrap::{Bootstrap, Joiner, Listeners};
use crate::error::{Error, Result, argument_error};
use crate::sync::Instant;

/// How long after its limit a rank still connects, so that the connecting ends by itself and names
/// the peer.
const CONNECT_GRACE: Duration = Duration::from_millis(500);
/// Stands for the colour in the job number of a group of survivors. A colour has 32 bits, so no
/// group of `split` has the same job number.
const SURVIVORS: u64 = 1 << 32;

/// A number that is equal at members that would admit the same joiners; 0 for no joiner.
fn digest(joiners: &[Joiner]) -> u64 {
    joiners.iter().fold(0, |digest, joiner| subgroup_number(digest, joiner.ticket(), 1))
}

impl Communicator {
    /// Makes a new communicator of these members and joiners until `limit`, or until the earliest
    /// limit of all members, which is returned too.
    pub(super) fn join_survivors(
        &mut self,
        call: &'static str,
        change: (u32, &Ranks),
        joiners: &[Joiner],
        mut limit: Instant,
    ) -> (Result<Self>, Instant) {
        let joined = self.connect_survivors(call, change, joiners, &mut limit);
        (joined, limit)
    }

    fn connect_survivors(
        &mut self,
        call: &'static str,
        (epoch, members): (u32, &Ranks),
        joiners: &[Joiner],
        limit: &mut Instant,
    ) -> Result<Self> {
        let (me, origin) = (self.rank(), Arc::clone(&self.origin));
        let Origin::Processes(bootstrap) = &*origin else {
            return argument_error(call, "self", "of ranks that are threads", "of processes");
        };
        let ranks: Vec<_> = members.iter().map(|rank| rank as usize).collect();
        let can_share = bootstrap.shares_connections() && ranks.len() > 1;
        let opened = match can_share && joiners.is_empty() {
            true => Ok(Listeners::default()),
            false => bootstrap.open_listeners(ranks.len() + joiners.len()),
        };
        let reserved = if can_share { bootstrap.reserve_for_group(call, &ranks) } else { Ok(0) };
        let left = limit.saturating_duration_since(Instant::now());
        let mine = MemberAnnouncement {
            from: me,
            epoch,
            joiners: digest(joiners),
            calls: self.engine.as_ref().map_or(0, |engine| engine.all_or_none.last_ok),
            limit_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
            memory: *reserved.as_ref().unwrap_or(&RESERVED_NONE),
            address: opened.as_ref().map(Listeners::address).unwrap_or_default(),
        };
        let mut all = self.with_driver(call, |driver, peers| {
            announcements::exchange(driver, peers, call, &mine, members, limit)
        })?;
        // All members compare the same digests, so either all admit the joiners or none does.
        let is_agreed = all.iter().all(|member| member.joiners == mine.joiners);
        let joiners = if is_agreed { joiners } else { &[] };
        let shares = can_share && joiners.is_empty();
        let listeners = if shares { reserved.map(|_| Listeners::default()) } else { opened }?;
        let has_failed = |member: &&MemberAnnouncement| match shares {
            true => member.memory == RESERVED_NONE,
            false => member.address.is_empty(),
        };
        if let Some(member) = all.iter().find(has_failed) {
            return Err(no_listener_error(&self.peers()[member.from]));
        }
        all.push(mine);
        all.sort_by_key(|member| member.from);
        let job = (subgroup_number(bootstrap.job, u64::from(epoch), SURVIVORS), epoch);
        let mut comm = if shares {
            let here = bootstrap.on_host_of(&ranks, me);
            let first = all.iter().find(|member| member.from == here[0]);
            let memory = first.map_or(0, |member| member.memory);
            self.of_survivors(call, bootstrap, job, (&ranks, memory))?
        } else {
            let addresses: Vec<_> = all.iter().map(|it| (it.from, it.address.as_str())).collect();
            let timeout = limit.saturating_duration_since(Instant::now());
            let bootstrap = bootstrap.subgroup(job, &addresses, listeners, timeout);
            let bootstrap = bootstrap.with_joiners(joiners);
            self.open_with(call, (bootstrap, joiners), members, *limit)?
        };
        comm.inherit_name(&self.rank_info.name, "");
        let (members, calls) = all.iter().map(|member| (member.from, member.calls)).unzip();
        comm.recovery = Some(Box::new(Recovery { epoch: comm.epoch(), members, calls }));
        Ok(comm)
    }

    /// Tells the launcher which ranks the new membership is without, unless they have left. Members
    /// know of an end before the system has taken the process down, and may exit well before the
    /// launcher sees it; what they evict may run on, and is ended by the launcher.
    pub(super) fn report_excluded(
        &mut self,
        call: &'static str,
        members: &Ranks,
        evict: bool,
    ) -> Result<()> {
        let size = self.size();
        let excluded = self.with_driver(call, |driver, peers| {
            let others = (0..size).filter(|&rank| !members.contains(rank as u32));
            // No goodbye waits for an answer of ranks that have no part in what comes.
            others.clone().for_each(|rank| peers.control_channels().give_up_unanswered(rank));
            let staying = others.filter(|&rank| peers.control_channels().end_of(rank).1.is_none());
            let has_ended = |rank| driver.has_lost(&Ranks::only(rank as u32));
            Ok(staying.map(|rank| (rank, evict && !has_ended(rank))).collect::<Vec<_>>())
        })?;
        if let Origin::Processes(bootstrap) = &*self.origin {
            bootstrap.report_excluded(&excluded);
        }
        Ok(())
    }

    /// Connects on a thread of its own, while this one watches `members`: a death aborts the
    /// connecting, and so does the time soon after `until`.
    fn open_with(
        &mut self,
        call: &'static str,
        (bootstrap, joiners): (Bootstrap, &[Joiner]),
        members: &Ranks,
        until: Instant,
    ) -> Result<Self> {
        let (abort, is_over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let (began, me) = (Instant::now(), self.rank());
        let (preferences, timeout) = (self.settings.preferences, self.settings.timeout);
        let (bootstrap, rank_info) =
            (bootstrap.with_abort_flag(&abort), Arc::clone(&self.rank_info));
        let mut lost = Ranks::NONE;
        let opened = self.with_driver(call, |driver, peers| {
            let opened = thread::scope(|scope| -> Result<Result<Self>> {
                let open = || {
                    // The launcher may be silent, so the thread that watches does not tell it.
                    let admitted = match bootstrap.rank {
                        0 => bootstrap.admit(joiners, until),
                        _ => Ok(()),
                    };
                    let opened = admitted.and_then(|()| {
                        Self::from_bootstrap(bootstrap, rank_info.record.recorder())
                    });
                    let opened = opened.and_then(|comm| {
                        let mut comm = comm.with_preferences(preferences);
                        comm.set_timeout(timeout);
                        comm.await_joiners(members.len(), until).map(|()| comm)
                    });
                    is_over.store(true, Ordering::Release);
                    opened
                };
                let thread = thread::Builder::new().name("ringreduce-connect".into());
                let opener = thread.spawn_scoped(scope, open);
                let opener =
                    opener.map_err(|e| Error::no_thread("starting a thread that connects", e))?;
                while !is_over.load(Ordering::Acquire) {
                    let is_late = Instant::now() > until + CONNECT_GRACE;
                    if is_late || driver.has_lost(members) || driver.check_abort().is_err() {
                        abort.store(true, Ordering::Release);
                    }
                    driver.poll(peers);
                }
                Ok(opener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })?;
            driver.check_abort()?;
            lost = driver.lost(members);
            Ok(opened)
        })?;
        if abort.load(Ordering::Acquire) && (opened.is_ok() || !lost.is_empty()) {
            // A communicator that was opened all the same would fail in its first call. Without a
            // lost rank this one has opened it too late; else the error names whom it waited for.
            let missing = if lost.is_empty() { Ranks::only(me as u32) } else { lost };
            let missing = missing.iter().map(|rank| rank as usize).collect();
            return Err(Error::NotAll { call, missing, after: began.elapsed() });
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use super::{SURVIVORS, subgroup_number};

    #[test]
    fn a_group_of_survivors_has_a_job_number_that_no_split_has() {
        let (job, first) = (7, 1);
        let survivors = subgroup_number(job, first, SURVIVORS);
        // The first call of a job may be a split, with any colour.
        for color in [0, 1, u32::MAX - 1, u32::MAX] {
            assert_ne!(subgroup_number(job, first, color.into()), survivors, "{color}");
        }
    }
}
