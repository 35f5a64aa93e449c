//! The simulated program of a process: operations one after another, agreements between them, and a
//! change of the membership after a failure.
//! Law: the next action of a program depends only on the verdicts that it has received.

use super::laws::BrokenLaw;
use super::network::{Event, Token};
use super::world::World;
use super::{BUSY, FaultMix};
use ringreduce::recovery::membership::{Input, Ranks, Time, Verdict};

/// How often a program waits for another call instead after its deadline. Programs that did so for
/// ever could wait for different calls for ever, which no protocol would end.
const MOST_SWITCHES: u32 = 12;

/// The state of a program: the verdict that it waits for, or its next action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// Begins the operation of this number.
    Begin(u64),
    /// Waits for its operation.
    #[default]
    Operation,
    /// The operation has ended; true if it succeeded.
    Ended(u64, bool),
    /// Waits for an agreement about the operation.
    Agreement(u64),
    /// Goes on after the operation; true if it succeeded, by the agreement or by its own outcome.
    Boundary(u64, bool),
    /// Revokes the epoch, so that the others come to the change too, and calls for it.
    Revoke(u64),
    /// Calls for a change of the membership, after this operation.
    Change(u64),
    /// Waits for that change, and connects.
    Membership(u64),
    /// Waits for the votes of the others, whether they have their links.
    Closing(u64),
    /// Leaves.
    Leave,
    /// Makes no call any more, and does not end.
    Idle,
}

/// An operation under way, of two rounds: each rank sends all others its part, then that its result
/// is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Operation {
    pub(super) sequence: u64,
    pub(super) full: bool,
    passed: bool,
    /// The operation waits for the agreement of survivors about its end.
    pub(super) has_failed: bool,
    /// For each epoch and number: the ranks whose part is here, and the ranks with a complete
    /// result.
    heard: Vec<(u32, u64, Ranks, Ranks)>,
}

impl Operation {
    fn heard(&mut self, epoch: u32, sequence: u64) -> &mut (u32, u64, Ranks, Ranks) {
        let same = |known: &&(u32, u64, Ranks, Ranks)| (known.0, known.1) == (epoch, sequence);
        let at = self.heard.iter().position(|known| same(&known)).unwrap_or_else(|| {
            self.heard.push((epoch, sequence, Ranks::NONE, Ranks::NONE));
            self.heard.len() - 1
        });
        &mut self.heard[at]
    }
}

impl World {
    /// Gives a verdict to the program, which acts on it a little later.
    pub(super) fn answer(&mut self, at: usize, verdict: Verdict) {
        let process = &mut self.processes[at];
        let may_switch = process.switches < MOST_SWITCHES;
        let is_revoked = process.member.revoked().is_some() && process.current.0 == 0;
        // Without deadlines, programs that wait for different calls would wait for ever.
        let may_differ =
            self.scenario.fault_mix == FaultMix::All && self.scenario.deadline.is_some();
        let next = match (verdict, process.next) {
            (Verdict::TimedOut { .. }, _) if process.becomes_idle => Next::Idle,
            (Verdict::Ok(sequence), _) => Next::Ended(sequence, true),
            (Verdict::Failed(sequence), _) => Next::Ended(sequence, false),
            (Verdict::Agreed { flags, .. }, Next::Agreement(sequence)) => {
                Next::Boundary(sequence, flags & 1 == 1)
            }
            // The program changes the members instead, or agrees again.
            (Verdict::TimedOut { .. }, Next::Agreement(sequence))
                if may_differ && (self.random.below(2) == 0 || !may_switch) =>
            {
                process.switches += 1;
                Next::Revoke(sequence)
            }
            // The next operation fails, too, after which the program agrees again.
            (Verdict::TimedOut { .. }, Next::Agreement(sequence))
                if is_revoked && may_differ && self.random.below(3) == 0 =>
            {
                Next::Begin(sequence + 1)
            }
            (Verdict::TimedOut { .. }, Next::Agreement(sequence)) => Next::Ended(sequence, true),
            // The program agrees instead, where it may give that up too: the change may be decided
            // all the same.
            (Verdict::TimedOut { .. }, Next::Membership(sequence) | Next::Closing(sequence))
                if self.scenario.agree && may_differ && self.random.below(3) == 0 && may_switch =>
            {
                process.switches += 1;
                process.attempt = None;
                Next::Ended(sequence, false)
            }
            (Verdict::TimedOut { .. }, Next::Membership(sequence)) => {
                process.attempt = None;
                Next::Change(sequence)
            }
            (Verdict::TimedOut { .. } | Verdict::Undone { .. }, Next::Closing(sequence)) => {
                // The next attempt is without the joiners: one of them may be the reason.
                process.is_without_joiners = true;
                process.attempt = None;
                Next::Change(sequence)
            }
            _ => return,
        };
        process.next = next;
        if next == Next::Idle {
            (0..self.processes.len()).for_each(|other| self.report_if_needed(other, at));
            return;
        }
        let most = if self.scenario.is_busy { BUSY as usize / 2 } else { 5 };
        let mut time = self.network.now + self.random.below(most) as Time;
        if matches!(next, Next::Boundary(..) | Next::Ended(_, false)) {
            let delay = core::mem::take(&mut self.processes[at].change_delay);
            if delay > 0 {
                self.laws.is_busy();
            }
            time += delay;
        }
        self.network.at(time, Event::Move { at });
    }

