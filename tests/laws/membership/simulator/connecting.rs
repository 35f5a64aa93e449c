//! How the members of a decided membership connect, with joiners: each announces its listener and
//! the joiners that it would admit, the lowest invites the joiners if all name the same ones, all
//! connect with each other, and joiners tell the members that they have all their links. Then the
//! members close the change: with all their votes they go on in a new communicator, each with a new
//! state machine, and welcome the joiners.
//! Law: a process goes on only with links to all processes of the new communicator.

use super::caller::Next;
use super::laws::BrokenLaw;
use super::network::Event;
use super::world::World;
use super::{DELAY, FaultMix};
use ringreduce::recovery::membership::{Evidence, Input, LastVotes, Member, Ranks, Time};

/// The longest time of a rank's connecting.
const CONNECT_LIMIT: Time = 300;

/// How long members wait for each other's votes after the limit of their connecting, which is
/// longer than the news of a death takes.
const CLOSING_LIMIT: Time = 500;

/// A set of processes, a bit for each number.
pub(super) type Processes = u32;

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The communicator before, and the epoch of its state machine that decided this one; `None`
    /// for the first one.
    pub(super) origin: Option<(usize, u32)>,
    /// The processes, by rank: the members, then the joiners.
    pub(super) processes: Vec<usize>,
    /// The number of members, which are the first ranks.
    pub(super) members: usize,
    /// The number of the epoch.
    pub(super) epoch: u32,
    /// The number of the last operation before.
    pub(super) base: u64,
}

/// A message of the connecting. Groups are named by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    /// The listener of a member, and the joiners that it would admit.
    Listener { of: usize, epoch: u32, joiners: Processes },
    /// The lowest member invites a joiner.
    Invite { to: usize },
    /// A connection.
    Link { of: usize },
    /// A joiner has all its links.
    Linked { of: usize },
    /// A member has gone on.
    Admitted { to: usize },
}

/// The connecting of a process.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// The epoch of the state machine, the members and the joiners that this one would admit.
    epoch: u32,
    members: Vec<usize>,
    joiners: Processes,
    base: u64,
    /// The communicator, once the listeners of all members are known.
    group: Option<usize>,
    is_linked: bool,
    has_voted: bool,
}

fn bit(process: usize) -> Processes {
    1 << process
}

impl World {
    /// Takes the next decision, once the program waits for one: also one of a call that the program
    /// had given up.
    pub(super) fn take_decision(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        let waits = matches!(process.next, Next::Membership(_)) && process.attempt.is_none();
        if !waits || !process.is_active() {
            return Ok(());
        }
        let Some((epoch, members, high)) = process.decision.take() else { return Ok(()) };
        self.connect(at, (epoch, members), high);
        self.progress(at)
    }

    /// Starts the connecting of a member, after a decision.
    fn connect(&mut self, at: usize, (epoch, members): (u32, Ranks), base: u64) {
        let process = &self.processes[at];
        let (group, joiners) = (process.group, process.joiners);
        let Some(group) = group else { return };
        let members: Vec<usize> =
            members.iter().map(|rank| self.groups[group].processes[rank as usize]).collect();
        for &to in members.iter().filter(|&&to| to != at) {
            self.greet(at, to, Greeting::Listener { of: group, epoch, joiners });
        }
        let (is_linked, has_voted) = (false, false);
        let attempt = Attempt { epoch, members, joiners, base, group: None, is_linked, has_voted };
        self.processes[at].attempt = Some(attempt);
        self.network.at(self.network.now + CONNECT_LIMIT, Event::Limit { at, group, epoch });
    }

    fn greet(&mut self, from: usize, to: usize, greeting: Greeting) {
        self.aim(from);
        let event = Event::Greeting { from, to, greeting };
        self.network.send(from, to, event, &mut self.random);
    }

    /// Handles a message of the connecting, which waits where the process is not as far.
    pub(super) fn greeting(
        &mut self,
        (from, at): (usize, usize),
        greeting: Greeting,
    ) -> Result<(), BrokenLaw> {
        self.processes[at].greetings.push((from, greeting));
        match greeting {
            Greeting::Invite { to } if self.processes[at].group.is_none() => {
                let Group { processes, epoch, base, .. } = self.groups[to].clone();
                let (joiners, is_linked, has_voted) = (0, false, true);
                let (members, group) = (processes, Some(to));
                self.processes[at].attempt =
                    Some(Attempt { epoch, members, joiners, base, group, is_linked, has_voted });
                self.link(at, to);
                // Members have decided by then, or there are none.
                let limit = self.network.now + 2 * (CONNECT_LIMIT + CLOSING_LIMIT);
                self.network.at(limit, Event::Limit { at, group: to, epoch });
            }
            Greeting::Admitted { to } if self.is_linked_joiner(at, to) => {
                return self.go_on(at, to);
            }
            _ => {}
        }
        self.progress(at)
    }

