//! The links of messages, beside their packets: the loss of a peer, sleep, and the end.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::State;
use super::wait::Waiting;
use crate::matching::{Expected, Outcome, RequestId, Status};
use crate::transport::Fault;

impl State {
    /// Ends what needs `peer`.
    pub(super) fn lose(&mut self, peer: usize, fault: &Fault) {
        self.linked.retain(|&linked| linked != peer);
        let evidence = match fault {
            Fault::Lost(evidence) => evidence.clone(),
            Fault::Corrupt { .. } => "what it sent was corrupted on its way".into(),
            _ => "what it sent was changed, dropped or forged on its way".into(),
        };
        self.evidence.insert(peer, evidence);
        self.lost_flags[peer].store(true, Ordering::Relaxed);
        self.links.close_peer(peer);
        self.endpoint.lose(peer as u32);
    }

    /// True if a request or bytes of one have not left yet.
    pub(super) fn is_busy(&self) -> bool {
        self.has_unsent() || self.endpoint.is_busy()
    }

    /// True if bytes wait in the memory of a link.
    pub(super) fn has_unsent(&self) -> bool {
        self.links.has_unsent()
    }

    /// True if bytes to the receiver of this send wait in the memory of its link.
    pub(super) fn has_unsent_bytes(&mut self, send: RequestId) -> bool {
        let to = self.endpoint.receiver_of(send).map(|to| to as usize);
        let linked = to.filter(|to| self.linked.contains(to));
        linked.is_some_and(|to| self.links.tx(to).is_ok_and(|tx| tx.outgoing().is_some()))
    }

    /// How `peer` was found to be lost.
    pub(super) fn evidence(&self, peer: usize) -> &str {
        self.evidence.get(&peer).map_or("", String::as_str)
    }

    /// Finds ranks that are gone.
    pub(super) fn check_alive(&mut self) {
        // A rank that is lost leaves the list, so the next one takes its place.
        let mut at = 0;
        while let Some(&peer) = self.linked.get(at) {
            match self.links.rx(peer).and_then(|rx| rx.check_alive()) {
                // A lack of descriptors in this process is no fault of the peer.
                Ok(()) | Err(Fault::NoMemory(_)) => at += 1,
                Err(fault) => {
                    // Packets that came before the end still count.
                    while self.take_packets(peer).is_ok_and(|taken| taken) {}
                    self.lose(peer, &fault);
                }
            }
        }
    }

    /// Tells the links that this rank is about to sleep, or is awake again.
    pub(super) fn announce_sleep(&mut self, asleep: bool) {
        if self.is_announced == asleep {
            return;
        }
        self.is_announced = asleep;
        for &peer in &self.linked {
            if let Ok(rx) = self.links.rx(peer) {
                rx.announce_sleep(asleep);
            }
            if let Ok(tx) = self.links.tx(peer) {
                tx.announce_sleep(asleep);
            }
        }
    }

    /// Notes that a thread sleeps for these requests, until they leave `slept_for`; the number of
    /// the sleep.
    pub(super) fn note_sleep(&mut self, requests: &[Waiting]) -> u64 {
        self.sleeps += 1;
        let pending = requests.iter().filter(|it| it.outcome.is_none());
        self.slept_for.extend(pending.map(|it| (self.sleeps, it.awaited)));
        self.sleeps
    }

    /// True if a request that a thread sleeps for has ended.
    pub(super) fn is_sleeper_due(&mut self) -> bool {
        (0..self.slept_for.len()).any(|at| {
            let (_, awaited) = self.slept_for[at];
            awaited.has_ended(self)
        })
    }

    /// The sockets to poll for reading, and those to poll for writing. The caller returns the
    /// memory by [`Self::return_descriptors`].
    pub(super) fn descriptors(&mut self) -> [Vec<RawFd>; 2] {
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.clear();
        let Self { links, linked, .. } = self;
        for &peer in linked.iter() {
            if let Ok(rx) = links.rx(peer) {
                rx.incoming(&mut incoming);
            }
        }
        [incoming, links.outgoing()]
    }

    /// True if each look at the link from `peer`, or from some rank, is a system call.
    pub(super) fn is_syscall_backed(&self, peer: Option<usize>) -> bool {
        let peers = self.links.buffered_peers();
        peer.map_or(!peers.is_empty(), |peer| peers.contains(&peer))
    }

    pub(super) fn return_descriptors(&mut self, [incoming, outgoing]: [Vec<RawFd>; 2]) {
        self.incoming = incoming;
        self.links.return_outgoing(outgoing);
    }

    /// The outcome of a receive from `source` if nobody can send to it any more.
    pub(super) fn no_sender(&self, source: Option<u32>) -> Option<Outcome> {
        self.endpoint.no_sender(source)
    }

    /// The ranks that are lost.
    pub(crate) fn lost(&self) -> Vec<usize> {
        self.evidence.keys().copied().collect()
    }

    /// The first message that `expected` takes and no receive has met.
    pub(super) fn probe(&self, expected: Expected) -> Option<Status> {
        self.endpoint.probe(expected)
    }

    /// Closes all links, and gives the messages that were never received.
    pub(super) fn close(&mut self, why: &'static str) -> Vec<Status> {
        self.turn(None);
        self.shut(why);
        self.endpoint.unexpected().collect()
    }

    /// Closes all links. The first reason is the one that calls report.
    pub(super) fn shut(&mut self, why: &'static str) {
        self.closed.get_or_insert(why);
        self.links.close();
        self.linked.clear();
    }
}
