//! Trouble on purpose, around any link: the k-th slot comes late, is lost, or says something else.
//! May touch: the link contract. For tests.

use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Fault, Frame, Rx, Tx};
use crate::memory::{Dst, Src};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// `ready` says "not yet" this many times.
    Delay(u32),
    /// The peer seems to be gone.
    Lose,
    /// The frame's sequence has its lowest bit flipped: the sender sends it so, the receiver finds
    /// it so.
    Corrupt,
}

/// A link, and what happens to its slot number `slot`, counted from 0. A wrapped `Box<dyn Rx>` or
/// `Box<dyn Tx>` is an [`Rx`] or [`Tx`] again.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    /// Slots until the trouble comes; `None` when it is past.
    left: Option<u64>,
    trouble: Trouble,
}

impl<L> Faulty<L> {
    /// `inner`, with `trouble` at slot number `slot`.
    pub fn new(inner: L, slot: u64, trouble: Trouble) -> Self {
        Self { inner, left: Some(slot), trouble }
    }

    /// What is to happen at the present slot.
    fn now(&self) -> Option<Trouble> {
        (self.left == Some(0)).then_some(self.trouble)
    }

    /// A slot is done.
    fn next(&mut self) {
        self.left = self.left.and_then(|left| left.checked_sub(1));
    }

    /// Is the answer to `ready` held back once more, or is the peer gone?
    fn held(&mut self) -> Result<bool, Fault> {
        match self.now() {
            Some(Trouble::Delay(polls @ 1..)) => {
                self.trouble = Trouble::Delay(polls - 1);
                Ok(true)
            }
            Some(Trouble::Lose) => Err(Fault::Lost("lost on purpose".into())),
            _ => Ok(false),
        }
    }
}

impl Rx for Faulty<Box<dyn Rx>> {
    fn glimpse(&mut self) -> Option<(u64, u64)> {
        self.inner.glimpse()
    }
    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        if self.held()? || !self.inner.ready(expect)? {
            return Ok(false);
        }
        if self.now() == Some(Trouble::Corrupt) {
            let ours = expect.sequence;
            return Err(Fault::Mismatch { field: "sequence", ours, theirs: ours ^ 1 });
        }
        Ok(true)
    }
    fn transport(&self) -> &'static str {
        self.inner.transport()
    }
    fn life(&self) -> Option<&UnixStream> {
        self.inner.life()
    }
    fn taken(&self) -> Option<u64> {
        self.inner.taken()
    }
    fn is_dear(&self) -> bool {
        self.inner.is_dear()
    }
    fn peek(&self, len: usize) -> Src<'_> {
        self.inner.peek(len)
    }
    fn release(&mut self) {
        self.next();
        self.inner.release();
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        self.inner.check_alive()
    }
}

impl Tx for Faulty<Box<dyn Tx>> {
    fn ready(&mut self) -> Result<bool, Fault> {
        Ok(!self.held()? && self.inner.ready()?)
    }
    fn reserve(&mut self, len: usize) -> Dst<'_> {
        self.inner.reserve(len)
    }
    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        let flip = u64::from(self.now() == Some(Trouble::Corrupt));
        self.next();
        self.inner.commit(&Frame { sequence: frame.sequence ^ flip, ..*frame })
    }
    fn transport(&self) -> &'static str {
        self.inner.transport()
    }
    fn life(&self) -> Option<&UnixStream> {
        self.inner.life()
    }
    fn sent(&self) -> u64 {
        self.inner.sent()
    }
    fn forsake(&mut self) {
        self.inner.forsake();
    }
    fn is_dear(&self) -> bool {
        self.inner.is_dear()
    }
    fn flush(&mut self) -> Result<bool, Fault> {
        self.inner.flush()
    }
    fn outgoing(&self) -> Option<RawFd> {
        self.inner.outgoing()
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        self.inner.check_alive()
    }
}
