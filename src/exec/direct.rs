//! The direct executor, for ranks of one host that share memory: each rank publishes that it is
//! ready, reads its peers' data in place, and publishes that it is done. With little data, each
//! rank copies its own to its stage before it is ready, and folds or copies what it needs for
//! itself (one-shot). Registered buffers are in `registered`.
//! Law: the fold is in rank order.

pub(crate) mod registered;

use std::ops::Range;

use super::region_wait::RegionWait;
use super::wait::{Halt, Wait};
use crate::health::Peers;
use crate::kernel::{Kernel, copy};
use crate::memory::{Buffer, CallId, Dst, HostRegion, PeerBuffers, Src};
use crate::schedule::{Collective, Phase, Space, StageShape};

/// Bytes copied to several ranks before the next block is read: a block stays in the nearest cache.
const COPY_BLOCK: usize = 4 << 10;
/// The parts of a call begin at multiples of a cache line.
pub(super) const LINE: usize = 64;

/// The memory that is as long as the whole call and that peers read. For an all-gather it is the
/// output: each rank first copies its own chunk to its place there.
pub(crate) fn read_space(collective: Collective) -> Space {
    if collective == Collective::AllGather { Space::Output } else { Space::Input }
}

/// One call of a collective in the region of a host.
#[derive(Debug)]
pub(crate) struct RegionCall<'a> {
    /// One of those that the algorithm makes.
    pub(crate) collective: Collective,
    pub(crate) me: usize,
    pub(crate) size: usize,
    /// Bytes of the memory in [`read_space`].
    pub(crate) bytes: usize,
    /// In a staged call: bytes from the start of a rank's chunk to the start of the next rank's.
    pub(crate) stride: usize,
    /// In a staged call: bytes of all ranks' chunks together. Chunks that would go beyond are
    /// shorter, or empty.
    pub(crate) total: usize,
    pub(crate) call_id: CallId,
    /// Bytes of an element.
    pub(crate) element: usize,
    pub(crate) kernel: &'a Kernel<'a>,
    /// True if no other ranks contribute to the reduction: an average then divides.
    pub(crate) is_last: bool,
    /// True if the written memory was read before. The caches then hold it, so stores stay cached.
    pub(crate) is_read: bool,
}

impl RegionCall<'_> {
    /// Bytes of the longest part of `len` bytes that a rank folds.
    pub(super) fn share(&self, len: usize) -> usize {
        let granule = if LINE.is_multiple_of(self.element) { LINE } else { self.element };
        len.div_ceil(self.size).next_multiple_of(granule)
    }

    /// The part of `len` bytes that `rank` folds.
    pub(super) fn part_of(&self, rank: usize, len: usize) -> Range<usize> {
        let share = self.share(len);
        let from = (share * rank).min(len);
        from..(from + share).min(len)
    }
}

/// Makes the call over `buffer`, this rank's own, over the stages.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, or if the call
/// is aborted.
pub(crate) fn run(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    call.copy_own_chunk(buffer);
    region.make_room(call.bytes).map_err(Halt::no_memory)?;
    let first = region.begin(1);
    let mut waits = RegionWait { region, peers, wait, call_id: call.call_id, first };
    hand_over_edges(call, buffer, &mut waits, &(0..0))?;
    Walk::new(call, buffer, (waits.region, first), (None, 0..0)).execute();
    waits.region.publish_finished(first + 1);
    Ok(())
}

/// Hands the bytes outside of the window over to all ranks, on the stages.
fn hand_over_edges(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    waits: &mut RegionWait<'_>,
    window: &Range<usize>,
) -> Result<(), Halt> {
    waits.until_slot_is_free()?;
    let first = waits.first;
    let staged_len = call.bytes - window.len();
    let (region, space) = (waits.region, read_space(call.collective));
    let edges = [0..window.start, window.end..call.bytes].map(|edge| match call.collective {
        Collective::AllGather => overlap(&edge, &call.part(call.me)),
        _ => edge,
    });
    region.fill_slot(edges.iter().map(Range::len).sum(), |streams_in| {
        for part in edges.into_iter().flat_map(|edge| buffer.pieces([space], edge)) {
            let slot = region.my_slot(first, staged_len, staged(window, &part));
            copy(slot.streaming(streams_in), None, buffer.src(space, part));
        }
    });
    waits.region.publish_block(first, call.call_id);
    waits.record(Phase::CopyIn);
    waits.until_all_begin()
}

