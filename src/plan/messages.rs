//! Plans of messages between two ranks each. May touch: partition, schedule. Pure.
//! Law: the messages of one lane, from one rank to another, keep their order. No lane waits for
//! another one: a program of such plans ends wherever it would with sends that wait for their
//! receivers, whatever the slots of links.

use core::ops::Range;

use super::{Message, Plan, Planner, fingerprint};
use crate::partition::Partition;
use crate::schedule::{Algorithm, Collective, Op, Place, Schedule, Space, Step};

impl Planner {
    /// The plan for messages between ranks that need not all take part. What this rank sends
    /// itself it copies.
    ///
    /// Its steps are those of [`lanes`], each of which is a process of its own: it reads one link
    /// or writes one, and a rank with several is done when all are. So the network is determinate
    /// as any other, and how a message is cut depends on nothing but itself, so that single calls
    /// meet those of groups.
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
        let [given, got] = [true, false].map(|outgoing| own(messages, outgoing, me));
        let copy = |(given, got)| Step::new(Op::Copy, me, Place::input(given)).into(got);
        self.transfer.steps.extend(given.zip(got.map(Place::output)).map(copy));
        // What is sent leaves first; the next ranks' and the nearest before others.
        self.transfer.steps.sort_unstable_by_key(|step| match step.op {
            Op::Send => (0, (size + step.to - me) % size, step.src.chunk),
            Op::Copy => (1, 0, step.src.chunk),
            _ => (2, (size + me - step.from) % size, step.dst.chunk),
        });
        let slots = self.shape(Algorithm::AllPairs, Collective::AllToAll);
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let partition = partition.with_marks(&self.marks[0], &self.marks[1]);
        let (algorithm, fingerprint) = (Algorithm::AllPairs, fingerprint::OF_MESSAGES);
        Plan { algorithm, schedule: &self.transfer, partition, fingerprint }
    }
}

/// Of the messages one way, the numbers of those between this rank and itself.
fn own(messages: &[Message], outgoing: bool, me: u32) -> impl Iterator<Item = u32> {
    let way = messages.iter().filter(move |message| message.outgoing == outgoing);
    (0..).zip(way).filter(move |(_, message)| message.peer == me).map(|(number, _)| number)
}

/// The steps of each lane of a plan of messages: those over one link, in their order.
pub fn lanes(schedule: &Schedule) -> impl Iterator<Item = Range<usize>> + use<'_> {
    let lane = |step: &Step| (step.op, step.from, step.to);
    schedule.steps.chunk_by(move |one, next| lane(one) == lane(next)).scan(0, |end, steps| {
        let start = *end;
        *end += steps.len();
        Some(start..*end)
    })
}
