//! The interface that a framework implements.

use std::sync::Arc;

use crate::Error;

/// Parameters of `f32`: of a model, or of a rank's part of one. They are numbered in the order of
/// the forward pass, which is the same at all ranks; those that are not trained are not among them.
pub trait Parameters {
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
}

/// All values, one parameter after the other.
pub(crate) fn read_all<P: Parameters>(model: &P) -> Result<Vec<f32>, Error<P::Error>> {
    let mut all = Vec::new();
    for (parameter, (_, count)) in model.parameters().into_iter().enumerate() {
        let start = all.len();
        all.resize(start + count, 0.0);
        model.read(parameter, &mut all[start..]).map_err(Error::Model)?;
    }
    Ok(all)
}

/// Sets all values, which are one parameter's after the other's.
pub(crate) fn write_all<P: Parameters>(
    model: &mut P,
    mut from: &[f32],
) -> Result<(), Error<P::Error>> {
    for (parameter, (_, count)) in model.parameters().into_iter().enumerate() {
        let (values, others) = from.split_at(count);
        model.write(parameter, values).map_err(Error::Model)?;
        from = others;
    }
    Ok(())
}

/// A model whose gradients a rank computes from its samples.
pub trait Model: Parameters {
    /// The samples of one rank in one step.
    type Batch;

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
