//! Progress of messages: packets go to links and come from them, and bytes to their buffers.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::buffers::{ReceiveBuffer, SendBuffer};
use super::wait::{Awaited, Waiting};
use super::worker::Orphan;
use crate::element::DataType;
use crate::error::Result as CallResult;
use crate::kernel::copy;
use crate::matching::{Delivery, Endpoint, Envelope, Expected, Outgoing, Packet, RequestId, Start};
use crate::memory::{Dst, Src};
use crate::sync::Backoff;
use crate::transport::{Fault, Frame, LinkSet, PeekedHeader};

/// The most packets that a turn takes from one link, or gives to one.
const BURST: usize = 16;
/// Memory of kept messages that is used again.
const MOST_SPARE: usize = 64;

pub(crate) struct State {
    pub(super) endpoint: Endpoint<SendBuffer, ReceiveBuffer, Vec<u8>>,
    pub(super) links: LinkSet,
    /// The ranks that there are links to, but for lost ones.
    pub(super) linked: Vec<usize>,
    /// Bytes of a slot.
    pub(super) slot: usize,
    /// Memory for the sockets to poll, so that a wait allocates nothing.
    pub(super) incoming: Vec<RawFd>,
    /// Memory of kept messages, to be used again.
    pub(super) spare: Vec<Vec<u8>>,
    /// How each lost rank was found to be lost.
    pub(super) evidence: BTreeMap<usize, String>,
    /// For each rank, whether it is lost, for threads that do not lock this.
    pub(super) lost_flags: Arc<[AtomicBool]>,
    /// Bytes of payload sent.
    pub(super) sent: Arc<AtomicU64>,
    pub(super) backoff: Backoff,
    /// Threads that look at links again and again; the worker leaves the links to them.
    pub(super) lookers: usize,
    /// Times that a looker has gone.
    pub(super) looks: u64,
    /// Threads that sleep at the doorbell.
    pub(super) sleepers: usize,
    /// Sleeps so far, and the requests that threads sleep for, each with the number of the sleep.
    pub(super) sleeps: u64,
    pub(super) slept_for: Vec<(u64, Awaited)>,
    /// The latest sleep ended because something had moved.
    pub(super) has_moved: bool,
    /// The links know that this rank sleeps.
    pub(super) is_announced: bool,
    /// Requests so far.
    pub(super) started: u64,
    /// Why there are no messages any more.
    pub(super) closed: Option<&'static str>,
    pub(super) worker: Option<JoinHandle<()>>,
    /// The worker sleeps while other threads look at the links.
    pub(super) worker_rests: bool,
    /// There is no worker, and the watch sleeps for this communicator.
    pub(super) is_watched: bool,
    /// Requests whose handles were dropped.
    pub(super) orphans: Vec<Orphan>,
}

impl State {
    pub(super) fn new(
        endpoint: Endpoint<SendBuffer, ReceiveBuffer, Vec<u8>>,
        links: LinkSet,
        slot: usize,
        ranks: usize,
        backoff: Backoff,
    ) -> Self {
        let linked: Vec<_> = links.peers().collect();
        let peers = linked.len();
        let lost_flags = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        Self {
            endpoint,
            links,
            linked,
            slot,
            // One for each peer, and the port at which their first messages come.
            incoming: Vec::with_capacity(peers + 1),
            spare: Vec::new(),
            evidence: BTreeMap::new(),
            lost_flags,
            sent: Arc::default(),
            backoff,
            lookers: 0,
            looks: 0,
            sleepers: 0,
            sleeps: 0,
            slept_for: Vec::new(),
            has_moved: false,
            is_announced: false,
            started: 0,
            closed: None,
            worker: None,
            worker_rests: false,
            is_watched: false,
            orphans: Vec::new(),
        }
    }

    /// True if there are, or were, links to `peer`.
    pub(crate) fn is_linked(&self, peer: usize) -> bool {
        self.linked.contains(&peer) || self.endpoint.is_lost(peer as u32)
    }

