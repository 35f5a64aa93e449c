//! The protocol of an endpoint: which packets it sends, and what it does with those that arrive.

use std::ops::Range;

use super::endpoint::Endpoint;
use super::packet::Packet;
use super::requests::RequestId;
use super::state::{
    Content, EAGER_OVERHEAD, Outcome, Queued, Receive, ReceiveState, Send, SendState, Status,
    Unexpected, Violation,
};

/// The next packet to a peer, with its payload: the send, and which of its bytes.
#[derive(Debug)]
pub struct Outgoing<'a, S> {
    /// The packet.
    pub packet: Packet,
    /// The payload, if it has one.
    pub payload: Option<(&'a S, Range<u64>)>,
}

/// Where the payload of a packet goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivery<R> {
    /// There is none, or nobody wants it.
    Nowhere,
    /// To this receive, from this offset on, in bytes.
    To(R, u64),
    /// The caller keeps it, and hands it to [`Endpoint::keep`].
    Keep(Status),
}

impl<S: Copy, R: Copy, K> Endpoint<S, R, K> {
    /// The next packet to `peer`, which stays the next one until [`Self::sent`].
    #[must_use]
    pub fn next_packet(&self, peer: u32) -> Option<Outgoing<'_, S>> {
        let state = self.peers[peer as usize].state.as_ref()?;
        match state.queue.front() {
            Some(&Queued::Packet(packet)) => Some(Outgoing { packet, payload: None }),
            Some(&Queued::First(id)) => {
                let send = self.sends.get(id)?;
                let envelope = send.envelope;
                Some(match send.state {
                    SendState::Queued { is_eager: true } => {
                        let payload = Some((&send.data, 0..envelope.bytes));
                        Outgoing { packet: Packet::Eager(envelope), payload }
                    }
                    _ => {
                        let packet = Packet::RequestToSend { send: id, envelope };
                        Outgoing { packet, payload: None }
                    }
                })
            }
            None => {
                let send = self.sends.get(*state.transfers.front()?)?;
                let SendState::Transfer { receive, sent } = send.state else { return None };
                let message = send.envelope.bytes;
                let part = sent..message.min(sent + self.limits.data(message));
                let bytes = (part.end - part.start) as u32;
                let packet = Packet::Data { receive, bytes };
                Some(Outgoing { packet, payload: Some((&send.data, part)) })
            }
        }
    }

    /// Notes that the next packet to `peer` has gone.
    pub fn sent(&mut self, peer: u32) {
        let Self { peers, sends, limits, .. } = self;
        let state = peers[peer as usize].state_mut(*limits);
        let done = |send: &Send<S>| {
            SendState::Ended(Outcome::Done(Status { source: send.to, envelope: send.envelope }))
        };
        match state.queue.pop_front() {
            Some(Queued::Packet(_)) => {}
            Some(Queued::First(id)) => {
                let Some(send) = sends.get_mut(id) else { return };
                let is_eager = send.state == SendState::Queued { is_eager: true };
                send.state = if is_eager { done(send) } else { SendState::Announced };
            }
            None => {
                let Some(id) = state.transfers.pop_front() else { return };
                let Some(send) = sends.get_mut(id) else { return };
                let SendState::Transfer { receive, sent } = send.state else { return };
                let message = send.envelope.bytes;
                let sent = message.min(sent + limits.data(message));
                if sent == message {
                    send.state = done(send);
                } else {
                    send.state = SendState::Transfer { receive, sent };
                    state.transfers.push_back(id);
                }
            }
        }
    }

    /// Takes note of a packet from `from`, and says where its payload goes. Packets of a lost peer
    /// change nothing.
    ///
    /// # Errors
    /// If no peer that keeps to the protocol would send it.
    pub fn arrived(&mut self, from: u32, packet: Packet) -> Result<Delivery<R>, Violation> {
        match packet {
            _ if self.is_lost(from) => Ok(Delivery::Nowhere),
            Packet::Eager(envelope) => self.eager_arrived(Status { source: from, envelope }),
            Packet::RequestToSend { send, envelope } => {
                let status = Status { source: from, envelope };
                match self.take_posted(status) {
                    Some(receive) => self.meet_announced(receive, send, status),
                    None => {
                        let announced = &mut self.peer_mut(from).announced;
                        if *announced >= super::MAX_PENDING {
                            return Err(Violation("it announced more messages than it may"));
                        }
                        *announced += 1;
                        let content = Content::Announced(send);
                        self.unexpected.push_back(Unexpected { from: status, content });
                    }
                }
                Ok(Delivery::Nowhere)
            }
            Packet::ClearToSend { send, receive } => {
                // The number of a send that was withdrawn means nothing any more.
                let found = self.sends.get_mut(send).filter(|send| send.to == from);
                let announced = found.filter(|send| send.state == SendState::Announced);
                if let Some(announced) = announced {
                    announced.state = SendState::Transfer { receive, sent: 0 };
                    self.peer_mut(from).transfers.push_back(send);
                }
                Ok(Delivery::Nowhere)
            }
            Packet::Data { receive, bytes } => self.data_arrived(from, receive, bytes.into()),
            Packet::Refusal { send, dtype, bytes } => {
                let found = self.sends.get(send).filter(|send| send.to == from);
                let announced = found.filter(|send| send.state == SendState::Announced);
                if let Some(Send { envelope, .. }) = announced {
                    let ours = (envelope.dtype, envelope.bytes);
                    let theirs = (dtype, bytes);
                    self.end_send(send, Outcome::Differs { peer: from, ours, theirs });
                }
                Ok(Delivery::Nowhere)
            }
            Packet::Credit { bytes } => {
                let peer = self.peers[from as usize].state_mut(self.limits);
                if bytes > self.limits.credit - peer.credit {
                    return Err(Violation("it gave back more credit than it had"));
                }
                peer.credit += bytes;
                Ok(Delivery::Nowhere)
            }
            Packet::Withdrawal { send } => {
                self.withdrawn_by(from, send);
                Ok(Delivery::Nowhere)
            }
        }
    }

    /// Where the payload of a packet goes that is still arriving: to a receive, from this offset
    /// on.
    /// `None` if the packet has to arrive first.
    #[must_use]
    pub fn destination(&self, from: u32, packet: Packet) -> Option<(RequestId, R, u64)> {
        let Packet::Data { receive: id, bytes } = packet else { return None };
        let receive = self.receives.get(id)?;
        match receive.state {
            ReceiveState::Transfer { from: status, received, is_withdrawn: false, .. } => {
                let fits = u64::from(bytes) <= receive.bytes - received;
                (status.source == from && fits).then_some((id, receive.data, received))
            }
            _ => None,
        }
    }

    fn eager_arrived(&mut self, from: Status) -> Result<Delivery<R>, Violation> {
        let (bytes, limits) = (from.envelope.bytes, self.limits);
        let peer = self.peer_mut(from.source);
        peer.kept += bytes + EAGER_OVERHEAD;
        if bytes > limits.eager || peer.kept > limits.credit {
            return Err(Violation("it sent more eager bytes than it may"));
        }
        let Some(receive) = self.take_posted(from) else { return Ok(Delivery::Keep(from)) };
        self.peer_mut(from.source).give_back(from.envelope, limits);
        let outcome = self.compared(receive, from);
        self.end_receive(receive, outcome);
        let data = self.receives.get(receive).map(|receive| receive.data);
        let fits = matches!(outcome, Outcome::Done(_));
        Ok(data.filter(|_| fits).map_or(Delivery::Nowhere, |data| Delivery::To(data, 0)))
    }

    /// Keeps the payload of an eager message that no receive has met.
    pub fn keep(&mut self, from: Status, kept: K) {
        self.unexpected.push_back(Unexpected { from, content: Content::Kept(kept) });
    }

    fn data_arrived(
        &mut self,
        from: u32,
        id: RequestId,
        bytes: u64,
    ) -> Result<Delivery<R>, Violation> {
        let unasked = Violation("it sent bytes that no receive has asked for");
        let receive = self.receives.get_mut(id).ok_or(unasked)?;
        let ReceiveState::Transfer { from: status, received, is_withdrawn, .. } =
            &mut receive.state
        else {
            return Err(unasked);
        };
        let at = *received;
        if status.source != from || bytes > self.limits.slot.min(receive.bytes - at) {
            return Err(unasked);
        }
        *received += bytes;
        let (is_withdrawn, data) = (*is_withdrawn, receive.data);
        if *received == receive.bytes {
            receive.state = ReceiveState::Ended(Outcome::Done(*status));
            if is_withdrawn {
                self.receives.remove(id);
            }
        }
        Ok(if is_withdrawn { Delivery::Nowhere } else { Delivery::To(data, at) })
    }

    /// Takes note that `from` has given up one of its sends.
    fn withdrawn_by(&mut self, from: u32, send: RequestId) {
        let is_it = |message: &Unexpected<K>| {
            message.from.source == from && message.content.is_announced(send)
        };
        if let Some(at) = self.unexpected.iter().position(is_it) {
            self.unexpected.remove(at);
            self.peer_mut(from).announced -= 1;
            return;
        }
        let transfer = |receive: &Receive<R>| match receive.state {
            ReceiveState::Transfer { from: status, send: number, is_withdrawn, .. } => {
                (status.source == from && number == send).then_some(is_withdrawn)
            }
            _ => None,
        };
        let found = self.receives.iter().find_map(|(id, receive)| Some((id, transfer(receive)?)));
        match found {
            Some((id, true)) => drop(self.receives.remove(id)),
            Some((id, false)) => self.end_receive(id, Outcome::Withdrawn { peer: from }),
            None => {}
        }
    }
}
