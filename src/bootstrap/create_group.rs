//! Groups that their members make alone (`MPI_Comm_create_group`): each member tells the lowest one
//! that it has come, and that one tells all where the group's memory is on their hosts, which the
//! lowest member of each host has reserved. Control channels carry both, so any thread may make a
//! group, whatever calls are under way.
//! Law: no rank outside the group takes part, and every wait has the communicator's timeout.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Bootstrap;
use super::in_process::{ABORT_POLL_INTERVAL, PreparedRank, ThreadGroup, Waits};
use super::shared_group::memory::RESERVED_NONE;
use super::shared_group::{GroupResources, SharedGroup, closed_region_error};
use super::split::subgroup_number;
use super::subgroup::Listeners;
use crate::api::{Communicator, Origin};
use crate::config::deadline_after;
use crate::engine::group_failure::GroupFailure;
use crate::engine::settings::Preferences;
use crate::error::communicator_name::CommunicatorName;
use crate::error::{Error, Peer, Result, argument_error};
use crate::health::control_message::{GroupMessage, GroupStep};
use crate::sync::{Instant, Process, WaitNotice, is_interrupted};
use crate::trace::Recorder;
use crate::transport::tcp::keep_up_streams;

/// The call that errors name.
const CALL: &str = "create_group";

/// Makes communicators of some ranks of another one, on any thread. See
/// [`Communicator::group_creator`].
#[derive(Clone)]
pub struct GroupCreator {
    origin: Arc<Origin>,
    me: usize,
    peers: Arc<[Peer]>,
    name: Arc<CommunicatorName>,
    timeout: Duration,
    preferences: Preferences,
    abort: Arc<AtomicBool>,
    failures: Arc<GroupFailure>,
    recorder: Arc<Recorder>,
    process: Process,
}

impl Communicator {
    /// A handle that makes communicators of some of these ranks, on any thread and whatever calls
    /// of this communicator are under way. The model is MPI's `MPI_Comm_create_group`.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// std::thread::scope(|scope| {
    ///     for mut comm in Communicator::local(3)? {
    ///         scope.spawn(move || {
    ///             let creator = comm.group_creator()?;
    ///             if comm.rank() == 1 {
    ///                 return Ok(());
    ///             }
    ///             // Rank 1 takes no part.
    ///             let mut pair = creator.create(&[0, 2], 7)?;
    ///             let mut sum = [1.0_f32];
    ///             pair.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///             assert_eq!(sum, [2.0]);
    ///             Ok::<(), ringreduce::Error>(())
    ///         });
    ///     }
    ///     Ok::<(), ringreduce::Error>(())
    /// })?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an operation panicked and took the engine with it.
    pub fn group_creator(&mut self) -> Result<GroupCreator> {
        let (origin, abort) = (Arc::clone(&self.origin), Arc::clone(&self.abort));
        let (peers, me) = (Arc::clone(&self.rank_info.peers), self.rank());
        let recorder = Arc::clone(self.rank_info.record.recorder());
        let name = Arc::clone(&self.rank_info.name);
        let (engine, settings) = self.engine_on_this_thread(CALL)?;
        let (timeout, preferences) = (settings.timeout, settings.preferences);
        let failures = Arc::clone(&engine.group_failure);
        let process = Process::default();
        Ok(GroupCreator {
            origin,
            me,
            peers,
            name,
            timeout,
            preferences,
            abort,
            failures,
            recorder,
            process,
        })
    }
}

/// A number that this process gives to no other group, as the lowest member, or attempt.
fn next_number() -> u64 {
    static GROUPS: AtomicU64 = AtomicU64::new(1);
    GROUPS.fetch_add(1, Ordering::Relaxed)
}

/// A group that is being made.
struct Members<'a> {
    /// Ranks of the parent, by the ranks that they get.
    ranks: &'a [usize],
    lowest: usize,
    /// The digest of the ranks and the tag.
    digest: u64,
}

impl GroupCreator {
    /// This handle with another timeout, for making groups and for the calls of the groups.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// True if [`Self::create`] can make groups of these ranks: the communicator has links between
    /// all its ranks, and equally many on each host unless no ranks share memory, or has come from
    /// such a one. A group of one rank can always be made, and no other than of different ranks.
    /// All ranks get the same answer.
    #[must_use]
    pub fn can_create(&self, ranks: &[usize]) -> bool {
        match &*self.origin {
            _ if !self.are_different(ranks) => false,
            Origin::Threads(_) => true,
            Origin::Processes(bootstrap) => ranks.len() == 1 || bootstrap.shares_connections(),
        }
    }