    /// True if a receive is posted that takes a message of `tag` from `source`.
    pub(crate) fn has_posted(&self, source: usize, tag: u32) -> bool {
        self.endpoint.has_posted(source as u32, tag)
    }

    /// Makes memory for packets of a message of `len` bytes to a rank, before the message is
    /// started: a link that lacks it later has nobody to tell.
    pub(crate) fn make_room(&mut self, to: usize, len: usize) -> CallResult<()> {
        // A message of this rank to itself needs no slot.
        if !self.linked.contains(&to) {
            return Ok(());
        }
        match self.links.tx(to).and_then(|tx| tx.make_room(len.min(self.slot))) {
            Err(Fault::NoMemory(error)) => Err(*error),
            // The message finds that the link has ended.
            _ => Ok(()),
        }
    }

    /// Starts a send; `None` if too many are pending.
    pub(crate) fn send(
        &mut self,
        to: usize,
        envelope: Envelope,
        buffer: SendBuffer,
    ) -> Option<RequestId> {
        self.started += 1;
        let (id, to_self) = self.endpoint.send(to as u32, envelope, buffer)?;
        if let Some(receive) = to_self {
            receive.store(0, buffer.part(0..envelope.bytes as usize));
        } else if self.links.buffered_peers().contains(&to) {
            // A look at what has come would be a system call. It shows why the link failed, if it
            // did.
            let _ = self.send_packets(to);
        } else {
            self.turn_of(to);
        }
        Some(id)
    }

    /// Posts a receive; `None` if too many are pending.
    pub(crate) fn receive(
        &mut self,
        expected: Expected,
        (dtype, bytes): (DataType, usize),
        buffer: ReceiveBuffer,
    ) -> Option<RequestId> {
        self.started += 1;
        let (id, start) = self.endpoint.receive(expected, (dtype, bytes as u64), buffer)?;
        match start {
            Start::Waits => {}
            Start::Kept(kept) => {
                buffer.store(0, Src::from(&kept[..]));
                self.recycle(kept);
            }
            Start::Dropped(kept) => self.recycle(kept),
            Start::FromSelf(send) => buffer.store(0, send.part(0..bytes)),
        }
        Some(id)
    }

    fn recycle(&mut self, kept: Vec<u8>) {
        if self.spare.len() < MOST_SPARE {
            self.spare.push(kept);
        }
    }

    /// Moves packets from and to `only`, or all ranks; true if one moved.
    pub(super) fn turn(&mut self, only: Option<usize>) -> bool {
        if let Some(peer) = only {
            return self.turn_of(peer);
        }
        let mut moved = false;
        // A rank that is lost leaves the list, so the next one takes its place.
        let mut at = 0;
        while let Some(&peer) = self.linked.get(at) {
            moved |= self.move_packets(peer);
            at += usize::from(self.linked.get(at) == Some(&peer));
        }
        moved
    }

    /// Moves packets from and to the ranks that these requests depend on; true if one moved.
    pub(super) fn turn_of_all(&mut self, requests: &[Waiting]) -> bool {
        let (mut moved, mut last) = (false, None);
        for request in requests.iter().filter(|it| it.outcome.is_none()) {
            if last != Some(request.peer) {
                moved |= self.turn(request.peer);
                last = Some(request.peer);
            }
        }
        moved
    }

    fn turn_of(&mut self, peer: usize) -> bool {
        self.linked.contains(&peer) && self.move_packets(peer)
    }

    /// Moves packets from and to a rank that is linked.
    fn move_packets(&mut self, peer: usize) -> bool {
        match self.take_packets(peer) {
            // A connection to the peer may end before its last packets have come from it; the one
            // from it tells when they have.
            Ok(taken) => self.send_packets(peer).unwrap_or(false) | taken,
            Err(fault) => {
                self.lose(peer, &fault);
                true
            }
        }
    }