    fn is_linked_joiner(&self, at: usize, group: usize) -> bool {
        let process = &self.processes[at];
        let attempt = process.attempt.as_ref();
        process.group.is_none() && attempt.is_some_and(|it| it.group == Some(group) && it.is_linked)
    }

    /// Connects with all others of a group.
    fn link(&mut self, at: usize, of: usize) {
        let others = self.groups[of].processes.clone();
        for to in others.into_iter().filter(|&to| to != at) {
            self.greet(at, to, Greeting::Link { of });
        }
    }

    fn has_come(&self, at: usize, from: usize, greeting: Greeting) -> bool {
        self.processes[at].greetings.contains(&(from, greeting))
    }

    /// Goes on with the connecting of a process, as far as messages have come.
    pub(super) fn progress(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let Some(attempt) = self.processes[at].attempt.clone() else { return Ok(()) };
        if attempt.is_linked {
            return Ok(());
        }
        if !attempt.has_voted && self.has_lost(at, &attempt.members) {
            return self.vote(at, false);
        }
        let group = match attempt.group.or_else(|| self.group_of(at, &attempt)) {
            Some(group) => group,
            None => return Ok(()),
        };
        let Group { processes, members, .. } = self.groups[group].clone();
        if attempt.group.is_none() {
            if let Some(attempt) = &mut self.processes[at].attempt {
                attempt.group = Some(group);
            }
            if processes[0] == at {
                self.invite(at, group);
            }
            self.link(at, group);
        }
        let is_member = self.processes[at].group.is_some();
        if is_member && self.has_lost(at, &processes) {
            return self.vote(at, false);
        }
        let others = || processes.iter().copied().filter(|&other| other != at);
        let links = others().all(|from| self.has_come(at, from, Greeting::Link { of: group }));
        let linked = |from: &usize| self.has_come(at, *from, Greeting::Linked { of: group });
        if !links || is_member && !processes[members..].iter().all(linked) {
            return Ok(());
        }
        if let Some(attempt) = &mut self.processes[at].attempt {
            attempt.is_linked = true;
        }
        self.laws.linked(at, group);
        if is_member {
            return self.vote(at, true);
        }
        for &to in &processes[..members] {
            self.greet(at, to, Greeting::Linked { of: group });
        }
        // The welcome of a member with faster links may have come before.
        let admitted = Greeting::Admitted { to: group };
        let is_admitted = processes[..members].iter().any(|&by| self.has_come(at, by, admitted));
        if is_admitted { self.go_on(at, group) } else { Ok(()) }
    }

    /// The communicator that the members connect, once all their listeners are known.
    fn group_of(&mut self, at: usize, attempt: &Attempt) -> Option<usize> {
        let Attempt { epoch, members, joiners, base, .. } = attempt;
        let before = self.processes[at].group?;
        let mut is_agreed = true;
        for &from in members.iter().filter(|&&from| from != at) {
            let announced =
                self.processes[at].greetings.iter().find_map(|&(by, greeting)| match greeting {
                    Greeting::Listener { of, epoch: in_epoch, joiners } => {
                        (by == from && of == before && in_epoch == *epoch).then_some(joiners)
                    }
                    _ => None,
                })?;
            is_agreed &= announced == *joiners;
        }
        let admitted = if is_agreed { *joiners } else { 0 };
        let joiners = (0..self.processes.len()).filter(|&process| admitted & bit(process) != 0);
        let group = Group {
            origin: Some((before, *epoch)),
            processes: members.iter().copied().chain(joiners).collect(),
            members: members.len(),
            epoch: self.groups[before].epoch + epoch,
            base: *base,
        };
        let known = self.groups.iter().position(|known| *known == group);
        Some(known.unwrap_or_else(|| {
            self.groups.push(group);
            self.groups.len() - 1
        }))
    }

    /// Invites the joiners by way of the launcher, which tells all of them, or the inviting process
    /// has died before.
    fn invite(&mut self, at: usize, to: usize) {
        let Group { processes, members, .. } = self.groups[to].clone();
        for &joiner in &processes[members..] {
            let time = self.network.now + 1 + self.random.below(DELAY) as Time;
            let greeting = Greeting::Invite { to };
            self.network.at(time, Event::Greeting { from: at, to: joiner, greeting });
        }
    }

    /// True if the process knows that one of the others has ended.
    pub(super) fn has_lost(&self, at: usize, others: &[usize]) -> bool {
        let has_ended = |&(of, evidence)| evidence != Evidence::Suspected && others.contains(&of);
        self.processes[at].evidence.iter().any(has_ended)
    }

