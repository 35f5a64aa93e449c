//! The direct executor, for registered buffers of ranks on one host: everybody says that it is
//! ready, reads the others' buffers where they lie, writes to them, and says that it is done.
//! All-reduce is the two-shot form: each rank folds its part of all buffers and writes it to all;
//! broadcast likewise, where each rank sees to its part of the root's.
//! May touch: schedule, memory, shared, link, kernel. Law: the fold is in rank order.
//!
//! What lies outside whole pages, and all of a small buffer, goes over the stages: everybody puts
//! its bytes there before it is ready, and everybody takes or folds what it needs (one-shot). That
//! needs no registration: small calls on any memory can go this way.

mod phase;

use std::ops::Range;

use super::wait::{Halt, Stop, Wait};
use crate::health::Links;
use crate::kernel::{Kernel, copy};
use crate::memory::{Buffer, Dst, Src};
use crate::memory::{Claim, Control, Live};
use crate::schedule::{Collective, Space};
use crate::transport::Fault;

/// Up to so many bytes for each of its ranks, every rank of a host folds for itself. That spares
/// one of two hand-overs, which cost the more the more ranks take turns on a CPU, but takes every
/// line of every stage back from the others' caches: between two ranks 4 KiB took 3.3 us this way
/// and 1.0 us by parts.
const ONE_SHOT: usize = 512;
/// But no more than that, which a stage has room for.
const MOST_ONE_SHOT: usize = 8 << 10;
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

/// The collectives that can go this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// In place.
    Broadcast {
        root: usize,
    },
    Barrier,
}

impl Form {
    /// That of a collective, if it has one.
    pub(crate) fn of(collective: Collective) -> Option<Self> {
        match collective {
            Collective::AllReduce => Some(Self::AllReduce),
            Collective::ReduceScatter => Some(Self::ReduceScatter),
            Collective::AllGather => Some(Self::AllGather),
            Collective::Broadcast { root } => Some(Self::Broadcast { root: root as usize }),
            Collective::Barrier => Some(Self::Barrier),
            _ => None,
        }
    }

    /// The memory that is as long as the whole call, and that the ranks read: what each gives to
    /// an all-gather is in its place in the result first.
    pub(crate) fn whole(self) -> Space {
        if self == Self::AllGather { Space::Output } else { Space::Input }
    }
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) form: Form,
    pub(crate) me: usize,
    /// The world size.
    pub(crate) size: usize,
    /// Bytes of all that is read.
    pub(crate) bytes: usize,
    pub(crate) claim: Claim,
    /// Bytes of an element.
    pub(crate) element: usize,
    pub(crate) kernel: Kernel<'a>,
    /// Is what is written read before? Then it is in the caches anyway.
    pub(crate) is_read: bool,
    /// The registered memory that the call is on; none if all goes over the stages.
    pub(crate) places: Option<Places<'a>>,
    /// What is called, and how.
    pub(crate) fingerprint: u64,
    /// The bits of a fingerprint that only say by which way.
    pub(crate) ways: u64,
}

