//! Runs of programs in random orders of steps, and the laws of every run that has come to rest.

use super::history::{End, Message};
use super::network::{Fault, Network, OVERHEAD, Step};
use super::oracle;
use super::program::{Id, Operation, Programs, SLOT};
use ringreduce::element::DataType;
use ringreduce::matching::{Envelope, Expected, MAX_PENDING, Outcome, Packet, Status};
use ringreduce::sim::Random;

/// How many requests ended in which way, in all runs of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    /// Runs in which every rank has executed its program.
    pub(crate) whole: u64,
    pub(crate) eager: u64,
    pub(crate) rendezvous: u64,
    /// Short messages that waited at their sender since the credit was spent.
    pub(crate) beyond_credit: u64,
    pub(crate) differing: u64,
    pub(crate) withdrawn: u64,
    /// Receives whose message was withdrawn.
    pub(crate) bereft: u64,
    pub(crate) lost: u64,
    pub(crate) violations: u64,
}

/// Runs programs to their rest, in a random order. After `faults` steps that went wrong only those
/// are made that programs wait for.
pub(crate) fn run(
    programs: &Programs,
    (credit, capacity): (u64, usize),
    (fault, faults): (Fault, usize),
    random: &mut Random,
    tally: &mut Tally,
) -> Network {
    let mut network = Network::new(programs, credit, capacity, fault);
    let mut faults_left = faults;
    loop {
        let (steps, mut wrong) = (network.steps(), network.fault_steps());
        if faults_left == 0 {
            let may_stop =
                |step: &Step| matches!(step, Step::Break(_)) || fault == Fault::WithdrawsAny;
            wrong.retain(|step| !may_stop(step));
        }
        let is_wrong = !wrong.is_empty() && (steps.is_empty() || random.below(8) == 0);
        let steps = if is_wrong { wrong } else { steps };
        if steps.is_empty() {
            break;
        }
        faults_left -= usize::from(is_wrong && faults_left > 0);
        match (steps[random.below(steps.len())], fault) {
            (Step::Break(rank), Fault::Breaks(breaker)) => {
                let is_noticed = network.break_protocol(breaker, rank, random);
                tally.violations += u64::from(is_noticed);
                // A caller that goes on after a violation must be safe too.
                if is_noticed && random.below(2) == 0 {
                    network.lose(rank, breaker);
                }
            }
            (step, _) => network.make(step),
        }
    }
    network.check_rest();
    network.count(tally);
    network
}

/// True if a send may rest that has met no receive.
fn may_rest(message: &Message) -> bool {
    let done = Status { source: message.to, envelope: message.envelope };
    match message.end {
        None => !message.is_eager,
        Some(End::Withdrawn) => true,
        Some(End::Outcome(outcome)) => message.is_eager && outcome == Outcome::Done(done),
    }
}

impl Network {
    fn is_dead(&self, rank: u32) -> bool {
        self.ranks[rank as usize].is_dead
    }

    /// The laws of a network in which no step is left.
    pub(crate) fn check_rest(&self) {
        self.history.check_order(|rank| self.is_dead(rank));
        self.history.check_ends(|rank| self.is_dead(rank));
        for (&id, message) in self.history.messages.iter().filter(|it| !self.is_dead(it.0.rank)) {
            let lost = End::Outcome(Outcome::Lost(Some(message.to)));
            let is_lost = message.end == Some(lost) || self.fault == Fault::Breaks(message.to);
            let is_lost = is_lost && self.is_dead(message.to);
            assert!(message.mate.is_some() || is_lost || may_rest(message), "{id:?}");
        }
        for (id, receive) in self.history.receives.iter().filter(|it| !self.is_dead(it.0.rank)) {
            let is_concerned = matches!(self.fault, Fault::Dies(_) | Fault::Breaks(_));
            let unmet = receive.mate.is_none();
            let may_rest = matches!(receive.end, None | Some(End::Withdrawn));
            assert!(!unmet || may_rest || is_concerned, "{id:?}: {receive:?}");
        }
        for rank in (0..self.ranks.len() as u32).filter(|rank| !self.is_dead(*rank)) {
            self.check_endpoint(rank);
        }
        for &(from, to) in self.channels.keys() {
            self.check_credit(from, to);
        }
    }

