//! When the state machine is told of messages, of lost ranks and of the time: in calls of the
//! recovery, and in an operation that has failed. Until then the messages of the membership wait,
//! as in the library, whose calls of operations look at their own links alone.
//! Law: an operation fails soon after a peer has revoked, or evidence of a lost rank has come.

use super::FaultMix;
use super::caller::Next;
use super::faults::is_of_waiting;
use super::laws::BrokenLaw;
use super::network::Event;
use super::world::World;
use ringreduce::recovery::membership::{Body, Evidence, Input, Message, decode, encode};

/// True for the events by which an operation finds that it has failed.
fn ends_operation(event: &Event) -> bool {
    match event {
        Event::Evidence { .. } => true,
        Event::Message { message, .. } => matches!(message.body, Body::Revoke(..)),
        _ => false,
    }
}

impl World {
    /// True if the process is in a call that tells its state machine of all events.
    pub(super) fn polls(&self, at: usize) -> bool {
        let process = &self.processes[at];
        match process.next {
            Next::Agreement(_) | Next::Membership(_) | Next::Closing(_) => true,
            Next::Operation => process.operation.has_failed,
            _ => process.group.is_none(),
        }
    }

    /// An event for the state machine of a process has come.
    pub(super) fn arrives(&mut self, at: usize, event: Event) -> Result<(), BrokenLaw> {
        match &event {
            &Event::Evidence { of, evidence, .. } if !self.is_right(at, of, evidence) => {
                return Ok(());
            }
            Event::Message { from, message, .. } if matches!(message.body, Body::Goodbye(_)) => {
                self.report_if_needed(at, *from);
            }
            _ => {}
        }
        self.processes[at].unread.push(event);
        self.read_if_due(at)
    }

    pub(super) fn read_if_due(&mut self, at: usize) -> Result<(), BrokenLaw> {
        match self.processes[at].reads_later {
            true => Ok(()),
            false if self.polls(at) => self.read(at),
            false => self.fail_operation(at),
        }
    }

    /// Makes an operation fail, if there is a reason.
    pub(super) fn fail_operation(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let process = &mut self.processes[at];
        let is_under_way = process.next == Next::Operation && process.operation.sequence > 0;
        if !is_under_way || !process.unread.iter().any(ends_operation) {
            return Ok(());
        }
        process.operation.has_failed = true;
        self.read(at)
    }

    /// Tells the state machine of all events that have come: messages, then lost ranks, then the
    /// time.
    pub(super) fn read(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let mut unread = core::mem::take(&mut self.processes[at].unread);
        unread.sort_by_key(|event| match event {
            Event::Message { .. } => 0,
            Event::Evidence { .. } => 1,
            _ => 2,
        });
        let group = self.processes[at].group;
        for event in unread {
            if !self.processes[at].is_active() {
                return Ok(());
            }
            // Once the process has gone on in another communicator, only ends are news there.
            let is_over = self.processes[at].group != group;
            if is_over && !matches!(event, Event::Evidence { .. }) {
                continue;
            }
            match event {
                Event::Message { from, to, message, .. } => self.message(from, to, &message)?,
                Event::Evidence { of, evidence, .. } => self.evidence(at, of, evidence)?,
                _ => self.tick(at)?,
            }
        }
        Ok(())
    }

    fn tick(&mut self, at: usize) -> Result<(), BrokenLaw> {
        let outputs = self.processes[at].member.step(self.network.now, Input::Tick);
        let waits = outputs.sends.iter().all(|(_, message)| is_of_waiting(message));
        if self.scenario.fault_mix == FaultMix::None && !waits {
            return Err(("without faults no answer is late", format!("{outputs:?}")));
        }
        self.perform(at, None, outputs)
    }

    fn message(&mut self, from: usize, to: usize, message: &Message) -> Result<(), BrokenLaw> {
        let Some(rank) = self.rank_of(from, to) else { return Ok(()) };
        // A message from a socket would be decoded, too.
        let Some(message) = decode(&encode(message)).filter(|same| same == message) else {
            return Err(("messages survive their encoding", format!("{message:?}")));
        };
        let outputs = {
            let member = &mut self.processes[to].member;
            member.step(self.network.now, Input::Message(rank, &message))
        };
        self.perform(to, Some(from), outputs)
    }

    /// False if the link was repaired, or the process went on, before the silence was noticed.
    fn is_right(&self, at: usize, of: usize, evidence: Evidence) -> bool {
        evidence != Evidence::Suspected
            || !self.processes[of].is_active()
            || self.processes[of].paused
            || self.processes[of].next == Next::Idle
            || self.network.is_blocked(of, at)
            || self.network.is_blocked(at, of)
            || self.laws.suspects_without_reason(at, of)
    }

    fn evidence(&mut self, at: usize, of: usize, evidence: Evidence) -> Result<(), BrokenLaw> {
        self.processes[at].candidates.retain(|&candidate| candidate != of);
        self.processes[at].evidence.push((of, evidence));
        let (Some(group), Some(rank)) = (self.processes[at].group, self.rank_of(of, at)) else {
            return self.progress(at);
        };
        let all_faults = self.scenario.fault_mix == FaultMix::All;
        let has_vote = evidence == Evidence::Certain && !(all_faults && self.random.below(8) == 0);
        let vote = has_vote.then(|| self.last_votes(of, group));
        if let Some(vote) = vote.clone() {
            self.laws.knows_end(at, of, self.network.now, vote);
        }
        self.step(at, Input::Evidence(&[(rank, evidence, vote)]))?;
        self.progress(at)
    }
}
