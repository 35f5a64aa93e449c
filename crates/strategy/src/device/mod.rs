//! Synchronous strategies whose gradients and parameters are on CUDA devices. The framework
//! computes and updates by kernels of its own on a stream. The trainer exchanges each bucket of
//! gradients on a second stream once it is written, beside the backward pass; the host waits for
//! nothing.
//! `step` the parts of a step · `memory` where buckets are · `calls` the exchange's calls on a
//! stream · `totals` the loss, the norm, and whether they are finite · `state` checkpoints.
//! Law: the exchanges have the same order at all ranks; what the framework puts on its stream after
//! `reduce` sees the sums.

mod calls;
mod memory;
mod state;
mod step;
mod totals;

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};
use ringreduce::{Communicator, DeviceMemory, Error, Result};

use crate::exchange::publish;
use crate::{JobConfig, JobError, Settings, buckets};
use calls::{DeviceCalls, Edges};
pub use memory::Shard;
use memory::{Bucket, GradientMemory};
pub use totals::Totals;

/// Trains a model whose parameters and gradients are on a device, together with the trainers of all
/// other ranks. All ranks make the same calls in the same order, but for those that say otherwise.
///
/// A step is one part of a batch, or several where one is too large for the memory:
/// 1. for each part [`Self::begin_part`]; kernels add to each [`Self::gradient_mut`], and
///    [`Self::ready`] follows; then [`Self::reduce`];
/// 2. if gradients are clipped or looked through, [`Self::sum_totals`];
/// 3. kernels update the [`Self::shards`];
/// 4. [`Self::publish`].
pub struct DeviceTrainer {
    comm: Communicator,
    edges: Edges,
    /// Where the framework puts its work.
    stream: Arc<CudaStream>,
    /// Where buckets are exchanged.
    exchanges: Arc<CudaStream>,
    settings: Settings,
    shapes: Vec<(String, usize)>,
    /// The bucket of each parameter, and its elements in that bucket.
    places: Vec<(usize, std::ops::Range<usize>)>,
    buckets: Vec<Bucket>,
    /// One for each bucket; where gradients are sharded, buckets take turns in fewer.
    memories: Vec<GradientMemory>,
    /// The report of this rank in a step: see [`Self::report_mut`].
    report: CudaSlice<f32>,
    /// The sums of all ranks' reports.
    totals: DeviceMemory<f32>,
    /// Whether the part that is computed is the step's last one; none between two parts.
    part: Option<bool>,
    /// Parts of this step that were reduced.
    parts: usize,
    /// Whether the sums of a step's last part are there, and the step is not completed.
    is_reduced: bool,
    /// Whether each parameter is ready in this part.
    is_ready: Vec<bool>,
    /// Buckets whose exchange was started in this part.
    started: usize,
    steps: u64,
}

impl DeviceTrainer {
    /// Memory for parameters of these names and lengths, in the order of the forward pass, on the
    /// device of `stream`. Parameters are 0 until [`Self::broadcast`] or [`Self::load_state`].
    ///
    /// Adds a stream of its own to the context of `stream`.
    ///
    /// # Errors
    /// If an optimizer that needs whole parameters is sharded; if other ranks have other parameters
    /// or settings; if the device lacks memory or the driver refuses something; and if a peer is
    /// lost.
    pub fn new(
        mut comm: Communicator,
        stream: &Arc<CudaStream>,
        shapes: &[(String, usize)],
        settings: Settings,
    ) -> Result<Self, JobError> {
        settings.check("DeviceTrainer::new")?;
        let config = JobConfig::default().with_settings(&settings.of_all_ranks(), shapes);
        config.agree(&mut comm, false)?;
        let sizes = match settings.buckets {
            Some(sizes) => sizes,
            None => buckets::measured(&mut comm)?,
        };
        let context = stream.context();
        // Ranks make their streams before the first of them uses a device.
        let exchanges = context.new_stream().map_err(Error::from)?;
        let mut edges = Edges::new(&mut comm, settings.strategy)?;
        comm.use_device(context)?;
        edges.use_device(context)?;
        let buckets = Bucket::all(&comm, stream, shapes, (settings, sizes))?;
        let memories = GradientMemory::all(&comm, stream, &buckets)?;
        let mut places = vec![(0, 0..0); shapes.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            for (parameter, place) in &bucket.places {
                places[*parameter] = (at, place.clone());
            }
        }
        let reported = totals::CHECKS + shapes.len();
        let report = stream.alloc_zeros(reported).map_err(Error::from)?;
        let totals = comm.alloc_device(stream, reported)?;
        // To allocate may wait for the streams of ranks that share the device, so no rank puts a
        // call on its stream before all have allocated.
        comm.barrier()?;
        Ok(Self {
            comm,
            edges,
            stream: Arc::clone(stream),
            exchanges,
            settings,
            shapes: shapes.to_vec(),
            places,
            buckets,
            memories,
            report,
            totals,
            part: None,
            parts: 0,
            is_reduced: false,
            is_ready: vec![false; shapes.len()],
            started: 0,
            steps: 0,
        })
    }