    fn check_endpoint(&self, rank: u32) {
        let endpoint = &self.ranks[rank as usize].endpoint;
        let is_pending = |(id, end): (&Id, Option<End>)| id.rank == rank && end.is_none();
        let mut sends = self.history.messages.iter().map(|(id, it)| (id, it.end));
        let mut receives = self.history.receives.iter().map(|(id, it)| (id, it.end));
        let is_busy = sends.any(is_pending) || receives.any(is_pending);
        let Fault::Breaks(breaker) = self.fault else {
            assert_eq!(endpoint.is_busy(), is_busy, "rank {rank} has requests that nobody made");
            return self.check_unexpected(rank, None);
        };
        assert!(endpoint.is_busy() || !is_busy);
        self.check_unexpected(rank, Some(breaker));
    }

    /// The unexpected messages are those that came and that no receive met, in their order.
    fn check_unexpected(&self, rank: u32, breaker: Option<u32>) {
        let endpoint = &self.ranks[rank as usize].endpoint;
        let is_left = |it: &&Message| it.to == rank && it.mate.is_none() && it.gone.is_none();
        let mut left: Vec<_> = self.history.messages.values().filter(is_left).collect();
        left.retain(|message| message.arrived.is_some());
        left.sort_by_key(|message| message.arrived);
        let left: Vec<Envelope> = left.iter().map(|message| message.envelope).collect();
        let found = endpoint.unexpected().filter(|it| Some(it.source) != breaker);
        assert_eq!(found.map(|it| it.envelope).collect::<Vec<_>>(), left, "rank {rank}");
    }

    /// All credit has come back, but for what is kept and what is owed: less than a quarter.
    fn check_credit(&self, from: u32, to: u32) {
        if self.is_dead(from) || self.is_dead(to) {
            return;
        }
        let pair = |it: &(&Id, &Message)| it.0.rank == from && it.1.to == to && it.1.is_eager;
        let unmet = self.history.messages.iter().filter(pair).map(|(_, it)| it);
        let kept = unmet.filter(|it| it.mate.is_none() && it.arrived.is_some());
        let kept: u64 = kept.map(|it| it.envelope.bytes + OVERHEAD).sum();
        let owed = self.limits.credit - self.credit[&(from, to)] - kept;
        assert!(owed < self.limits.credit / 4, "{from} to {to}: {owed} bytes are owed");
    }

    fn count(&self, tally: &mut Tally) {
        let alive = || self.ranks.iter().filter(|rank| !rank.is_dead);
        let is_whole = alive().all(|rank| rank.next == rank.program.len());
        let messages = || self.history.messages.values();
        let count = |is: fn(&Message) -> bool| messages().filter(|it| is(it)).count() as u64;
        tally.runs += 1;
        tally.whole += u64::from(is_whole);
        tally.eager += count(|it| it.is_eager);
        tally.rendezvous += count(|it| !it.is_eager && it.envelope.bytes > SLOT);
        tally.beyond_credit += count(|it| !it.is_eager && it.envelope.bytes <= SLOT);
        let ends = self.history.receives.values().map(|it| it.end);
        for end in ends.chain(messages().map(|it| it.end)).flatten() {
            *match end {
                End::Withdrawn => &mut tally.withdrawn,
                End::Outcome(Outcome::Differs { .. }) => &mut tally.differing,
                End::Outcome(Outcome::Withdrawn { .. }) => &mut tally.bereft,
                End::Outcome(Outcome::Lost(_)) => &mut tally.lost,
                End::Outcome(Outcome::Done(_)) => continue,
            } += 1;
        }
    }

