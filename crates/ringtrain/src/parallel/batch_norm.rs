//! Batch norm over the samples of all ranks, for networks.

use strategy::SyncBatchNorm;

use crate::error::in_model;
use crate::models::BatchMoments;

impl BatchMoments for SyncBatchNorm {
    fn add_up(&self, sums: &mut [f64]) -> candle_core::Result<()> {
        Self::add_up(self, sums).map_err(in_model)
    }
}
