//! Faults, and the evidence of them that reaches the processes.
//! Law: a dead, silent or disconnected process is noticed within a bounded time by its peers.

use super::caller::Next;
use super::network::Event;
use super::world::{Process, World};
use super::{BUSY, DELAY, FaultMix, SILENCE, Scenario};
use ringreduce::recovery::membership::{Body, Evidence, Input, Message, Ranks, Time, Verdict};

/// The longest delay of the launcher's news of an end, beyond the usual one.
const LATE_NEWS: usize = 400;

/// A cut that outlasts the wait for an answer.
const LONG_CUT: Time = 400;

/// The most kills of a run that follow a message of a ballot.
const MOST_AIMED: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Kills a process; with `restart`, a new process of its rank wants to join.
    Kill { of: usize, restart: bool },
    /// Stops a process for a time.
    Pause { of: usize, time: Time },
    /// Messages from one process to another are delayed for a time, or lost for ever.
    Cut { from: usize, to: usize, time: Option<Time> },
    /// The connection between two processes ends.
    Break { one: usize, other: usize },
    /// All links between the processes of the set and the others are cut, in both directions.
    Partition { set: u32, time: Option<Time> },
    /// A process suspects another without a reason.
    Suspicion { at: usize, of: usize },
    /// A program revokes.
    Revoke { at: usize },
    /// A program delays its next change.
    Delay { at: usize, time: Time },
    /// A program aborts its call.
    Abort { at: usize },
    /// A program makes no call any more once one has timed out.
    Idle { at: usize },
}

impl World {
    pub(super) fn plan_faults(&mut self) {
        let count = match self.scenario.fault_mix {
            FaultMix::None => 0,
            FaultMix::Deaths => 1 + self.random.below(3),
            FaultMix::All => 1 + self.random.below(4),
        };
        let mut time = self.random.below(200) as Time;
        if self.scenario.aims && self.scenario.fault_mix == FaultMix::Deaths {
            return;
        }
        if self.scenario.aims {
            let set = 1 + self.random.below((1 << self.scenario.size) - 2) as u32;
            let lasting = (self.random.below(2) == 0).then_some(LONG_CUT);
            self.network.at(time, Event::Fault(Fault::Partition { set, time: lasting }));
            return;
        }
        for _ in 0..count {
            let fault = self.any_fault();
            self.network.at(time, Event::Fault(fault));
            // Faults follow closely, so that they interrupt what the one before has started.
            let apart = if self.random.below(3) == 0 { 300 } else { 60 };
            time += self.random.below(apart) as Time;
        }
    }