    /// A parameter, to be read by work on the stream.
    ///
    /// # Errors
    /// If there is no such parameter.
    pub fn parameter(&self, parameter: usize) -> Result<CudaView<'_, f32>> {
        let (bucket, place) = self.place("DeviceTrainer::parameter", parameter)?;
        Ok(self.buckets[bucket].parameters.slice(place))
    }

    /// A parameter, to be written by work on the stream: at rank 0 before [`Self::broadcast`].
    ///
    /// # Errors
    /// As [`Self::parameter`].
    pub fn parameter_mut(&mut self, parameter: usize) -> Result<CudaViewMut<'_, f32>> {
        let (bucket, place) = self.place("DeviceTrainer::parameter_mut", parameter)?;
        Ok(self.buckets[bucket].parameters.slice_mut(place))
    }

    fn place(
        &self,
        call: &'static str,
        parameter: usize,
    ) -> Result<(usize, std::ops::Range<usize>)> {
        self.places.get(parameter).cloned().ok_or_else(|| {
            let (given, expected) =
                (parameter.to_string(), format!("one of {}", self.places.len()));
            Error::argument(call, "parameter", given, expected)
        })
    }

    /// Completed steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The bytes of device memory that this value has allocated: for parameters, gradients and the
    /// state of the optimizer. The model's activations are not among them.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        let buckets: usize = self.buckets.iter().map(Bucket::elements).sum();
        let memories: usize = self.memories.iter().map(|it| it.memory.len()).sum();
        size_of::<f32>() * (buckets + memories + self.report.len() + self.totals.len())
    }

    /// Gives all ranks the parameters of rank 0.
    ///
    /// # Errors
    /// If a call failed before on the stream, or the device refuses something.
    pub fn broadcast(&mut self) -> Result<()> {
        let mut calls = self.comm.on_stream(&self.stream);
        let mut all = self.buckets.iter_mut();
        all.try_for_each(|bucket| calls.broadcast(&mut bucket.parameters, 0))
    }

    /// The parameters that this rank updates by work on the stream after the last [`Self::reduce`]:
    /// all of them, a part of each bucket, or none.
    ///
    /// # Errors
    /// If the last part of the step was not ended by [`Self::reduce`], or the step is completed.
    pub fn shards(&mut self) -> Result<impl Iterator<Item = Shard<'_>>> {
        self.check_reduced("DeviceTrainer::shards")?;
        let mut memories = self.memories.iter_mut();
        Ok(self.buckets.iter_mut().filter_map(move |bucket| bucket.shard(&mut memories)))
    }

    /// Gives all ranks the parameters that their owners have updated, and completes the step.
    ///
    /// # Errors
    /// As [`Self::shards`] and [`Self::broadcast`].
    pub fn publish(&mut self) -> Result<()> {
        self.check_reduced("DeviceTrainer::publish")?;
        let Self { comm, edges, stream, .. } = self;
        let mut calls = DeviceCalls { comm, edges, stream };
        for bucket in &mut self.buckets {
            publish(self.settings.strategy, &mut calls, &mut bucket.parameters.slice_mut(..))?;
        }
        self.steps += 1;
        self.is_reduced = false;
        Ok(())
    }

    /// The error of a call that has failed on a stream after it had returned. A rank may call this
    /// alone.
    ///
    /// # Errors
    /// The first such failure.
    pub fn check(&mut self) -> Result<()> {
        self.comm.on_stream(&self.stream).check()?;
        self.edges.check(&self.stream)
    }
}

impl std::fmt::Debug for DeviceTrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("DeviceTrainer");
        f.field("comm", &self.comm).field("settings", &self.settings).finish_non_exhaustive()
    }
}
