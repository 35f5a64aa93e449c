//! The host executor: walks rounds > steps > slices over links. Four properties of a step's
//! operation say what it does with a slice: receive, reduce, store, send.
//! Law: every step does what the simulator's walk does.

use core::ops::Range;

use super::wait::{Event, Halt, Stop, Wait};
use crate::health::Peers;
use crate::kernel::{FoldStep, Kernel, copy};
use crate::memory::{Buffer, Dst, Src};
use crate::partition::Partition;
use crate::schedule::{Op, Place, Schedule, Space, Step};
use crate::trace::Position;
use crate::transport::{Fault, Frame};

/// One call of a collective over links.
#[derive(Debug)]
pub struct LinkCall<'a> {
    /// The steps of this rank.
    pub schedule: &'a Schedule,
    /// How the buffers are cut into chunks and slices.
    pub partition: &'a Partition<'a>,
    /// The frame of every slot of this call; only the length differs from slot to slot.
    pub frame: Frame,
    /// The reduction.
    pub kernel: &'a Kernel<'a>,
    /// True if the result is larger than the caches: stores then bypass them.
    pub streaming: bool,
}

impl LinkCall<'_> {
    /// The frame of one chunk's slots in an uneven call. It includes the chunk's length and type,
    /// so that a receiver notices if the two ends disagree.
    pub(super) fn chunk_frame(&self, step: &Step) -> Frame {
        let digest = self.partition.chunk_digest(step.src);
        Frame { fingerprint: self.frame.fingerprint ^ digest, ..self.frame }
    }
}

/// Walks the steps of a call over a buffer.
///
/// # Errors
/// The step, the peer and the cause, if a link fails, the deadline passes or the call is aborted.
/// The links must not be used afterwards.
pub fn run(
    call: &LinkCall<'_>,
    buffer: &Buffer<'_>,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    // In an uneven call only the two ends know a chunk's length, so frames differ by chunk.
    let uneven = call.partition.is_uneven();
    let wait = &Wait { call: (!uneven).then_some(call.frame), ..*wait };
    for round in 0..call.partition.rounds() {
        if round > 0 {
            wait.record_steps_before(round * call.schedule.steps.len());
        }
        for (number, step) in call.schedule.steps.iter().enumerate() {
            walk_step(call, (round, number, step), buffer, peers, wait)?;
        }
    }
    let last = call.schedule.steps.len();
    wait.until_flushed(peers).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

/// Walks the slices of one step in one round. The step is recorded under this number.
#[inline]
pub(super) fn walk_step(
    call: &LinkCall<'_>,
    (round, number, step): (usize, usize, &Step),
    buffer: &Buffer<'_>,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    wait.record_position(Position::of(number, step));
    let src = call.partition.piece(round, step.src);
    let dst = if step.dst == step.src { src.start } else { start(call, round, step.dst) };
    let frame = if call.partition.is_uneven() { call.chunk_frame(step) } else { call.frame };
    for part in call.partition.slices(round, src.len()) {
        let (len, from) = (part.len(), part.start);
        let operands = Operands { step, buffer, src: src.start + from, dst: dst + from, len };
        let mut slice = Slice::new(call, operands, peers, frame);
        slice.walk(wait).map_err(|(stop, peer)| Halt { stop, step: number, peer })?;
    }
    if step.op.sends() {
        wait.record_sent(src.len());
    }
    Ok(())
}

/// The first byte of a chunk's piece in this round.
fn start(call: &LinkCall<'_>, round: usize, place: Place) -> usize {
    call.partition.piece(round, place).start
}

/// The memory of one slice of one step.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, 'b> {
    pub(super) step: &'a Step,
    pub(super) buffer: &'a Buffer<'b>,
    /// Offsets of the slice in the step's source and destination spaces, in bytes.
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) len: usize,
}

