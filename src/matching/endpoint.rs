//! The endpoint of one rank: its sends and receives, and what it knows of its peers' messages.

use std::collections::VecDeque;

use super::packet::{Envelope, Packet};
use super::requests::{MAX_PENDING, RequestId, Requests};
use super::state::{
    Content, EAGER_OVERHEAD, Expected, Limits, Outcome, Peer, PeerState, Queued, Receive,
    ReceiveState, Room, Send, SendState, Status, Unexpected,
};
use crate::element::DataType;

/// The messages of one rank. `S` says where the bytes of a send are, `R` where those of a receive
/// go, and `K` where bytes are kept that no receive has met.
#[derive(Debug)]
pub struct Endpoint<S, R, K> {
    me: u32,
    pub(super) limits: Limits,
    pub(super) peers: Vec<Peer>,
    pub(super) sends: Requests<Send<S>>,
    pub(super) receives: Requests<Receive<R>>,
    /// Receives that no message has met, in the order in which they were posted.
    posted: VecDeque<RequestId>,
    /// Messages that no receive has met, in the order in which they came.
    pub(super) unexpected: VecDeque<Unexpected<K>>,
}

/// How a receive begins.
#[derive(Debug, PartialEq, Eq)]
pub enum Start<S, K> {
    /// The message has not come yet, or the receive has ended without one.
    Waits,
    /// The receive has met a message whose bytes were kept.
    Kept(K),
    /// As `Kept`, but the message is of another type or length, and the receive has failed.
    Dropped(K),
    /// The receive has met a message of this rank to itself.
    FromSelf(S),
}

impl<S: Copy, R: Copy, K> Endpoint<S, R, K> {
    /// The endpoint of rank `me` of `size`.
    #[must_use]
    pub fn new(me: u32, size: u32, limits: Limits) -> Self {
        Self {
            me,
            limits,
            peers: (0..size).map(|_| Peer::default()).collect(),
            sends: Requests::default(),
            receives: Requests::default(),
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
        }
    }

    pub(super) fn peer_mut(&mut self, peer: u32) -> &mut PeerState {
        self.peers[peer as usize].state_mut(self.limits)
    }

    /// The number of further requests that may be pending.
    #[must_use]
    pub fn room(&self) -> Room {
        let [sends, receives] = [self.sends.len(), self.receives.len()];
        Room { sends: MAX_PENDING - sends, receives: MAX_PENDING - receives }
    }

    /// Starts a send. If it meets a receive of this rank itself, also where that receive's bytes
    /// go. `None` if as many sends are pending as may be.
    pub fn send(&mut self, to: u32, envelope: Envelope, data: S) -> Option<(RequestId, Option<R>)> {
        let peer = self.peers[to as usize].state_mut(self.limits);
        let cost = envelope.bytes + EAGER_OVERHEAD;
        let is_eager = envelope.bytes <= self.limits.eager && cost <= peer.credit;
        let state = match () {
            () if peer.is_lost => SendState::Ended(Outcome::Lost(Some(to))),
            () if to == self.me => SendState::Announced,
            () => SendState::Queued { is_eager },
        };
        let id = self.sends.add(Send { to, envelope, data, state })?;
        if let SendState::Queued { .. } = state {
            peer.credit -= if is_eager { cost } else { 0 };
            peer.queue.push_back(Queued::First(id));
        }
        let is_to_self = state == SendState::Announced;
        Some((id, if is_to_self { self.send_to_self(id, envelope) } else { None }))
    }

    fn send_to_self(&mut self, id: RequestId, envelope: Envelope) -> Option<R> {
        let from = Status { source: self.me, envelope };
        let Some(receive) = self.take_posted(from) else {
            self.unexpected.push_back(Unexpected { from, content: Content::Announced(id) });
            return None;
        };
        let meets = self.meet_self(receive, id, from);
        self.receives.get(receive).filter(|_| meets).map(|receive| receive.data)
    }

    /// Ends a send of this rank to itself and the receive that it met; true if they fit.
    fn meet_self(&mut self, receive: RequestId, send: RequestId, from: Status) -> bool {
        let outcome = self.compared(receive, from);
        self.end_receive(receive, outcome);
        let outcome = match outcome {
            Outcome::Differs { peer, ours, theirs } => {
                Outcome::Differs { peer, ours: theirs, theirs: ours }
            }
            outcome => outcome,
        };
        self.end_send(send, outcome);
        matches!(outcome, Outcome::Done(_))
    }

