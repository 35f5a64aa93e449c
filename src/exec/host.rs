//! The host executor: rounds > steps > slices, and of each step the four questions: does it
//! receive, reduce, store, send?
//! May touch: schedule, partition, memory, link, kernel. Law: equals the simulator, step by step.

use core::ops::Range;

use super::wait::{Halt, Stop, Wait};
use crate::health::Links;
use crate::kernel::{Kernel, Turn, copy};
use crate::memory::{Buffer, Dst, Src};
use crate::partition::Partition;
use crate::schedule::{Op, Place, Schedule, Space, Step};
use crate::trace::Where;
use crate::transport::{Fault, Frame};

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

impl Call<'_> {
    /// What the slots of one chunk say. Both ends of a message must mean a chunk of the same length
    /// and type, whatever their calls say of the other chunks.
    pub(super) fn of_chunk(&self, step: &Step) -> Frame {
        let meaning = self.partition.meaning(step.src);
        Frame { fingerprint: self.frame.fingerprint ^ meaning, ..self.frame }
    }
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
            wait.at(Where::of(number, step));
            let src = call.partition.piece(round, step.src);
            let dst = if step.dst == step.src { src.start } else { start(call, round, step.dst) };
            let frame = if uneven { call.of_chunk(step) } else { call.frame };
            for part in call.partition.slices(round, src.len()) {
                let (src, dst, len) = (src.start + part.start, dst + part.start, part.len());
                let mut slice =
                    Slice::new(call, Places { step, buffer, src, dst, len }, links, frame);
                slice.walk(wait).map_err(|(stop, peer)| Halt { stop, step: number, peer })?;
            }
        }
    }
    let last = call.schedule.steps.len();
    wait.flushed(links).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

fn start(call: &Call<'_>, round: usize, place: Place) -> usize {
    call.partition.piece(round, place).start
}

/// Where one slice of one step reads and stores.
#[derive(Clone, Copy)]
pub(super) struct Places<'a, 'b> {
    pub(super) step: &'a Step,
    pub(super) buffer: &'a Buffer<'b>,
    /// Where it begins in the step's two spaces.
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) len: usize,
}

impl<'a> Places<'a, '_> {
    /// How many bytes from there on are in one piece at both places.
    #[inline]
    fn together(&self, from: usize) -> usize {
        let Step { src, dst, .. } = self.step;
        let read = self.buffer.together(src.space, self.src + from, self.len - from);
        self.buffer.together(dst.space, self.dst + from, read)
    }

    /// The next part of the slice that is; none after its last.
    #[inline]
    fn next(&self, done: &mut usize) -> Option<Range<usize>> {
        let from = *done;
        if from == self.len {
            return None;
        }
        *done += self.together(from);
        Some(from..*done)
    }

    /// What I have at the step's source.
    fn mine(&self, part: &Range<usize>) -> Src<'a> {
        self.buffer.src(self.step.src.space, self.src + part.start..self.src + part.end)
    }

    /// What is where the step stores.
    fn stored(&self, part: &Range<usize>) -> Src<'a> {
        self.buffer.src(self.step.dst.space, self.dst + part.start..self.dst + part.end)
    }

    /// Where the step stores.
    fn store(&self, part: &Range<usize>) -> Dst<'a> {
        self.buffer.dst(self.step.dst.space, self.dst + part.start..self.dst + part.end)
    }

    /// Is what the step reads this rank's contribution, and not what became of it?
    fn own(&self) -> bool {
        self.step.src.space == Space::Input
    }

    fn turn(&self) -> Turn {
        let Step { last, order, .. } = *self.step;
        Turn { last, order, own: self.own() }
    }
}

/// One slice of one step.
pub(super) struct Slice<'a, 'b> {
    call: &'a Call<'a>,
    places: Places<'a, 'b>,
    links: &'a mut Links,
    frame: Frame,
    /// What comes is put straight where it is stored.
    lands: bool,
    /// What goes is taken straight from where it is.
    lifts: bool,
}

impl<'a, 'b> Slice<'a, 'b> {
    /// `frame` is what all slices of its chunk say.
    pub(super) fn new(
        call: &'a Call<'a>,
        places: Places<'a, 'b>,
        links: &'a mut Links,
        frame: Frame,
    ) -> Self {
        let frame = Frame { len: places.len as u32, ..frame };
        Self { call, places, links, frame, lands: false, lifts: false }
    }

    #[inline]
    fn walk(&mut self, wait: &Wait<'_>) -> Result<(), (Stop, usize)> {
        let Step { op, from, to, .. } = *self.places.step;
        let (from, to) = (from as usize, to as usize);
        self.direct(op, from, to).map_err(|fault| (fault.into(), from))?;
        if self.lands {
            let place = (self.places.step.dst.space, self.places.dst);
            let landed = wait.landed(self.links, from, &self.frame, self.places.buffer, place);
            landed.map_err(|stop| (stop, from))?;
        } else if op.receives() {
            wait.filled(self.links, from, &self.frame).map_err(|stop| (stop, from))?;
        }
        if op.sends() {
            wait.empty(self.links, to).map_err(|stop| (stop, to))?;
        }
        self.work(op, from, to).map_err(|fault| (fault.into(), if op.sends() { to } else { from }))
    }