impl<'a> Operands<'a, '_> {
    /// The bytes from offset `from` of the slice on that are contiguous in both spaces.
    #[inline]
    fn contiguous_len(&self, from: usize) -> usize {
        let Step { src, dst, .. } = self.step;
        let read = self.buffer.contiguous_len(src.space, self.src + from, self.len - from);
        self.buffer.contiguous_len(dst.space, self.dst + from, read)
    }

    /// The next contiguous part of the slice; `None` at its end. `done` counts the bytes so far.
    #[inline]
    fn next_part(&self, done: &mut usize) -> Option<Range<usize>> {
        let from = *done;
        if from == self.len {
            return None;
        }
        *done += self.contiguous_len(from);
        Some(from..*done)
    }

    /// This rank's data at the step's source.
    fn source(&self, part: &Range<usize>) -> Src<'a> {
        self.buffer.src(self.step.src.space, self.src + part.start..self.src + part.end)
    }

    /// The data now at the step's destination.
    fn dest_data(&self, part: &Range<usize>) -> Src<'a> {
        self.buffer.src(self.step.dst.space, self.dst + part.start..self.dst + part.end)
    }

    /// The event that `from`'s payload is in the slice's destination.
    fn received<'f>(&self, from: usize, frame: &'f Frame) -> Event<'f>
    where
        'a: 'f,
    {
        Event::Received(from, frame, self.buffer, self.step.dst.space, self.dst)
    }

    fn dest(&self, part: &Range<usize>) -> Dst<'a> {
        self.buffer.dst(self.step.dst.space, self.dst + part.start..self.dst + part.end)
    }

    /// True if the step reads this rank's own contribution, not a partial result.
    fn reads_input(&self) -> bool {
        self.step.src.space == Space::Input
    }

    fn fold_step(&self) -> FoldStep {
        let Step { last, order, .. } = *self.step;
        FoldStep { is_last: last, order, is_own: self.reads_input() }
    }
}

pub(super) struct Slice<'a, 'b> {
    call: &'a LinkCall<'a>,
    operands: Operands<'a, 'b>,
    peers: &'a mut Peers,
    frame: Frame,
    /// The payload is received straight into the destination buffer, not by way of a slot.
    receives_in_place: bool,
    /// The payload is sent straight from the buffer, not by way of a slot.
    sends_in_place: bool,
}

impl<'a, 'b> Slice<'a, 'b> {
    pub(super) fn new(
        call: &'a LinkCall<'a>,
        operands: Operands<'a, 'b>,
        peers: &'a mut Peers,
        frame: Frame,
    ) -> Self {
        let frame = Frame { len: operands.len as u32, ..frame };
        Self { call, operands, peers, frame, receives_in_place: false, sends_in_place: false }
    }

    /// Waits for the slots that the slice needs, then does the step.
    #[inline]
    fn walk(&mut self, wait: &Wait<'_>) -> Result<(), (Stop, usize)> {
        let Step { op, from, to, .. } = *self.operands.step;
        let (from, to) = (from as usize, to as usize);
        self.choose_in_place(op, from, to).map_err(|fault| (fault.into(), from))?;
        if self.receives_in_place {
            let received = self.operands.received(from, &self.frame);
            wait.until(self.peers, received).map_err(|stop| (stop, from))?;
        } else if op.receives() {
            let filled = Event::Filled(from, &self.frame);
            wait.until(self.peers, filled).map_err(|stop| (stop, from))?;
        }
        if op.sends() {
            wait.until(self.peers, Event::Empty(to)).map_err(|stop| (stop, to))?;
        }
        self.run(op, from, to).map_err(|fault| (fault.into(), if op.sends() { to } else { from }))
    }

    /// Does the step, whose slots are ready.
    #[inline]
    fn run(&mut self, op: Op, from: usize, to: usize) -> Result<(), Fault> {
        let frame = self.frame;
        match (op.receives(), op.sends()) {
            (true, true) => self.forward(from, to, &frame),
            (true, false) => self.receive(from),
            (false, true) => self.send(to, &frame),
            (false, false) => {
                self.local();
                Ok(())
            }
        }
    }

    /// Chooses the links that get the buffer itself: system calls then copy to and from it without
    /// a slot. Only for a slice that is contiguous.
    fn choose_in_place(&mut self, op: Op, from: usize, to: usize) -> Result<(), Fault> {
        if !self.peers.links.buffered_peers().is_empty()
            && self.operands.contiguous_len(0) == self.operands.len
        {
            self.receives_in_place =
                op.receives() && !op.reduces() && self.peers.links.rx(from)?.is_syscall_backed();
            self.sends_in_place = op.sends() && self.peers.links.tx(to)?.is_syscall_backed();
        }
        Ok(())
    }

    /// True if the slice is best stored past the caches; the scratch is read again soon.
    fn streaming(&self) -> bool {
        self.call.streaming && self.operands.step.dst.space == Space::Output
    }