    pub(super) fn caller(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let Self { scenario, network, .. } = self;
        let deadline = scenario.deadline.map(|time| network.now + time);
        let process = &mut self.processes[at];
        // The first action of the program.
        if process.next == Next::Operation && process.operation.sequence == 0 {
            process.next = Next::Begin(1);
        }
        match process.next {
            Next::Begin(sequence) if sequence > scenario.operations => self.leave(at),
            Next::Begin(sequence) => self.begin(at, sequence),
            Next::Ended(sequence, well) if scenario.agree => {
                process.next = Next::Agreement(sequence);
                let flags = self.laws.agreements.flags_for(at, process, well);
                self.step(at, Input::Agree { flags, deadline })?;
                self.read(at)
            }
            Next::Ended(sequence, well) => {
                let well = well && process.member.revoked().is_none();
                self.boundary(at, sequence, well)
            }
            Next::Boundary(sequence, well) => self.boundary(at, sequence, well),
            Next::Revoke(sequence) => {
                process.next = Next::Change(sequence);
                self.step(at, Input::Revoke)?;
                self.caller(at)
            }
            Next::Change(sequence) => {
                // Messages that have come may say that the others have given up the last change.
                self.read(at)?;
                let process = &mut self.processes[at];
                process.next = Next::Membership(sequence);
                let wanted = process.grows && !process.is_without_joiners;
                let candidates = process.candidates.iter().filter(|_| wanted);
                process.joiners = candidates.fold(0, |joiners, of| joiners | 1 << of);
                let evict_missing = self.evicts();
                self.step(at, Input::Change { deadline, evict_missing })?;
                self.take_decision(at)
            }
            Next::Leave
            | Next::Idle
            | Next::Operation
            | Next::Agreement(_)
            | Next::Membership(_)
            | Next::Closing(_) => Ok(()),
        }
    }

    /// Whether a call evicts those that do not come: some programs do, and some do not.
    pub(super) fn evicts(&mut self) -> bool {
        self.scenario.evict_missing && self.random.below(4) > 0
    }