/// What the ranks read, and what they write to each other, if they do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
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
    call.put_in_place(buffer);
    control.begin();
    for edge in [0..window.start, window.end..call.bytes] {
        let edge =
            if call.form == Form::AllGather { both(&edge, &call.part(call.me)) } else { edge };
        for part in buffer.pieces([call.form.whole()], edge) {
            let staged = staged(&window, &part);
            copy(control.my_stage(staged), None, buffer.src(call.form.whole(), part));
        }
    }
    control.ready(call.claim);
    let mut exposed = Exposed { call, over: false };
    let mut walk = Walk { call, buffer, control, links, wait, window, streaming: false };
    walk.all_reach(READY)?;
    // Who writes what goes by it, so it is no matter of what each rank knows of its caches.
    let most = walk.control.cache(0);
    walk.streaming = !call.is_read && (call.bytes * call.size) as u64 > most;
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
    /// Of equal parts of the whole, that of `rank`.
    fn part(&self, rank: usize) -> Range<usize> {
        let len = self.bytes / self.size;
        rank * len..(rank + 1) * len
    }

    /// What this rank gives to an all-gather belongs in its part of the result.
    fn put_in_place(&self, buffer: &Buffer<'_>) {
        if self.form == Form::AllGather {
            let mine = buffer.src(Space::Input, 0..buffer.len(Space::Input));
            let mut there = buffer.dst(Space::Output, self.part(self.me));
            if mine.ptr() != there.ptr() {
                copy(there, None, mine);
            }
        }
    }

    fn withdraw(&self) {
        let window = self.window();
        let Some(Places { input, output }) = self.places.filter(|_| !window.is_empty()) else {
            return;
        };
        let other =
            |output: &Span<'_>| !(std::ptr::eq(output.live, input.live) && output.at == input.at);
        for Span { live, at } in std::iter::once(input).chain(output.filter(other)) {
            live.withdraw(at + window.start..at + window.end);
        }
    }

    /// What is wrong where another rank makes `theirs` over links.
    fn apart_from(&self, theirs: Claim) -> Stop {
        let differs = |field, ours, theirs| Stop::Fault(Fault::Mismatch { field, ours, theirs });
        let ours = self.claim.sequence;
        let another = (theirs.fingerprint ^ self.fingerprint) & !self.ways != 0;
        if theirs.sequence == ours && another {
            differs("fingerprint", self.fingerprint, theirs.fingerprint)
        } else if self.places.is_some() {
            Stop::Fault(Fault::memory(true))
        } else if theirs.sequence == ours {
            differs("fingerprint", self.fingerprint, theirs.fingerprint)
        } else {
            differs("sequence", ours, theirs.sequence)
        }
    }

    /// The bytes that are read and written where they lie; all others go over the stages.
    fn window(&self) -> Range<usize> {
        let small = self.bytes <= (ONE_SHOT * self.size).min(MOST_ONE_SHOT);
        let Some(Places { input, output }) = self.places.filter(|_| !small) else {
            return 0..0;
        };
        let Range { mut start, mut end } = input.window(self.bytes);
        if let Some(output) = output {
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
    /// Do all results together exceed the caches? Then they are stored past them.
    streaming: bool,
}

impl Walk<'_> {
    fn work(&mut self) {
        let Call { form, me, size, bytes, .. } = *self.call;
        let part = |rank: usize| self.call.part(rank);
        // All three on the same side of the borders, or in the middle.
        let zones = [0..self.window.start, self.window.clone(), self.window.end..bytes];
        for zone in zones.into_iter().filter(|zone| !zone.is_empty()) {
            match form {
                Form::AllReduce if self.is_direct(&zone) => {
                    let part = self.share();
                    self.fold(part, true);
                }
                Form::AllReduce => self.fold(zone, false),
                Form::ReduceScatter => self.fold(both(&zone, &part(me)), false),
                Form::AllGather if self.is_direct(&zone) && self.streaming => {
                    self.spread(both(&zone, &part(me)), me);
                }
                Form::AllGather => {
                    for rank in (me + 1..size).chain(0..me) {
                        self.take(rank, both(&zone, &part(rank)));
                    }
                }
                Form::Broadcast { root } if self.is_direct(&zone) => {
                    self.spread(self.share(), root);
                }
                Form::Broadcast { root } if root == me => {}
                Form::Broadcast { root } => self.take(root, zone),
                Form::Barrier => {}
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
        match self.call.places {
            Some(Places { input, .. }) if self.is_direct(&range) => input.src(rank, range),
            _ => self.control.staged(rank, staged(&self.window, &range)),
        }
    }

    /// Where this rank keeps the result at `range`. Of a reduce-scatter it keeps its part alone.
    fn result(&self, range: Range<usize>) -> Dst<'_> {
        let range = range.start - self.skipped()..range.end - self.skipped();
        self.buffer.dst(Space::Output, range).streaming(self.streaming)
    }

    /// How many bytes of the whole are before what this rank's output has.
    fn skipped(&self) -> usize {
        let Call { form, me, .. } = *self.call;
        if form == Form::ReduceScatter { self.call.part(me).start } else { 0 }
    }

    /// `range` from `rank`.
    fn take(&self, rank: usize, range: Range<usize>) {
        for part in self.in_pieces(range) {
            copy(self.result(part.clone()), None, self.of(rank, part));
        }
    }

    /// The parts of `range` that are in one piece in this rank's result.
    fn in_pieces(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let skipped = self.skipped();
        let own = range.start.saturating_sub(skipped)..range.end.saturating_sub(skipped);
        let parts = self.buffer.pieces([Space::Output], own);
        parts.map(move |part| part.start + skipped..part.end + skipped)
    }

    /// `range` from `root` to all others, by blocks, so that it is read from afar but once.
    fn spread(&self, range: Range<usize>, root: usize) {
        let (size, streaming) = (self.call.size, self.streaming);
        let Some(Places { input, .. }) = self.call.places else { return };
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
        let Call { me, size, kernel, places, .. } = *self.call;
        let output = places.and_then(|places| places.output).filter(|_| for_all);
        for range in self.in_pieces(range) {
            let source = |rank: usize| self.of(rank.min(size - 1), range.clone());
            let sources: [Src<'_>; MOST] = std::array::from_fn(source);
            let sources = &sources[..size];
            let Some(output) = output else {
                kernel.fold(true, &mut [self.result(range.clone())], sources);
                continue;
            };
            // My own comes first: what is made there is copied to the others.
            let out = |i: usize| {
                output.dst((me + i.min(size)) % size, range.clone()).streaming(self.streaming)
            };
            let mut outs: [Dst<'_>; MOST] = std::array::from_fn(out);
            kernel.fold(true, &mut outs[..size], sources);
        }
    }
}

fn both(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}
