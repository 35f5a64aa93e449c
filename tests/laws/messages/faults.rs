//! Steps of a network that go wrong: requests are withdrawn, ranks are lost, peers break the
//! protocol.

use super::history::{End, Message, Receive};
use super::network::{Fault, Network, OVERHEAD, Rank, Step};
use super::program::{Id, SLOT, takes};
use ringreduce::element::DataType;
use ringreduce::matching::{Delivery, Endpoint, Envelope, Outcome, Packet};
use ringreduce::sim::Random;

/// The requests of one rank that have ended in one step.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) sends: Vec<Id>,
    pub(crate) receives: Vec<Id>,
    /// Receives that have met a message of another type or length.
    pub(crate) differing: Vec<Id>,
}

impl Ended {
    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }
}

impl Network {
    /// Takes the outcomes of all requests of this rank that have ended.
    pub(crate) fn ended(&mut self, rank: u32) -> Ended {
        let mut ended = Ended::default();
        let Rank { endpoint, pending, .. } = &mut self.ranks[rank as usize];
        pending.retain(|&at, &mut request| {
            let id = Id { rank, at };
            let is_send = self.history.messages.contains_key(&id);
            let (has_ended, outcome) = if is_send {
                (endpoint.send_has_ended(request), endpoint.take_send(request))
            } else {
                (endpoint.receive_has_ended(request), endpoint.take_receive(request))
            };
            assert_eq!(has_ended, outcome.is_some());
            let Some(outcome) = outcome else { return true };
            self.history.ends(id, End::Outcome(outcome));
            if let Some(receive) = self.history.receives.get_mut(&id) {
                receive.gone = Some(self.clock);
            }
            if is_send { &mut ended.sends } else { &mut ended.receives }.push(id);
            if !is_send && matches!(outcome, Outcome::Differs { .. }) {
                ended.differing.push(id);
            }
            false
        });
        ended
    }

    /// The steps that the fault can make now.
    pub(crate) fn fault_steps(&self) -> Vec<Step> {
        let alive = |rank: &u32| !self.ranks[*rank as usize].is_dead;
        let ranks = || (0..self.ranks.len() as u32).filter(alive);
        let withdrawals = ranks().flat_map(|rank| {
            let Rank { program, pending, .. } = &self.ranks[rank as usize];
            let is_concerned = |at: &&usize| self.fault.concerns(program[**at]);
            pending.keys().filter(is_concerned).map(move |&at| Step::Withdraw(Id { rank, at }))
        });
        match self.fault {
            Fault::Nothing => Vec::new(),
            Fault::WithdrawsAny | Fault::WithdrawsTag => withdrawals.collect(),
            Fault::Dies(dead) if alive(&dead) => vec![Step::Die(dead)],
            Fault::Dies(dead) => {
                let unaware = |rank: &u32| !self.ranks[*rank as usize].endpoint.is_lost(dead);
                ranks().filter(unaware).map(|rank| Step::Lose(rank, dead)).collect()
            }
            Fault::Breaks(_) => withdrawals.chain(ranks().map(Step::Break)).collect(),
        }
    }

    pub(crate) fn withdraw(&mut self, id: Id) {
        let Rank { endpoint, pending, .. } = &mut self.ranks[id.rank as usize];
        let request = pending.remove(&id.at).unwrap();
        if let Some(message) = self.history.messages.get_mut(&id) {
            // An eager message that has gone has ended, so this one still waits for a slot.
            if message.is_eager {
                *self.credit.get_mut(&(id.rank, message.to)).unwrap() +=
                    message.envelope.bytes + OVERHEAD;
            }
            if message.to == id.rank {
                message.gone = Some(self.clock);
            }
            endpoint.withdraw_send(request);
        } else {
            self.history.receives.get_mut(&id).unwrap().gone = Some(self.clock);
            endpoint.withdraw_receive(request);
        }
        self.history.ends(id, End::Withdrawn);
        assert!(self.ended(id.rank).is_empty(), "{id:?} has ended others");
    }

    /// Tells `rank` that `lost` is lost, which ends the requests that need it and no others.
    pub(crate) fn lose(&mut self, rank: u32, lost: u32) {
        let endpoint = &mut self.ranks[rank as usize].endpoint;
        let of_lost = |endpoint: &Endpoint<_, _, _>| -> Vec<Envelope> {
            let unmet = endpoint.unexpected().filter(|it| it.source == lost);
            unmet.map(|it| it.envelope).collect()
        };
        let unmet = of_lost(endpoint);
        endpoint.lose(lost);
        let kept = of_lost(endpoint);
        assert!(endpoint.next_packet(lost).is_none());
        let others = (0..self.ranks.len() as u32).filter(|it| *it != rank);
        let is_alone = others.into_iter().all(|it| self.ranks[rank as usize].endpoint.is_lost(it));
        let pending: Vec<usize> = self.ranks[rank as usize].pending.keys().copied().collect();
        self.ended(rank);
        for id in pending.into_iter().map(|at| Id { rank, at }) {
            if let Some(message) = self.history.messages.get(&id) {
                let expected = (message.to == lost).then_some(Some(lost));
                assert_eq!(message.end, expected.map(|it| End::Outcome(Outcome::Lost(it))));
                continue;
            }
            let Receive { end, mate, expected, posted, .. } = self.history.receives[&id];
            // The answer to the lost rank's announcement may never have gone.
            let is_unseen = end == Some(End::Outcome(Outcome::Lost(Some(lost))))
                && mate.is_none()
                && self.can_have_met(id, lost);
            let expected = match expected.source {
                _ if is_unseen || mate.is_some_and(|it| it.rank == lost) => Some(Some(lost)),
                Some(source) => (source == lost).then_some(Some(lost)),
                None => is_alone.then_some(None),
            };
            assert_eq!(end, expected.map(|it| End::Outcome(Outcome::Lost(it))), "{id:?}");
            if is_unseen {
                self.history.receives.get_mut(&id).unwrap().gone = Some(posted);
            }
        }
        let expected = self.cut_tags(rank, lost, unmet);
        assert!(kept == expected || self.fault == Fault::Breaks(lost), "{kept:?} {expected:?}");
    }

