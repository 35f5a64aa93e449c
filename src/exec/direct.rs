//! The direct executor, for registered buffers of ranks on one host: everybody says that it is
//! ready, reads the others' buffers where they lie, writes to them, and says that it is done.
//! All-reduce is the two-shot form: each rank folds its part of all buffers and writes it to all;
//! broadcast likewise, where each rank sees to its part of the root's.
//! May touch: schedule, memory, shared, link, kernel. Law: the fold is in rank order.
//!
//! What lies outside whole pages, and all of a small buffer, goes over the stages: everybody puts
//! its bytes there before it is ready, and everybody takes or folds what it needs (one-shot).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::wait::{GLANCE, Halt, Stop, Wait};
use crate::kernel::{Kernel, copy};
use crate::link::{Fault, Links};
use crate::memory::{Buffer, Dst, Src};
use crate::schedule::Collective;
use crate::shared::{Claim, Control, Live};

/// Up to so many bytes for each of its ranks, every rank of a host folds for itself. That spares
/// one of two hand-overs, which cost the more the more ranks take turns on a CPU, but takes every
/// line of every stage back from the others' caches: between two ranks 4 KiB took 3.3 us this way
/// and 1.0 us by parts.
const ONE_SHOT: usize = 512;
/// The most ranks that can share registered memory.
pub(crate) const MOST_RANKS: usize = 1024;
/// What is copied to several ranks at a time: it stays in the nearest cache.
const BLOCK: usize = 4 << 10;
/// Parts begin at multiples of this.
const LINE: usize = 64;

/// A registered buffer, from an offset on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) live: &'a Live,
    pub(crate) at: usize,
}

impl<'a> Span<'a> {
    fn window(&self, len: usize) -> Range<usize> {
        let window = self.live.window(self.at..self.at + len);
        let end = window.end.max(window.start);
        window.start - self.at..end - self.at
    }

    fn src(&self, rank: usize, range: Range<usize>) -> Src<'a> {
        self.live.src(rank, self.at + range.start..self.at + range.end)
    }

    fn dst(&self, rank: usize, range: Range<usize>) -> Dst<'a> {
        self.live.dst(rank, self.at + range.start..self.at + range.end)
    }
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) collective: Collective,
    pub(crate) me: usize,
    /// The world size.
    pub(crate) size: usize,
    /// Bytes of the whole buffer.
    pub(crate) bytes: usize,
    pub(crate) claim: Claim,
    /// Bytes of an element.
    pub(crate) element: usize,
    pub(crate) kernel: Kernel<'a>,
    /// Are the results larger than the caches? Then they are stored past them.
    pub(crate) streaming: bool,
    /// What the ranks read, and what they write to each other, if they do.
    pub(crate) input: Span<'a>,
    pub(crate) output: Option<Span<'a>>,
}

/// The steps of a direct call, as errors count them.
const READY: usize = 0;
const DONE: usize = 1;

/// Makes the call over `buffer`, this rank's own.
///
/// # Errors
/// If a peer makes another call, is lost or does not come before the deadline, or the call is
/// aborted. Nobody's buffer has been written if the ranks do not all make the same call.
pub(crate) fn run(
    call: &Call<'_>,
    buffer: &Buffer<'_>,
    control: &mut Control,
    links: &mut Links,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    let window = call.window();
    control.begin();
    for edge in [0..window.start, window.end..call.bytes] {
        if !edge.is_empty() {
            let staged = staged(&window, &edge);
            copy(control.my_stage(staged), None, buffer.src(edge));
        }
    }
    control.ready(call.claim);
    let mut exposed = Exposed { call, over: false };
    let mut walk = Walk { call, buffer, control, links, wait, window };
    walk.all_reach(READY)?;
    walk.work();
    if !walk.window.is_empty() {
        walk.control.done();
        walk.all_reach(DONE)?;
    }
    exposed.over = true;
    Ok(())
}

/// A call in which the others read and write this rank's buffer. When it ends before its time (a
/// failure, or a panic of the user's function), what they do late shall not meet the user.
struct Exposed<'a> {
    call: &'a Call<'a>,
    over: bool,
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.call.withdraw();
        }
    }
}

/// Where `edge`, which lies outside the window, is on a stage.
fn staged(window: &Range<usize>, edge: &Range<usize>) -> Range<usize> {
    let skip = if edge.start >= window.end { window.len() } else { 0 };
    edge.start - skip..edge.end - skip
}

