//! The two-level executor, for several hosts whose ranks each share a region: an all-reduce is a
//! reduce-scatter over the stages of each host, a walk of a schedule between hosts for this rank's
//! part, and an all-gather over the stages.
//! Law: the steps of a call are numbered through all three.

use super::direct::Call;
use super::host;
use super::staged;
use super::wait::{Halt, Wait};
use crate::health::Peers;
use crate::memory::{Buffer, HostRegion};
use crate::partition::Partition;
use crate::schedule::{Collective, Phase, Place, Space};

/// Steps of a call over stages: its phases.
const PHASES: usize = Phase::CopyOut as usize + 1;

/// Makes an all-reduce over `buffer`, this rank's own. `parts` are those of the ranks of a host,
/// `between` is the call between hosts over this rank's part, and `streaming` says whether the
/// result is stored past the cache.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, or if the call
/// is aborted.
pub(crate) fn run(
    (call, between, streaming): (&Call<'_>, &host::Call<'_>, bool),
    parts: &Partition<'_>,
    (buffer, scratch): (&Buffer<'_>, &mut [u8]),
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    let part = |index: usize| parts.chunk(Place::output(index as u32));
    let (mine, bytes, total) = (part(call.me), part(0).len(), buffer.len(Space::Output));
    let later = |steps| move |halt: Halt| Halt { step: halt.step + steps, ..halt };

    let collective = Collective::ReduceScatter;
    let scatter = Call { collective, bytes, total, is_last: false, ..*call };
    let reduced = buffer.view((Space::Input, 0..total), mine.clone());
    staged::run(&scatter, &reduced, false, region, peers, wait)?;

    let wait = Wait { first_step: PHASES, ..*wait };
    host::run(between, &reduced.with_scratch(scratch), peers, &wait).map_err(later(PHASES))?;

    let steps = PHASES + between.schedule.steps.len();
    let wait = Wait { first_step: steps, ..wait };
    let gather = Call { collective: Collective::AllGather, ..scatter };
    let gathered = buffer.view((Space::Output, mine), 0..total);
    staged::run(&gather, &gathered, streaming, region, peers, &wait).map_err(later(steps))
}