    /// Sends this rank's data: the step's source, or the destination that it has just stored to.
    fn send(&mut self, to: usize, frame: &Frame) -> Result<(), Fault> {
        let Self { call: LinkCall { kernel, .. }, ref operands, .. } = *self;
        let send = operands.step.op == Op::Send;
        let contributes = send && operands.reads_input() && kernel.changes_contribution();
        let data = if send { Operands::source } else { Operands::dest_data };
        let tx = self.peers.links.tx(to)?;
        if self.sends_in_place && !contributes {
            let payload = data(operands, &(0..operands.len));
            return tx.send_from(frame, payload);
        }
        let (mut slot, mut done) = (tx.reserve(operands.len)?, 0);
        while let Some(part) = operands.next_part(&mut done) {
            let (mine, out) = (data(operands, &part), slot.part(part));
            if contributes {
                kernel.contribute(out, None, mine);
            } else {
                copy(out, None, mine);
            }
        }
        tx.commit(frame)
    }

    /// Stores the incoming slice, reduced with this rank's data if the step reduces.
    fn receive(&mut self, from: usize) -> Result<(), Fault> {
        let (operands, streaming, mut done) = (self.operands, self.streaming(), 0);
        let rx = self.peers.links.rx(from)?;
        if !self.receives_in_place {
            let incoming = rx.peek(operands.len);
            while let Some(part) = operands.next_part(&mut done) {
                let (out, incoming) = (operands.dest(&part), incoming.part(part.clone()));
                if operands.step.op.reduces() {
                    let mine = operands.source(&part);
                    self.call.kernel.reduce(operands.fold_step(), out, None, mine, incoming);
                } else {
                    copy(out.streaming(streaming), None, incoming);
                }
            }
        }
        rx.release();
        Ok(())
    }

    /// Forwards the incoming slice from slot to slot, reduced with this rank's data if the step
    /// reduces. Where a link takes the buffer itself, the slice goes by way of the buffer, or else
    /// is reduced in the slot that it came in and sent from there.
    fn forward(&mut self, from: usize, to: usize, frame: &Frame) -> Result<(), Fault> {
        if self.operands.step.op.stores() && (self.receives_in_place || self.sends_in_place) {
            self.receive(from)?;
            return self.send(to, frame);
        }
        let (operands, op, mut done) = (self.operands, self.operands.step.op, 0);
        let (rx, tx) = self.peers.links.both(from, to)?;
        if self.sends_in_place
            && let Some((incoming, slot)) = rx.peek_mut(operands.len)
        {
            // Only a reduction forwards what it does not store.
            let mine = operands.source(&(0..operands.len));
            self.call.kernel.reduce(operands.fold_step(), slot, None, mine, incoming);
            tx.send_from(frame, rx.peek(operands.len))?;
            rx.release();
            return Ok(());
        }
        let (incoming, mut slot) = (rx.peek(operands.len), tx.reserve(operands.len)?);
        while let Some(part) = operands.next_part(&mut done) {
            let store = op.stores().then(|| operands.dest(&part));
            let (slot, incoming) = (slot.part(part.clone()), incoming.part(part.clone()));
            if op.reduces() {
                let mine = operands.source(&part);
                self.call.kernel.reduce(operands.fold_step(), slot, store, mine, incoming);
            } else {
                copy(slot, store, incoming);
            }
        }
        tx.commit(frame)?;
        rx.release();
        Ok(())
    }

    /// Does a local step. A copy of a memory to itself does nothing.
    fn local(&mut self) {
        let mut done = 0;
        while let Some(part) = self.operands.next_part(&mut done) {
            self.local_part(&part);
        }
    }

    fn local_part(&self, part: &Range<usize>) {
        let (operands, kernel) = (&self.operands, self.call.kernel);
        let (mine, mut out) = (operands.source(part), operands.dest(part));
        if operands.step.op.reduces() {
            let (stored, step) = (operands.dest_data(part), operands.fold_step());
            if step.is_own && kernel.changes_contribution() {
                // A kernel prepares its local operand only, so this rank's data must be that one.
                let order = step.order.turned();
                kernel.reduce(FoldStep { order, ..step }, out, None, mine, stored);
            } else {
                kernel.reduce(step, out, None, stored, mine);
            }
        } else if operands.reads_input() && kernel.changes_contribution() {
            kernel.contribute(out, None, mine);
        } else if mine.ptr() != out.ptr().cast_const() {
            copy(out.streaming(self.streaming()), None, mine);
        }
    }
}
