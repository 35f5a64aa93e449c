//! The loss and the norm of a step's gradients, in memory of the device, and whether they are
//! finite. The framework's kernels write what a rank knows; the sum over all ranks is one more call
//! on the stream, so that kernels can clip without the host, which may look when it likes.

use std::convert::Infallible;

use cudarc::driver::{CudaView, CudaViewMut};
use ringreduce::{CallOptions, DataType, ReduceOp, Result};

use super::DeviceTrainer;
use crate::Error;
use crate::divergence::{are_finite, divergence};
use crate::sums::LOSS;

/// The element of a report that is the square sum.
const SQUARE_SUM: usize = 1;
/// The first element of a report that is of a parameter.
pub(super) const CHECKS: usize = 2;

/// The sums over the batch of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// The mean loss.
    pub loss: f32,
    /// The norm of all gradients; 0 if no square sums were written.
    pub norm: f32,
}

impl DeviceTrainer {
    /// The report of this rank in a step, 0 at first, for work on the stream to add to:
    /// - element 0: this rank's part of the loss, in any part of the step;
    /// - element 1: the sum of the squares of all gradients in [`Self::shards`], after the last
    ///   [`Self::reduce`]; it may stay 0 if gradients are not clipped;
    /// - element 2 + p: anything that is finite only if this rank's gradient of parameter p is,
    ///   such as the sum of its squares, before [`Self::ready`]. It may stay 0; then an error can't
    ///   name the rank.
    pub fn report_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.report.as_view_mut()
    }

    /// Adds up the reports of all ranks, after the last [`Self::reduce`], into [`Self::totals`].
    ///
    /// # Errors
    /// If a call failed before on the stream, or the device refuses something.
    pub fn sum_totals(&mut self) -> Result<()> {
        let stream = &self.stream;
        if self.comm.rank() > 0 && !self.settings.strategy.is_sharded() {
            // Ranks that have the same gradients as rank 0 would count them again.
            stream.memset_zeros(&mut self.report.slice_mut(SQUARE_SUM..CHECKS))?;
        }
        stream.memcpy_dtod(&self.report, &mut self.totals)?;
        // Of loss, square sum and checks each has its own scale, which a narrow type would lose.
        let mut comm = self.comm.with(CallOptions::new().wire(DataType::F32));
        comm.on_stream(stream).all_reduce(&mut self.totals, ReduceOp::Sum)
    }

    /// The loss of the whole batch and the sum of the squares of all its gradients, the same at all
    /// ranks, for work on the stream after [`Self::sum_totals`], such as kernels that clip.
    #[must_use]
    pub fn totals(&self) -> CudaView<'_, f32> {
        self.totals.slice(..CHECKS)
    }

    /// Waits for [`Self::sum_totals`], and tells what it has found. All ranks call this in the same
    /// steps: in each, before the update, or now and then.
    ///
    /// # Errors
    /// [`Error::Diverged`] at all ranks if the loss, the norm or an element of a report is not
    /// finite: the error names a rank, a parameter and the step. No parameter was changed by the
    /// step if this is called before the update; a training can go on with [`Self::begin_part`].
    /// Those of [`Self::check`]; and if a peer is lost.
    pub fn read_totals(&mut self) -> Result<Totals, Error<Infallible>> {
        let totals = self.stream.clone_dtoh(&*self.totals).map_err(ringreduce::Error::from)?;
        self.check()?;
        if are_finite(&totals) {
            // Rounding may leave less than nothing.
            let norm = totals[SQUARE_SUM].max(0.0).sqrt();
            return Ok(Totals { loss: totals[LOSS], norm });
        }
        let report = self.stream.clone_dtoh(&self.report).map_err(ringreduce::Error::from)?;
        // The backward pass goes from the loss to the last parameter, and on to the first one.
        let parameters = (1..=self.shapes.len()).rev();
        let is_found = |at: &usize| !report[at - 1 + CHECKS].is_finite();
        let first = if report[LOSS].is_finite() {
            parameters.into_iter().find(is_found)
        } else {
            Some(LOSS)
        };
        let step = (self.steps + 1, totals[LOSS]);
        Err(divergence(&mut self.comm, &self.shapes, step, first)?)
    }
}
