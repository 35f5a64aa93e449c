//! Data-parallel training for any framework: the gradients of a model, averaged over the ranks in
//! buckets, as PyTorch's `DistributedDataParallel` does (Li et al., VLDB 2020). A framework
//! implements [`Gradients`]; a [`Reducer`] starts the all-reduce of each bucket as soon as the
//! bucket is full, while the backward pass fills the next one, or makes it at once.
#![forbid(unsafe_code)]

mod bucket;
mod pool;
mod reducer;

pub use bucket::{Assigned, BucketSizes, Parameter, assign};
pub use pool::Keep;
pub use reducer::{Exchange, Reducer};

use ringreduce::Error;

/// One tensor for each parameter of a model: its gradient, or its value. Parameters are numbered in
/// the order of the forward pass, which is the same at all ranks.
pub trait Gradients {
    /// How the framework fails.
    type Error: From<Error>;

    /// Copies the tensor of a parameter to `to`, as elements of its type without gaps. False, with
    /// `to` as it was, if there is none: then it counts as zero.
    ///
    /// # Errors
    /// If the framework can't.
    fn read(&mut self, parameter: usize, to: &mut [u8]) -> Result<bool, Self::Error>;

    /// Sets the tensor of a parameter to the elements `from`.
    ///
    /// # Errors
    /// If the framework can't.
    fn write(&mut self, parameter: usize, from: &[u8]) -> Result<(), Self::Error>;
}