    /// Posts a receive for a message of `dtype` and `bytes`. `None` if as many receives are pending
    /// as may be.
    pub fn receive(
        &mut self,
        expected: Expected,
        (dtype, bytes): (DataType, u64),
        data: R,
    ) -> Option<(RequestId, Start<S, K>)> {
        let state = ReceiveState::Posted;
        let id = self.receives.add(Receive { expected, dtype, bytes, data, state })?;
        let found = self.unexpected.iter().position(|message| message.is_for(expected));
        let Some(Unexpected { from, content }) = found.and_then(|at| self.unexpected.remove(at))
        else {
            match self.no_sender(expected.source) {
                Some(lost) => self.end_receive(id, lost),
                None => self.posted.push_back(id),
            }
            return Some((id, Start::Waits));
        };
        let start = match content {
            Content::Kept(kept) => {
                let outcome = self.compared(id, from);
                self.end_receive(id, outcome);
                let limits = self.limits;
                self.peer_mut(from.source).give_back(from.envelope, limits);
                let fits = matches!(outcome, Outcome::Done(_));
                if fits { Start::Kept(kept) } else { Start::Dropped(kept) }
            }
            Content::Announced(send) if from.source == self.me => {
                let fits = self.meet_self(id, send, from);
                let data = self.sends.get(send).filter(|_| fits).map(|send| send.data);
                data.map_or(Start::Waits, Start::FromSelf)
            }
            Content::Announced(send) => {
                self.peer_mut(from.source).announced -= 1;
                self.meet_announced(id, send, from);
                Start::Waits
            }
        };
        Some((id, start))
    }

    /// Answers the announcement of a message that a receive has met.
    pub(super) fn meet_announced(&mut self, receive: RequestId, send: RequestId, from: Status) {
        let answer = match self.compared(receive, from) {
            Outcome::Differs { ours: (dtype, bytes), .. } => {
                self.end_receive(receive, self.compared(receive, from));
                Packet::Refusal { send, dtype, bytes }
            }
            _ => {
                if let Some(receive) = self.receives.get_mut(receive) {
                    let (received, is_withdrawn) = (0, false);
                    receive.state = ReceiveState::Transfer { from, send, received, is_withdrawn };
                }
                Packet::ClearToSend { send, receive }
            }
        };
        self.peer_mut(from.source).queue.push_back(Queued::Packet(answer));
    }

    /// How a receive ends that has met this message.
    pub(super) fn compared(&self, receive: RequestId, from: Status) -> Outcome {
        let Status { source: peer, envelope: Envelope { dtype, bytes, .. } } = from;
        let theirs = (dtype, bytes);
        match self.receives.get(receive).map(|receive| (receive.dtype, receive.bytes)) {
            Some(ours) if ours != theirs => Outcome::Differs { peer, ours, theirs },
            _ => Outcome::Done(from),
        }
    }

    pub(super) fn end_send(&mut self, id: RequestId, outcome: Outcome) {
        if let Some(send) = self.sends.get_mut(id) {
            send.state = SendState::Ended(outcome);
        }
    }

    pub(super) fn end_receive(&mut self, id: RequestId, outcome: Outcome) {
        if let Some(receive) = self.receives.get_mut(id) {
            receive.state = ReceiveState::Ended(outcome);
        }
    }

    /// True if a receive is posted that takes a message of `tag` from `source`.
    #[must_use]
    pub fn has_posted(&self, source: u32, tag: u32) -> bool {
        let mut posted = self.posted.iter().filter_map(|&id| self.receives.get(id));
        posted.any(|receive| receive.expected.takes(source, tag))
    }

    /// The first posted receive that takes this message, which is posted no longer.
    pub(super) fn take_posted(&mut self, from: Status) -> Option<RequestId> {
        let takes = |id: &RequestId| {
            let receive = self.receives.get(*id);
            receive.is_some_and(|receive| receive.expected.takes(from.source, from.envelope.tag))
        };
        let at = self.posted.iter().position(takes)?;
        self.posted.remove(at)
    }