    fn any_fault(&mut self) -> Fault {
        let size = self.scenario.size as usize;
        let of = self.random.below(size);
        let other = (of + 1 + self.random.below(size - 1)) % size;
        let restart = self.random.below(2) == 0;
        // The first joiner may die too.
        let victim = self.random.below(size + usize::from(self.scenario.grow.is_some()));
        if self.scenario.fault_mix == FaultMix::Deaths {
            return match self.random.below(8) {
                0 => Fault::Delay { at: of, time: self.random.below(BUSY as usize) as Time },
                1 => Fault::Abort { at: of },
                _ => Fault::Kill { of: victim, restart },
            };
        }
        let time = 1 + self.random.below(BUSY as usize) as Time;
        let some = (self.random.below(4) != 0).then_some(time);
        match self.random.below(13) {
            0..3 => Fault::Kill { of: victim, restart },
            3..5 => Fault::Pause { of, time },
            5 => Fault::Cut { from: of, to: other, time: some },
            6 => Fault::Break { one: of, other },
            7..9 => Fault::Partition { set: self.random.below(1 << size) as u32, time: some },
            9 => Fault::Suspicion { at: of, of: other },
            10 => Fault::Revoke { at: of },
            11 if self.random.below(2) == 0 => Fault::Abort { at: of },
            // Only an eviction ends the others' wait for such a program.
            11 if self.scenario.evict_missing && self.scenario.deadline.is_some() => {
                Fault::Idle { at: of }
            }
            _ => Fault::Delay { at: of, time },
        }
    }

    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), super::laws::BrokenLaw> {
        let soon = |world: &mut Self| world.network.now + 1 + world.random.below(DELAY) as Time;
        match fault {
            Fault::Kill { of, restart } => self.kill(of, restart),
            Fault::Pause { of, time } => {
                if self.processes[of].is_active() && !self.processes[of].paused {
                    (self.processes[of].paused, self.processes[of].was_paused) = (true, true);
                    self.network.at(self.network.now + time, Event::Resume { at: of });
                    for at in 0..self.processes.len() {
                        self.silent(at, of, Some(time));
                    }
                }
            }
            Fault::Cut { from, to, time } => self.cut(from, to, time),
            Fault::Break { one, other } => {
                for (at, of) in [(one, other), (other, one)] {
                    self.network.sever(at, of, self.network.now);
                    let time = soon(self);
                    self.network.at(time, Event::Evidence { at, of, evidence: Evidence::Strong });
                }
            }
            Fault::Partition { set, time } => {
                for from in 0..self.processes.len() {
                    for to in 0..self.processes.len() {
                        if (set >> from & 1) != (set >> to & 1) {
                            self.cut(from, to, time);
                        }
                    }
                }
            }
            Fault::Suspicion { at, of } => {
                let evidence = Evidence::Suspected;
                self.laws.suspects(at, of);
                self.network.at(self.network.now, Event::Evidence { at, of, evidence });
            }
            Fault::Revoke { at }
                if self.processes[at].is_active() && !self.processes[at].paused =>
            {
                return self.step(at, Input::Revoke);
            }
            Fault::Revoke { .. } => {}
            Fault::Delay { at, time } => self.processes[at].change_delay = time,
            Fault::Abort { at } => return self.abort(at),
            Fault::Idle { at } => self.processes[at].becomes_idle = true,
        }
        Ok(())
    }

    fn abort(&mut self, at: usize) -> Result<(), super::laws::BrokenLaw> {
        let process = &self.processes[at];
        // A member that aborts a change may be left behind.
        let may =
            self.scenario.fault_mix == FaultMix::All || matches!(process.next, Next::Agreement(_));
        if may && process.is_active() && !process.paused && self.polls(at) {
            self.step(at, Input::Withdraw)?;
            self.answer(at, Verdict::TimedOut { missing: Ranks::NONE });
        }
        Ok(())
    }

    fn cut(&mut self, from: usize, to: usize, time: Option<Time>) {
        let until = time.map_or(Time::MAX, |time| self.network.now + time);
        self.network.block(from, to, until);
        // The other end waits for acknowledgements.
        self.silent(to, from, time);
        self.silent(from, to, time);
    }

    /// Process `of` is silent for process `at`, for a time or for ever.
    pub(super) fn silent(&mut self, at: usize, of: usize, time: Option<Time>) {
        if at != of && time.is_none_or(|time| time > SILENCE) {
            let late = SILENCE + self.random.below(DELAY) as Time;
            let evidence = Evidence::Suspected;
            self.network.at(self.network.now + late, Event::Evidence { at, of, evidence });
        }
    }

    fn kill(&mut self, of: usize, restart: bool) {
        if !self.processes.get(of).is_some_and(Process::is_active) {
            return;
        }
        self.processes[of].alive = false;
        let now = self.network.now;
        self.laws.killed(of, now);
        // The death of a host leaves no evidence but silence.
        let Scenario { fault_mix, aims, .. } = self.scenario;
        let host_dies = fault_mix == FaultMix::All && !aims && self.random.below(4) == 0;
        let certain = self.random.below(self.processes.len());
        for at in 0..self.processes.len() {
            // Its last messages may be lost, on each link from another point on.
            let since = now + self.random.below(DELAY + 1) as Time;
            self.network.sever(of, at, if self.random.below(2) == 0 { now } else { since });
            if at == of {
                continue;
            }
            if host_dies {
                self.silent(at, of, None);
                continue;
            }
            let mut time = now + 1 + self.random.below(DELAY) as Time;
            if self.random.below(2) == 0 {
                let evidence = Evidence::Strong;
                self.network.at(time, Event::Evidence { at, of, evidence });
                time += self.random.below(DELAY) as Time;
                if self.random.below(2) == 0 && at != certain {
                    continue;
                }
            }
            self.network.at(time, Event::Evidence { at, of, evidence: Evidence::Certain });
        }
        if !host_dies {
            self.launcher_tells(of);
        }
        if restart && self.scenario.grow.is_some() {
            let time = now + self.random.below(200) as Time;
            self.network.at(time, Event::Start);
        }
    }

    /// The launcher has seen a process end, and tells each other process after a time of its own.
    /// If deaths are the only faults, the news comes before a member gives up for lack of a quorum.
    pub(super) fn launcher_tells(&mut self, of: usize) {
        if !self.scenario.has_launcher {
            return;
        }
        let is_late = self.scenario.fault_mix == FaultMix::All && self.random.below(2) == 0;
        for at in (0..self.processes.len()).filter(|&at| at != of) {
            let most = if is_late && self.random.below(2) == 0 { LATE_NEWS } else { 2 * DELAY };
            let time = self.network.now + (3 * DELAY + self.random.below(most)) as Time;
            self.network.at(time, Event::Evidence { at, of, evidence: Evidence::Certain });
        }
    }

    /// Kills a process soon after it has sent a message of a ballot or of the connecting, in some
    /// scenarios.
    pub(super) fn aim(&mut self, from: usize) {
        if !self.scenario.aims || self.aimed >= MOST_AIMED {
            return;
        }
        if self.random.below(8) == 0 {
            self.aimed += 1;
            let restart = self.random.below(2) == 0;
            let time = self.network.now + self.random.below(DELAY) as Time;
            self.network.at(time, Event::Fault(Fault::Kill { of: from, restart }));
        }
    }
}

/// True for the question of a member that waits whether others have called, too, and for the end of
/// its wait.
pub(super) fn is_of_waiting(message: &Message) -> bool {
    match message.body {
        Body::Enter(entry) => entry.asks,
        _ => message.body == Body::Withdraw,
    }
}

/// True for messages of ballots.
pub(super) const fn is_of_ballot(message: &Message) -> bool {
    matches!(
        message.body,
        Body::Prepare(_)
            | Body::Promise(..)
            | Body::Propose(..)
            | Body::Accept(_)
            | Body::Decide(_)
    )
}
