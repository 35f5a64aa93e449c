//! Plans of messages between two ranks each. May touch: partition, schedule. Pure.
//! Law: what is sent leaves before anything is waited for.

use super::{Message, Plan, Planner, fingerprint};
use crate::partition::Partition;
use crate::schedule::{Algorithm, Collective, Op, Place, Space, Step};

impl Planner {
    /// The plan for messages between ranks that need not all take part: at most one to each rank
    /// and one from each. What this rank sends itself it copies.
    ///
    /// It is an all-to-all of which some blocks are missing. So it may follow or precede others of
    /// its kind on the same links without waiting in between: had everybody waited, all would
    /// have come to their end, and in a network without choice no order of execution is different.
    pub fn messages(&mut self, messages: &[Message]) -> Plan<'_> {
        let (me, size) = (self.me, self.ring.size());
        self.tables.iter_mut().for_each(Vec::clear);
        self.marks.iter_mut().for_each(Vec::clear);
        self.transfer.steps.clear();
        for message in messages {
            let space = if message.outgoing { Space::Input } else { Space::Output } as usize;
            let chunk = self.tables[space].len() as u32;
            self.tables[space].push(message.range.0..message.range.1);
            self.marks[space].push(fingerprint::type_of(message.dtype));
            let peer = message.peer;
            let step = match message.outgoing {
                _ if peer == me => continue,
                true => Step::new(Op::Send, me, Place::input(chunk)).to(peer),
                false => Step::new(Op::Recv, me, Place::output(chunk)).from(peer),
            };
            self.transfer.steps.push(step);
        }
        if let [Some(given), Some(got)] = [true, false].map(|outgoing| own(messages, outgoing, me))
        {
            let copy = Step::new(Op::Copy, me, Place::input(given)).into(Place::output(got));
            self.transfer.steps.push(copy);
        }
        // What is sent leaves before anything is waited for; the next ranks' and the nearest first.
        self.transfer.steps.sort_unstable_by_key(|step| match step.op {
            Op::Send => (0, (size + step.to - me) % size),
            Op::Copy => (1, 0),
            _ => (2, (size + me - step.from) % size),
        });
        let slots = self.shape(Algorithm::AllPairs, Collective::AllToAll);
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let partition = partition.with_marks(&self.marks[0], &self.marks[1]);
        let (algorithm, fingerprint) = (Algorithm::AllPairs, fingerprint::OF_MESSAGES);
        Plan { algorithm, schedule: &self.transfer, partition, fingerprint }
    }
}

/// Of the messages one way, the number of that between this rank and itself.
fn own(messages: &[Message], outgoing: bool, me: u32) -> Option<u32> {
    let mut way = messages.iter().filter(|message| message.outgoing == outgoing);
    way.position(|message| message.peer == me).map(|at| at as u32)
}
