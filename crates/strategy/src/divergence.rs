//! The error of a step whose loss or gradients are not finite.

use ringreduce::{Communicator, Result};

use crate::Error;
use crate::sums::LOSS;

/// The error of a step with such a loss, which names the first rank that has caused it. `first` is
/// the first of this rank's gradients that is not finite, counted as in [`crate::sums`]. All ranks
/// call this.
pub(crate) fn divergence<M>(
    comm: &mut Communicator,
    shapes: &[(String, usize)],
    (step, loss): (u64, f32),
    first: Option<usize>,
) -> Result<Error<M>> {
    let mine = first.map_or(u64::MAX, |parameter| parameter as u64);
    let mut all = vec![0; comm.size()];
    comm.all_gather(&[mine], &mut all)?;
    let first = all.iter().enumerate().find(|(_, parameter)| **parameter != u64::MAX);
    let cause = match first {
        Some((rank, parameter)) if *parameter == LOSS as u64 => {
            format!("rank {rank} has such a loss")
        }
        Some((rank, parameter)) => {
            let name = shapes.get(*parameter as usize - 1).map_or("", |(name, _)| name);
            format!("rank {rank} has such a gradient of {name}")
        }
        None => "the sum over all ranks overflows".into(),
    };
    Ok(Error::Diverged { step, loss, cause })
}
