//! The host executor: rounds > steps > slices, and of each step the four questions: does it
//! receive, reduce, store, send?
//! May touch: schedule, partition, memory, link, kernel. Law: equals the simulator, step by step.

use super::wait::{Halt, Stop, Wait};
use crate::kernel::{Kernel, copy};
use crate::link::{Fault, Frame, Links};
use crate::memory::{Buffer, Src};
use crate::partition::Partition;
use crate::schedule::{Op, Schedule, Step};

/// One call of a collective: what to walk, over what.
#[derive(Debug)]
pub struct Call<'a> {
    /// The steps.
    pub schedule: &'a Schedule,
    /// How the buffer is cut.
    pub partition: Partition,
    /// What every slot of this call says of itself, but its length.
    pub frame: Frame,
    /// The reduction.
    pub kernel: Kernel,
    /// Is the result larger than the caches? Then it is stored past them.
    pub streaming: bool,
}

/// Walks a call's steps over a buffer.
///
/// # Errors
/// If a link fails, the deadline passes or the call is aborted. The links are then of no more use.
pub fn run(
    call: &Call<'_>,
    buffer: &Buffer<'_>,
    links: &mut Links,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    for round in 0..call.partition.rounds() {
        for (number, step) in call.schedule.steps.iter().enumerate() {
            let piece = call.partition.piece(round, step.chunk);
            for range in call.partition.slices(piece) {
                let (lands, lifts) = (false, false);
                let mut at = Slice { call, step, buffer, links, wait, range, lands, lifts };
                at.walk().map_err(|(stop, peer)| Halt { stop, step: number, peer })?;
            }
        }
    }
    let last = call.schedule.steps.len();
    wait.flushed(links).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

/// One slice of one step.
struct Slice<'a, 'b> {
    call: &'a Call<'a>,
    step: &'a Step,
    buffer: &'a Buffer<'b>,
    links: &'a mut Links,
    wait: &'a Wait<'a>,
    range: std::ops::Range<usize>,
    /// What comes is put straight into the buffer.
    lands: bool,
    /// What goes is taken straight from the buffer.
    lifts: bool,
}

impl Slice<'_, '_> {
    #[inline]
    fn walk(&mut self) -> Result<(), (Stop, usize)> {
        let Step { op, from, to, .. } = *self.step;
        let (from, to) = (from as usize, to as usize);
        let frame = Frame { len: self.range.len() as u32, ..self.call.frame };
        self.direct(op, from, to).map_err(|fault| (fault.into(), from))?;
        if self.lands {
            let (buffer, at) = (self.buffer, self.range.start);
            let landed = self.wait.landed(self.links, from, &frame, buffer, at);
            landed.map_err(|stop| (stop, from))?;
        } else if op.receives() {
            self.wait.filled(self.links, from, &frame).map_err(|stop| (stop, from))?;
        }
        if op.sends() {
            self.wait.empty(self.links, to).map_err(|stop| (stop, to))?;
        }
        let done = match (op.receives(), op.sends()) {
            (true, true) => self.pass(from, to, &frame),
            (true, false) => self.take(from),
            (false, _) => self.give(to, &frame, self.buffer.src(self.range.clone())),
        };
        done.map_err(|stop| (stop, if op.sends() { to } else { from }))
    }

    /// Which of the two links spare a copy when they are given the buffer itself?
    fn direct(&mut self, op: Op, from: usize, to: usize) -> Result<(), Fault> {
        if !self.links.lazy().is_empty() {
            self.lands = op.receives() && !op.reduces() && self.links.rx(from)?.is_dear();
            self.lifts = op.sends() && self.links.tx(to)?.is_dear();
        }
        Ok(())
    }

    /// What is in my buffer goes out.
    fn give(&mut self, to: usize, frame: &Frame, from: Src<'_>) -> Result<(), Stop> {
        let tx = self.links.tx(to)?;
        if self.lifts {
            return Ok(tx.give(frame, from)?);
        }
        copy(tx.reserve(from.len()), None, from);
        Ok(tx.commit(frame)?)
    }

    /// The incoming chunk stays here.
    fn take(&mut self, from: usize) -> Result<(), Stop> {
        let Step { op, last, .. } = *self.step;
        let rx = self.links.rx(from)?;
        if !self.lands {
            let (incoming, out) = (rx.peek(self.range.len()), self.buffer.dst(self.range.clone()));
            if op.reduces() {
                let local = self.buffer.src(self.range.clone());
                self.call.kernel.reduce(last, out, None, local, incoming);
            } else {
                copy(out.streaming(self.call.streaming), None, incoming);
            }
        }
        rx.release();
        Ok(())
    }

    /// The incoming chunk goes on: straight from one slot to the other, or out of my buffer where
    /// that spares a copy.
    fn pass(&mut self, from: usize, to: usize, frame: &Frame) -> Result<(), Stop> {
        let Step { op, last, .. } = *self.step;
        if op.stores() && (self.lands || self.lifts) {
            self.take(from)?;
            return self.give(to, frame, self.buffer.stored(self.range.clone()));
        }
        let (rx, tx) = self.links.both(from, to)?;
        let incoming = rx.peek(self.range.len());
        let slot = tx.reserve(self.range.len());
        let store = op.stores().then(|| self.buffer.dst(self.range.clone()));
        if op.reduces() {
            let local = self.buffer.src(self.range.clone());
            self.call.kernel.reduce(last, slot, store, local, incoming);
        } else {
            copy(slot, store, incoming);
        }
        tx.commit(frame)?;
        rx.release();
        Ok(())
    }
}
