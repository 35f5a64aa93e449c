//! Makes layers and their first weights. Law: the same seed gives the same weights.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::batch_norm::BatchNorm;
use super::layers::{Block, Conv, Depthwise, Layer, Linear, Plain};
use super::ops::{Activation, MaxPool};
use super::parameter::Parameter;
use crate::error::Result;

/// A network that is being made.
pub(super) struct Builder {
    rng: StdRng,
    pub(super) layers: Vec<Box<dyn Layer>>,
    pub(super) parameters: Vec<Arc<Parameter>>,
    pub(super) buffers: Vec<(String, Var)>,
}

/// The sizes of a convolution.
#[derive(Clone, Copy)]
pub(super) struct ConvSizes {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
}

impl Builder {
    pub(super) fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { rng, layers: Vec::new(), parameters: Vec::new(), buffers: Vec::new() }
    }

    /// A weight whose values suit a rectifier behind `inputs` inputs (He et al. 2015).
    fn weight(&mut self, name: &str, shape: &[usize], inputs: usize) -> Result<Arc<Parameter>> {
        let bound = (6.0 / inputs as f32).sqrt();
        let count = shape.iter().product();
        let values = (0..count).map(|_| self.rng.random_range(-bound..bound)).collect();
        Ok(self.record(format!("{name}.weight"), Var::from_vec(values, shape, &Device::Cpu)?))
    }

    fn bias(&mut self, name: &str, count: usize) -> Result<Arc<Parameter>> {
        let var = Var::from_vec(vec![0_f32; count], count, &Device::Cpu)?;
        Ok(self.record(format!("{name}.bias"), var))
    }

    fn record(&mut self, name: String, var: Var) -> Arc<Parameter> {
        let parameter = Parameter::new(name, self.parameters.len(), var);
        self.parameters.push(Arc::clone(&parameter));
        parameter
    }

    /// Adds a convolution with a bias.
    pub(super) fn conv(
        &mut self,
        name: &str,
        sizes: ConvSizes,
        activation: Activation,
    ) -> Result<()> {
        let ConvSizes { from, to, kernel, stride, padding } = sizes;
        let weight = self.weight(name, &[to, from, kernel, kernel], from * kernel * kernel)?;
        let bias = Some(self.bias(name, to)?);
        let name = name.into();
        self.layers.push(Box::new(Conv { name, weight, bias, stride, padding, activation }));
        Ok(())
    }

    /// Adds a dense layer.
    pub(super) fn linear(
        &mut self,
        name: &str,
        from: usize,
        to: usize,
        activation: Activation,
    ) -> Result<()> {
        let weight = self.weight(name, &[to, from], from)?;
        let bias = Some(self.bias(name, to)?);
        self.layers.push(Box::new(Linear { name: name.into(), weight, bias, activation }));
        Ok(())
    }

    /// Adds a convolution without a bias, padded so that it keeps the size at stride 1, and batch
    /// norm.
    pub(super) fn conv_norm(
        &mut self,
        name: &str,
        (from, to): (usize, usize),
        (kernel, stride): (usize, usize),
        activation: Activation,
    ) -> Result<()> {
        let weight = self.weight(name, &[to, from, kernel, kernel], from * kernel * kernel)?;
        let (name, padding) = (name.to_owned(), kernel / 2);
        let conv = Conv {
            name: name.clone(),
            weight,
            bias: None,
            stride,
            padding,
            activation: Activation::Identity,
        };
        self.layers.push(Box::new(conv));
        self.norm(&name, to, activation)
    }

    /// Adds a convolution of each channel with a kernel of its own, and batch norm.
    pub(super) fn depthwise_norm(
        &mut self,
        name: &str,
        channels: usize,
        stride: usize,
        activation: Activation,
    ) -> Result<()> {
        let weight = self.weight(name, &[channels, 1, 3, 3], 9)?;
        self.layers.push(Box::new(Depthwise { name: name.into(), weight, stride }));
        self.norm(name, channels, activation)
    }

    fn norm(&mut self, name: &str, channels: usize, activation: Activation) -> Result<()> {
        let name = format!("{name}.norm");
        let ones = || Var::from_vec(vec![1_f32; channels], channels, &Device::Cpu);
        let weight = self.record(format!("{name}.weight"), ones()?);
        let bias = self.bias(&name, channels)?;
        let mean = Var::from_vec(vec![0_f32; channels], channels, &Device::Cpu)?;
        let variance = ones()?;
        self.buffers.push((format!("{name}.mean"), mean.clone()));
        self.buffers.push((format!("{name}.variance"), variance.clone()));
        self.layers.push(Box::new(BatchNorm { name, weight, bias, mean, variance, activation }));
        Ok(())
    }

    /// Adds the layers that `build` adds as one, whose inputs are added to its outputs if
    /// `is_residual`.
    pub(super) fn block(
        &mut self,
        name: &str,
        is_residual: bool,
        build: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.layers.len();
        build(self)?;
        let layers = self.layers.split_off(before);
        self.layers.push(Box::new(Block { name: name.into(), layers, is_residual }));
        Ok(())
    }

    /// Adds the mean of each channel: count x channels from count x channels x rows x columns.
    pub(super) fn mean(&mut self, name: &str) {
        self.plain(name, |inputs| inputs.flatten_from(2)?.mean(2));
    }

    /// Adds a pool: the largest of each 2x2 values.
    pub(super) fn pool(&mut self, name: &str) {
        self.plain(name, |inputs| inputs.contiguous()?.apply_op1(MaxPool));
    }

    fn plain(&mut self, name: &str, forward: fn(&Tensor) -> candle_core::Result<Tensor>) {
        self.layers.push(Box::new(Plain { name: name.into(), forward }));
    }
}
