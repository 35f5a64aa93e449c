//! A network of ranks: each has an endpoint and a program, and each ordered pair of ranks a channel
//! of a few packets. Its steps come in any order that the caller chooses.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::history::{End, History, Message, Receive};
use super::program::{Form, Id, Operation, Programs, SLOT, WITHDRAWN, form};
use ringreduce::matching::{
    Delivery, Endpoint, Envelope, Expected, Limits, Outcome, Packet, RequestId, Start, Status,
};

/// The cost of an eager message beside its bytes.
pub(crate) const OVERHEAD: u64 = 64;

/// The fault in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// Ranks withdraw some of their requests.
    WithdrawsAny,
    /// Ranks withdraw all requests with the tag `WITHDRAWN`.
    WithdrawsTag,
    /// This rank dies, and the others are told.
    Dies(u32),
    /// This rank runs no program: it sends packets at random.
    Breaks(u32),
}

impl Fault {
    /// True of an operation whose end depends on the fault.
    pub(crate) fn concerns(self, operation: Operation) -> bool {
        match self {
            Self::Nothing => false,
            Self::WithdrawsAny => true,
            Self::WithdrawsTag => operation.names(None, Some(WITHDRAWN)),
            Self::Dies(rank) | Self::Breaks(rank) => operation.names(Some(rank), None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The rank executes its next operation.
    Execute(u32),
    /// A packet goes to a channel, from and to these ranks.
    Send(u32, u32),
    /// A packet leaves a channel, from and to these ranks.
    Arrive(u32, u32),
    Withdraw(Id),
    Die(u32),
    /// The first rank is told that the second one is lost.
    Lose(u32, u32),
    /// A packet that breaks the protocol arrives at this rank.
    Break(u32),
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) endpoint: Endpoint<Id, Id, Id>,
    pub(crate) program: Vec<Operation>,
    /// Operations that were executed.
    pub(crate) next: usize,
    /// The message that a probe has found and that the next step receives.
    probed: Option<Status>,
    pub(crate) is_dead: bool,
    pub(crate) pending: BTreeMap<usize, RequestId>,
    /// The operation of each request for a send, and for a receive.
    sends: BTreeMap<RequestId, Id>,
    receives: BTreeMap<RequestId, Id>,
}

/// The words of a packet, and its payload as the send and which of its bytes.
pub(crate) type Parcel = ((u64, u64), Option<(Id, Range<u64>)>);

/// An ordered pair of ranks: from, to.
type Pair = (u32, u32);

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) limits: Limits,
    capacity: usize,
    pub(crate) fault: Fault,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) channels: BTreeMap<Pair, VecDeque<Parcel>>,
    /// The bytes of eager messages that the first rank may still send to the second one.
    pub(crate) credit: BTreeMap<Pair, u64>,
    /// Receives that differ from a message and whose refusals have not gone, from and to.
    refusing: BTreeMap<Pair, VecDeque<Id>>,
    /// Words of packets to the rank that breaks the protocol.
    pub(crate) overheard: Vec<(u64, u64)>,
    pub(crate) history: History,
    pub(crate) clock: u64,
}

impl Network {
    pub(crate) fn new(programs: &Programs, credit: u64, capacity: usize, fault: Fault) -> Self {
        let limits = Limits { eager: SLOT, slot: SLOT, credit };
        let size = programs.len() as u32;
        let rank = |(rank, program): (u32, &Vec<Operation>)| Rank {
            endpoint: Endpoint::new(rank, size, limits),
            program: program.clone(),
            next: 0,
            probed: None,
            is_dead: fault == Fault::Breaks(rank),
            pending: BTreeMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
        };
        let pairs = || {
            let all = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
            all.filter(|(from, to)| from != to)
        };
        Self {
            limits,
            capacity,
            fault,
            ranks: (0..).zip(programs).map(rank).collect(),
            channels: pairs().map(|pair| (pair, VecDeque::new())).collect(),
            credit: pairs().map(|pair| (pair, credit)).collect(),
            refusing: BTreeMap::new(),
            overheard: Vec::new(),
            history: History::default(),
            clock: 0,
        }
    }

