//! What a framework implements.

use std::sync::Arc;

/// A model whose parameters are `f32`. Parameters are numbered in the order of the forward pass,
/// which is the same at all ranks; those that are not trained are not among them.
pub trait Model {
    /// The samples of one rank in one step.
    type Batch;
    /// How the framework fails.
    type Error;

    /// The name and the number of elements of each parameter.
    fn parameters(&self) -> Vec<(String, usize)>;

    /// Copies the values of a parameter to `to`.
    ///
    /// # Errors
    /// If the framework can't.
    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Self::Error>;

    /// Sets the values of a parameter.
    ///
    /// # Errors
    /// If the framework can't.
    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Self::Error>;

    /// The loss of a part, which is the sum of its samples' losses, divided by [`Part::total`]; so
    /// the sum over all ranks is the mean over the whole batch, whatever the lengths of the parts.
    /// Passes the gradient of that loss to `sink`, each parameter's once and as soon as the
    /// backward pass has it; a parameter that is not passed counts as zero.
    ///
    /// # Errors
    /// If the framework can't.
    fn gradients(&mut self, part: &Part<Self::Batch>, sink: &Sink) -> Result<f32, Self::Error>;
}

/// A rank's part of a batch.
#[derive(Clone, Debug)]
pub struct Part<B> {
    /// This rank's samples; none if the batch has fewer samples than there are ranks.
    pub batch: Option<B>,
    /// The samples whose mean the loss and the gradients are: those of all ranks in the step. For
    /// [`Worker::step`](crate::Worker::step) this worker's alone, as servers count those of all.
    pub total: usize,
}

/// Takes the gradient of a parameter, from any thread. A gradient that a rank can't take is
/// reported by the step.
pub type Sink = Arc<dyn Fn(usize, &[f32]) + Send + Sync>;
