//! The simulated processes, and the event loop.
//! Law: a process that is dead, has ended or is stopped does nothing.

use super::caller::{Next, Operation};
use super::laws::{BrokenLaw, Laws, stuck};
use super::network::{Event, Network};
use super::{FaultMix, Scenario, Tally};
use ringreduce::recovery::membership::{
    Body, Evidence, Input, Member, Message, Outputs, Ranks, Time, Verdict, decode, encode,
};
use ringreduce::sim::Random;

/// The end of a run; no call takes this long once the faults have ended.
const END: Time = 60_000;

/// How long an operation waits for messages of a rank that has said goodbye.
const GOODBYE_WAIT: Time = 100;

/// The most processes of a run.
const PROCESSES: usize = 16;

pub(super) struct Process {
    pub(super) rank: u32,
    pub(super) member: Member,
    /// False once the process was killed.
    pub(super) alive: bool,
    /// The membership has ended for this process.
    pub(super) ended: bool,
    pub(super) paused: bool,
    /// Events that arrived while the process was stopped, or before it knew its peers.
    inbox: Vec<Event>,
    /// The process of each rank, as far as this process knows.
    pub(super) peers: [usize; PROCESSES],
    /// The processes that want to join, as far as this process knows.
    pub(super) candidates: Vec<usize>,
    pub(super) next: Next,
    pub(super) operation: Operation,
    /// The delay of the program's next change.
    pub(super) change_delay: Time,
    pub(super) epoch: u32,
    pub(super) members: Ranks,
}

impl Process {
    fn new(rank: u32, member: Member, peers: [usize; PROCESSES]) -> Self {
        let (epoch, members) = member.membership();
        let (inbox, candidates) = (Vec::new(), Vec::new());
        let (next, operation) = (Next::default(), Operation::default());
        Self {
            rank,
            member,
            alive: true,
            ended: false,
            paused: false,
            inbox,
            peers,
            candidates,
            next,
            operation,
            change_delay: 0,
            epoch,
            members,
        }
    }

    pub(super) const fn is_active(&self) -> bool {
        self.alive && !self.ended
    }
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) random: Random,
    pub(super) network: Network,
    pub(super) processes: Vec<Process>,
    pub(super) laws: Laws,
    pub(super) tally: Tally,
    /// The kills that follow a message of a ballot: see [`Scenario::aims`].
    pub(super) aimed: u32,
}

impl World {
    pub(super) fn new(scenario: Scenario, random: Random) -> Result<Self, BrokenLaw> {
        let mut world = Self {
            scenario,
            random,
            network: Network::new(),
            processes: Vec::new(),
            laws: Laws::new(scenario),
            tally: Tally::default(),
            aimed: 0,
        };
        let members = Ranks::first(scenario.size).unwrap_or_default();
        for rank in 0..scenario.size {
            let member = Member::new(rank, members, scenario.settings).ok_or_else(no_member)?;
            let peers = core::array::from_fn(|rank| rank);
            world.processes.push(Process::new(rank, member, peers));
            let time = world.random.below(30) as Time;
            world.network.at(time, Event::Move { at: rank as usize });
        }
        if scenario.grow.is_some() {
            let time = world.random.below(100) as Time;
            world.network.at(time, Event::Start { rank: scenario.size });
        }
        world.plan_faults();
        Ok(world)
    }

    pub(super) fn run(mut self) -> Result<Tally, BrokenLaw> {
        while let Some(event) = self.network.next() {
            self.tally.events += 1;
            if self.network.now > END {
                break;
            }
            self.happen(event)?;
        }
        for (number, process) in self.processes.iter().enumerate() {
            let member = !process.members.is_empty();
            if member && process.is_active() {
                let state = (process.epoch, process.members, &process.next, process.paused);
                return Err(stuck(number, &format!("{state:?}\n{:?}", process.member)));
            }
        }
        self.laws.check_end(&self.processes)?;
        Ok(self.tally)
    }