    pub(crate) fn rank(&mut self, rank: u32) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    /// The steps that can be made and that no fault makes.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let size = self.ranks.len() as u32;
        let mut steps: Vec<Step> =
            (0..size).filter(|it| self.can_execute(*it)).map(Step::Execute).collect();
        for (&(from, to), channel) in &self.channels {
            let sender = &self.ranks[from as usize];
            let has_packet = !sender.is_dead && sender.endpoint.next_packet(to).is_some();
            if has_packet && channel.len() < self.capacity {
                steps.push(Step::Send(from, to));
            }
            if !channel.is_empty() {
                steps.push(Step::Arrive(from, to));
            }
        }
        steps
    }

    fn can_execute(&self, rank: u32) -> bool {
        let Rank { endpoint, program, next, probed, is_dead, .. } = &self.ranks[rank as usize];
        let has_ended = |at| self.history.has_ended(Id { rank, at });
        let can = match program.get(*next) {
            None => false,
            Some(&Operation::Wait(at)) => has_ended(at),
            Some(Operation::WaitAll) => (0..*next).all(has_ended),
            Some(&Operation::Probe { expected }) => {
                probed.is_some() || endpoint.probe(expected).is_some() || self.skips(rank, expected)
            }
            Some(_) => true,
        };
        can && !is_dead
    }

    /// True if a probe is not worth waiting for.
    fn skips(&self, rank: u32, expected: Expected) -> bool {
        let endpoint = &self.ranks[rank as usize].endpoint;
        let mut others = (0..self.ranks.len() as u32).filter(|it| *it != rank);
        let is_lost = expected.source.map_or_else(
            || self.ranks.len() > 1 && others.all(|it| endpoint.is_lost(it)),
            |source| endpoint.is_lost(source),
        );
        let is_withdrawn = matches!(self.fault, Fault::WithdrawsTag | Fault::Breaks(_));
        is_lost || is_withdrawn && self.fault.concerns(Operation::Probe { expected })
    }

    pub(crate) fn make(&mut self, step: Step) {
        self.clock += 1;
        match step {
            Step::Execute(rank) => self.execute(rank),
            Step::Send(from, to) => self.send(from, to),
            Step::Arrive(from, to) => self.arrive(from, to),
            Step::Withdraw(id) => self.withdraw(id),
            Step::Die(rank) => {
                self.rank(rank).is_dead = true;
                for (_, channel) in self.channels.iter_mut().filter(|(pair, _)| pair.1 == rank) {
                    channel.clear();
                }
            }
            Step::Lose(rank, lost) => self.lose(rank, lost),
            Step::Break(_) => unreachable!("the caller knows the packet"),
        }
    }

    fn execute(&mut self, rank: u32) {
        let it = &mut self.ranks[rank as usize];
        let id = Id { rank, at: it.next };
        let operation = it.program[it.next];
        if let Operation::Probe { expected } = operation {
            let Some(Status { source, envelope }) = it.probed.take() else {
                // The receive is posted by a step of its own, so that packets may arrive between.
                it.probed = it.endpoint.probe(expected);
                it.next += usize::from(it.probed.is_none());
                return;
            };
            let exact = Expected { source: Some(source), tag: Some(envelope.tag) };
            self.post(id, exact, form(envelope));
            // The receive must keep the order of the probe, unless the message that the probe found
            // may be gone by now.
            if !matches!(self.fault, Fault::WithdrawsAny | Fault::Dies(_)) {
                self.history.receives.get_mut(&id).unwrap().expected = expected;
            }
        }
        match operation {
            Operation::Send { to, envelope } => self.start(id, to, envelope),
            Operation::Receive { expected, form } => self.post(id, expected, form),
            Operation::Probe { .. } | Operation::Wait(_) | Operation::WaitAll => {}
        }
        self.rank(rank).next += 1;
    }

    fn start(&mut self, id: Id, to: u32, envelope: Envelope) {
        let it = &mut self.ranks[id.rank as usize];
        let (request, meets) = it.endpoint.send(to, envelope, id).unwrap();
        it.pending.insert(id.at, request);
        it.sends.insert(request, id);
        let cost = envelope.bytes + OVERHEAD;
        let is_lost = it.endpoint.is_lost(to);
        let credit = self
            .credit
            .get_mut(&(id.rank, to))
            .filter(|credit| !is_lost && envelope.bytes <= self.limits.eager && cost <= **credit);
        let is_eager = credit.is_some();
        if let Some(credit) = credit {
            *credit -= cost;
        }
        let arrived = (to == id.rank).then_some(self.clock);
        let (gone, mate, end) = (None, None, None);
        let message = Message { to, envelope, is_eager, arrived, gone, mate, end };
        self.history.messages.insert(id, message);
        if let Some(receive) = meets {
            self.history.meets(id, receive);
            self.history.delivers(id, receive, 0, 0..envelope.bytes);
        }
        for receive in self.ended(id.rank).differing {
            self.history.meets(id, receive);
        }
    }

    fn post(&mut self, id: Id, expected: Expected, form: Form) {
        let it = &mut self.ranks[id.rank as usize];
        let (request, start) = it.endpoint.receive(expected, form, id).unwrap();
        it.pending.insert(id.at, request);
        it.receives.insert(request, id);
        let (posted, received, gone, mate, end) = (self.clock, 0, None, None, None);
        let receive = Receive { expected, form, posted, gone, mate, received, end };
        self.history.receives.insert(id, receive);
        let (message, fits) = match start {
            Start::Kept(message) | Start::FromSelf(message) => (Some(message), true),
            Start::Dropped(message) => (Some(message), false),
            Start::Waits => (None, false),
        };
        let message = message.filter(|it| self.fault != Fault::Breaks(it.rank));
        if let Some(message) = message {
            self.history.meets(message, id);
        }
        if let Some(message) = message.filter(|_| fits) {
            self.history.delivers(message, id, 0, 0..form.1);
        }
        let ended = self.ended(id.rank);
        if start == Start::Waits
            && let Some(End::Outcome(Outcome::Differs { peer, .. })) =
                self.history.receives[&id].end
        {
            match ended.sends.first() {
                Some(&send) => self.history.meets(send, id),
                None => self.refusing.entry((id.rank, peer)).or_default().push_back(id),
            }
        }
    }

    fn send(&mut self, from: u32, to: u32) {
        let endpoint = &mut self.ranks[from as usize].endpoint;
        let outgoing = endpoint.next_packet(to).unwrap();
        let (packet, payload) = (outgoing.packet, outgoing.payload);
        let payload = payload.map(|(id, bytes)| (*id, bytes));
        let bytes = payload.as_ref().map_or(0, |(_, bytes)| bytes.end - bytes.start);
        assert_eq!(packet.payload() as u64, bytes);
        assert!(bytes <= SLOT, "{packet:?} is longer than a slot");
        endpoint.sent(to);
        let words = packet.encode();
        assert_eq!(Packet::decode(words), Some(packet));
        if self.fault == Fault::Breaks(to) {
            self.overheard.push(words);
        } else {
            self.note_sent(from, to, packet, payload.as_ref().map(|(id, _)| *id));
            if !self.ranks[to as usize].is_dead {
                self.channels.get_mut(&(from, to)).unwrap().push_back((words, payload));
            }
        }
        self.ended(from);
    }

    fn note_sent(&mut self, from: u32, to: u32, packet: Packet, payload: Option<Id>) {
        let message = match packet {
            Packet::Eager(_) => payload.unwrap(),
            Packet::RequestToSend { send, .. } => self.ranks[from as usize].sends[&send],
            Packet::ClearToSend { send, receive } => {
                let message = self.ranks[to as usize].sends[&send];
                let receive = self.ranks[from as usize].receives[&receive];
                return self.history.meets(message, receive);
            }
            Packet::Refusal { send, dtype, bytes } => {
                let message = self.ranks[to as usize].sends[&send];
                let receive = self.refusing.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                assert_eq!(self.history.receives[&receive].form, (dtype, bytes));
                return self.history.meets(message, receive);
            }
            Packet::Data { .. } | Packet::Credit { .. } | Packet::Withdrawal { .. } => return,
        };
        let (Packet::Eager(envelope) | Packet::RequestToSend { envelope, .. }) = packet else {
            return;
        };
        let sent = &self.history.messages[&message];
        assert_eq!((sent.to, sent.envelope), (to, envelope));
        let is_eager = matches!(packet, Packet::Eager(_));
        assert_eq!(is_eager, sent.is_eager, "eager is what the credit covers, and only that");
    }

    fn arrive(&mut self, from: u32, to: u32) {
        let (words, payload) = self.channels.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        let packet = Packet::decode(words).unwrap();
        let sender = &self.ranks[from as usize].sends;
        let message = match packet {
            Packet::Eager(_) => payload.as_ref().map(|(id, _)| *id),
            Packet::RequestToSend { send, .. } | Packet::Withdrawal { send } => Some(sender[&send]),
            _ => None,
        };
        let endpoint = &mut self.rank(to).endpoint;
        let was_lost = endpoint.is_lost(from);
        let has_posted = |tag| endpoint.has_posted(from, tag);
        let is_awaited = matches!(packet, Packet::Eager(it) if has_posted(it.tag));
        let delivery = endpoint.arrived(from, packet).unwrap();
        if was_lost {
            let ended = self.ended(to);
            assert!(ended.is_empty() && delivery == Delivery::Nowhere, "a lost rank is heard");
            return;
        }
        match (packet, message.and_then(|it| self.history.messages.get_mut(&it))) {
            (Packet::Withdrawal { .. }, Some(message)) => message.gone = Some(self.clock),
            (_, Some(message)) => message.arrived = Some(self.clock),
            _ => {}
        }
        match (delivery, payload) {
            (Delivery::To(receive, at), Some((message, bytes))) => {
                if matches!(packet, Packet::Eager(_)) {
                    self.history.meets(message, receive);
                }
                self.history.delivers(message, receive, at, bytes);
            }
            (Delivery::Keep(status), Some((message, _))) => {
                let envelope = self.history.messages[&message].envelope;
                assert_eq!(status, Status { source: from, envelope });
                assert!(!is_awaited, "a posted receive does not meet {message:?}");
                self.rank(to).endpoint.keep(status, message);
            }
            (delivery, _) => assert_eq!(delivery, Delivery::Nowhere),
        }
        if let Packet::Credit { bytes } = packet {
            let credit = self.credit.get_mut(&(to, from)).unwrap();
            *credit += bytes;
            assert!(*credit <= self.limits.credit);
        }
        for receive in self.ended(to).differing {
            match packet {
                Packet::Eager(_) => self.history.meets(message.unwrap(), receive),
                _ => self.refusing.entry((to, from)).or_default().push_back(receive),
            }
        }
    }
}