    /// Ends the messages of `lost` that `rank` knows of and has not received: those that are
    /// announced, and those of the same tag after one of `unmet` that is. Gives what is left.
    fn cut_tags(&mut self, rank: u32, lost: u32, mut unmet: Vec<Envelope>) -> Vec<Envelope> {
        let messages = self.history.messages.iter_mut().filter(|(id, _)| id.rank == lost);
        let messages = messages.map(|(_, message)| message).filter(|it| it.to == rank);
        let is_left =
            |it: &&mut Message| it.mate.is_none() && it.gone.is_none() && it.arrived.is_some();
        let mut messages: Vec<_> = messages.filter(is_left).collect();
        messages.sort_by_key(|message| message.arrived);
        // Receives have met the first ones of equal messages.
        let mut left = Vec::new();
        for message in messages.into_iter().rev() {
            if unmet.pop_if(|last| *last == message.envelope).is_some() {
                left.push(message);
            } else {
                // The time of its meeting is unknown, since the answer has not gone.
                message.gone = message.arrived;
            }
        }
        let (mut cut, mut kept) = (Vec::new(), Vec::new());
        for message in left.into_iter().rev() {
            let tag = message.envelope.tag;
            if !message.is_eager {
                cut.push(tag);
            }
            if cut.contains(&tag) {
                message.gone = Some(self.clock);
            } else {
                kept.push(message.envelope);
            }
        }
        kept
    }

    /// True if an announced message of `lost` has come that this receive can have met.
    fn can_have_met(&self, receive: Id, lost: u32) -> bool {
        let expected = self.history.receives[&receive].expected;
        let mut of_lost = self.history.messages.iter().filter(|(id, _)| id.rank == lost);
        of_lost.any(|(_, message)| {
            let is_unmet = message.mate.is_none() && message.gone.is_none() && !message.is_eager;
            let is_here = message.to == receive.rank && message.arrived.is_some();
            is_unmet && is_here && takes(expected, lost, message.envelope.tag)
        })
    }

    /// Hands rank `to` a packet of a peer that breaks the protocol; true if the endpoint notices.
    pub(crate) fn break_protocol(&mut self, breaker: u32, to: u32, random: &mut Random) -> bool {
        self.clock += 1;
        let words = self.wrong_words(random);
        let Some(packet) = Packet::decode(words) else { return false };
        assert_eq!(packet.encode(), words);
        let fault = self.fault;
        let Rank { endpoint, program, .. } = &mut self.ranks[to as usize];
        let is_concerned = |id: Id| fault.concerns(program[id.at]);
        let delivery = endpoint.arrived(breaker, packet);
        match delivery {
            Ok(Delivery::To(receive, at)) => {
                assert!(is_concerned(receive), "bytes for a receive from another rank");
                let length = self.history.receives[&receive].form.1;
                assert!(packet.payload() as u64 <= SLOT, "more bytes than a slot has");
                assert!(at + packet.payload() as u64 <= length, "bytes beyond the receive");
            }
            Ok(Delivery::Keep(status)) => {
                assert!(packet.payload() as u64 <= SLOT);
                endpoint.keep(status, Id { rank: breaker, at: 0 });
            }
            Ok(Delivery::Nowhere) | Err(_) => {}
        }
        let ended = self.ended(to);
        let program = &self.ranks[to as usize].program;
        let mut all = ended.sends.iter().chain(&ended.receives);
        assert!(all.all(|id| fault.concerns(program[id.at])), "{packet:?} has ended others");
        delivery.is_err()
    }

    /// Words that may be a packet: made up, or of a packet that came, with a wrong bit or none.
    fn wrong_words(&self, random: &mut Random) -> (u64, u64) {
        let mut below = |limit: usize| random.below(limit) as u64;
        if !self.overheard.is_empty() && below(3) == 0 {
            let (first, second) = self.overheard[below(self.overheard.len()) as usize];
            let bit = 1_u64.unbounded_shl(below(128) as u32);
            return if below(2) == 0 { (first ^ bit, second) } else { (first, second ^ bit) };
        }
        let lengths = [0, SLOT, SLOT + 1, 3 * SLOT, 0xf_ffff];
        let (kind, dtype) = (1 + below(7), below(2) * DataType::F32 as u64);
        let request = (1 + below(8)) << 12 | below(4);
        let tag = if matches!(kind, 3 | 4) { request } else { below(2) };
        let payload = if matches!(kind, 1 | 4) { lengths[below(5) as usize] } else { 0 };
        let first = kind << 60 | dtype << 52 | tag << 20 | payload;
        let other = (1 + below(8)) << 12 | below(4);
        let second = match kind {
            2 | 5 => other << 40 | [0, SLOT, 3 * SLOT, (1 << 40) - 1][below(4) as usize],
            3 | 7 => other << 40,
            6 => [1, OVERHEAD, 2 * (OVERHEAD + SLOT), (1 << 40) - 1][below(4) as usize],
            _ => 0,
        };
        (first, second)
    }
}