    /// The oracle's result: a program ends if it would with sends that wait for their receives, and
    /// gets no further than it would with all short sends buffered. Messages meet as they do there.
    pub(crate) fn check_oracle(&self, programs: &Programs) {
        let outside = |operation| self.fault.concerns(operation);
        let waiting = oracle::run(programs, outside, |_| false);
        let is_short = |it: Envelope| it.bytes <= self.limits.eager;
        let buffered = oracle::run(programs, outside, is_short);
        let cost = |program: &Vec<Operation>| -> u64 {
            let cost = |it: &Operation| match *it {
                Operation::Send { envelope, .. } if is_short(envelope) => envelope.bytes + OVERHEAD,
                _ => 0,
            };
            program.iter().map(cost).sum()
        };
        let is_covered = programs.iter().all(|program| cost(program) <= self.limits.credit);
        for (at, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_dead) {
            let (least, most) = (waiting.executed[at], buffered.executed[at]);
            let least = if is_covered { most } else { least };
            assert!((least..=most).contains(&rank.next), "rank {at}: {least} {} {most}", rank.next);
        }
        for (id, message) in &self.history.messages {
            let is_inside = !outside(programs[id.rank as usize][id.at]);
            let mate = buffered.mates.get(id).copied();
            if is_inside && !self.is_dead(id.rank) {
                assert!(message.mate.is_none() || message.mate == mate, "{id:?}: {message:?}");
                assert!(!is_covered || message.mate == mate, "{id:?} should meet {mate:?}");
            }
        }
    }

    /// Sends short messages until one is not eager: the endpoints' credit is what the packets say.
    pub(crate) fn check_credit_left(mut self) {
        let short = Envelope { tag: 0, dtype: DataType::U8, bytes: SLOT };
        let pairs: Vec<_> = self.channels.keys().copied().collect();
        for (from, to) in pairs {
            if self.is_dead(from) || self.is_dead(to) || self.limits.credit > 1 << 12 {
                continue;
            }
            let endpoint = &mut self.ranks[from as usize].endpoint;
            let mut eager = 0;
            loop {
                endpoint.send(to, short, Id { rank: from, at: usize::MAX }).unwrap();
                let Some(Packet::Eager(_)) = endpoint.next_packet(to).map(|it| it.packet) else {
                    break;
                };
                eager += 1;
                endpoint.sent(to);
            }
            assert_eq!(eager, self.credit[&(from, to)] / (SLOT + OVERHEAD), "{from} to {to}");
        }
    }

    /// Starts sends and receives until there are too many: those that have ended, or have been
    /// withdrawn, take no place.
    pub(crate) fn check_requests(mut self) {
        for (rank, it) in (0..).zip(&mut self.ranks).filter(|(_, it)| !it.is_dead) {
            let is_receive =
                |at: &&usize| self.history.receives.contains_key(&Id { rank, at: **at });
            let receives = it.pending.keys().filter(is_receive).count();
            let sends = it.pending.len() - receives;
            let id = Id { rank, at: usize::MAX };
            let to = (rank + 1) % 2;
            let envelope = Envelope { tag: 0, dtype: DataType::U8, bytes: 1 };
            let sent = (0..=MAX_PENDING)
                .take_while(|_| it.endpoint.send(to, envelope, id).is_some())
                .count();
            assert_eq!(sends + sent, MAX_PENDING, "rank {rank} has sends that nobody made");
            let expected = Expected { source: Some(rank), tag: Some(u32::MAX) };
            let form = (DataType::U8, 1);
            let receive = |_: &u32| it.endpoint.receive(expected, form, id).is_some();
            let posted = (0..=MAX_PENDING as u32).take_while(receive).count();
            assert_eq!(receives + posted, MAX_PENDING, "rank {rank} has receives nobody made");
        }
    }
}