    fn boundary(&mut self, at: usize, sequence: u64, well: bool) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        // A communicator whose members were changed makes no operation any more, whatever they
        // have agreed.
        let well = well && process.current.0 == 0;
        if !well && self.scenario.cascade && self.random.below(3) == 0 {
            return self.leave(at);
        }
        process.grows = well && self.scenario.grow == Some(sequence);
        if !well || process.grows {
            process.next = Next::Change(sequence);
        } else {
            process.next = Next::Begin(sequence + 1);
        }
        self.caller(at)
    }

    fn leave(&mut self, at: usize) -> Result<(), BrokenLaw> {
        self.processes[at].next = Next::Leave;
        self.step(at, Input::Leave)?;
        self.ends(at);
        Ok(())
    }

    fn begin(&mut self, at: usize, sequence: u64) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        process.next = Next::Operation;
        let epoch = process.epoch;
        let operation = &mut process.operation;
        operation.heard.retain(|known| (known.0, known.1) >= (epoch, sequence));
        let heard = core::mem::take(&mut operation.heard);
        *operation = Operation { sequence, heard, ..Operation::default() };
        let base = self.processes[at].base;
        self.step(at, Input::Begin(sequence - base))?;
        // An operation of a revoked communicator has failed before it begins, and so has one that
        // finds a lost rank.
        let process = &self.processes[at];
        let is_revoked = process.member.revoked().is_some();
        let members: Vec<_> =
            process.members.iter().map(|rank| process.peers[rank as usize]).collect();
        let has_failed = is_revoked || self.has_lost(at, &members);
        self.processes[at].operation.has_failed = has_failed;
        if !is_revoked {
            self.say(at, false)?;
        }
        if has_failed {
            self.read(at)?;
            let process = &self.processes[at];
            if process.next == Next::Operation && process.current.0 > 0 {
                // The members were changed meanwhile, after which there are no operations.
                self.answer(at, Verdict::Failed(sequence));
                return Ok(());
            }
        }
        let process = &self.processes[at];
        let peers = process.peers;
        let left = process.member.left();
        let idle = process.members.iter().filter(|&rank| {
            let peer = &self.processes[peers[rank as usize]];
            peer.next == Next::Idle
        });
        for rank in left.iter().chain(idle).collect::<Vec<_>>() {
            self.report_if_needed(at, peers[rank as usize]);
        }
        self.fail_operation(at)
    }

    fn say(&mut self, at: usize, full: bool) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        let (epoch, sequence) = (process.epoch, process.operation.sequence);
        let (rank, members, peers) = (process.rank, process.members.clone(), process.peers);
        let Some(group) = process.group else { return Ok(()) };
        let token = Token { epoch, sequence, full };
        for other in members.without(rank).iter() {
            let to = peers[other as usize];
            let event = Event::Token { from: at, to, group, token };
            self.network.send(at, to, event, &mut self.random);
        }
        self.hear(at, rank, token)
    }

    pub(super) fn hear(&mut self, at: usize, rank: u32, token: Token) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        let (epoch, sequence) = (process.epoch, process.operation.sequence);
        let heard = process.operation.heard(token.epoch, token.sequence);
        if token.full {
            heard.3.insert(rank)
        } else {
            heard.2.insert(rank)
        };
        let (of_epoch, of_sequence, parts, full) = &*heard;
        let (of_epoch, of_sequence, parts, full) =
            (*of_epoch, *of_sequence, parts.clone(), full.clone());
        let now = (of_epoch, of_sequence) == (epoch, sequence) && process.next == Next::Operation;
        if !now {
            return Ok(());
        }
        // Every third operation is a broadcast, from a root that has the result at once.
        let root = process.members.iter().nth(sequence as usize % 2).filter(|_| sequence % 3 == 2);
        let needs = root.map_or_else(|| process.members.clone(), Ranks::only);
        if !process.operation.full && needs.is_within(&parts) && parts.contains(process.rank) {
            process.operation.full = true;
            let base = process.base;
            self.laws.full(at, epoch, sequence);
            self.step(at, Input::Full(sequence - base))?;
            let is_healthy = self.processes[at].member.revoked().is_none();
            return if is_healthy { self.say(at, true) } else { Ok(()) };
        }
        let uniform = self.scenario.settings.uniform;
        let all = !uniform || process.members.is_within(&full);
        if process.operation.full && all && !process.operation.passed {
            process.operation.passed = true;
            let base = process.base;
            return self.step(at, Input::Passed(sequence - base));
        }
        Ok(())
    }
}

/// A verdict whose operations are counted from the first communicator on, where `base` operations
/// were made before this one.
pub(super) fn since_the_start(verdict: Verdict, base: u64) -> Verdict {
    match verdict {
        Verdict::Ok(sequence) => Verdict::Ok(base + sequence),
        Verdict::Failed(sequence) => Verdict::Failed(base + sequence),
        Verdict::Membership { epoch, members, mut recovery, cause } => {
            (recovery.low, recovery.high) = (base + recovery.low, base + recovery.high);
            Verdict::Membership { epoch, members, recovery, cause }
        }
        other => other,
    }
}
