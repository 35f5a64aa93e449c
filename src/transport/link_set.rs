//! The link set of one rank: its links to and from each peer, by the rank of the peer.

use std::cmp::Ordering;
use std::fmt;
use std::os::fd::RawFd;

use super::linger::linger;
use super::{Fault, Frame, MismatchField, PeekedHeader, Rx, Tx};

/// The first bit of a call number that tells kinds of calls, which are numbered apart.
const CALL_KIND_SHIFT: u32 = 62;

/// The links that the plans of a rank use.
#[derive(Default)]
pub struct LinkSet {
    rx: Vec<Option<Box<dyn Rx>>>,
    tx: Vec<Option<Box<dyn Tx>>>,
    /// The ranks that there are links from, in the order in which the links came.
    senders: Vec<usize>,
    /// The peers to which a commit may leave bytes buffered.
    buffered_peers: Vec<usize>,
    /// Memory for the descriptors of these links, so that a wait allocates nothing.
    outgoing: Vec<RawFd>,
}

/// The fault of a plan that names a link which was not made for it: the call fails, not the
/// process.
#[cold]
fn missing() -> Fault {
    Fault::Lost("there is no link to it".into())
}

impl LinkSet {
    /// A set for a world of `size` ranks, without links yet.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let rx = (0..size).map(|_| None).collect();
        let tx = (0..size).map(|_| None).collect();
        let (senders, buffered_peers, outgoing) = Default::default();
        Self { rx, tx, senders, buffered_peers, outgoing }
    }

    /// Adds the link from `peer`.
    pub fn add_rx(&mut self, peer: usize, link: Box<dyn Rx>) {
        self.rx[peer] = Some(link);
        self.senders.push(peer);
    }

    /// Adds the link to `peer`.
    pub fn add_tx(&mut self, peer: usize, link: Box<dyn Tx>) {
        if link.is_syscall_backed() {
            self.buffered_peers.push(peer);
            self.outgoing.reserve(self.buffered_peers.len());
        }
        self.tx[peer] = Some(link);
    }

    /// Closes the links to and from `peer`, and discards bytes to it that have not been sent.
    pub(crate) fn close_peer(&mut self, peer: usize) {
        if let Some(link) = &mut self.tx[peer] {
            link.discard_unsent();
        }
        (self.rx[peer], self.tx[peer]) = (None, None);
        self.senders.retain(|&other| other != peer);
        self.buffered_peers.retain(|&other| other != peer);
    }

    /// Closes all links, and discards committed bytes that have not been sent.
    pub(crate) fn close(&mut self) {
        self.tx.iter_mut().flatten().for_each(|link| link.discard_unsent());
        self.linger();
        self.rx.iter_mut().for_each(|link| *link = None);
        self.tx.iter_mut().for_each(|link| *link = None);
        self.senders.clear();
        self.buffered_peers.clear();
    }

    /// Waits for the peers of all links, which are closed next.
    fn linger(&mut self) {
        let mut links: Vec<&mut dyn Tx> = Vec::new();
        for link in self.tx.iter_mut().flatten().filter(|link| link.is_syscall_backed()) {
            links.push(link.as_mut());
        }
        if !links.is_empty() {
            linger(&mut links);
        }
    }

    /// The ranks that there are links from.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> {
        (0..self.rx.len()).filter(|&peer| self.rx[peer].is_some())
    }

    /// The link from `peer`.
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn rx(&mut self, peer: usize) -> Result<&mut dyn Rx, Fault> {
        match self.rx.get_mut(peer) {
            Some(Some(link)) => Ok(link.as_mut()),
            _ => Err(missing()),
        }
    }

    /// The link to `peer`.
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn tx(&mut self, peer: usize) -> Result<&mut dyn Tx, Fault> {
        match self.tx.get_mut(peer) {
            Some(Some(link)) => Ok(link.as_mut()),
            _ => Err(missing()),
        }
    }

    /// The link from one peer and the link to another, for a step that receives and sends.
    ///
    /// # Errors
    /// If either is missing.
    pub fn both(&mut self, from: usize, to: usize) -> Result<(&mut dyn Rx, &mut dyn Tx), Fault> {
        match (self.rx.get_mut(from), self.tx.get_mut(to)) {
            (Some(Some(rx)), Some(Some(tx))) => Ok((rx.as_mut(), tx.as_mut())),
            _ => Err(missing()),
        }
    }

    /// The peers to which a commit may leave bytes buffered.
    #[must_use]
    pub fn buffered_peers(&self) -> &[usize] {
        &self.buffered_peers
    }

    /// Sends buffered bytes to all peers. A failure shows again at the next use of its link.
    pub fn flush(&mut self) {
        for &peer in &self.buffered_peers {
            if let Some(link) = &mut self.tx[peer] {
                let _ = link.flush();
            }
        }
    }

    /// True if bytes to some peer wait until its socket takes them.
    #[must_use]
    pub(crate) fn has_unsent(&self) -> bool {
        let links = self.buffered_peers.iter().filter_map(|&peer| self.tx[peer].as_ref());
        links.filter_map(|link| link.outgoing()).next().is_some()
    }

    /// A peer whose next slot is of another call with this call's number, or of an earlier call;
    /// and the mismatch. `call` is the header of all slots of this call, if they have the same.
    pub(crate) fn slot_of_other_call(&mut self, call: Option<&Frame>) -> Option<(usize, Fault)> {
        let call = call?;
        let Self { rx, senders, .. } = self;
        senders.iter().find_map(|&peer| {
            let PeekedHeader { sequence, fingerprint } = rx[peer].as_mut()?.peek_header()?;
            if (sequence ^ call.sequence) >> CALL_KIND_SHIFT != 0 {
                return None;
            }
            let (field, ours, theirs) = match sequence.cmp(&call.sequence) {
                // A rank takes all slots of a call before the next one, so this slot is of a call
                // that this rank has not made.
                Ordering::Less => (MismatchField::Sequence, call.sequence, sequence),
                Ordering::Equal => (MismatchField::Fingerprint, call.fingerprint, fingerprint),
                Ordering::Greater => return None,
            };
            (ours != theirs).then_some((peer, Fault::Mismatch { field, ours, theirs }))
        })
    }

    /// The descriptors to poll for writing while bytes are buffered. The caller returns the memory
    /// by [`Self::return_outgoing`].
    pub(crate) fn outgoing(&mut self) -> Vec<RawFd> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        let links = self.buffered_peers.iter().filter_map(|&peer| self.tx[peer].as_ref());
        outgoing.extend(links.filter_map(|link| link.outgoing()));
        outgoing
    }

    /// Takes back the memory of [`Self::outgoing`].
    pub(crate) fn return_outgoing(&mut self, outgoing: Vec<RawFd>) {
        self.outgoing = outgoing;
    }

    /// Checks by its links that `peer` is alive.
    ///
    /// # Errors
    /// If the peer is gone.
    pub(crate) fn check_alive(&mut self, peer: usize) -> Result<(), Fault> {
        if let Some(Some(link)) = self.tx.get_mut(peer) {
            link.check_alive()?;
        }
        match self.rx.get_mut(peer) {
            Some(Some(link)) => link.check_alive(),
            _ => Ok(()),
        }
    }

    /// The names of the transports of all links, each once.
    #[must_use]
    pub fn transports(&self) -> Vec<&'static str> {
        let out = self.tx.iter().flatten().map(|link| link.transport());
        let mut kinds: Vec<_> =
            out.chain(self.rx.iter().flatten().map(|link| link.transport())).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.shrink_to_fit();
        kinds
    }
}

impl Drop for LinkSet {
    fn drop(&mut self) {
        self.linger();
    }
}

impl fmt::Debug for LinkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from: Vec<_> = (0..self.rx.len()).filter(|&peer| self.rx[peer].is_some()).collect();
        let to: Vec<_> = (0..self.tx.len()).filter(|&peer| self.tx[peer].is_some()).collect();
        f.debug_struct("LinkSet").field("from", &from).field("to", &to).finish()
    }
}