    /// Takes packets from `peer`.
    pub(super) fn take_packets(&mut self, peer: usize) -> Result<bool, Fault> {
        let Self { endpoint, links, spare, slot, .. } = self;
        let rx = links.rx(peer)?;
        for taken in 0..BURST {
            let Some(header) = rx.peek_header() else { return Ok(taken > 0) };
            let PeekedHeader { sequence, fingerprint } = header;
            let packet = Packet::decode((sequence, fingerprint));
            let packet = packet
                .filter(|packet| packet.payload() <= *slot)
                .ok_or_else(|| Fault::Lost("it sent what is no packet of a message".into()))?;
            let len = packet.payload();
            let frame = Frame { len: len as u32, sequence, fingerprint };
            if rx.is_syscall_backed()
                && let Some((_, buffer, at)) = endpoint.destination(peer as u32, packet)
            {
                let at = at as usize;
                if !rx.recv_into(&frame, buffer.part_mut(at..at + len))? {
                    return Ok(taken > 0);
                }
                endpoint.arrived(peer as u32, packet).map_err(|it| Fault::Lost(it.0.into()))?;
                rx.release();
                return Ok(true);
            }
            if !rx.ready(&frame)? {
                return Ok(taken > 0);
            }
            let arrived = endpoint.arrived(peer as u32, packet);
            match arrived.map_err(|violation| Fault::Lost(violation.0.into()))? {
                Delivery::Nowhere => {}
                Delivery::To(buffer, at) => buffer.store(at as usize, rx.peek(len)),
                Delivery::Keep(status) => {
                    // Memory that is much too long would be held beyond the sender's credit.
                    let fits = |kept: &Vec<u8>| kept.capacity() <= 4 * len.max(64);
                    let mut kept = spare.pop().filter(fits).unwrap_or_default();
                    kept.resize(len, 0);
                    Dst::from(&mut kept[..]).fill(rx.peek(len));
                    endpoint.keep(status, kept);
                }
            }
            rx.release();
            // Another look would be a system call, often for nothing.
            if rx.is_syscall_backed() && !rx.has_read_ahead() {
                break;
            }
        }
        Ok(true)
    }

    /// Gives packets to the link to `peer`.
    fn send_packets(&mut self, peer: usize) -> Result<bool, Fault> {
        let Self { endpoint, links, sent: bytes, .. } = self;
        let tx = links.tx(peer)?;
        let (mut sent, mut sent_bytes) = (0, 0);
        while sent < BURST {
            let Some(Outgoing { packet, payload }) = endpoint.next_packet(peer as u32) else {
                break;
            };
            if !tx.ready()? {
                break;
            }
            let (sequence, fingerprint) = packet.encode();
            let frame = Frame { len: packet.payload() as u32, sequence, fingerprint };
            match payload {
                Some((buffer, part)) => {
                    let part = buffer.part(part.start as usize..part.end as usize);
                    if tx.is_syscall_backed() {
                        tx.send_from(&frame, part)?;
                    } else {
                        copy(tx.reserve(part.len())?, None, part);
                        tx.commit(&frame)?;
                    }
                }
                None => tx.send_from(&frame, Src::from(&[][..]))?,
            }
            endpoint.sent(peer as u32);
            sent_bytes += u64::from(frame.len);
            sent += 1;
        }
        // Once for all packets: each would be a locked instruction.
        bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        if tx.is_syscall_backed() {
            tx.flush()?;
        }
        Ok(sent > 0)
    }

    /// Gives a receive up. Bytes of a payload that is still arriving move from its buffer to the
    /// memory of the link.
    pub(super) fn withdraw_receive(&mut self, id: RequestId) {
        let Self { endpoint, links, .. } = self;
        if let Some(from) = endpoint.sender_of(id)
            && let Ok(rx) = links.rx(from as usize)
            && let Some(PeekedHeader { sequence, fingerprint }) = rx.peek_header()
            && let Some(packet) = Packet::decode((sequence, fingerprint))
            && let Some((found, buffer, at)) = endpoint.destination(from, packet)
            && found == id
        {
            let at = at as usize;
            rx.take_over(buffer.part(at..at + packet.payload()));
        }
        endpoint.withdraw_receive(id);
    }
}