    /// The same, if nothing has to be waited for; was it so? Not for a step that receives and
    /// sends.
    pub(super) fn attempt(&mut self) -> Result<bool, Fault> {
        let Step { op, from, to, dst, .. } = *self.places.step;
        let (from, to) = (from as usize, to as usize);
        self.direct(op, from, to)?;
        let ready = if self.lands {
            let Places { buffer, dst: at, len, .. } = self.places;
            self.links.rx(from)?.land(&self.frame, buffer.dst(dst.space, at..at + len))?
        } else if op.receives() {
            self.links.rx(from)?.ready(&self.frame)?
        } else {
            !op.sends() || self.links.tx(to)?.ready()?
        };
        if ready {
            self.work(op, from, to)?;
        }
        Ok(ready)
    }

    /// What the step does, once its slots are there.
    #[inline]
    fn work(&mut self, op: Op, from: usize, to: usize) -> Result<(), Fault> {
        let frame = self.frame;
        match (op.receives(), op.sends()) {
            (true, true) => self.pass(from, to, &frame),
            (true, false) => self.take(from),
            (false, true) => self.give(to, &frame),
            (false, false) => {
                self.local();
                Ok(())
            }
        }
    }

    /// Which of the two links spare a copy when they are given the buffer itself?
    fn direct(&mut self, op: Op, from: usize, to: usize) -> Result<(), Fault> {
        if !self.links.lazy().is_empty() && self.places.together(0) == self.places.len {
            self.lands = op.receives() && !op.reduces() && self.links.rx(from)?.is_dear();
            self.lifts = op.sends() && self.links.tx(to)?.is_dear();
        }
        Ok(())
    }

    /// Is that best stored past the caches? What is in the scratch is needed soon.
    fn streaming(&self) -> bool {
        self.call.streaming && self.places.step.dst.space == Space::Output
    }

    /// What is at a place of mine goes out: where the step reads, or where it has just stored.
    fn give(&mut self, to: usize, frame: &Frame) -> Result<(), Fault> {
        let (kernel, places) = (&self.call.kernel, self.places);
        let send = places.step.op == Op::Send;
        let contributes = send && places.own() && kernel.changes();
        let what = if send { Places::mine } else { Places::stored };
        let tx = self.links.tx(to)?;
        if self.lifts && !contributes {
            let whole = what(&places, &(0..places.len));
            return tx.give(frame, whole);
        }
        let (mut slot, mut done) = (tx.reserve(places.len), 0);
        while let Some(part) = places.next(&mut done) {
            let (mine, out) = (what(&places, &part), slot.part(part));
            if contributes {
                kernel.contribute(out, None, mine);
            } else {
                copy(out, None, mine);
            }
        }
        tx.commit(frame)
    }

    /// The incoming chunk stays here.
    fn take(&mut self, from: usize) -> Result<(), Fault> {
        let (places, streaming, mut done) = (self.places, self.streaming(), 0);
        let rx = self.links.rx(from)?;
        if !self.lands {
            let incoming = rx.peek(places.len);
            while let Some(part) = places.next(&mut done) {
                let (out, incoming) = (places.store(&part), incoming.part(part.clone()));
                if places.step.op.reduces() {
                    let mine = places.mine(&part);
                    self.call.kernel.reduce(places.turn(), out, None, mine, incoming);
                } else {
                    copy(out.streaming(streaming), None, incoming);
                }
            }
        }
        rx.release();
        Ok(())
    }

    /// The incoming chunk goes on: straight from one slot to the other, or out of my memory where
    /// that spares a copy.
    fn pass(&mut self, from: usize, to: usize, frame: &Frame) -> Result<(), Fault> {
        if self.places.step.op.stores() && (self.lands || self.lifts) {
            self.take(from)?;
            return self.give(to, frame);
        }
        let (places, op, mut done) = (self.places, self.places.step.op, 0);
        let (rx, tx) = self.links.both(from, to)?;
        let (incoming, mut slot) = (rx.peek(places.len), tx.reserve(places.len));
        while let Some(part) = places.next(&mut done) {
            let store = op.stores().then(|| places.store(&part));
            let (slot, incoming) = (slot.part(part.clone()), incoming.part(part.clone()));
            if op.reduces() {
                self.call.kernel.reduce(places.turn(), slot, store, places.mine(&part), incoming);
            } else {
                copy(slot, store, incoming);
            }
        }
        tx.commit(frame)?;
        rx.release();
        Ok(())
    }

    /// From one place of mine to another; a copy of a memory to itself is nothing.
    fn local(&mut self) {
        let mut done = 0;
        while let Some(part) = self.places.next(&mut done) {
            self.local_part(&part);
        }
    }

    fn local_part(&self, part: &Range<usize>) {
        let (places, kernel) = (&self.places, &self.call.kernel);
        let (mine, mut out) = (places.mine(part), places.store(part));
        if places.step.op.reduces() {
            let (there, turn) = (places.stored(part), places.turn());
            if turn.own && kernel.changes() {
                // A kernel changes its local operand only.
                let order = turn.order.turned();
                kernel.reduce(Turn { order, ..turn }, out, None, mine, there);
            } else {
                kernel.reduce(turn, out, None, there, mine);
            }
        } else if places.own() && kernel.changes() {
            kernel.contribute(out, None, mine);
        } else if mine.ptr() != out.ptr().cast_const() {
            copy(out.streaming(self.streaming()), None, mine);
        }
    }
}
