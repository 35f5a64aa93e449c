//! Plans of point-to-point messages. Law: the messages of one lane, from one rank to another, keep
//! their order, and no lane waits for another one. So a program of such plans terminates wherever
//! it would with synchronous sends (as `MPI_Ssend`), whatever the slots of links.

use core::ops::Range;

use super::{Message, Plan, Planner, fingerprint};
use crate::partition::Partition;
use crate::schedule::{Algorithm, Collective, Op, Place, Schedule, Space, Step};

impl Planner {
    /// The plan for messages of this rank alone. A message of the rank to itself is a copy.
    ///
    /// The steps are grouped in [`message_lanes`]. Each lane is a process of its own that reads one
    /// link or writes one, and the call is complete when all lanes are. So the network is
    /// determinate as any other. How a message is cut into slices depends on that message alone, so
    /// a single send matches a receive that is part of a group.
    pub fn messages(&mut self, messages: &[Message]) -> Plan<'_> {
        let (me, size) = (self.me, self.ring.size());
        self.chunk_tables.iter_mut().for_each(Vec::clear);
        self.marks.iter_mut().for_each(Vec::clear);
        self.message_schedule.steps.clear();
        for message in messages {
            let space = if message.outgoing { Space::Input } else { Space::Output } as usize;
            let chunk = self.chunk_tables[space].len() as u32;
            self.chunk_tables[space].push(message.range.0..message.range.1);
            self.marks[space].push(fingerprint::type_of(message.dtype));
            let peer = message.peer;
            let step = match message.outgoing {
                _ if peer == me => continue,
                true => Step::new(Op::Send, me, Place::input(chunk)).to(peer),
                false => Step::new(Op::Recv, me, Place::output(chunk)).from(peer),
            };
            self.message_schedule.steps.push(step);
        }
        let [given, got] = [true, false].map(|outgoing| self_messages(messages, outgoing, me));
        let copy = |(given, got)| Step::new(Op::Copy, me, Place::input(given)).into(got);
        self.message_schedule.steps.extend(given.zip(got.map(Place::output)).map(copy));
        // Sends come first, those to the next and nearest ranks before others.
        self.message_schedule.steps.sort_unstable_by_key(|step| match step.op {
            Op::Send => (0, (size + step.to - me) % size, step.src.chunk),
            Op::Copy => (1, 0, step.src.chunk),
            _ => (2, (size + me - step.from) % size, step.dst.chunk),
        });
        let slots = self.shape(Algorithm::AllPairs, Collective::AllToAll);
        let partition = Partition::table(&self.chunk_tables[0], &self.chunk_tables[1], slots);
        let partition = partition.with_marks(&self.marks[0], &self.marks[1]);
        let (algorithm, fingerprint) = (Algorithm::AllPairs, fingerprint::OF_MESSAGES);
        Plan { algorithm, schedule: &self.message_schedule, partition, fingerprint, parts: None }
    }
}

/// The indices, among the messages in one direction, of those between this rank and itself.
fn self_messages(messages: &[Message], outgoing: bool, me: u32) -> impl Iterator<Item = u32> {
    let same_direction = messages.iter().filter(move |message| message.outgoing == outgoing);
    (0..)
        .zip(same_direction)
        .filter(move |(_, message)| message.peer == me)
        .map(|(number, _)| number)
}

/// The ranges of steps of each lane: those over one link, in their order.
pub fn message_lanes(schedule: &Schedule) -> impl Iterator<Item = Range<usize>> + use<'_> {
    let lane = |step: &Step| (step.op, step.from, step.to);
    schedule.steps.chunk_by(move |one, next| lane(one) == lane(next)).scan(0, |end, steps| {
        let start = *end;
        *end += steps.len();
        Some(start..*end)
    })
}