    /// The outcome of a receive from `source` if nobody can send to it any more.
    #[must_use]
    pub fn no_sender(&self, source: Option<u32>) -> Option<Outcome> {
        let is_lost = match source {
            Some(source) => self.is_lost(source),
            None => {
                let others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.me);
                self.peers.len() > 1
                    && others.into_iter().all(|(_, peer)| peer.is_lost() || peer.is_unlinked)
            }
        };
        is_lost.then_some(Outcome::Lost(source))
    }

    /// Ends what needs `lost`: its messages, and receives that no other rank can meet.
    pub fn lose(&mut self, lost: u32) {
        let peer = self.peer_mut(lost);
        peer.is_lost = true;
        peer.queue.clear();
        peer.transfers.clear();
        peer.announced = 0;
        // A later message must not take the place of one of its tag whose bytes are lost.
        let mut cut = Vec::new();
        self.unexpected.retain(|message| {
            let Status { source, envelope } = message.from;
            if source == lost && matches!(message.content, Content::Announced(_)) {
                cut.push(envelope.tag);
            }
            source != lost || !cut.contains(&envelope.tag)
        });
        let outcome = Outcome::Lost(Some(lost));
        for send in self.sends.iter_mut().filter(|send| send.to == lost) {
            if !matches!(send.state, SendState::Ended(_)) {
                send.state = SendState::Ended(outcome);
            }
        }
        let mut withdrawn = Vec::new();
        let ids: Vec<_> = self.receives.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(receive) = self.receives.get(id) else { continue };
            match receive.state {
                ReceiveState::Transfer { from, is_withdrawn, .. } if from.source == lost => {
                    if is_withdrawn {
                        withdrawn.push(id);
                    } else {
                        self.end_receive(id, outcome);
                    }
                }
                ReceiveState::Posted => {
                    if let Some(outcome) = self.no_sender(receive.expected.source) {
                        self.posted.retain(|posted| *posted != id);
                        self.end_receive(id, outcome);
                    }
                }
                _ => {}
            }
        }
        for id in withdrawn {
            self.receives.remove(id);
        }
    }

    /// Says that `peer` can never send to this rank.
    pub fn unlink(&mut self, peer: u32) {
        self.peers[peer as usize].is_unlinked = true;
    }

    /// True if `peer` was lost.
    #[must_use]
    pub fn is_lost(&self, peer: u32) -> bool {
        self.peers[peer as usize].is_lost()
    }

    /// Gives up a send, whose bytes are not read any more.
    pub fn withdraw_send(&mut self, id: RequestId) {
        let Some(Send { to, envelope, state, .. }) = self.sends.remove(id) else { return };
        let peer = self.peers[to as usize].state_mut(self.limits);
        match state {
            SendState::Queued { is_eager } => {
                peer.queue.retain(|queued| *queued != Queued::First(id));
                let cost = if is_eager { envelope.bytes + EAGER_OVERHEAD } else { 0 };
                // A peer may have given back credit for bytes that it never got.
                peer.credit = self.limits.credit.min(peer.credit + cost);
            }
            SendState::Announced if to == self.me => {
                let me = self.me;
                self.unexpected.retain(|message| {
                    message.from.source != me || !message.content.is_announced(id)
                });
            }
            SendState::Announced | SendState::Transfer { .. } => {
                peer.transfers.retain(|transfer| *transfer != id);
                peer.queue.push_back(Queued::Packet(Packet::Withdrawal { send: id }));
            }
            SendState::Ended(_) => {}
        }
    }

    /// Gives up a receive, into which nothing is written any more.
    pub fn withdraw_receive(&mut self, id: RequestId) {
        match self.receives.get_mut(id).map(|receive| &mut receive.state) {
            Some(ReceiveState::Transfer { is_withdrawn, .. }) => *is_withdrawn = true,
            _ => {
                self.posted.retain(|posted| *posted != id);
                self.receives.remove(id);
            }
        }
    }

    /// True if a send has ended.
    #[must_use]
    pub fn send_has_ended(&self, id: RequestId) -> bool {
        self.sends.get(id).is_none_or(|send| matches!(send.state, SendState::Ended(_)))
    }

    /// The rank that a send goes to.
    #[must_use]
    pub fn receiver_of(&self, id: RequestId) -> Option<u32> {
        self.sends.get(id).map(|send| send.to)
    }

    /// The rank whose message a receive has met, while bytes of it are to come.
    #[must_use]
    pub fn sender_of(&self, id: RequestId) -> Option<u32> {
        match self.receives.get(id)?.state {
            ReceiveState::Transfer { from, .. } => Some(from.source),
            _ => None,
        }
    }

    /// True if a receive has ended.
    #[must_use]
    pub fn receive_has_ended(&self, id: RequestId) -> bool {
        self.receives.get(id).is_none_or(|receive| matches!(receive.state, ReceiveState::Ended(_)))
    }

    /// How a send ended, once it has; the number means nothing any more then.
    pub fn take_send(&mut self, id: RequestId) -> Option<Outcome> {
        let SendState::Ended(outcome) = self.sends.get(id)?.state else { return None };
        self.sends.remove(id).map(|_| outcome)
    }

    /// How a receive ended, once it has; the number means nothing any more then.
    pub fn take_receive(&mut self, id: RequestId) -> Option<Outcome> {
        let ReceiveState::Ended(outcome) = self.receives.get(id)?.state else { return None };
        self.receives.remove(id).map(|_| outcome)
    }

    /// The first message that no receive has met and that `expected` takes.
    #[must_use]
    pub fn probe(&self, expected: Expected) -> Option<Status> {
        self.unexpected.iter().find(|message| message.is_for(expected)).map(|message| message.from)
    }

    /// True if a send or a receive has not ended, or a packet waits for a slot.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let mut peers = self.peers.iter().filter_map(|peer| peer.state.as_ref());
        if peers.any(|peer| !peer.queue.is_empty()) {
            return true;
        }
        let sends = self.sends.iter().any(|(_, send)| !matches!(send.state, SendState::Ended(_)));
        let ended = |receive: &Receive<R>| matches!(receive.state, ReceiveState::Ended(_));
        sends || self.receives.iter().any(|(_, receive)| !ended(receive))
    }

    /// The messages that no receive has met.
    pub fn unexpected(&self) -> impl Iterator<Item = Status> {
        self.unexpected.iter().map(|message| message.from)
    }
}

impl<K> Unexpected<K> {
    fn is_for(&self, expected: Expected) -> bool {
        expected.takes(self.from.source, self.from.envelope.tag)
    }
}

impl<K> Content<K> {
    pub(super) fn is_announced(&self, send: RequestId) -> bool {
        matches!(self, Self::Announced(id) if *id == send)
    }
}
