//! What callers may be told. May touch: the world's processes. Law: the laws look at verdicts and
//! faults alone, not into the machines.

use core::fmt;
use std::collections::BTreeMap;

use super::world::Process;
use super::{DELAY, Scenario, Weather};
use crate::recovery::membership::member::{Time, Verdict};
use crate::recovery::membership::message::{Cause, Evidence, Recovery};
use crate::recovery::membership::ranks::Ranks;

/// The law, and what happened instead.
pub(super) type Broken = (&'static str, String);

/// Within this time of the first death others are no less the first: nobody may have known yet.
const AT_ONCE: Time = 4 * DELAY as Time;

pub(super) fn stuck(process: usize, state: &str) -> Broken {
    ("everybody returns", format!("process {process} waits: {state}"))
}

pub(super) struct Laws {
    scenario: Scenario,
    memberships: BTreeMap<u32, (Ranks, Ranks, Recovery)>,
    operations: BTreeMap<(u32, u64), bool>,
    agreements: BTreeMap<(u32, u32), (u64, Ranks)>,
    /// How many agreements a process has made in an epoch, and what it said in each.
    made: BTreeMap<(usize, u32), u32>,
    said: BTreeMap<(usize, u32, u32), u64>,
    /// In which epoch a process got a result.
    full: BTreeMap<(usize, u64), u32>,
    /// The last operation of each that counts as done.
    last: BTreeMap<usize, u64>,
    killed: BTreeMap<u32, Time>,
    unreasonable: Vec<(usize, usize)>,
}

impl Laws {
    pub(super) const fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            memberships: BTreeMap::new(),
            operations: BTreeMap::new(),
            agreements: BTreeMap::new(),
            made: BTreeMap::new(),
            said: BTreeMap::new(),
            full: BTreeMap::new(),
            last: BTreeMap::new(),
            killed: BTreeMap::new(),
            unreasonable: Vec::new(),
        }
    }

    pub(super) fn killed(&mut self, rank: u32, now: Time) {
        self.killed.entry(rank).or_insert(now);
    }

    pub(super) fn suspects(&mut self, at: usize, of: usize) {
        self.unreasonable.push((at, of));
    }

    pub(super) fn suspects_without_reason(&self, at: usize, of: usize) -> bool {
        self.unreasonable.contains(&(at, of))
    }

    /// What a caller brings to its next agreement: whether all is well, and a bit of its own. The
    /// same if it brings it again.
    pub(super) fn says(&mut self, at: usize, epoch: u32, well: bool) -> u64 {
        let slot = self.made.get(&(at, epoch)).copied().unwrap_or(0) + 1;
        // So the and says who is in it.
        let own = !(2 << at) & !1;
        *self.said.entry((at, epoch, slot)).or_insert(own | u64::from(well))
    }

    pub(super) fn full(&mut self, at: usize, epoch: u32, sequence: u64) {
        self.full.insert((at, sequence), epoch);
    }

    pub(super) fn hold(
        &mut self,
        at: usize,
        all: &[Process],
        verdict: Verdict,
        now: Time,
    ) -> Result<(), Broken> {
        let story = Story { at, all };
        let epoch = all[at].epoch;
        match verdict {
            Verdict::Revoked(cause) => self.blame(&story, cause, now),
            Verdict::Ok(sequence) => self.succeeded(&story, sequence),
            Verdict::Failed(_) if self.scenario.weather == Weather::Calm => {
                Err(("nothing fails by itself", format!("process {at}: {verdict:?}")))
            }
            Verdict::Failed(sequence) if self.scenario.settings.uniform => {
                unique("operations end alike", &mut self.operations, (epoch, sequence), false)
            }
            Verdict::Agreed { slot, flags, members } => self.agreed(&story, slot, flags, members),
            Verdict::Membership { epoch, members, joined, recovery, cause } => {
                if let Some(cause) = cause {
                    self.blame(&story, cause, now)?;
                }
                self.epoch(&story, (epoch, members, joined, recovery))
            }
            Verdict::QuorumLost { .. } | Verdict::Evicted { .. }
                if self.scenario.weather != Weather::Storm =>
            {
                let what = format!("process {at}: {verdict:?}, epoch {epoch}");
                Err(("certain deaths cost nobody else", what))
            }
            Verdict::Failed(_)
            | Verdict::TimedOut { .. }
            | Verdict::QuorumLost { .. }
            | Verdict::Evicted { .. } => Ok(()),
        }
    }

    /// Who is named must be dead if that is said to be certain; and where nothing is wrong but
    /// deaths, the first of them is named.
    fn blame(&self, story: &Story<'_>, cause: Cause, now: Time) -> Result<(), Broken> {
        let Story { at, all, .. } = *story;
        let died = self.killed.get(&cause.rank).copied().filter(|&time| time <= now);
        let first = self.killed.values().min().copied().unwrap_or(Time::MAX);
        let right = match (self.scenario.weather, cause.evidence) {
            (Weather::Storm, Evidence::Certain) => died.is_some(),
            (Weather::Storm, _) => true,
            // It took part in this epoch, and left when another one failed.
            (_, Evidence::Left) => self.scenario.cascade && all[at].epoch > 0,
            _ if all[at].epoch > 0 || all[at].members.is_empty() => died.is_some(),
            _ => died.is_some_and(|time| time <= first.saturating_add(AT_ONCE)),
        };
        let what = || format!("process {at} at {now}: {cause:?}, but died: {:?}", self.killed);
        if right { Ok(()) } else { Err(("the first cause is named", what())) }
    }

    fn succeeded(&mut self, story: &Story<'_>, sequence: u64) -> Result<(), Broken> {
        let Story { at, all, .. } = *story;
        let (epoch, rank) = (all[at].epoch, all[at].rank);
        let what = || format!("process {at}, epoch {epoch}, operation {sequence}");
        if self.full.get(&(at, sequence)) != Some(&epoch) {
            return Err(("whoever returns `Ok` has the result", what()));
        }
        let known = self.memberships.get(&epoch);
        if known.is_some_and(|known| !known.0.contains(rank)) {
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

    fn agreed(
        &mut self,
        story: &Story<'_>,
        slot: u32,
        flags: u64,
        members: Ranks,
    ) -> Result<(), Broken> {
        let Story { at, all, .. } = *story;
        let epoch = all[at].epoch;
        *self.made.entry((at, epoch)).or_insert(0) += 1;
        let by = story.processes(members);
        let said = by.iter().map(|&other| self.said.get(&(other, epoch, slot)));
        let and = said.into_iter().try_fold(u64::MAX, |and, said| Some(and & said?));
        let what = format!("process {at}, epoch {epoch}, {slot}: {flags:x} of {members:?}");
        if and != Some(flags) {
            return Err(("an agreement is the and of what its members said", what));
        }
        let acting = all[at].members.iter().filter(|&rank| {
            let other = all[at].peers[rank as usize];
            all[other].acts()
        });
        if self.scenario.weather != Weather::Storm
            && !(acting.collect::<Ranks>() - members).is_empty()
        {
            return Err(("whoever lives is heard", what));
        }
        let made = (flags, members);
        unique("agreements end alike", &mut self.agreements, (epoch, slot), made)
    }

    fn epoch(
        &mut self,
        story: &Story<'_>,
        (epoch, members, joined, recovery): (u32, Ranks, Ranks, Recovery),
    ) -> Result<(), Broken> {
        let Story { at, all, .. } = *story;
        let process = &all[at];
        let what = format!("process {at}, after epoch {}: {epoch}, {members:?}", process.epoch);
        let new = process.members.is_empty();
        if !members.contains(process.rank) || joined.contains(process.rank) != new {
            return Err(("members belong to their epoch", what));
        }
        if !new && epoch != process.epoch + 1 {
            return Err(("epochs go up by one", what));
        }
        let last = self.last.insert(at, recovery.high).unwrap_or(0);
        let within = (recovery.low..=recovery.high).contains(&last);
        let uniform = self.scenario.settings.uniform;
        if !new && !within || uniform && recovery.low != recovery.high {
            return Err(("what was done is known", format!("{what}: {last} of {recovery:?}")));
        }
        let began = (members, joined, recovery);
        unique("an epoch has one membership", &mut self.memberships, epoch, began)
    }

    /// What must be so if nothing went wrong but deaths: survivors have done their work.
    pub(super) fn at_the_end(&self, all: &[Process]) -> Result<(), Broken> {
        let Scenario { weather, cascade, operations, .. } = self.scenario;
        if weather == Weather::Storm || cascade {
            return Ok(());
        }
        for (at, process) in all.iter().enumerate() {
            let done = self.last.get(&at).copied().unwrap_or(0);
            if process.alive && !process.members.is_empty() && done < operations {
                return Err(("survivors finish", format!("process {at} did {done}")));
            }
        }
        Ok(())
    }
}

/// Who is told, and among whom.
struct Story<'a> {
    at: usize,
    all: &'a [Process],
}

impl Story<'_> {
    /// The processes of these ranks, as the one that is told knows them.
    fn processes(&self, ranks: Ranks) -> Vec<usize> {
        ranks.iter().map(|rank| self.all[self.at].peers[rank as usize]).collect()
    }
}

/// Whoever is told something else than others before breaks the law, even if those are dead.
fn unique<K: Ord + fmt::Debug, T: PartialEq + fmt::Debug>(
    law: &'static str,
    known: &mut BTreeMap<K, T>,
    key: K,
    what: T,
) -> Result<(), Broken> {
    match known.get(&key) {
        Some(old) if *old != what => Err((law, format!("{key:?}: {old:?}, but {what:?}"))),
        _ => {
            known.insert(key, what);
            Ok(())
        }
    }
}
