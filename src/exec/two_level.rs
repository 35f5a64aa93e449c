//! The two-level executor, for several hosts whose ranks each share a region: it reduces each chunk
//! of all parts over the stages of its host, walks the steps between hosts for this rank's part,
//! and gathers the results over the stages, in the order of `two_level_steps`.
//! Law: records and errors number the steps of a round from 0, and each item of the list takes as
//! many numbers as a staged call has phases.

use std::ops::Range;

use super::direct;
use super::host;
use super::staged;
use super::wait::{Halt, Wait};
use crate::health::Peers;
use crate::memory::{Buffer, HostRegion};
use crate::partition::Partition;
use crate::schedule::{Collective, Phase, Place, Space, TwoLevelStep, two_level_steps};

/// Phases of a call over stages.
const PHASES: usize = Phase::CopyOut as usize + 1;

/// A two-level all-reduce.
pub(crate) struct TwoLevelCall<'a> {
    /// The reduce-scatter of all parts among the ranks of this host.
    pub(crate) within: direct::RegionCall<'a>,
    /// The call between hosts over this rank's part.
    pub(crate) between: &'a host::LinkCall<'a>,
    /// How all parts are cut, if they are not shorter.
    pub(crate) cut: &'a Partition<'static>,
    /// True if results are stored past the cache.
    pub(crate) streaming: bool,
}

/// Makes the call over `buffer`, this rank's own.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, or if the call
/// is aborted.
pub(crate) fn run(
    call: &TwoLevelCall<'_>,
    buffer: &Buffer<'_>,
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    let TwoLevelCall { between, cut, streaming, .. } = *call;
    let of_link = &Wait { call: Some(between.frame), ..*wait };
    let mine = buffer.view((Space::Input, 0..0), call.part(call.within.me));
    // A turn costs two hand-overs in the region: 256 KiB among two hosts of two ranks, in one
    // round, took 0.35 ms with all chunks at once and 0.5 ms in turns; 4 MiB, in rounds, 7.0 and
    // 5.4 ms.
    let in_turns = cut.rounds() > 1;
    for round in 0..cut.rounds() {
        let mut number = 0;
        for item in two_level_steps(between.schedule, in_turns) {
            let (collective, chunks) = match item {
                TwoLevelStep::Between(at) => {
                    let step = (round, number, &between.schedule.steps[at]);
                    host::walk_step(between, step, &mine, peers, of_link)?;
                    number += PHASES;
                    continue;
                }
                TwoLevelStep::Scatter(chunks) => (Collective::ReduceScatter, chunks),
                TwoLevelStep::Gather(chunks) => (Collective::AllGather, chunks),
            };
            let [first, last] = [chunks.start, chunks.end - 1].map(Place::output);
            let piece = cut.piece(round, first).start..cut.piece(round, last).end;
            if !piece.is_empty() {
                let wait = &Wait { first_step: number, ..*wait };
                let (within, buffer) = call.of_piece(collective, &piece, buffer);
                // Partial sums are read again by the next step between hosts.
                let streaming = streaming && collective == Collective::AllGather;
                let done = staged::run(&within, &buffer, streaming, region, peers, wait);
                done.map_err(|halt| Halt { step: halt.step + number, ..halt })?;
            }
            number += PHASES;
        }
    }
    let last = PHASES * two_level_steps(between.schedule, in_turns).count();
    let flushed = of_link.until_flushed(peers);
    flushed.map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

impl TwoLevelCall<'_> {
    /// The part of the rank of the host with this index.
    fn part(&self, index: usize) -> Range<usize> {
        let direct::RegionCall { stride, total, .. } = self.within;
        let at = |index: usize| (index * stride).min(total);
        at(index)..at(index + 1)
    }

    /// The call over stages for `piece` of all parts, and its buffer: this rank's piece is the
    /// output of a reduce-scatter, and the input of an all-gather.
    fn of_piece<'b>(
        &self,
        collective: Collective,
        piece: &Range<usize>,
        buffer: &'b Buffer<'_>,
    ) -> (direct::RegionCall<'_>, Buffer<'b>) {
        let within = &self.within;
        let all = piece.start..within.total;
        let part = self.part(within.me);
        let at = |byte: usize| (part.start + byte).min(part.end);
        let mine = at(piece.start)..at(piece.end);
        let buffer = match collective {
            Collective::AllGather => buffer.view((Space::Output, mine), all.clone()),
            _ => buffer.view((Space::Input, all.clone()), mine),
        };
        let (bytes, total) = (piece.len(), all.len());
        (direct::RegionCall { collective, bytes, total, ..*within }, buffer)
    }
}