/// The offset on a stage of `edge`, which lies outside the window.
fn staged(window: &Range<usize>, edge: &Range<usize>) -> Range<usize> {
    let skip = if edge.start >= window.end { window.len() } else { 0 };
    edge.start - skip..edge.end - skip
}

impl RegionCall<'_> {
    /// The part of `rank`, of `size` equal parts of the whole.
    fn part(&self, rank: usize) -> Range<usize> {
        let len = self.bytes / self.size;
        rank * len..(rank + 1) * len
    }

    /// Copies this rank's chunk of an all-gather, or the root's input of a broadcast, to its place
    /// in the output.
    fn copy_own_chunk(&self, buffer: &Buffer<'_>) {
        let own = match self.collective {
            Collective::AllGather => self.part(self.me),
            Collective::Broadcast { root } if root as usize == self.me => 0..self.bytes,
            _ => return,
        };
        let mine = buffer.src(Space::Input, 0..own.len());
        let mut place = buffer.dst(Space::Output, own);
        if mine.ptr() != place.ptr() {
            copy(place, None, mine);
        }
    }
}

struct Walk<'a> {
    call: &'a RegionCall<'a>,
    buffer: &'a Buffer<'a>,
    region: &'a HostRegion,
    /// The number of the call's only block.
    first: u64,
    /// The buffers of all ranks, if they are registered.
    registered: Option<&'a PeerBuffers>,
    /// The bytes that are read and written in place; all other bytes go over the stages.
    window: Range<usize>,
    /// True if the results of all ranks exceed the caches: stores then bypass them.
    streaming: bool,
}

