//! The host executor: rounds > steps > slices, and of each step the four questions: does it
//! receive, reduce, store, send?
//! May touch: schedule, partition, memory, link, kernel. Law: equals the simulator, step by step.

use super::wait::{Halt, Stop, Wait};
use crate::kernel::{Kernel, Turn, copy};
use crate::link::{Fault, Frame, Links};
use crate::memory::{Buffer, Dst, Src};
use crate::partition::Partition;
use crate::schedule::{Op, Place, Schedule, Space, Step};

/// One call of a collective: what to walk, over what.
#[derive(Debug)]
pub struct Call<'a> {
    /// The steps.
    pub schedule: &'a Schedule,
    /// How the buffer is cut.
    pub partition: Partition<'a>,
    /// What every slot of this call says of itself, but its length.
    pub frame: Frame,
    /// The reduction.
    pub kernel: Kernel<'a>,
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
    // Blocks that differ are known to their two ends alone.
    let uneven = call.partition.is_uneven();
    let wait = &Wait { call: (!uneven).then_some(call.frame), ..*wait };
    for round in 0..call.partition.rounds() {
        for (number, step) in call.schedule.steps.iter().enumerate() {
            let src = call.partition.piece(round, step.src);
            let dst = if step.dst == step.src { src.start } else { start(call, round, step.dst) };
            // Both ends of a message must mean a chunk of the same length, whatever their calls say
            // of the other chunks.
            let chunk = if uneven { call.partition.bytes(step.src) as u64 } else { 0 };
            let frame = Frame { fingerprint: call.frame.fingerprint ^ chunk, ..call.frame };
            for part in call.partition.slices(src.len()) {
                let (src, dst) = (src.start + part.start, dst + part.start);
                let (len, lands, lifts) = (part.len(), false, false);
                let frame = Frame { len: len as u32, ..frame };
                let mut at =
                    Slice { call, step, buffer, links, wait, frame, src, dst, len, lands, lifts };
                at.walk().map_err(|(stop, peer)| Halt { stop, step: number, peer })?;
            }
        }
    }
    let last = call.schedule.steps.len();
    wait.flushed(links).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

fn start(call: &Call<'_>, round: usize, place: Place) -> usize {
    call.partition.piece(round, place).start
}

/// One slice of one step.
struct Slice<'a, 'b> {
    call: &'a Call<'a>,
    step: &'a Step,
    buffer: &'a Buffer<'b>,
    links: &'a mut Links,
    wait: &'a Wait<'a>,
    frame: Frame,
    /// Where it begins in the step's two spaces.
    src: usize,
    dst: usize,
    len: usize,
    /// What comes is put straight where it is stored.
    lands: bool,
    /// What goes is taken straight from where it is.
    lifts: bool,
}

impl<'a> Slice<'a, '_> {
    #[inline]
    fn walk(&mut self) -> Result<(), (Stop, usize)> {
        let Step { op, from, to, .. } = *self.step;
        let (from, to) = (from as usize, to as usize);
        let frame = self.frame;
        self.direct(op, from, to).map_err(|fault| (fault.into(), from))?;
        if self.lands {
            let place = (self.step.dst.space, self.dst);
            let landed = self.wait.landed(self.links, from, &frame, self.buffer, place);
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
            (false, true) => self.give(to, &frame, self.mine()),
            (false, false) => {
                self.local();
                Ok(())
            }
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

    /// What I have at the step's source.
    fn mine(&self) -> Src<'a> {
        self.buffer.src(self.step.src.space, self.src..self.src + self.len)
    }

    /// Where the step stores.
    fn store(&self) -> Dst<'a> {
        self.buffer.dst(self.step.dst.space, self.dst..self.dst + self.len)
    }

    /// Is that best stored past the caches? What is in the scratch is needed soon.
    fn streaming(&self) -> bool {
        self.call.streaming && self.step.dst.space == Space::Output
    }

    /// Is what the step reads this rank's contribution, and not what became of it?
    fn own(&self) -> bool {
        self.step.src.space == Space::Input
    }

    fn turn(&self) -> Turn {
        let Step { last, order, .. } = *self.step;
        Turn { last, order, own: self.own() }
    }

    /// What is at a place of mine goes out.
    fn give(&mut self, to: usize, frame: &Frame, mine: Src<'_>) -> Result<(), Stop> {
        let (kernel, own) = (&self.call.kernel, self.step.op == Op::Send && self.own());
        let tx = self.links.tx(to)?;
        if own && kernel.changes() {
            kernel.contribute(tx.reserve(self.len), None, mine);
        } else if self.lifts {
            return Ok(tx.give(frame, mine)?);
        } else {
            copy(tx.reserve(self.len), None, mine);
        }
        Ok(tx.commit(frame)?)
    }

    /// The incoming chunk stays here.
    fn take(&mut self, from: usize) -> Result<(), Stop> {
        let (mine, out, streaming) = (self.mine(), self.store(), self.streaming());
        let turn = self.turn();
        let rx = self.links.rx(from)?;
        if self.lands {
            // It is there already.
        } else if self.step.op.reduces() {
            self.call.kernel.reduce(turn, out, None, mine, rx.peek(self.len));
        } else {
            copy(out.streaming(streaming), None, rx.peek(self.len));
        }
        rx.release();
        Ok(())
    }

    /// The incoming chunk goes on: straight from one slot to the other, or out of my memory where
    /// that spares a copy.
    fn pass(&mut self, from: usize, to: usize, frame: &Frame) -> Result<(), Stop> {
        if self.step.op.stores() && (self.lands || self.lifts) {
            self.take(from)?;
            let stored = self.buffer.src(self.step.dst.space, self.dst..self.dst + self.len);
            return self.give(to, frame, stored);
        }
        let (mine, turn) = (self.mine(), self.turn());
        let store = self.step.op.stores().then(|| self.store());
        let (rx, tx) = self.links.both(from, to)?;
        let incoming = rx.peek(self.len);
        let slot = tx.reserve(self.len);
        if self.step.op.reduces() {
            self.call.kernel.reduce(turn, slot, store, mine, incoming);
        } else {
            copy(slot, store, incoming);
        }
        tx.commit(frame)?;
        rx.release();
        Ok(())
    }

    /// From one place of mine to another; a copy of a memory to itself is nothing.
    fn local(&mut self) {
        let (mine, mut out, kernel) = (self.mine(), self.store(), &self.call.kernel);
        if self.step.op.reduces() {
            let there = self.buffer.src(self.step.dst.space, self.dst..self.dst + self.len);
            let turn = self.turn();
            if turn.own && kernel.changes() {
                // A kernel changes its local operand only.
                let order = turn.order.turned();
                kernel.reduce(Turn { order, ..turn }, out, None, mine, there);
            } else {
                kernel.reduce(turn, out, None, there, mine);
            }
        } else if self.own() && kernel.changes() {
            kernel.contribute(out, None, mine);
        } else if mine.ptr() != out.ptr().cast_const() {
            copy(out.streaming(self.streaming()), None, mine);
        }
    }
}
