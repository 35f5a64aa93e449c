//! The memory of buckets on a device: parameters, gradients, and the state of the optimizer.
//! Law: elements behind the last parameter of a bucket are 0, so that all ranks have equal parts.

use std::ops::Range;
use std::slice::IterMut;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, CudaViewMut};
use gradients::{BucketSizes, Parameter, assign};
use ringreduce::{Communicator, DataType, DeviceMemory, Result};

use crate::Settings;

/// Buckets that have memory for gradients at a time, where they take turns: one is written while
/// another one is exchanged.
const TURNS: usize = 2;

/// A bucket of parameters.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The parameters and their elements.
    pub(super) places: Vec<(usize, Range<usize>)>,
    /// Elements, those behind the last parameter too.
    pub(super) len: usize,
    /// The elements that this rank updates.
    pub(super) owned: Range<usize>,
    pub(super) parameters: DeviceMemory<f32>,
    /// The state of the optimizer, for the elements that this rank updates.
    pub(super) moments: Vec<CudaSlice<f32>>,
    /// The sums of these elements' gradients, where buckets take turns in the memory of gradients.
    pub(super) kept: Option<CudaSlice<f32>>,
    /// Parameters that are not ready in this part.
    pub(super) missing: usize,
    /// Whether the memory of gradients is that of this bucket, and begins with the sums of earlier
    /// parts.
    pub(super) is_open: bool,
}

/// The part of a bucket that this rank updates: as many elements of each vector.
#[derive(Debug)]
pub struct Shard<'a> {
    /// The parameters, to be updated.
    pub parameters: CudaViewMut<'a, f32>,
    /// The sums of their gradients.
    pub gradients: CudaViewMut<'a, f32>,
    /// The optimizer's moments of each element, in the order of
    /// [`Optimizer::moment_names`](crate::Optimizer::moment_names); 0 before the first step.
    pub moments: Vec<CudaViewMut<'a, f32>>,
    /// Parameters, or parts of them, and their elements in these vectors.
    pub places: Vec<(usize, Range<usize>)>,
}

impl Bucket {
    /// The buckets in the order of their exchanges, with memory that is 0.
    pub(super) fn all(
        comm: &Communicator,
        stream: &Arc<CudaStream>,
        shapes: &[(String, usize)],
        (settings, sizes): (Settings, BucketSizes),
    ) -> Result<Vec<Self>> {
        let parameter =
            |(_, count): &(String, usize)| Parameter { dtype: DataType::F32, count: *count };
        let parameters: Vec<_> = shapes.iter().map(parameter).collect();
        let make = |(_, places): (DataType, Vec<(usize, Range<usize>)>)| {
            let elements =
                |(at, place): (usize, Range<usize>)| (at, place.start / 4..place.end / 4);
            let places: Vec<_> = places.into_iter().map(elements).collect();
            let end = places.last().map_or(0, |(_, place)| place.end);
            Self::new(comm, stream, settings, (places, end))
        };
        assign(&parameters, sizes)?.into_iter().map(make).collect()
    }

    fn new(
        comm: &Communicator,
        stream: &Arc<CudaStream>,
        Settings { strategy, optimizer, .. }: Settings,
        (places, end): (Vec<(usize, Range<usize>)>, usize),
    ) -> Result<Self> {
        // A driver has no memory of no elements.
        let len = end.max(1).next_multiple_of(comm.size());
        let owned = strategy.owned(comm.rank(), comm.size(), len);
        let zeros = || stream.alloc_zeros(owned.len());
        let moments = if owned.is_empty() { 0 } else { optimizer.moments() };
        Ok(Self {
            missing: places.len(),
            places,
            len,
            parameters: comm.alloc_device(stream, len)?,
            moments: (0..moments).map(|_| zeros()).collect::<Result<_, _>>()?,
            kept: strategy.keeps_own_sums().then(zeros).transpose()?,
            owned,
            is_open: false,
        })
    }

    /// The elements of memory, without those of gradients that other buckets use too.
    pub(super) fn elements(&self) -> usize {
        let own = self.moments.iter().chain(&self.kept).map(CudaSlice::len);
        self.parameters.len() + own.sum::<usize>()
    }

    /// The part that this rank updates, if there is one. `memories` are those of the buckets that
    /// this is called for, unless they take turns.
    pub(super) fn shard<'a>(
        &'a mut self,
        memories: &mut IterMut<'a, GradientMemory>,
    ) -> Option<Shard<'a>> {
        let owned = self.owned.clone();
        if owned.is_empty() {
            return None;
        }
        let within = |(parameter, place): &(usize, Range<usize>)| {
            let (from, to) = (place.start.max(owned.start), place.end.min(owned.end));
            (from < to).then(|| (*parameter, from - owned.start..to - owned.start))
        };
        let places = self.places.iter().filter_map(within).collect();
        let gradients = match &mut self.kept {
            Some(kept) => kept.as_view_mut(),
            None => memories.next()?.memory.slice_mut(owned.clone()),
        };
        let moments = self.moments.iter_mut().map(CudaSlice::as_view_mut).collect();
        Some(Shard { parameters: self.parameters.slice_mut(owned), gradients, moments, places })
    }
}

/// The memory of a bucket's gradients.
#[derive(Debug)]
pub(super) struct GradientMemory {
    pub(super) memory: DeviceMemory<f32>,
    /// The end of the last exchange, where buckets take turns in the memory.
    pub(super) exchanged: Option<CudaEvent>,
}

impl GradientMemory {
    /// The memories of these buckets: the one at place `n` has the memory at `n` modulo their
    /// number.
    pub(super) fn all(
        comm: &Communicator,
        stream: &Arc<CudaStream>,
        buckets: &[Bucket],
    ) -> Result<Vec<Self>> {
        let most = buckets.iter().map(|bucket| bucket.len).max().unwrap_or(0);
        let take_turns = buckets.iter().any(|bucket| bucket.kept.is_some());
        let len = |bucket: &Bucket| if take_turns { most } else { bucket.len };
        let count = if take_turns { TURNS } else { buckets.len() };
        let make = |bucket: &Bucket| {
            Ok(Self { memory: comm.alloc_device(stream, len(bucket))?, exchanged: None })
        };
        buckets.iter().take(count).map(make).collect()
    }
}
