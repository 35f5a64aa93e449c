//! Fault injection for tests: a wrapper around any link that delays, loses or corrupts slot k.

use std::os::fd::RawFd;
use std::time::Duration;

use super::delegate::{delegate_rx, delegate_tx};
use super::{Fault, Frame, Rx, Tx};

/// The injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// `ready` returns false this many times.
    Delay(u32),
    /// The peer seems to be gone.
    Lose,
    /// The lowest bit of the header's sequence is flipped, when it is sent or when it is compared.
    Corrupt,
}

/// A link with a fault at one of its slots. A wrapped `Box<dyn Rx>` or `Box<dyn Tx>` is an [`Rx`]
/// or [`Tx`] again.
#[derive(Debug)]
pub struct FaultyLink<L> {
    inner: L,
    /// Slots before the fault; `None` after it.
    left: Option<u64>,
    trouble: InjectedFault,
}

impl<L> FaultyLink<L> {
    /// `inner`, with `trouble` at slot number `slot`, counted from 0.
    pub fn new(inner: L, slot: u64, trouble: InjectedFault) -> Self {
        Self { inner, left: Some(slot), trouble }
    }

    /// The fault of the current slot.
    fn current(&self) -> Option<InjectedFault> {
        (self.left == Some(0)).then_some(self.trouble)
    }

    /// Goes on to the next slot.
    fn advance(&mut self) {
        self.left = self.left.and_then(|left| left.checked_sub(1));
    }

    /// True if `ready` shall return false once more.
    fn is_delayed(&mut self) -> Result<bool, Fault> {
        match self.current() {
            Some(InjectedFault::Delay(polls @ 1..)) => {
                self.trouble = InjectedFault::Delay(polls - 1);
                Ok(true)
            }
            Some(InjectedFault::Lose) => Err(Fault::Lost("lost on purpose".into())),
            _ => Ok(false),
        }
    }
}

impl Rx for FaultyLink<Box<dyn Rx>> {
    delegate_rx!();
    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        if self.is_delayed()? || !self.inner.ready(expect)? {
            return Ok(false);
        }
        if self.current() == Some(InjectedFault::Corrupt) {
            let ours = expect.sequence;
            return Err(Fault::Mismatch { field: "sequence", ours, theirs: ours ^ 1 });
        }
        Ok(true)
    }
    fn release(&mut self) {
        self.advance();
        self.inner.release();
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        self.inner.check_alive()
    }
}

impl Tx for FaultyLink<Box<dyn Tx>> {
    delegate_tx!();
    fn ready(&mut self) -> Result<bool, Fault> {
        Ok(!self.is_delayed()? && self.inner.ready()?)
    }
    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        let flip = u64::from(self.current() == Some(InjectedFault::Corrupt));
        self.advance();
        self.inner.commit(&Frame { sequence: frame.sequence ^ flip, ..*frame })
    }
    fn flush(&mut self) -> Result<bool, Fault> {
        self.inner.flush()
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        self.inner.check_alive()
    }
}
