//! The host executor: rounds > steps > slices, and of each step the four questions: does it
//! receive, reduce, store, send?
//! May touch: schedule, partition, memory, link, kernel. Law: equals the simulator, step by step.

use super::wait::{Halt, Stop, Wait};
use crate::element::Order;
use crate::kernel::{Kernel, Turn, copy};
use crate::link::{Frame, Links};
use crate::memory::Buffer;
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
    for round in 0..call.partition.rounds() {
        for (number, step) in call.schedule.steps.iter().enumerate() {
            let piece = call.partition.piece(round, step.chunk);
            for range in call.partition.slices(piece) {
                let mut at = Slice { call, step, buffer, links, wait, range };
                at.walk().map_err(|(stop, peer)| Halt { stop, step: number, peer })?;
            }
        }
    }
    let last = call.schedule.steps.len();
    wait.flushed(links).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

/// On a ring what comes is the fold of the ranks before, and what is here a rank's own.
fn turn(last: bool) -> Turn {
    Turn { last, order: Order::IncomingFirst, own: true }
}

/// One slice of one step.
struct Slice<'a, 'b> {
    call: &'a Call<'a>,
    step: &'a Step,
    buffer: &'a Buffer<'b>,
    links: &'a mut Links,
    wait: &'a Wait<'a>,
    range: std::ops::Range<usize>,
}

impl Slice<'_, '_> {
    #[inline]
    fn walk(&mut self) -> Result<(), (Stop, usize)> {
        let Step { op, last, from, to, .. } = *self.step;
        let (from, to) = (from as usize, to as usize);
        let frame = Frame { len: self.range.len() as u32, ..self.call.frame };
        if op.receives() {
            self.wait.filled(self.links, from, &frame).map_err(|stop| (stop, from))?;
        }
        if op.sends() {
            self.wait.empty(self.links, to).map_err(|stop| (stop, to))?;
        }
        let done = match (op.receives(), op.sends()) {
            (true, true) => self.pass(op, last, from, to, &frame),
            (true, false) => self.take(op, last, from),
            (false, _) => self.give(to, &frame),
        };
        done.map_err(|stop| (stop, if op.sends() { to } else { from }))
    }

    /// My chunk goes out.
    fn give(&mut self, to: usize, frame: &Frame) -> Result<(), Stop> {
        let tx = self.links.tx(to)?;
        let mine = self.buffer.src(self.range.clone());
        self.call.kernel.contribute(tx.reserve(self.range.len()), None, mine);
        Ok(tx.commit(frame)?)
    }

    /// The incoming chunk stays here.
    fn take(&mut self, op: Op, last: bool, from: usize) -> Result<(), Stop> {
        let rx = self.links.rx(from)?;
        let (incoming, out) = (rx.peek(self.range.len()), self.buffer.dst(self.range.clone()));
        if op.reduces() {
            let local = self.buffer.src(self.range.clone());
            self.call.kernel.reduce(turn(last), out, None, local, incoming);
        } else {
            copy(out.streaming(self.call.streaming), None, incoming);
        }
        rx.release();
        Ok(())
    }

    /// The incoming chunk goes on, straight from one slot to the other.
    fn pass(
        &mut self,
        op: Op,
        last: bool,
        from: usize,
        to: usize,
        frame: &Frame,
    ) -> Result<(), Stop> {
        let (rx, tx) = self.links.both(from, to)?;
        let incoming = rx.peek(self.range.len());
        let slot = tx.reserve(self.range.len());
        let store = op.stores().then(|| self.buffer.dst(self.range.clone()));
        if op.reduces() {
            let local = self.buffer.src(self.range.clone());
            self.call.kernel.reduce(turn(last), slot, store, local, incoming);
        } else {
            copy(slot, store, incoming);
        }
        tx.commit(frame)?;
        rx.release();
        Ok(())
    }
}
