//! The network: LeNet-5's shape (two convolutions, each with a pool, then three linear layers)
//! with rectifiers. Law: the same seed gives the same first weights.

use candle_core::{Device, Module, Tensor, Var};
use candle_nn::{Conv2d, Conv2dConfig, Linear};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::error::{Error, Result};

pub const CLASSES: u8 = 10;

/// The network and its variables.
#[derive(Debug)]
pub struct LeNet {
    conv: [Conv2d; 2],
    linear: [Linear; 3],
    vars: Vec<Var>,
}

/// Makes variables and records them.
struct Maker {
    rng: StdRng,
    vars: Vec<Var>,
}

impl Maker {
    /// A weight whose values suit a rectifier behind `fan_in` inputs (He et al. 2015).
    fn weight(&mut self, shape: &[usize], fan_in: usize) -> Result<Tensor> {
        let bound = (6.0 / fan_in as f32).sqrt();
        let count = shape.iter().product();
        let values = (0..count).map(|_| self.rng.random_range(-bound..bound)).collect();
        self.record(Var::from_vec(values, shape, &Device::Cpu)?)
    }

    fn bias(&mut self, count: usize) -> Result<Tensor> {
        self.record(Var::from_vec(vec![0f32; count], count, &Device::Cpu)?)
    }

    /// Records a variable; gives its tensor, which follows later values.
    fn record(&mut self, var: Var) -> Result<Tensor> {
        let tensor = var.as_tensor().clone();
        self.vars.push(var);
        Ok(tensor)
    }

    fn conv(&mut self, from: usize, to: usize) -> Result<Conv2d> {
        let weight = self.weight(&[to, from, 5, 5], from * 25)?;
        Ok(Conv2d::new(weight, Some(self.bias(to)?), Conv2dConfig::default()))
    }

    fn linear(&mut self, from: usize, to: usize) -> Result<Linear> {
        let weight = self.weight(&[to, from], from)?;
        Ok(Linear::new(weight, Some(self.bias(to)?)))
    }
}

impl LeNet {
    /// A network for images of `rows` x `columns`.
    pub fn new(rows: usize, columns: usize, seed: u64) -> Result<Self> {
        // Twice a convolution removes 4 pixels of each side and a pool halves it.
        let side =
            |pixels: usize| (pixels >= 16 && pixels.is_multiple_of(4)).then(|| pixels / 4 - 3);
        let (Some(height), Some(width)) = (side(rows), side(columns)) else {
            return Err(Error::Unfit(format!(
                "images are {rows}x{columns}: \
                 the network needs sides of at least 16 pixels that 4 divides"
            )));
        };
        let mut maker = Maker { rng: StdRng::seed_from_u64(seed), vars: Vec::new() };
        let conv = [maker.conv(1, 6)?, maker.conv(6, 16)?];
        let linear = [
            maker.linear(16 * height * width, 120)?,
            maker.linear(120, 84)?,
            maker.linear(84, usize::from(CLASSES))?,
        ];
        Ok(Self { conv, linear, vars: maker.vars })
    }

    /// The variables, first layer first.
    pub fn vars(&self) -> &[Var] {
        &self.vars
    }

    /// The score of each class (count x classes) for images (count x 1 x rows x columns).
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = images.clone();
        for layer in &self.conv {
            x = layer.forward(&x)?.relu()?.max_pool2d(2)?;
        }
        x = x.flatten_from(1)?;
        let [first, second, last] = &self.linear;
        x = first.forward(&x)?.relu()?;
        x = second.forward(&x)?.relu()?;
        Ok(last.forward(&x)?)
    }
}