impl Call<'_> {
    fn withdraw(&self) {
        let window = self.window();
        if window.is_empty() {
            return;
        }
        let other = |output: &&Span<'_>| {
            !(std::ptr::eq(output.live, self.input.live) && output.at == self.input.at)
        };
        for Span { live, at } in
            std::iter::once(&self.input).chain(self.output.iter().filter(other))
        {
            live.withdraw(at + window.start..at + window.end);
        }
    }

    /// The bytes that are read and written where they lie; all others go over the stages.
    fn window(&self) -> Range<usize> {
        if self.bytes <= ONE_SHOT * self.size {
            return 0..0;
        }
        let Range { mut start, mut end } = self.input.window(self.bytes);
        if let Some(output) = &self.output {
            let other = output.window(self.bytes);
            (start, end) = (start.max(other.start), end.min(other.end));
        }
        (start, end) = (start.next_multiple_of(self.element), end - end % self.element);
        if start < end { start..end } else { 0..0 }
    }
}

/// A call under way.
struct Walk<'a> {
    call: &'a Call<'a>,
    buffer: &'a Buffer<'a>,
    control: &'a mut Control,
    links: &'a mut Links,
    wait: &'a Wait<'a>,
    window: Range<usize>,
}

impl Walk<'_> {
    fn work(&mut self) {
        let Call { collective, me, size, bytes, .. } = *self.call;
        let part = |rank: usize| rank * (bytes / size)..(rank + 1) * (bytes / size);
        // All three on the same side of the borders, or in the middle.
        let zones = [0..self.window.start, self.window.clone(), self.window.end..bytes];
        for zone in zones.into_iter().filter(|zone| !zone.is_empty()) {
            match collective {
                Collective::AllReduce if self.is_direct(&zone) => {
                    let part = self.share();
                    self.fold(part, true);
                }
                Collective::AllReduce | Collective::Barrier => self.fold(zone, false),
                Collective::ReduceScatter => self.fold(both(&zone, &part(me)), false),
                Collective::AllGather if self.is_direct(&zone) && self.call.streaming => {
                    self.spread(both(&zone, &part(me)), me);
                }
                Collective::AllGather => {
                    for rank in (me + 1..size).chain(0..me) {
                        self.take(rank, both(&zone, &part(rank)));
                    }
                }
                Collective::Broadcast { root } if self.is_direct(&zone) => {
                    self.spread(self.share(), root as usize);
                }
                Collective::Broadcast { root } if root as usize == me => {}
                Collective::Broadcast { root } => self.take(root as usize, zone),
            }
        }
    }

    fn is_direct(&self, range: &Range<usize>) -> bool {
        self.window.start <= range.start && range.end <= self.window.end
    }

    /// The part of the window that this rank sees to for all.
    fn share(&self) -> Range<usize> {
        let Call { me, size, .. } = *self.call;
        let Range { start, end } = self.window;
        let whole = if LINE.is_multiple_of(self.call.element) { LINE } else { self.call.element };
        let share = (end - start).div_ceil(size).next_multiple_of(whole);
        let from = (start + share * me).min(end);
        from..(from + share).min(end)
    }

    /// What `rank` has at `range`.
    fn of(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        match self.is_direct(&range) {
            true => self.call.input.src(rank, range),
            false => self.control.staged(rank, staged(&self.window, &range)),
        }
    }

    /// `range` from `rank`.
    fn take(&self, rank: usize, range: Range<usize>) {
        if !range.is_empty() {
            let out = self.buffer.dst(range.clone()).streaming(self.call.streaming);
            copy(out, None, self.of(rank, range));
        }
    }

    /// `range` from `root` to all others, by blocks, so that it is read from afar but once.
    fn spread(&self, range: Range<usize>, root: usize) {
        let Call { size, input, streaming, .. } = *self.call;
        let mut from = range.start;
        while from < range.end {
            let block = from..range.end.min(from + BLOCK);
            for rank in (root + 1..size).chain(0..root) {
                let out = input.dst(rank, block.clone()).streaming(streaming);
                copy(out, None, input.src(root, block.clone()));
            }
            from = block.end;
        }
    }

    /// Folds `range` of all ranks, for all of them or for this one.
    fn fold(&self, range: Range<usize>, for_all: bool) {
        // Views on the stack, so that nothing allocates.
        match self.call.size {
            0..=8 => self.fold_among::<8>(range, for_all),
            9..=64 => self.fold_among::<64>(range, for_all),
            _ => self.fold_among::<MOST_RANKS>(range, for_all),
        }
    }

    fn fold_among<const MOST: usize>(&self, range: Range<usize>, for_all: bool) {
        if range.is_empty() {
            return;
        }
        let Call { me, size, kernel, streaming, .. } = *self.call;
        let source = |rank: usize| self.of(rank.min(size - 1), range.clone());
        let sources: [Src<'_>; MOST] = std::array::from_fn(source);
        let sources = &sources[..size];
        match self.call.output {
            Some(output) if for_all => {
                // My own comes first: what is made there is copied to the others.
                let out = |i: usize| {
                    output.dst((me + i.min(size)) % size, range.clone()).streaming(streaming)
                };
                let mut outs: [Dst<'_>; MOST] = std::array::from_fn(out);
                kernel.fold(true, &mut outs[..size], sources);
            }
            _ => {
                let out = self.buffer.dst(range.clone()).streaming(streaming);
                kernel.fold(true, &mut [out], sources);
            }
        }
    }

    /// Waits for all others to be ready with the same claim, or to be done.
    fn all_reach(&mut self, step: usize) -> Result<(), Halt> {
        let Call { me, size, .. } = *self.call;
        for peer in (me + 1..size).chain(0..me) {
            let reached = self.reach(peer, step);
            reached.map_err(|(stop, peer)| Halt { stop, step, peer })?;
            if step == READY {
                let (ours, theirs) = (self.call.claim, self.control.claim(peer));
                let differs = |field, ours, theirs| {
                    let stop = Stop::Fault(Fault::Mismatch { field, ours, theirs });
                    Err(Halt { stop, step, peer })
                };
                if ours.sequence != theirs.sequence {
                    return differs("sequence", ours.sequence, theirs.sequence);
                }
                if ours.fingerprint != theirs.fingerprint {
                    return differs("fingerprint", ours.fingerprint, theirs.fingerprint);
                }
            }
        }
        Ok(())
    }

    fn reach(&mut self, peer: usize, step: usize) -> Result<(), (Stop, usize)> {
        let reached = |control: &Control| control.reached(peer, step == DONE);
        if reached(self.control) {
            return Ok(());
        }
        let mut round = 0_u32;
        let patience = self.wait.patience.begin(false);
        while patience.wait(round) {
            if reached(self.control) {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) && self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
        }
        self.parked(peer, step, patience.began())
    }

    fn parked(&mut self, peer: usize, step: usize, began: Instant) -> Result<(), (Stop, usize)> {
        loop {
            if self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, peer));
            }
            self.all_come(step)?;
            if self.control.reached(peer, step == DONE) {
                return Ok(());
            }
            let waited = began.elapsed();
            if waited >= self.wait.timeout {
                return Err((Stop::Timeout(self.wait.timeout), peer));
            }
            let limit = GLANCE.min(self.wait.timeout - waited);
            self.control.sleep(peer, step == DONE, limit);
        }
    }

    /// Can all others still come? Whoever is there already may leave.
    fn all_come(&mut self, step: usize) -> Result<(), (Stop, usize)> {
        let Call { me, size, .. } = *self.call;
        let control = &*self.control;
        for peer in (me + 1..size).chain(0..me) {
            if control.reached(peer, step == DONE) {
                continue;
            }
            if control.is_elsewhere(peer, self.call.claim.sequence) {
                return Err((Stop::Memory { registered: true }, peer));
            }
            let lost = match (control.is_closed(peer), control.given_up_by(peer)) {
                (true, _) => Err(Fault::Lost("it closed its communicator".into())),
                // Only neighbours see a rank die; they tell the others.
                (false, Some(by)) => Err(Fault::Lost(format!("rank {by} gave up on it"))),
                (false, None) => self.links.check_alive(peer),
            };
            // It may have got there just before it left.
            if let Err(fault) = lost
                && !control.reached(peer, step == DONE)
            {
                return Err((Stop::Fault(fault), peer));
            }
        }
        Ok(())
    }
}

fn both(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}