impl<'a> Walk<'a> {
    fn new(
        call: &'a RegionCall<'a>,
        buffer: &'a Buffer<'a>,
        (region, first): (&'a HostRegion, u64),
        (registered, window): (Option<&'a PeerBuffers>, Range<usize>),
    ) -> Self {
        // The choice of stores also decides which rank writes what in an all-gather, so all ranks
        // go by one cache size: rank 0's.
        let streaming = !call.is_read && (call.bytes * call.size) as u64 > region.cache(0);
        Self { call, buffer, region, first, registered, window, streaming }
    }

    fn execute(&self) {
        let RegionCall { collective, me, size, bytes, .. } = *self.call;
        let part = |rank: usize| self.call.part(rank);
        // Each zone lies wholly inside the window or wholly on one side of it.
        let zones = [0..self.window.start, self.window.clone(), self.window.end..bytes];
        for zone in zones.into_iter().filter(|zone| !zone.is_empty()) {
            match collective {
                Collective::AllReduce if self.is_direct(&zone) => {
                    let part = self.my_part();
                    self.fold(part, true);
                }
                Collective::AllReduce => self.fold(zone, false),
                Collective::ReduceScatter => self.fold(overlap(&zone, &part(me)), false),
                Collective::AllGather if self.is_direct(&zone) && self.streaming => {
                    self.copy_to_all(overlap(&zone, &part(me)), me);
                }
                Collective::AllGather => {
                    for rank in (me + 1..size).chain(0..me) {
                        self.fetch(rank, overlap(&zone, &part(rank)));
                    }
                }
                Collective::Broadcast { root } if self.is_direct(&zone) => {
                    self.copy_to_all(self.my_part(), root as usize);
                }
                Collective::Broadcast { root } if root as usize == me => {}
                Collective::Broadcast { root } => self.fetch(root as usize, zone),
                _ => {}
            }
        }
    }

    fn is_direct(&self, range: &Range<usize>) -> bool {
        self.window.start <= range.start && range.end <= self.window.end
    }

    /// The part of the window that this rank works on for all ranks.
    fn my_part(&self) -> Range<usize> {
        let (start, part) = (self.window.start, self.call.part_of(self.call.me, self.window.len()));
        start + part.start..start + part.end
    }

    /// The data of `rank` at `range`, in its buffer or on its stage. This rank's own stage may have
    /// been filled past the cache.
    fn source(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let is_mine = rank == self.call.me && self.registered.is_none();
        match self.registered {
            Some(buffers) if self.is_direct(&range) => buffers.src(rank, range),
            _ if is_mine && self.is_contiguous(&range) => self.buffer.src(Space::Input, range),
            _ => {
                let staged_len = self.call.bytes - self.window.len();
                let range = staged(&self.window, &range);
                self.region.slot(rank, self.first, staged_len, range)
            }
        }
    }

    fn is_contiguous(&self, range: &Range<usize>) -> bool {
        self.buffer.contiguous_len(Space::Input, range.start, range.len()) == range.len()
    }

    /// The memory of this rank's result at `range` of the whole. The output of a reduce-scatter is
    /// this rank's part alone.
    fn result(&self, range: Range<usize>) -> Dst<'_> {
        let range = range.start - self.output_start()..range.end - self.output_start();
        self.buffer.dst(Space::Output, range).streaming(self.streaming)
    }

    /// Bytes of the whole that come before this rank's output.
    fn output_start(&self) -> usize {
        let RegionCall { collective, me, .. } = *self.call;
        if collective == Collective::ReduceScatter { self.call.part(me).start } else { 0 }
    }

    /// Copies `range` of `rank` into this rank's result.
    fn fetch(&self, rank: usize, range: Range<usize>) {
        for part in self.contiguous_parts(range) {
            copy(self.result(part.clone()), None, self.source(rank, part));
        }
    }

    /// The parts of `range` that are contiguous in this rank's result.
    fn contiguous_parts(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let output_start = self.output_start();
        let relative =
            range.start.saturating_sub(output_start)..range.end.saturating_sub(output_start);
        let parts = self.buffer.pieces([Space::Output], relative);
        parts.map(move |part| part.start + output_start..part.end + output_start)
    }

    /// Copies `range` of `root` to all other ranks. Each block leaves the root's memory once.
    fn copy_to_all(&self, range: Range<usize>, root: usize) {
        let (size, streaming) = (self.call.size, self.streaming);
        let Some(buffers) = self.registered else { return };
        let mut from = range.start;
        while from < range.end {
            let block = from..range.end.min(from + COPY_BLOCK);
            for rank in (root + 1..size).chain(0..root) {
                let out = buffers.dst(rank, block.clone()).streaming(streaming);
                copy(out, None, buffers.src(root, block.clone()));
            }
            from = block.end;
        }
    }

    /// Folds `range` of all ranks in rank order, into all ranks' outputs or into this rank's alone.
    fn fold(&self, range: Range<usize>, for_all: bool) {
        // The views are arrays on the stack, so that a call allocates nothing.
        match self.call.size {
            0..=8 => self.fold_of_up_to::<8>(range, for_all),
            9..=64 => self.fold_of_up_to::<64>(range, for_all),
            _ => self.fold_of_up_to::<{ StageShape::MOST_RANKS }>(range, for_all),
        }
    }

    fn fold_of_up_to<const MAX: usize>(&self, range: Range<usize>, for_all: bool) {
        let RegionCall { me, size, kernel, is_last, .. } = *self.call;
        let output = self.registered.filter(|_| for_all);
        for range in self.contiguous_parts(range) {
            let mut sources = [self.source(0, range.clone()); MAX];
            for (rank, source) in sources[..size].iter_mut().enumerate().skip(1) {
                *source = self.source(rank, range.clone());
            }
            let sources = &sources[..size];
            let Some(output) = output else {
                kernel.fold(is_last, &mut [self.result(range.clone())], sources);
                continue;
            };
            // This rank's output is first: the kernel folds into it and then copies to the others.
            let out = |i: usize| {
                output.dst((me + i.min(size)) % size, range.clone()).streaming(self.streaming)
            };
            let mut outs: [Dst<'_>; MAX] = std::array::from_fn(out);
            kernel.fold(is_last, &mut outs[..size], sources);
        }
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}
