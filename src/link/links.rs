//! All links of one rank, found by the peer's rank. May touch: the link traits.

use std::fmt;
use std::os::fd::RawFd;

use super::{Fault, Frame, Rx, Tx};

/// The links that a rank's plans walk over.
#[derive(Default)]
pub struct Links {
    rx: Vec<Option<Box<dyn Rx>>>,
    tx: Vec<Option<Box<dyn Tx>>>,
    /// The peers to which bytes may be left behind by a commit.
    lazy: Vec<usize>,
    /// Room for the descriptors of these, so that waiting allocates nothing.
    outgoing: Vec<RawFd>,
}

/// A plan never names a link that was not made for it; if one did, the call fails, not the process.
fn missing() -> Fault {
    Fault::Lost("there is no link to it".into())
}

impl Links {
    /// No links yet, in a world of `size` ranks.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let rx = (0..size).map(|_| None).collect();
        let tx = (0..size).map(|_| None).collect();
        Self { rx, tx, lazy: Vec::new(), outgoing: Vec::new() }
    }

    /// Adds the link that chunks come from `peer` by.
    pub fn add_rx(&mut self, peer: usize, link: Box<dyn Rx>) {
        self.rx[peer] = Some(link);
    }

    /// Adds the link that chunks go to `peer` by.
    pub fn add_tx(&mut self, peer: usize, link: Box<dyn Tx>) {
        if link.is_dear() {
            self.lazy.push(peer);
            self.outgoing.reserve(self.lazy.len());
        }
        self.tx[peer] = Some(link);
    }

    /// The link from `peer`.
    ///
    /// # Errors
    /// If there is none.
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
    pub fn tx(&mut self, peer: usize) -> Result<&mut dyn Tx, Fault> {
        match self.tx.get_mut(peer) {
            Some(Some(link)) => Ok(link.as_mut()),
            _ => Err(missing()),
        }
    }

    /// Both: what a step that receives and sends works on.
    ///
    /// # Errors
    /// If either is missing.
    pub fn both(&mut self, from: usize, to: usize) -> Result<(&mut dyn Rx, &mut dyn Tx), Fault> {
        match (self.rx.get_mut(from), self.tx.get_mut(to)) {
            (Some(Some(rx)), Some(Some(tx))) => Ok((rx.as_mut(), tx.as_mut())),
            _ => Err(missing()),
        }
    }

    /// The peers to whom bytes may be left behind by a commit.
    #[must_use]
    pub fn lazy(&self) -> &[usize] {
        &self.lazy
    }

    /// Moves on what was committed to anybody. A failure shows again when its link is used.
    pub fn flush(&mut self) {
        for &peer in &self.lazy {
            if let Some(link) = &mut self.tx[peer] {
                let _ = link.flush();
            }
        }
    }

    /// The rank, if any, from which a slot of another call with this call's number has come.
    pub(crate) fn other_call(&mut self, call: &Frame) -> Option<(usize, Fault)> {
        self.rx.iter_mut().enumerate().find_map(|(peer, link)| {
            let (sequence, theirs) = link.as_mut()?.glimpse()?;
            let (field, ours) = ("fingerprint", call.fingerprint);
            let other = sequence == call.sequence && theirs != ours;
            other.then_some((peer, Fault::Mismatch { field, ours, theirs }))
        })
    }

    /// The descriptors to poll for writing while committed bytes are left. To be given back by
    /// [`Self::keep`].
    pub(crate) fn outgoing(&mut self) -> Vec<RawFd> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        let links = self.lazy.iter().filter_map(|&peer| self.tx[peer].as_ref());
        outgoing.extend(links.filter_map(|link| link.outgoing()));
        outgoing
    }

    /// Takes back what [`Self::outgoing`] lent.
    pub(crate) fn keep(&mut self, outgoing: Vec<RawFd>) {
        self.outgoing = outgoing;
    }

    /// Looks for the death of `peer`, as far as links to or from it tell.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn check_alive(&mut self, peer: usize) -> Result<(), Fault> {
        if let Some(Some(link)) = self.tx.get_mut(peer) {
            link.check_alive()?;
        }
        match self.rx.get_mut(peer) {
            Some(Some(link)) => link.check_alive(),
            _ => Ok(()),
        }
    }

    /// What the links run over, each kind once.
    #[must_use]
    pub fn transports(&self) -> Vec<&'static str> {
        let out = self.tx.iter().flatten().map(|link| link.transport());
        let mut kinds: Vec<_> =
            out.chain(self.rx.iter().flatten().map(|link| link.transport())).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from: Vec<_> = (0..self.rx.len()).filter(|&peer| self.rx[peer].is_some()).collect();
        let to: Vec<_> = (0..self.tx.len()).filter(|&peer| self.tx[peer].is_some()).collect();
        f.debug_struct("Links").field("from", &from).field("to", &to).finish()
    }
}
