//! The batches of a rank in an epoch, made ahead of their use.

use std::sync::Arc;

use strategy::Part;

use super::engine::Division;
use super::job::Job;
use crate::data::{Batch, Loader};
use crate::error::{Error, Result};

/// How many batches each thread that makes some is ahead.
const DEPTH: usize = 4;

/// The steps of an epoch that are left.
pub(crate) struct Batches {
    loader: Loader,
    /// For each step: which of its pieces are computed, and the samples of all ranks.
    steps: std::vec::IntoIter<(Vec<bool>, usize)>,
}

impl Batches {
    /// The batches of the steps from `first` on, of the images in this order.
    pub(crate) fn new(
        job: &Job,
        order: &[usize],
        first: usize,
        (division, pieces): (Division, usize),
        (rank, size): (usize, usize),
    ) -> Result<Self> {
        let batch = job.settings.batch;
        let (mut places, mut steps) = (Vec::new(), Vec::new());
        for step in first..job.steps_per_epoch() {
            let (mine, total) = division.share((order.len(), batch, step), (rank, size));
            let mine = &order[mine];
            let cut = |piece: usize| mine.len() * piece / pieces;
            let pieces = (0..pieces).map(|piece| &mine[cut(piece)..cut(piece + 1)]);
            // Batch norm that adds up over ranks needs all of them, with or without samples.
            let is_taken = |piece: &[usize]| !piece.is_empty() || job.settings.sync_batch_norm;
            let has_samples = pieces.clone().map(is_taken).collect();
            places.extend(pieces.filter(|piece| is_taken(piece)).map(<[usize]>::to_vec));
            steps.push((has_samples, total));
        }
        let loaders = job.settings.loaders;
        let ahead = DEPTH * loaders;
        let loader = Loader::new(Arc::clone(&job.data.train), places, loaders, ahead)?;
        Ok(Self { loader, steps: steps.into_iter() })
    }

    /// The pieces of the next step; those without samples have no batch.
    pub(crate) fn next(&mut self) -> Result<Vec<Part<Batch>>> {
        let missing = || Error::Unfit("an epoch has no more batches".into());
        let (has_samples, total) = self.steps.next().ok_or_else(missing)?;
        let mut piece = |has_samples: bool| {
            let batch = has_samples.then(|| self.loader.next().unwrap_or_else(|| Err(missing())));
            Ok(Part { batch: batch.transpose()?, total })
        };
        has_samples.into_iter().map(&mut piece).collect()
    }
}
