//! The simulator walks the plans of messages of all ranks, each lane as a process of its own:
//! programs that end if every send waits for its receiver end over links with any number of slots.
//! With one process for each rank some programs wait for ever.

use ringreduce::DataType;
use ringreduce::partition::{Partition, SlotShape};
use ringreduce::plan::{Message, Planner, Slots, message_lanes};
use ringreduce::schedule::{Collective, Op, Place, Ring, Schedule, Step};
use ringreduce::sim::{Shape, Speed, Violation, cost};

use super::message_programs::{Part, Program, named, random};

const SPEED: Speed = Speed { latency: 1.0, step: 1.0, byte: 1.0, reduce: 1.0 };
const SLOT: usize = 64;

/// The processes by which the simulator walks a rank.
#[derive(Clone, Copy, PartialEq)]
enum Walk {
    /// One process for each lane; they wait for each other after every call.
    Lanes,
    /// One process for all steps.
    OneProcess,
}

/// One process of the network: its steps, and the bytes of each chunk of these steps.
#[derive(Clone)]
struct Process {
    schedule: Schedule,
    chunks: Vec<usize>,
}

impl Process {
    fn add(&mut self, step: impl Fn(Place) -> Step, bytes: usize) {
        let chunk = self.chunks.len() as u32;
        self.chunks.push(bytes);
        self.schedule.steps.push(step(Place::input(chunk)));
    }
}

/// All processes of a program.
struct Network {
    n: usize,
    walk: Walk,
    processes: Vec<Process>,
}

impl Network {
    fn number(&self, rank: usize, outgoing: bool, peer: usize) -> u32 {
        match self.walk {
            Walk::Lanes => ((rank * 2 + usize::from(outgoing)) * self.n + peer) as u32,
            Walk::OneProcess => rank as u32,
        }
    }

    fn of(n: usize, program: &Program, walk: Walk) -> Self {
        let count = if walk == Walk::Lanes { 2 * n * n } else { n };
        let empty = Process { schedule: Schedule::new(1, 1), chunks: Vec::new() };
        let mut network = Self { n, walk, processes: vec![empty; count] };
        let shape = SlotShape { bytes: SLOT, capacity: 4 };
        let slots = Slots { ring: shape, other: shape };
        for (rank, calls) in program.iter().enumerate() {
            let mut planner = Planner::new(Ring::natural(n as u32), rank as u32, slots, 64);
            for call in calls {
                network.call(rank, call, &mut planner);
                network.join(rank);
            }
        }
        network
    }

    /// Adds the steps of a call's plan to the processes of their lanes.
    fn call(&mut self, rank: usize, call: &[Part], planner: &mut Planner) {
        let mut ends = [0, 0];
        let messages: Vec<Message> = call
            .iter()
            .map(|part| {
                let end = &mut ends[usize::from(part.outgoing)];
                *end += part.len;
                let (range, dtype) = ((*end - part.len, *end), DataType::U8);
                Message { outgoing: part.outgoing, peer: part.peer as u32, range, dtype }
            })
            .collect();
        let plan = planner.messages(&messages);
        for steps in message_lanes(plan.schedule) {
            for step in &plan.schedule.steps[steps] {
                let bytes = plan.partition.bytes(step.src);
                let outgoing = step.op == Op::Send;
                let peer = if outgoing { step.to } else { step.from } as usize;
                let mine = self.number(rank, outgoing, peer);
                let other = self.number(peer, !outgoing, rank);
                let process = &mut self.processes[mine as usize];
                process.add(|at| Step::new(step.op, mine, at).to(other).from(other), bytes);
            }
        }
    }

    /// Ends a call: each lane of the rank sends to all others and receives from them.
    fn join(&mut self, rank: usize) {
        if self.walk == Walk::OneProcess {
            return;
        }
        let (first, count) = ((rank * 2 * self.n) as u32, 2 * self.n as u32);
        for mine in first..first + count {
            for op in [Op::Send, Op::Recv] {
                for other in (first..first + count).filter(|&other| other != mine) {
                    let process = &mut self.processes[mine as usize];
                    process.add(|at| Step::new(op, mine, at).to(other).from(other), 1);
                }
            }
        }
    }

    /// Walks the program over links of `capacity` slots.
    fn run(&self, capacity: usize) -> Result<f64, Violation> {
        let tables: Vec<Vec<_>> = self
            .processes
            .iter()
            .map(|Process { chunks, .. }| {
                let ends = chunks.iter().scan(0, |end, len| {
                    *end += len;
                    Some(*end - len..*end)
                });
                ends.collect()
            })
            .collect();
        // One round for any length: a process ends one message before the next.
        let slots = SlotShape { bytes: SLOT, capacity: 1 << 40 };
        let partitions: Vec<_> =
            tables.iter().map(|table| Partition::table(table, table, slots)).collect();
        let schedules: Vec<_> =
            self.processes.iter().map(|process| process.schedule.clone()).collect();
        cost(Collective::AllToAll, &schedules, &Shape::of(&partitions, capacity), SPEED)
    }
}

fn walk(n: usize, program: &Program, walk: Walk, capacity: usize) -> Result<f64, Violation> {
    Network::of(n, program, walk).run(capacity)
}

#[test]
fn every_program_ends_with_one_process_for_each_lane() {
    for capacity in [1, 2, 3, 8] {
        for len in [0, 1, 64, 65, 5000] {
            for (what, program) in named(len) {
                let ended = walk(program.len(), &program, Walk::Lanes, capacity);
                assert!(ended.is_ok(), "{what}: {ended:?}");
            }
        }
        for n in 2..=5 {
            for seed in 0..10 {
                let program = random(n, seed, &[0, 1, 64, 65, 1000]);
                let ended = walk(n, &program, Walk::Lanes, capacity);
                assert!(ended.is_ok(), "{seed} of {n}: {ended:?}");
            }
        }
    }
}

#[test]
fn some_programs_are_stuck_with_one_process_for_each_rank() {
    let stuck = |program: &Program| {
        let ended = walk(program.len(), program, Walk::OneProcess, 2);
        matches!(ended, Err(Violation::Stuck(_)))
    };
    // Messages that fit the slots of the links are not stuck.
    assert!(named(100).iter().all(|(_, program)| !stuck(program)));
    // Programs that send all before they receive are stuck if their messages do not fit.
    for (what, program) in named(5000) {
        let expected = what.starts_with("at once, against send") || what.starts_with("everybody");
        assert!(stuck(&program) || !expected, "{what}");
    }
}

#[test]
fn a_program_that_cannot_end_is_stuck() {
    // Each rank first sends a single message that is longer than a link holds.
    let part = |outgoing, peer, number| vec![Part { outgoing, peer, number, len: 5000 }];
    let cycle: Program = (0..3)
        .map(|me| vec![part(true, (me + 1) % 3, me), part(false, (me + 2) % 3, (me + 2) % 3)])
        .collect();
    let stuck = walk(3, &cycle, Walk::Lanes, 8);
    assert!(matches!(&stuck, Err(Violation::Stuck(_))), "{stuck:?}");
    // Without one message its receiver waits for ever.
    let mut lost = cycle.clone();
    lost[0].truncate(1);
    assert!(walk(3, &lost, Walk::Lanes, 80).is_err());
}