    /// The communicator of `ranks`, which are different ranks of this one and get their places
    /// there as ranks. Each of them calls this with the same ranks and tag; others take no part.
    /// Groups of the same ranks that several threads make at the same time need different tags.
    ///
    /// A rank does not wait until the others have the communicator. One that could not make it is
    /// named by its first call.
    ///
    /// # Errors
    /// [`Error::Argument`] unless these are different ranks, this one among them, of which
    /// [`Self::can_create`] is true. [`Error::Handshake`] that names a member which does not come
    /// within the timeout, has left or cannot make the group.
    pub fn create(&self, ranks: &[usize], tag: u64) -> Result<Communicator> {
        self.process.check(CALL)?;
        self.check(ranks)?;
        let words = ranks.iter().map(|&rank| rank as u64).chain([tag]);
        let digest =
            words.fold(ranks.len() as u64, |digest, word| subgroup_number(digest, word, 2));
        let lowest = ranks.iter().copied().min().unwrap_or(self.me);
        let members = Members { ranks, lowest, digest };
        let comm = match &*self.origin {
            Origin::Threads(threads) => self.of_threads(threads, &members),
            Origin::Processes(bootstrap) => self.of_processes(bootstrap, &members),
        }?;
        comm.inherit_name(&self.name, "/group");
        Ok(comm)
    }

    /// True if these are one or more different ranks.
    fn are_different(&self, ranks: &[usize]) -> bool {
        let size = self.peers.len();
        let is_new = |at: usize| ranks[at] < size && !ranks[..at].contains(&ranks[at]);
        !ranks.is_empty() && (0..ranks.len()).all(is_new)
    }

    fn check(&self, ranks: &[usize]) -> Result<()> {
        let size = self.peers.len();
        if !(ranks.contains(&self.me) && self.are_different(ranks)) {
            let expected = format!("different ranks below {size}, {} among them", self.me);
            return argument_error(CALL, "ranks", format!("{ranks:?}"), expected);
        }
        if !self.can_create(ranks) {
            let expected = "ranks of a communicator with links between all of them, and equally \
                            many on each host that share memory";
            return argument_error(CALL, "ranks", format!("{ranks:?}"), expected);
        }
        Ok(())
    }

    fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed) || is_interrupted()
    }

    fn of_threads(&self, threads: &ThreadGroup, members: &Members<'_>) -> Result<Communicator> {
        let number = threads.next_group(self.me, members.digest);
        let job = subgroup_number(threads.job, number, members.digest);
        let me = (self.me, &*self.peers);
        let prepared = PreparedRank::of_subgroup(threads, job, me, members.ranks);
        let name = &|rank: usize| self.peers[members.ranks[rank]].to_string();
        let waits = Waits { timeout: self.timeout, is_aborted: &|| self.is_aborted(), name };
        let connected =
            prepared.and_then(|prepared| prepared.connect(&waits, &Arc::default(), &self.recorder));
        // The next attempt of this rank meets the others' first one.
        let mut comm = connected.inspect_err(|_| threads.undo_group(self.me, members.digest))?;
        comm.engine_on_this_thread(CALL)?.0.group_failure =
            GroupFailure::of(&self.failures, members.ranks);
        Ok(comm.with_preferences(self.preferences))
    }

    fn of_processes(&self, parent: &Bootstrap, members: &Members<'_>) -> Result<Communicator> {
        if members.ranks.len() == 1 {
            let job = subgroup_number(parent.job, next_number(), members.digest);
            let alone = [(self.me, "")];
            let bootstrap = parent.subgroup((job, 0), &alone, Listeners::default(), self.timeout);
            let comm = Communicator::from_bootstrap(bootstrap, &self.recorder)?;
            return Ok(comm.with_preferences(self.preferences));
        }
        let resources = parent.group_resources.get().ok_or_else(|| closed_region_error(CALL))?;
        let (number, start) = if self.me == members.lowest {
            self.lead((parent, resources), members)?
        } else {
            self.follow((parent, resources), members)?
        };
        let group = SharedGroup {
            name: CALL,
            job: subgroup_number(parent.job, number, members.digest),
            members: members.ranks,
            memory: parent.memory_at(start, members.ranks),
            call: None,
            epochs_later: 0,
            timeout: self.timeout,
            preferences: self.preferences,
            failures: Some(&self.failures),
        };
        Communicator::of_shared_group(parent, group, &self.recorder)
    }

    /// The lowest member's part: it waits for all, and answers all.
    fn lead(
        &self,
        (parent, resources): (&Bootstrap, &GroupResources),
        members: &Members<'_>,
    ) -> Result<(u64, u64)> {
        let (digest, deadline) = (members.digest, deadline_after(self.timeout));
        // Of each member that has come its attempt, and the memory that it has reserved.
        let (mut come, mut failed) = (BTreeMap::new(), None);
        for rank in members.others(self.me) {
            // After a failure, those that have come already are told of it.
            let until = if failed.is_none() { deadline } else { Instant::now() };
            let answer = |message: GroupMessage| match message.step {
                GroupStep::Come { memory } => Some((message.attempt, memory)),
                _ => None,
            };
            match self.wait(resources, (rank, members), until, answer) {
                Ok(member) => drop(come.insert(rank, member)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // A member may have given up while this rank waited for the others.
        for (&rank, member) in &mut come {
            let how = match resources.channels.receive_group_message(rank, digest) {
                Ok(None) => continue,
                Ok(Some(GroupMessage { step: GroupStep::Come { memory }, attempt, .. })) => {
                    *member = (attempt, memory);
                    continue;
                }
                Ok(Some(_)) => "it has given up".to_owned(),
                Err(how) => how,
            };
            failed = failed.or_else(|| Some(self.absence(rank, &how)));
        }
        let cannot = come.iter().find(|(_, (_, memory))| *memory == RESERVED_NONE);
        let failed = failed.or_else(|| cannot.map(|(&rank, _)| self.refusal(rank)));
        let made = match failed {
            None => parent.reserve_for_group(CALL, members.ranks),
            Some(error) => Err(error),
        };
        let made = made.map(|memory| (next_number(), memory));
        for (&rank, &(attempt, _)) in &come {
            let lowest = parent.on_host_of(members.ranks, rank).into_iter().min();
            let step = match (&made, lowest.and_then(|lowest| come.get(&lowest))) {
                (Err(_), _) => GroupStep::Refused,
                (&Ok((number, _)), Some(&(_, memory))) => GroupStep::Made { number, memory },
                // This rank is the lowest of its host.
                (&Ok((number, memory)), None) => GroupStep::Made { number, memory },
            };
            resources.channels.send_group_message(rank, GroupMessage { digest, attempt, step });
        }
        made
    }

    /// Another member's part.
    fn follow(
        &self,
        (parent, resources): (&Bootstrap, &GroupResources),
        members: &Members<'_>,
    ) -> Result<(u64, u64)> {
        let Members { lowest, digest, .. } = *members;
        let attempt = next_number();
        let send = |step| {
            resources.channels.send_group_message(lowest, GroupMessage { digest, attempt, step })
        };
        // A member that can't make the group comes all the same, so that all are told.
        let reserved = parent.reserve_for_group(CALL, members.ranks);
        let memory = *reserved.as_ref().unwrap_or(&RESERVED_NONE);
        send(GroupStep::Come { memory });
        let answer = |message: GroupMessage| (message.attempt == attempt).then_some(message.step);
        let answer = self.wait(resources, (lowest, members), deadline_after(self.timeout), answer);
        let answer = answer.inspect_err(|_| {
            send(GroupStep::Withdrawn);
        });
        reserved?;
        match answer? {
            GroupStep::Made { number, memory } => Ok((number, memory)),
            _ => Err(self.refusal(lowest)),
        }
    }

    /// The error of a member that can't make the group.
    fn refusal(&self, rank: usize) -> Error {
        let reason = "it could not make the group; its own error says why".into();
        Error::Handshake { peer: self.peers[rank].to_string(), reason }
    }

    /// The error of a member that does not come.
    fn absence(&self, rank: usize, how: &str) -> Error {
        let reason = format!("it does not come to {CALL}: {how}");
        Error::Handshake { peer: self.peers[rank].to_string(), reason }
    }

    /// Waits for a message of a member that `wanted` takes, as long as all members live: the lowest
    /// one may have given up for a dead one before this rank came.
    fn wait<T>(
        &self,
        resources: &GroupResources,
        (from, members): (usize, &Members<'_>),
        deadline: Instant,
        wanted: impl Fn(GroupMessage) -> Option<T>,
    ) -> Result<T> {
        let peer = || self.peers[from].to_string();
        let fail = |reason: String| Err(Error::Handshake { peer: peer(), reason });
        let mut notice = WaitNotice::new();
        loop {
            match resources.channels.receive_group_message(from, members.digest) {
                Ok(message) => {
                    if let Some(taken) = message.and_then(&wanted) {
                        return Ok(taken);
                    }
                }
                Err(how) => return Err(self.absence(from, &how)),
            }
            for rank in members.others(self.me) {
                let lives = resources.channels.check_life(rank);
                lives.map_err(|how| self.absence(rank, &how))?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.is_aborted() {
                return fail(format!("this rank has aborted while it waited for it in {CALL}"));
            }
            if left.is_zero() {
                let timeout = self.timeout;
                return fail(format!(
                    "it did not come to {CALL} with these ranks and this tag within {timeout:.1?}"
                ));
            }
            notice.tell_if_due(|waited| {
                let me = self.me;
                format!("rank {me} has waited {waited:.0?} for {} in {CALL}", peer())
            });
            keep_up_streams();
            resources.channels.sleep(left.min(ABORT_POLL_INTERVAL));
        }
    }
}

impl Members<'_> {
    fn others(&self, me: usize) -> impl Iterator<Item = usize> {
        self.ranks.iter().copied().filter(move |&rank| rank != me)
    }
}
