//! The workers of a group together: hierarchical parameter servers. The first rank of the
//! group's communicator speaks to the servers.

use ringreduce::{Communicator, ReduceOp, Result};

/// The outcome of a fetch or a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_done: bool,
    /// Whether all ranks make a change of the membership now.
    pub(crate) is_change: bool,
    /// Whether all workers end after this step.
    pub(crate) is_stop: bool,
}

/// Makes each rank's mean gradient that of all samples of the group, at the first rank, and returns
/// their number there.
pub(crate) fn sum_gradients(
    group: &mut Communicator,
    mean: &mut [f32],
    samples: u64,
) -> Result<u64> {
    let weight = samples as f32;
    mean.iter_mut().for_each(|it| *it *= weight);
    group.reduce(mean, ReduceOp::Sum, 0)?;
    let mut total = [samples];
    group.reduce(&mut total, ReduceOp::Sum, 0)?;
    let weight = total[0].max(1) as f32;
    mean.iter_mut().for_each(|it| *it /= weight);
    Ok(total[0])
}

/// Gives all ranks what the first one has got from the servers.
pub(crate) fn share_outcome(
    group: &mut Communicator,
    outcome: &mut Outcome,
    versions: &mut [u64],
    values: &mut [f32],
) -> Result<()> {
    let Outcome { is_done, is_change, is_stop } = *outcome;
    let mut words: Vec<u64> = [is_done, is_change, is_stop].map(u64::from).into();
    words.extend_from_slice(versions);
    group.broadcast(&mut words, 0)?;
    let is = |at: usize| words[at] == 1;
    *outcome = Outcome { is_done: is(0), is_change: is(1), is_stop: is(2) };
    if outcome.is_done {
        versions.copy_from_slice(&words[3..]);
        group.broadcast(values, 0)?;
    }
    Ok(())
}

/// Whether all ranks have a gradient of the group's next step to push.
pub(crate) fn share_phase(group: &mut Communicator, is_ready: bool) -> Result<bool> {
    let mut all = [u64::from(is_ready)];
    group.all_reduce(&mut all, ReduceOp::Min)?;
    Ok(all[0] == 1)
}
