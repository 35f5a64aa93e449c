//! The simulated processes, and the event loop.
//! Law: a process that is dead, has ended or is stopped does nothing.

use super::caller::{Next, Operation, since_the_start};
use super::connecting::{Attempt, Greeting, Group, Processes};
use super::faults::is_of_ballot;
use super::laws::{BrokenLaw, Laws, stuck};
use super::network::{Event, Network};
use super::{FaultMix, Scenario, Tally};
use ringreduce::recovery::membership::{
    Evidence, Input, LastVotes, Member, Message, Outputs, Ranks, Time, Verdict,
};
use ringreduce::sim::Random;

/// The end of a run; no call takes this long once the faults have ended.
const END: Time = 60_000;

/// How long an operation waits for messages of a rank that has said goodbye.
const GOODBYE_WAIT: Time = 100;

/// The most processes of a run.
const PROCESSES: usize = 16;

pub(super) struct Process {
    /// The communicator of this process; `None` while it waits to join.
    pub(super) group: Option<usize>,
    /// The rank in it, and the state machine, which a joiner does not use.
    pub(super) rank: u32,
    pub(super) member: Member,
    /// The epoch and the members that the state machine decided last.
    pub(super) current: (u32, Ranks),
    /// The last votes in communicators before.
    pub(super) votes: Vec<(usize, LastVotes)>,
    /// False once the process was killed.
    pub(super) alive: bool,
    /// The membership has ended for this process.
    pub(super) ended: bool,
    pub(super) paused: bool,
    pub(super) was_paused: bool,
    /// Events that arrived while the process was stopped.
    inbox: Vec<Event>,
    /// Events that the state machine has not been told, and whether more come first: see `polling`.
    pub(super) unread: Vec<Event>,
    pub(super) reads_later: bool,
    /// Events of communicators in which the process is not yet.
    pub(super) parked: Vec<Event>,
    /// The last decision, if the program has not taken it yet: the epoch, the members and the last
    /// operation.
    pub(super) decision: Option<(u32, Ranks, u64)>,
    /// The processes that have ended, or seem to have, as far as this process knows.
    pub(super) evidence: Vec<(usize, Evidence)>,
    pub(super) greetings: Vec<(usize, Greeting)>,
    pub(super) attempt: Option<Attempt>,
    /// The process of each rank.
    pub(super) peers: [usize; PROCESSES],
    /// The processes that want to join, as far as this process knows.
    pub(super) candidates: Vec<usize>,
    /// The next change is for joiners; those that the program would admit in it.
    pub(super) grows: bool,
    pub(super) is_without_joiners: bool,
    pub(super) joiners: Processes,
    pub(super) next: Next,
    /// How often the program has waited for another call instead.
    pub(super) switches: u32,
    pub(super) operation: Operation,
    /// The program makes no call any more once one has timed out.
    pub(super) becomes_idle: bool,
    /// The delay of the program's next change.
    pub(super) change_delay: Time,
    /// The number of the communicator's epoch, its ranks, and the last operation before it.
    pub(super) epoch: u32,
    pub(super) members: Ranks,
    pub(super) base: u64,
}

impl Process {
    fn new(group: Option<usize>, rank: u32, member: Member, peers: [usize; PROCESSES]) -> Self {
        let (epoch, members) = member.membership();
        let members = members.clone();
        let (inbox, unread) = (Vec::new(), Vec::new());
        let (parked, candidates) = (Vec::new(), Vec::new());
        let (next, operation) = (Next::default(), Operation::default());
        Self {
            group,
            rank,
            member,
            current: (epoch, members.clone()),
            votes: Vec::new(),
            parked,
            decision: None,
            evidence: Vec::new(),
            greetings: Vec::new(),
            attempt: None,
            grows: false,
            is_without_joiners: false,
            joiners: 0,
            base: 0,
            alive: true,
            ended: false,
            paused: false,
            was_paused: false,
            inbox,
            unread,
            reads_later: false,
            peers,
            candidates,
            next,
            switches: 0,
            becomes_idle: false,
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
    /// All communicators; a communicator's number is its place here.
    pub(super) groups: Vec<Group>,
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
            groups: vec![Group {
                origin: None,
                processes: (0..scenario.size as usize).collect(),
                members: scenario.size as usize,
                epoch: 0,
                base: 0,
            }],
            laws: Laws::new(scenario),
            tally: Tally::default(),
            aimed: 0,
        };
        let members = Ranks::first(scenario.size).unwrap_or_default();
        for rank in 0..scenario.size {
            let member =
                Member::new(rank, members.clone(), scenario.settings).ok_or_else(no_member)?;
            let peers = core::array::from_fn(|rank| rank);
            world.processes.push(Process::new(Some(0), rank, member, peers));
            let time = world.random.below(30) as Time;
            world.network.at(time, Event::Move { at: rank as usize });
        }
        if scenario.grow.is_some() {
            let time = world.random.below(100) as Time;
            world.network.at(time, Event::Start);
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
            if process.group.is_some() && process.is_active() && process.next != Next::Idle {
                let state = (process.epoch, &process.members, &process.next, process.paused);
                return Err(stuck(number, &format!("{state:?}\n{:?}", process.member)));
            }
        }
        self.laws.check_end(&self.processes)?;
        Ok(self.tally)
    }