    fn happen(&mut self, event: Event) -> Result<(), BrokenLaw> {
        let at = match event {
            Event::Fault(fault) => return self.inject(fault),
            Event::Start { rank } => return self.start(rank),
            Event::Resume { at } => return self.resume(at),
            Event::Message { from, to, .. } | Event::Token { from, to, .. } => {
                if !self.network.arrives(from, to) {
                    return Ok(());
                }
                to
            }
            Event::Tick { at }
            | Event::Move { at }
            | Event::Evidence { at, .. }
            | Event::Awaited { at, .. }
            | Event::Ready { at, .. } => at,
        };
        let Some(process) = self.processes.get_mut(at).filter(|process| process.is_active()) else {
            return Ok(());
        };
        if process.paused {
            process.inbox.push(event);
            return Ok(());
        }
        match event {
            Event::Message { from, to, message } => self.message(from, to, &message),
            Event::Token { from, to, token } => self.token(from, to, token),
            Event::Move { at } => self.caller(at),
            Event::Evidence { at, of, evidence } => self.evidence(at, of, evidence),
            Event::Awaited { at, of, epoch } => {
                let waits = process.epoch == epoch && process.next == Next::Operation;
                if waits { self.evidence(at, of, Evidence::Left) } else { Ok(()) }
            }
            Event::Ready { of, .. } => {
                process.candidates.push(of);
                Ok(())
            }
            _ => self.tick(at),
        }
    }

    fn tick(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let outputs = self.processes[at].member.step(self.network.now, Input::Tick);
        if self.scenario.fault_mix == FaultMix::None && !outputs.sends.is_empty() {
            return Err(("without faults no answer is late", format!("{outputs:?}")));
        }
        self.perform(at, None, outputs)
    }

    fn message(&mut self, from: usize, to: usize, message: &Message) -> Result<(), BrokenLaw> {
        let rank = self.processes[from].rank;
        // A message from a socket would be decoded, too.
        let Some(message) = decode(&encode(message)).filter(|same| same == message) else {
            return Err(("messages survive their encoding", format!("{message:?}")));
        };
        let current = self.processes[to].peers[rank as usize] == from;
        if matches!(message.body, Body::Goodbye(_)) && current {
            self.report_if_needed(to, from);
        }
        let outputs = {
            let member = &mut self.processes[to].member;
            member.step(self.network.now, Input::Message(rank, &message))
        };
        self.perform(to, Some(from), outputs)
    }

    /// After a while, makes process `at` report that it needs process `of`, if it still waits for
    /// it.
    pub(super) fn report_if_needed(&mut self, at: usize, of: usize) {
        let epoch = self.processes[at].epoch;
        self.network.at(self.network.now + GOODBYE_WAIT, Event::Awaited { at, of, epoch });
    }

    fn evidence(&mut self, at: usize, of: usize, evidence: Evidence) -> Result<(), BrokenLaw> {
        let rank = self.processes[of].rank;
        // The link was repaired, or the process went on, before the silence was noticed.
        let silent = !self.processes[of].is_active()
            || self.processes[of].paused
            || self.network.is_blocked(of, at)
            || self.laws.suspects_without_reason(at, of);
        if evidence == Evidence::Suspected && !silent {
            return Ok(());
        }
        self.processes[at].candidates.retain(|&candidate| candidate != of);
        if self.processes[at].peers[rank as usize] != of {
            if self.processes[at].members.is_empty() {
                self.processes[at].inbox.push(Event::Evidence { at, of, evidence });
            }
            return Ok(());
        }
        let all_faults = self.scenario.fault_mix == FaultMix::All;
        let has_vote = evidence == Evidence::Certain && !(all_faults && self.random.below(8) == 0);
        let vote = has_vote.then(|| self.processes[of].member.last_votes());
        if let Some(vote) = vote {
            self.laws.knows_end(at, of, vote);
        }
        self.step(at, Input::Evidence(rank, evidence, vote))
    }

    pub(super) fn step(&mut self, at: usize, input: Input<'_>) -> Result<(), BrokenLaw> {
        if !self.processes[at].is_active() {
            return Ok(());
        }
        let outputs = self.processes[at].member.step(self.network.now, input);
        self.perform(at, None, outputs)
    }

