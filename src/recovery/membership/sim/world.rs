//! The processes, and what happens to them one thing after another. May touch: the rest of this
//! simulator. Law: a process that is dead, has ended or is paused does nothing.

use super::caller::{Next, Operation};
use super::laws::{Broken, Laws, stuck};
use super::network::{Event, Network};
use super::{Scenario, Tally, Weather};
use crate::recovery::membership::member::{Input, Member, Outputs, Time, Verdict};
use crate::recovery::membership::message::{Body, Evidence, Message};
use crate::recovery::membership::ranks::Ranks;
use crate::recovery::membership::wire::{decode, encode};
use crate::sim::Random;

/// Nothing takes this long once faults have ended.
const END: Time = 60_000;

/// How long an operation may wait for what a rank sent before it said goodbye.
const OVERDUE: Time = 100;

/// Processes that a story may have.
const PROCESSES: usize = 16;

pub(super) struct Process {
    pub(super) rank: u32,
    pub(super) member: Member,
    /// Not killed.
    pub(super) alive: bool,
    /// Returned to its caller for the last time.
    pub(super) ended: bool,
    pub(super) paused: bool,
    /// What came while it was paused.
    inbox: Vec<Event>,
    /// The process of each rank, as far as it knows.
    pub(super) peers: [usize; PROCESSES],
    /// The processes that want to join, as far as it knows.
    pub(super) candidates: Vec<usize>,
    pub(super) next: Next,
    pub(super) operation: Operation,
    /// How long its caller's next change takes to come.
    pub(super) dawdle: Time,
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
            dawdle: 0,
            epoch,
            members,
        }
    }

    pub(super) const fn acts(&self) -> bool {
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
}

impl World {
    pub(super) fn new(scenario: Scenario, random: Random) -> Result<Self, Broken> {
        let mut world = Self {
            scenario,
            random,
            network: Network::new(),
            processes: Vec::new(),
            laws: Laws::new(scenario),
            tally: Tally::default(),
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

    pub(super) fn run(mut self) -> Result<Tally, Broken> {
        while let Some(event) = self.network.next() {
            self.tally.events += 1;
            if self.network.now > END {
                break;
            }
            self.happen(event)?;
        }
        for (number, process) in self.processes.iter().enumerate() {
            let member = !process.members.is_empty();
            if member && process.acts() {
                let state = (process.epoch, process.members, &process.next, process.paused);
                return Err(stuck(number, &format!("{state:?}\n{:?}", process.member)));
            }
        }
        self.laws.at_the_end(&self.processes)?;
        Ok(self.tally)
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        let at = match event {
            Event::Fault(fault) => return self.strike(fault),
            Event::Start { rank } => return self.start(rank),
            Event::Resume { at } => return self.resume(at),
            Event::Launcher { of } => return self.launcher(of),
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
        let Some(process) = self.processes.get_mut(at).filter(|process| process.acts()) else {
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

    fn tick(&mut self, at: usize) -> Result<(), Broken> {
        let outputs = self.processes[at].member.step(self.network.now, Input::Tick);
        if self.scenario.weather == Weather::Calm && !outputs.sends.is_empty() {
            return Err(("where nothing is wrong nothing is late", format!("{outputs:?}")));
        }
        self.perform(at, None, outputs)
    }

    fn message(&mut self, from: usize, to: usize, message: &Message) -> Result<(), Broken> {
        let rank = self.processes[from].rank;
        // As it would come from a socket.
        let Some(message) = decode(&encode(message)).filter(|same| same == message) else {
            return Err(("messages survive their encoding", format!("{message:?}")));
        };
        let current = self.processes[to].peers[rank as usize] == from;
        if matches!(message.body, Body::Goodbye(_)) && current {
            self.overdue(to, from);
        }
        let outputs = {
            let member = &mut self.processes[to].member;
            member.step(self.network.now, Input::Message(rank, &message))
        };
        self.perform(to, Some(from), outputs)
    }

    fn launcher(&mut self, of: usize) -> Result<(), Broken> {
        let hears = |process: &Process| process.acts() && !process.members.is_empty();
        let living: Vec<usize> =
            (0..self.processes.len()).filter(|&at| hears(&self.processes[at])).collect();
        if living.is_empty() {
            return Ok(());
        }
        let at = living[self.random.below(living.len())];
        self.evidence(at, of, Evidence::Certain)
    }

    /// If `at` still waits for `of` after a while, it says that it needs it.
    pub(super) fn overdue(&mut self, at: usize, of: usize) {
        let epoch = self.processes[at].epoch;
        self.network.at(self.network.now + OVERDUE, Event::Awaited { at, of, epoch });
    }

    fn evidence(&mut self, at: usize, of: usize, evidence: Evidence) -> Result<(), Broken> {
        let rank = self.processes[of].rank;
        // Links that were healed in time, processes that have gone on: nobody noticed.
        let silent = !self.processes[of].acts()
            || self.processes[of].paused
            || self.network.is_blocked(of, at)
            || self.laws.suspects_without_reason(at, of);
        if evidence == Evidence::Suspected && !silent {
            return Ok(());
        }
        self.processes[at].candidates.retain(|&candidate| candidate != of);
        if self.processes[at].peers[rank as usize] != of {
            return Ok(());
        }
        let storm = self.scenario.weather == Weather::Storm;
        let known = evidence == Evidence::Certain && !(storm && self.random.below(8) == 0);
        let testament = known.then(|| self.processes[of].member.testament());
        self.step(at, Input::Evidence(rank, evidence, testament))
    }

    pub(super) fn step(&mut self, at: usize, input: Input<'_>) -> Result<(), Broken> {
        if !self.processes[at].acts() {
            return Ok(());
        }
        let outputs = self.processes[at].member.step(self.network.now, input);
        self.perform(at, None, outputs)
    }

    fn perform(&mut self, at: usize, from: Option<usize>, done: Outputs) -> Result<(), Broken> {
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
        let event = Event::Message { from, to, message };
        self.network.send(from, to, event, &mut self.random);
    }

    fn verdict(&mut self, at: usize, verdict: Verdict) -> Result<(), Broken> {
        self.laws.hold(at, &self.processes, verdict, self.network.now)?;
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

    /// Nothing more is heard of a process, and its goodbye may be lost.
    pub(super) fn ends(&mut self, of: usize) {
        self.processes[of].ended = true;
        for at in 0..self.processes.len() {
            self.silent(at, of, None);
        }
    }

    /// A process that wants to join; all hear of it sooner or later.
    fn start(&mut self, rank: u32) -> Result<(), Broken> {
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

    /// Who is admitted is told where the others are that are.
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
    }

    fn resume(&mut self, at: usize) -> Result<(), Broken> {
        self.processes[at].paused = false;
        for event in core::mem::take(&mut self.processes[at].inbox) {
            self.happen(event)?;
        }
        Ok(())
    }
}

fn no_member() -> Broken {
    ("members can be made", String::new())
}
