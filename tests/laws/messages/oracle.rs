//! MPI's semantics of programs in which each receive names its source: an abstract machine without
//! packets. Which send meets which receive then depends on no order of events.

use std::collections::BTreeMap;

use super::program::{Id, Operation, Programs, takes};
use ringreduce::matching::{Envelope, Expected};

/// Where all ranks have come to when none can go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The operations that each rank has executed.
    pub(crate) executed: Vec<usize>,
    /// The receive that each send has met.
    pub(crate) mates: BTreeMap<Id, Id>,
}

struct Machine<'a> {
    programs: &'a Programs,
    run: Run,
    /// Sends and receives that have not met, in the order of each rank's calls.
    sends: Vec<(Id, u32, Envelope)>,
    receives: Vec<(Id, Expected)>,
}

/// Runs programs without the operations that are `outside`, which nobody waits for. A send of an
/// envelope that is buffered need not wait for its receive, but one of a rank to itself must.
pub(crate) fn run(
    programs: &Programs,
    outside: impl Fn(Operation) -> bool,
    is_buffered: impl Fn(Envelope) -> bool,
) -> Run {
    let run = Run { executed: vec![0; programs.len()], mates: BTreeMap::new() };
    let mut machine = Machine { programs, run, sends: Vec::new(), receives: Vec::new() };
    loop {
        let before = machine.run.executed.clone();
        for rank in 0..programs.len() as u32 {
            while machine.executes(rank, &outside, &is_buffered) {}
        }
        if machine.run.executed == before {
            return machine.run;
        }
    }
}

impl Machine<'_> {
    fn executes(
        &mut self,
        rank: u32,
        outside: &impl Fn(Operation) -> bool,
        is_buffered: &impl Fn(Envelope) -> bool,
    ) -> bool {
        let program = &self.programs[rank as usize];
        let id = Id { rank, at: self.run.executed[rank as usize] };
        let Some(&operation) = program.get(id.at) else { return false };
        let has_ended = |at: usize| match program[at] {
            operation if outside(operation) => true,
            Operation::Send { to, envelope } if to != rank && is_buffered(envelope) => true,
            Operation::Send { .. } => self.run.mates.contains_key(&Id { rank, at }),
            Operation::Receive { .. } | Operation::Probe { .. } => {
                self.run.mates.values().any(|receive| *receive == Id { rank, at })
            }
            Operation::Wait(_) | Operation::WaitAll => true,
        };
        let can = match operation {
            Operation::Wait(at) => has_ended(at),
            Operation::WaitAll => (0..id.at).all(has_ended),
            operation if outside(operation) => true,
            Operation::Send { to, envelope } => {
                self.sends.push((id, to, envelope));
                self.meet();
                true
            }
            Operation::Receive { expected, .. } | Operation::Probe { expected } => {
                self.receives.push((id, expected));
                self.meet();
                let has_met = self.receives.last().is_none_or(|(last, _)| *last != id);
                let waits = matches!(operation, Operation::Probe { .. }) && !has_met;
                if waits {
                    self.receives.pop();
                }
                !waits
            }
        };
        self.run.executed[rank as usize] += usize::from(can);
        can
    }

    /// A send and a receive meet once each is the first that the other may meet.
    fn meet(&mut self) {
        let Self { sends, receives, run, .. } = self;
        let meets = |send: &(Id, u32, Envelope), receive: &(Id, Expected)| {
            send.1 == receive.0.rank && takes(receive.1, send.0.rank, send.2.tag)
        };
        while let Some((send, receive)) = sends.iter().enumerate().find_map(|(number, send)| {
            let receive = receives.iter().position(|receive| meets(send, receive))?;
            let first = sends.iter().position(|send| meets(send, &receives[receive]));
            (first == Some(number)).then_some((number, receive))
        }) {
            run.mates.insert(sends.remove(send).0, receives.remove(receive).0);
        }
    }
}