    fn happen(&mut self, event: Event) -> Result<(), BrokenLaw> {
        let at = match event {
            Event::Fault(fault) => return self.inject(fault),
            Event::Start => return self.start(),
            Event::Resume { at } => return self.resume(at),
            Event::Message { from, to, .. }
            | Event::Token { from, to, .. }
            | Event::Greeting { from, to, .. } => {
                if !self.network.arrives(from, to) {
                    return Ok(());
                }
                to
            }
            Event::Tick { at }
            | Event::Move { at }
            | Event::Evidence { at, .. }
            | Event::Awaited { at, .. }
            | Event::Limit { at, .. }
            | Event::Ready { at, .. } => at,
        };
        let Some(process) = self.processes.get_mut(at).filter(|process| process.is_active()) else {
            return Ok(());
        };
        if process.paused {
            process.inbox.push(event);
            return Ok(());
        }
        if let Event::Message { group, .. } | Event::Token { group, .. } = event
            && process.group != Some(group)
        {
            // The links of a communicator are there before a process has gone on in it.
            if !process.votes.iter().any(|&(before, _)| before == group) {
                process.parked.push(event);
            }
            return Ok(());
        }
        match event {
            Event::Token { from, to, token, .. } => {
                let rank = self.rank_of(from, to).unwrap_or_default();
                self.hear(to, rank, token)
            }
            Event::Greeting { from, to, greeting } => self.greeting((from, to), greeting),
            Event::Limit { at, group, epoch } => self.limit(at, group, epoch),
            Event::Move { at } => self.caller(at),
            Event::Awaited { at, of, epoch } => {
                let waits = process.epoch == epoch && process.next == Next::Operation;
                let is_idle = self.processes[of].next == Next::Idle;
                let evidence = if is_idle { Evidence::Suspected } else { Evidence::Left };
                if waits { self.arrives(at, Event::Evidence { at, of, evidence }) } else { Ok(()) }
            }
            Event::Ready { of, .. } => {
                process.candidates.push(of);
                Ok(())
            }
            _ => self.arrives(at, event),
        }
    }

    /// After a while, makes process `at` report that it needs process `of`, if it still waits for
    /// it.
    pub(super) fn report_if_needed(&mut self, at: usize, of: usize) {
        let epoch = self.processes[at].epoch;
        self.network.at(self.network.now + GOODBYE_WAIT, Event::Awaited { at, of, epoch });
    }

    /// The rank of a process in the communicator of process `at`.
    pub(super) fn rank_of(&self, of: usize, at: usize) -> Option<u32> {
        let group = &self.groups[self.processes[at].group?];
        group.processes.iter().position(|&process| process == of).map(|rank| rank as u32)
    }

    pub(super) fn step(&mut self, at: usize, input: Input<'_>) -> Result<(), BrokenLaw> {
        if !self.processes[at].is_active() {
            return Ok(());
        }
        let outputs = self.processes[at].member.step(self.network.now, input);
        self.perform(at, None, outputs)
    }

    pub(super) fn perform(
        &mut self,
        at: usize,
        from: Option<usize>,
        done: Outputs,
    ) -> Result<(), BrokenLaw> {
        for message in done.replies {
            if let Some(to) = from {
                self.send(at, to, message);
            }
        }
        for (rank, message) in done.sends {
            let to = self.processes[at].peers[rank as usize];
            if is_of_ballot(&message) {
                self.aim(at);
            }
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
        let Some(group) = self.processes[from].group else { return };
        let event = Event::Message { from, to, group, message: Box::new(message) };
        self.network.send(from, to, event, &mut self.random);
    }

    fn verdict(&mut self, at: usize, verdict: Verdict) -> Result<(), BrokenLaw> {
        let verdict = since_the_start(verdict, self.processes[at].base);
        self.laws.check(at, &self.processes, verdict.clone(), &self.network)?;
        let process = &mut self.processes[at];
        match verdict {
            Verdict::Ok(_) => self.tally.succeeded += 1,
            Verdict::Failed(_) => self.tally.failed += 1,
            Verdict::Agreed { .. } => self.tally.agreed += 1,
            Verdict::TimedOut { .. } => self.tally.timed_out += 1,
            Verdict::Membership { epoch, members, recovery, .. } => {
                process.current = (epoch, members.clone());
                process.decision = Some((epoch, members, recovery.high));
                return self.take_decision(at);
            }
            Verdict::Closed { .. } => return self.closed(at),
            Verdict::Undone { .. } => self.tally.undone += 1,
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
            self.laws.killed(of, self.network.now);
            self.launcher_tells(of);
        }
        for at in 0..self.processes.len() {
            self.silent(at, of, None);
        }
    }

    /// Starts a process that wants to join; all others learn of it within 60 time units.
    fn start(&mut self) -> Result<(), BrokenLaw> {
        let number = self.processes.len();
        if number >= PROCESSES {
            return Ok(());
        }
        let alone = Ranks::only(0);
        let member = Member::new(0, alone, self.scenario.settings).ok_or_else(no_member)?;
        self.processes.push(Process::new(None, 0, member, [number; PROCESSES]));
        for at in 0..number {
            let time = self.network.now + 1 + self.random.below(60) as Time;
            self.network.at(time, Event::Ready { at, of: number });
        }
        Ok(())
    }

    fn resume(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        (process.paused, process.reads_later) = (false, true);
        for event in core::mem::take(&mut self.processes[at].inbox) {
            self.happen(event)?;
        }
        // All that came meanwhile is read before the time is looked at.
        self.processes[at].reads_later = false;
        self.read_if_due(at)
    }
}

fn no_member() -> BrokenLaw {
    ("members can be made", String::new())
}