    fn perform(&mut self, at: usize, from: Option<usize>, done: Outputs) -> Result<(), BrokenLaw> {
        for verdict in &done.verdicts {
            if let Verdict::Membership { joined, .. } = verdict {
                self.introduce(at, *joined);
            }
        }
        for message in done.replies {
            if let Some(to) = from {
                self.send(at, to, message);
            }
        }
        for (rank, message) in done.sends {
            let to = self.processes[at].peers[rank as usize];
            self.send(at, to, message);
        }
        if let Some(time) = done.timer {
            self.network.at(time, Event::Tick { at });
        }
        for verdict in done.verdicts {
            self.verdict(at, verdict)?;
        }
        Ok(())
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.aim(from, &message);
        let event = Event::Message { from, to, message };
        self.network.send(from, to, event, &mut self.random);
    }

    fn verdict(&mut self, at: usize, verdict: Verdict) -> Result<(), BrokenLaw> {
        self.laws.check(at, &self.processes, verdict, self.network.now)?;
        let process = &mut self.processes[at];
        match verdict {
            Verdict::Ok(_) => self.tally.succeeded += 1,
            Verdict::Failed(_) => self.tally.failed += 1,
            Verdict::Agreed { .. } => self.tally.agreed += 1,
            Verdict::TimedOut { .. } => self.tally.timed_out += 1,
            Verdict::Membership { epoch, members, joined, .. } => {
                self.tally.epochs += 1;
                self.tally.joined += u64::from(joined.contains(process.rank));
                (process.epoch, process.members) = (epoch, members);
                let peers = process.peers;
                process
                    .candidates
                    .retain(|&of| !joined.iter().any(|rank| peers[rank as usize] == of));
            }
            Verdict::QuorumLost { .. } => {
                self.tally.quorums_lost += 1;
                self.ends(at);
            }
            Verdict::Evicted { .. } => {
                self.tally.evicted += 1;
                self.ends(at);
            }
            Verdict::Revoked(_) => {}
        }
        self.answer(at, verdict);
        Ok(())
    }

    /// Ends a process, which is silent from now on; its goodbye may be lost.
    pub(super) fn ends(&mut self, of: usize) {
        self.processes[of].ended = true;
        if self.scenario.fault_mix == FaultMix::All && self.random.below(2) == 0 {
            self.laws.killed(self.processes[of].rank, self.network.now);
            self.launcher_tells(of);
        }
        for at in 0..self.processes.len() {
            self.silent(at, of, None);
        }
    }

    /// Starts a process that wants to join; all others learn of it within 60 time units.
    fn start(&mut self, rank: u32) -> Result<(), BrokenLaw> {
        let number = self.processes.len();
        if number >= PROCESSES {
            return Ok(());
        }
        let mut peers = core::array::from_fn(|rank| rank);
        for (number, process) in self.processes.iter().enumerate() {
            peers[process.rank as usize] = number;
        }
        peers[rank as usize] = number;
        let member = Member::joining(rank, self.scenario.settings).ok_or_else(no_member)?;
        self.processes.push(Process::new(rank, member, peers));
        for at in 0..number {
            let time = self.network.now + 1 + self.random.below(60) as Time;
            self.network.at(time, Event::Ready { at, of: number });
        }
        Ok(())
    }

    /// Tells an admitted process which processes the other joiners are.
    fn introduce(&mut self, at: usize, joined: Ranks) {
        let own = self.processes[at].rank;
        if !joined.contains(own) {
            return;
        }
        for rank in joined.without(own).iter() {
            let newest = self.processes.iter().rposition(|process| process.rank == rank);
            if let Some(newest) = newest {
                self.processes[at].peers[rank as usize] = newest;
            }
        }
        for event in core::mem::take(&mut self.processes[at].inbox) {
            self.network.at(self.network.now, event);
        }
    }

    fn resume(&mut self, at: usize) -> Result<(), BrokenLaw> {
        self.processes[at].paused = false;
        for event in core::mem::take(&mut self.processes[at].inbox) {
            self.happen(event)?;
        }
        Ok(())
    }
}

fn no_member() -> BrokenLaw {
    ("members can be made", String::new())
}
