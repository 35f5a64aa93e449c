//! The networks: layers one after the other, with named parameters. `ops` are the operations of the
//! layers · `layers` the layers · `builder` their first weights · `kinds`, `mobilenet`, `vgg` the
//! networks · `training` what a strategy needs.

mod batch_norm;
mod builder;
mod kinds;
mod layers;
mod mobilenet;
mod ops;
mod parameter;
#[cfg(test)]
mod tests;
mod training;
mod vgg;

use std::sync::Arc;

use candle_core::{Tensor, Var};

pub use batch_norm::BatchMoments;
pub(crate) use batch_norm::EPSILON;
pub use kinds::ModelKind;
pub(crate) use layers::{AddBias, through};
pub use layers::{Layer, Linear};
pub(crate) use ops::Activation;
pub use parameter::{Parameter, Pass};

use crate::data::Shape;
use crate::error::{Error, Result};
use builder::Builder;

/// A network for images.
pub struct Network {
    layers: Vec<Box<dyn Layer>>,
    /// All parameters, frozen ones too.
    parameters: Vec<Arc<Parameter>>,
    /// The parameters that are trained.
    vars: Vec<(String, Var)>,
    buffers: Vec<(String, Var)>,
    moments: Option<Arc<dyn BatchMoments>>,
}

impl Network {
    /// A network for images of this shape, with weights from `seed`.
    ///
    /// # Errors
    /// If the images are too small.
    pub fn new(kind: ModelKind, shape: Shape, classes: usize, seed: u64) -> Result<Self> {
        Self::with_width(kind, shape, classes, seed, 1.0)
    }

    /// As [`Self::new`], with layers that are `width` times as wide. A dense network for 28x28
    /// pixels has 10 million parameters at width 7.4.
    ///
    /// # Errors
    /// If the images are too small; if `width` is not above 0.
    pub fn with_width(
        kind: ModelKind,
        shape: Shape,
        classes: usize,
        seed: u64,
        width: f32,
    ) -> Result<Self> {
        if !(width > 0.0 && width.is_finite()) {
            return Err(Error::Unfit(format!("a network can't be {width} times as wide")));
        }
        let mut builder = Builder::new(seed);
        kind.build(&mut builder, shape, classes, width)?;
        Ok(Self::of(builder))
    }

    /// The network of the layers that were added to a builder.
    fn of(builder: Builder) -> Self {
        let Builder { layers, parameters, buffers, .. } = builder;
        let mut network = Self { layers, parameters, vars: Vec::new(), buffers, moments: None };
        network.list();
        network
    }

    /// The scores of the classes (count x classes) for images (count x channels x rows x columns).
    ///
    /// # Errors
    /// If the images have another shape.
    pub fn forward(&self, images: &Tensor, is_training: bool) -> Result<Tensor> {
        self.run(images, &Pass { is_training, moments: self.moments.clone(), sink: None })
    }

    fn run(&self, images: &Tensor, pass: &Pass) -> Result<Tensor> {
        through(&self.layers, images, pass)
    }

    /// The variables that are trained, in the order of the forward pass.
    #[must_use]
    pub fn vars(&self) -> &[(String, Var)] {
        &self.vars
    }

    /// The values that are learnt but not trained: the running moments of batch norm.
    #[must_use]
    pub fn buffers(&self) -> &[(String, Var)] {
        &self.buffers
    }

    /// The parameters that are not trained.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.parameters.iter().filter(|it| it.is_frozen()).map(|it| (it.name(), it.var()))
    }

    /// All parameters and buffers.
    pub(crate) fn all_values(&self) -> impl Iterator<Item = (&str, &Var)> {
        let buffers = self.buffers.iter().map(|(name, var)| (name.as_str(), var));
        self.parameters.iter().map(|it| (it.name(), it.var())).chain(buffers)
    }

    /// The layers, in the order of the forward pass.
    #[must_use]
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }

    /// The dense layers behind all others.
    pub(crate) fn dense_tail(&self) -> Vec<&Linear> {
        let mut tail: Vec<_> = self.layers.iter().rev().map_while(|it| it.as_linear()).collect();
        tail.reverse();
        tail
    }

    /// The numbers of the parameters that are trained.
    pub(crate) fn trained_numbers(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().filter(|it| !it.is_frozen()).map(|it| it.number())
    }

    /// Puts other layers in place of the dense ones behind all others. They have the same
    /// parameters, perhaps with other values.
    pub(crate) fn replace_dense_tail(
        &mut self,
        layers: Vec<Box<dyn Layer>>,
        parameters: Vec<Arc<Parameter>>,
    ) {
        self.layers.truncate(self.layers.len() - self.dense_tail().len());
        self.layers.extend(layers);
        self.parameters.truncate(self.parameters.len() - parameters.len());
        self.parameters.extend(parameters);
        self.list();
    }

    /// Trains layers whose name begins with `prefix` no more: their gradients are not computed, and
    /// their batch norm uses its running moments. Returns how many parameters have such a name.
    pub fn freeze(&mut self, prefix: &str) -> usize {
        let named = self.parameters.iter().filter(|it| it.name().starts_with(prefix));
        let frozen = named.map(|parameter| parameter.freeze()).count();
        self.list();
        frozen
    }

    /// Makes batch norm use the moments of the samples of all ranks.
    pub fn synchronise(&mut self, moments: Box<dyn BatchMoments>) {
        self.moments = Some(moments.into());
    }

    /// Lists the parameters that are trained.
    fn list(&mut self) {
        let trained = self.parameters.iter().filter(|parameter| !parameter.is_frozen());
        self.vars = trained.map(|it| (it.name().to_owned(), it.var().clone())).collect();
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.layers.iter().map(|layer| layer.name()).collect();
        f.debug_struct("Network").field("layers", &names).finish_non_exhaustive()
    }
}