    /// Handles the end of the time to connect.
    pub(super) fn limit(&mut self, at: usize, group: usize, epoch: u32) -> Result<(), BrokenLaw> {
        let process = &self.processes[at];
        let Some(attempt) = &process.attempt else { return Ok(()) };
        if process.group == Some(group) && attempt.epoch == epoch {
            return self.vote(at, false);
        }
        if process.group.is_none() && attempt.group == Some(group) {
            // A joiner that nobody admits starts again, which ends its links.
            self.ends(at);
            self.network.at(self.network.now, Event::Start);
        }
        Ok(())
    }

    /// Votes on whether this member has all its links.
    fn vote(&mut self, at: usize, is_linked: bool) -> Result<(), BrokenLaw> {
        let (now, evict_missing) = (self.network.now, self.evicts());
        let process = &mut self.processes[at];
        let Some(attempt) = process.attempt.as_mut().filter(|attempt| !attempt.has_voted) else {
            return Ok(());
        };
        attempt.has_voted = true;
        let epoch = attempt.epoch;
        let Next::Membership(sequence) = process.next else { return Ok(()) };
        process.next = Next::Closing(sequence);
        // Where ranks may stop, some give up the wait before the others have voted.
        let time = match self.scenario.fault_mix {
            FaultMix::All => 30 + self.random.below(400) as Time,
            _ => CONNECT_LIMIT + CLOSING_LIMIT,
        };
        let deadline = Some(now + time);
        self.step(at, Input::Close { epoch, is_linked, deadline, evict_missing })
    }

    /// A member has learnt that all members have their links.
    pub(super) fn closed(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let process = &self.processes[at];
        let attempt = process.attempt.as_ref().filter(|attempt| attempt.is_linked);
        match (attempt.and_then(|attempt| attempt.group), process.next) {
            (Some(group), Next::Closing(_)) => self.go_on(at, group),
            // The program has given up the wait, and its links.
            (_, Next::Membership(sequence) | Next::Agreement(sequence)) => {
                self.tally.evicted += 1;
                self.laws.left_behind(at)?;
                if self.random.below(2) == 0 {
                    self.ends(at);
                    return Ok(());
                }
                // The program calls again, to no avail.
                self.processes[at].next = Next::Change(sequence);
                let time = self.network.now + self.random.below(100) as Time;
                self.network.at(time, Event::Move { at });
                Ok(())
            }
            (_, next) => {
                let what = format!("process {at}, {next:?}");
                Err(("a process goes on with all its links", what))
            }
        }
    }

    /// Goes on in a new communicator, with a new state machine.
    fn go_on(&mut self, at: usize, group: usize) -> Result<(), BrokenLaw> {
        self.laws.goes_on(at, group, &self.groups[group])?;
        let Group { processes, members, epoch, base, .. } = self.groups[group].clone();
        if let Some(before) = self.processes[at].group {
            self.step(at, Input::Leave)?;
            let votes = self.processes[at].member.last_votes().clone();
            self.processes[at].votes.push((before, votes));
        }
        let all = Ranks::first(processes.len() as u32).unwrap_or_default();
        let rank = processes.iter().position(|&process| process == at).unwrap_or_default() as u32;
        let member = Member::new(rank, all.clone(), self.scenario.settings);
        let Some(member) = member else {
            return Err(("members can be made", format!("process {at}: {processes:?}")));
        };
        let process = &mut self.processes[at];
        self.tally.joined += u64::from(process.group.is_none());
        self.tally.epochs += 1;
        (process.group, process.member, process.rank) = (Some(group), member, rank);
        (process.epoch, process.members, process.base) = (epoch, all.clone(), base);
        process.current = (0, all);
        process.peers = core::array::from_fn(|rank| processes.get(rank).copied().unwrap_or(at));
        process.attempt = None;
        process.decision = None;
        process.is_without_joiners = false;
        process.candidates.retain(|candidate| !processes.contains(candidate));
        process.next = Next::Begin(base + 1);
        for &to in &processes[members..] {
            self.greet(at, to, Greeting::Admitted { to: group });
        }
        let now = self.network.now;
        for event in core::mem::take(&mut self.processes[at].parked) {
            self.network.at(now, event);
        }
        // The new communicator finds each loss that the one before has found.
        for (of, evidence) in core::mem::take(&mut self.processes[at].evidence) {
            self.network.at(now, Event::Evidence { at, of, evidence });
        }
        let time = now + self.random.below(5) as Time;
        self.network.at(time, Event::Move { at });
        Ok(())
    }

    /// The last votes of a process in a communicator.
    pub(super) fn last_votes(&self, of: usize, group: usize) -> LastVotes {
        let process = &self.processes[of];
        if process.group == Some(group) {
            return process.member.last_votes().clone();
        }
        let before = process.votes.iter().find(|(known, _)| *known == group);
        before.map(|(_, votes)| votes.clone()).unwrap_or_default()
    }
}
