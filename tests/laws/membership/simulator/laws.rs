//! The laws of the protocol: the verdicts that programs may receive.
//! Law: the checks use verdicts and faults alone, not the state of the machines.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use super::agreements::Agreements;
use super::caller::Next;
use super::connecting::Group;
use super::network::Network;
use super::world::Process;
use super::{DELAY, FaultMix, Scenario};
use ringreduce::recovery::membership::{
    Cause, Evidence, LastVotes, Ranks, Recovery, Time, Verdict, Vote,
};

/// A broken law, and the event that broke it.
pub(super) type BrokenLaw = (&'static str, String);

/// The longest time of a question and its answer.
const ANSWER_TIME: Time = 4 * DELAY as Time;

/// Deaths within this time of the first one count as first too, because no process may have known
/// of the first yet.
const FIRST_DEATHS: Time = 4 * DELAY as Time;

pub(super) fn stuck(process: usize, state: &str) -> BrokenLaw {
    ("every call returns", format!("process {process} waits: {state}"))
}

pub(super) struct Laws {
    scenario: Scenario,
    /// The members that the state machines of a communicator have decided for each of its epochs.
    decided: BTreeMap<(usize, u32), (Ranks, Recovery)>,
    /// Whether an epoch that was decided in a communicator went on.
    outcomes: BTreeMap<(usize, u32), bool>,
    /// The communicators that processes have gone on in, by the numbers of their epochs.
    memberships: BTreeMap<u32, Group>,
    /// The processes that have all links of a communicator.
    linked: BTreeSet<(usize, usize)>,
    operations: BTreeMap<(u32, u64), bool>,
    pub(super) agreements: Agreements,
    /// The epoch in which a process got a result.
    full: BTreeMap<(usize, u64), u32>,
    /// The last operation of each process that counts as done.
    last: BTreeMap<usize, u64>,
    killed: BTreeMap<usize, Time>,
    /// The last votes of the processes whose end a process knows for certain.
    known_ends: BTreeMap<usize, BTreeMap<usize, (Time, LastVotes)>>,
    unreasonable: Vec<(usize, usize)>,
    /// Epochs, by communicator, by which processes were evicted before any reported them.
    unreported: BTreeSet<(usize, u32)>,
    /// A program was busy for a while, and may have found several deaths at once.
    was_busy: bool,
}

impl Laws {
    pub(super) fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            decided: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            memberships: BTreeMap::new(),
            linked: BTreeSet::new(),
            operations: BTreeMap::new(),
            agreements: Agreements::default(),
            full: BTreeMap::new(),
            last: BTreeMap::new(),
            killed: BTreeMap::new(),
            known_ends: BTreeMap::new(),
            unreasonable: Vec::new(),
            unreported: BTreeSet::new(),
            was_busy: scenario.is_busy,
        }
    }

    pub(super) fn killed(&mut self, process: usize, now: Time) {
        self.killed.entry(process).or_insert(now);
    }

    pub(super) fn knows_end(&mut self, at: usize, of: usize, now: Time, votes: LastVotes) {
        self.known_ends.entry(at).or_default().entry(of).or_insert((now, votes));
    }

    pub(super) fn suspects(&mut self, at: usize, of: usize) {
        self.unreasonable.push((at, of));
    }

    pub(super) fn suspects_without_reason(&self, at: usize, of: usize) -> bool {
        self.unreasonable.contains(&(at, of))
    }

    pub(super) fn is_busy(&mut self) {
        self.was_busy = true;
    }

    pub(super) fn linked(&mut self, at: usize, group: usize) {
        self.linked.insert((at, group));
    }

    pub(super) fn full(&mut self, at: usize, epoch: u32, sequence: u64) {
        self.full.insert((at, sequence), epoch);
    }

    pub(super) fn check(
        &mut self,
        at: usize,
        all: &[Process],
        verdict: Verdict,
        network: &Network,
    ) -> Result<(), BrokenLaw> {
        let (epoch, now) = (all[at].epoch, network.now);
        match verdict {
            Verdict::Revoked(cause) => self.check_cause((at, all), cause, now),
            Verdict::Ok(sequence) => self.succeeded((at, all), sequence),
            // A program that has given up a change, and is busy, comes late to its connecting.
            Verdict::Undone { epoch, .. }
                if self.scenario.is_busy && self.scenario.deadline.is_some() =>
            {
                self.undone((at, all), epoch)
            }
            Verdict::Failed(_) | Verdict::Undone { .. }
                if self.scenario.fault_mix == FaultMix::None =>
            {
                Err(("nothing fails by itself", format!("process {at}: {verdict:?}")))
            }
            Verdict::Failed(sequence) if self.scenario.settings.uniform => {
                unique("operations end alike", &mut self.operations, (epoch, sequence), false)
            }
            Verdict::Agreed { slot, flags, members } => {
                let is_complete = self.scenario.fault_mix != FaultMix::All;
                self.agreements.agreed((at, all), (slot, flags, members), is_complete)
            }
            Verdict::Membership { epoch, members, recovery, cause, .. } => {
                if let Some(cause) = cause {
                    self.check_cause((at, all), cause, now)?;
                }
                self.agreements.call_again(at, &all[at], Some(epoch));
                self.epoch((at, all), (epoch, members, recovery))
            }
            Verdict::Closed { epoch } => self.has_outcome((at, all), epoch, true),
            Verdict::Undone { epoch, .. } => self.undone((at, all), epoch),
            Verdict::QuorumLost { .. } | Verdict::Evicted { .. }
                if self.scenario.fault_mix != FaultMix::All =>
            {
                let what = format!("process {at}: {verdict:?}, epoch {epoch}");
                Err(("certain deaths evict no other rank", what))
            }
            Verdict::QuorumLost { live } => self.gave_up((at, all), &live, network),
            Verdict::Evicted { epoch } => self.evicted((at, all), epoch),
            Verdict::Failed(_) | Verdict::TimedOut { .. } => Ok(()),
        }
    }

    fn undone(&mut self, (at, all): Receiver<'_>, epoch: u32) -> Result<(), BrokenLaw> {
        // The closing of an older epoch has ended no agreement of this one.
        if epoch == all[at].current.0 {
            self.agreements.call_again(at, &all[at], None);
        }
        self.has_outcome((at, all), epoch, false)
    }

    /// Checks a cause: a rank named as certainly dead must be dead; and if deaths are the only
    /// faults, the first dead rank must be named.
    fn check_cause(
        &self,
        (at, all): Receiver<'_>,
        cause: Cause,
        now: Time,
    ) -> Result<(), BrokenLaw> {
        let of = all[at].peers[cause.rank as usize];
        let died = self.killed.get(&of).copied().filter(|&time| time <= now);
        // The deaths of processes that wait to join are no cause.
        let members = all[at].members.iter().map(|rank| all[at].peers[rank as usize]);
        let first = members.filter_map(|of| self.killed.get(&of)).min();
        let first = first.copied().unwrap_or(Time::MAX);
        let right = match (self.scenario.fault_mix, cause.evidence) {
            (FaultMix::All, Evidence::Certain) => died.is_some(),
            (FaultMix::All, _) => true,
            // The rank took part in this epoch, and left after a failure in another.
            (_, Evidence::Left) => self.scenario.cascade && all[at].epoch > 0,
            _ if all[at].epoch > 0 || all[at].current.0 > 0 || self.was_busy => died.is_some(),
            _ => died.is_some_and(|time| time <= first.saturating_add(FIRST_DEATHS)),
        };
        let what = || format!("process {at} at {now}: {cause:?}, but died: {:?}", self.killed);
        if right { Ok(()) } else { Err(("the first cause is named", what())) }
    }

    /// Checks that a process gives up only if others may go on without it: ranks that it has not
    /// seen end are the majority, or ranks that have ended took part in a ballot without it. What
    /// another process has known for a while counts too, if nothing has kept it from answering.
    fn gave_up(
        &self,
        (at, all): Receiver<'_>,
        live: &Ranks,
        network: &Network,
    ) -> Result<(), BrokenLaw> {
        let Process { current: (epoch, members), peers, .. } = &all[at];
        let is_apart = |vote: &Vote| {
            let here = vote.accepted_in.0 == *epoch && vote.accepted.round > 0;
            vote.accepted_in.0 > *epoch || here && vote.participants.is_disjoint(live)
        };
        let is_harmless = |votes: &LastVotes| !is_apart(&votes.settle) && !is_apart(&votes.call);
        let others = live.iter().map(|rank| peers[rank as usize]).filter(|&other| other != at);
        let answers = |&other: &usize| {
            // A program between two calls reads nothing, and answers nothing.
            let Process { group, current, was_paused, unread, .. } = &all[other];
            let is_here = (group, current.0) == (&all[at].group, *epoch);
            let is_free = all[other].is_active() && !was_paused && unread.is_empty();
            is_here && is_free && network.was_always_open(at, other)
        };
        let answering: Vec<_> = others.filter(answers).collect();
        let has_ended = |&rank: &u32| {
            let of = peers[rank as usize];
            let known = |by: usize| self.known_ends.get(&by).and_then(|known| known.get(&of));
            let of_others = answering.iter().filter_map(|&other| known(other));
            let long_ago = of_others.filter(|(since, _)| since + ANSWER_TIME <= network.now);
            known(at).into_iter().chain(long_ago).any(|(_, votes)| is_harmless(votes))
        };
        let ended: Ranks = members.iter().filter(has_ended).collect();
        let what =
            || format!("process {at}, epoch {epoch}: {live:?} of {members:?}, {ended:?} ended");
        match 2 * (live - &ended).len() > (members - &ended).len() {
            true => Err(("giving up has a reason", what())),
            false => Ok(()),
        }
    }

    /// Checks that a process learns of its eviction from an epoch that was decided without it, or
    /// in its own epoch because others had results that it lacks. A process that was killed right
    /// after it decided has not reported the epoch; [`Self::check_end`] checks those.
    fn evicted(&mut self, (at, all): Receiver<'_>, epoch: u32) -> Result<(), BrokenLaw> {
        let Process { current: (current, _), rank, group, .. } = &all[at];
        let key = (group.unwrap_or_default(), epoch);
        let decided = self.decided.get(&key);
        let right = match decided {
            _ if epoch == *current => self.scenario.settings.uniform,
            Some((members, _)) => !members.contains(*rank),
            None => {
                self.unreported.insert(key);
                true
            }
        };
        let what = || format!("process {at}, rank {rank} in {current}: {epoch}, {decided:?}");
        if right { Ok(()) } else { Err(("an eviction has a decision", what())) }
    }

    fn succeeded(&mut self, (at, all): Receiver<'_>, sequence: u64) -> Result<(), BrokenLaw> {
        let epoch = all[at].epoch;
        let what = || format!("process {at}, epoch {epoch}, operation {sequence}");
        if self.full.get(&(at, sequence)) != Some(&epoch) {
            return Err(("a rank that returns `Ok` has the result", what()));
        }
        let membership = self.memberships.get(&epoch);
        if membership.is_some_and(|group| !group.processes.contains(&at)) {
            return Err(("only members return `Ok`", what()));
        }
        if self.last.insert(at, sequence).is_some_and(|last| last + 1 != sequence) {
            return Err(("operations end in order", what()));
        }
        if !self.scenario.settings.uniform {
            return Ok(());
        }
        unique("operations end alike", &mut self.operations, (epoch, sequence), true)
    }

    fn epoch(
        &mut self,
        (at, all): Receiver<'_>,
        (epoch, members, recovery): (u32, Ranks, Recovery),
    ) -> Result<(), BrokenLaw> {
        let process = &all[at];
        if process.current.0 == epoch && process.current.1 == members {
            // A call of the program found a decision for which none had waited.
            return Ok(());
        }
        let before = process.current.0;
        let what = format!("process {at}, after epoch {before}: {epoch}, {members:?}");
        if !members.contains(process.rank) {
            return Err(("members belong to their epoch", what));
        }
        if epoch != before + 1 {
            return Err(("epochs go up by one", what));
        }
        let last = self.last.insert(at, recovery.high).unwrap_or(0);
        let within = (recovery.low..=recovery.high).contains(&last);
        let uniform = self.scenario.settings.uniform;
        if !within || uniform && recovery.low != recovery.high {
            return Err(("what was done is known", format!("{what}: {last} of {recovery:?}")));
        }
        let group = process.group.unwrap_or_default();
        // A later change of an epoch that all members have begun would undo it.
        if self.outcomes.range((group, 0)..(group, epoch)).any(|(_, went_on)| *went_on) {
            return Err(("nothing is decided after members have gone on", what));
        }
        let decided = (members, recovery);
        unique("a change is decided once", &mut self.decided, (group, epoch), decided)
    }

    /// All members learn whether a change has gone on, or was undone.
    fn has_outcome(
        &mut self,
        (at, all): Receiver<'_>,
        epoch: u32,
        went_on: bool,
    ) -> Result<(), BrokenLaw> {
        let group = all[at].group.unwrap_or_default();
        let law = "a change goes on at all members or at none";
        if went_on && self.decided.range((group, epoch + 1)..=(group, u32::MAX)).next().is_some() {
            return Err((law, format!("process {at}, communicator {group}, epoch {epoch}")));
        }
        unique(law, &mut self.outcomes, (group, epoch), went_on)
    }

    /// Process `at` goes on in a new communicator.
    pub(super) fn goes_on(
        &mut self,
        at: usize,
        number: usize,
        group: &Group,
    ) -> Result<(), BrokenLaw> {
        let is_linked = |&process: &usize| self.linked.contains(&(process, number));
        if !group.processes.iter().all(is_linked) {
            let what = format!("process {at}, {group:?}: {:?}", self.linked);
            return Err(("all processes of a communicator have their links", what));
        }
        let law = "an epoch has one membership";
        let went_on = group.origin.and_then(|origin| self.outcomes.get(&origin));
        if !group.processes.contains(&at) || went_on != Some(&true) {
            return Err((law, format!("process {at} without a decision: {group:?}")));
        }
        self.known_ends.remove(&at);
        self.last.insert(at, group.base);
        unique(law, &mut self.memberships, group.epoch, group.clone())
    }

    /// Process `at` has given up the wait for the votes of others, which go on without it.
    pub(super) fn left_behind(&self, at: usize) -> Result<(), BrokenLaw> {
        match self.scenario.fault_mix {
            FaultMix::All => Ok(()),
            _ => Err(("certain deaths evict no other rank", format!("process {at} gave up"))),
        }
    }

    /// Checks the end of a run: if deaths are the only faults, survivors have finished all
    /// operations.
    pub(super) fn check_end(&self, all: &[Process]) -> Result<(), BrokenLaw> {
        for key in self.unreported.iter().filter(|key| !self.decided.contains_key(key)) {
            // Processes that decided the epoch have ended, and all others were evicted; or their
            // programs make no call any more, which would tell them of the epoch.
            let goes_on = |it: &Process| {
                let calls = it.is_active() && it.next != Next::Idle;
                calls && it.group == Some(key.0) && it.current.0 < key.1
            };
            if let Some(at) = all.iter().position(goes_on) {
                let what = format!("{key:?}, which nobody has decided; process {at} goes on");
                return Err(("an eviction has a decision", what));
            }
        }
        let Scenario { fault_mix, cascade, operations, .. } = self.scenario;
        if fault_mix == FaultMix::All || cascade {
            return Ok(());
        }
        for (at, process) in all.iter().enumerate() {
            let done = self.last.get(&at).copied().unwrap_or(0);
            if process.alive && process.group.is_some() && done < operations {
                return Err(("survivors finish", format!("process {at} did {done}")));
            }
        }
        Ok(())
    }
}

/// The index of the process that receives a verdict, and all processes.
pub(super) type Receiver<'a> = (usize, &'a [Process]);

/// Checks that all processes receive the same verdict, including those that are dead by now.
pub(super) fn unique<K: Ord + fmt::Debug, T: PartialEq + fmt::Debug>(
    law: &'static str,
    known: &mut BTreeMap<K, T>,
    key: K,
    what: T,
) -> Result<(), BrokenLaw> {
    match known.get(&key) {
        Some(old) if *old != what => Err((law, format!("{key:?}: {old:?}, but {what:?}"))),
        _ => {
            known.insert(key, what);
            Ok(())
        }
    }
}
