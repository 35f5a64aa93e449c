//! The networks that can be trained.

use super::builder::{Builder, ConvSizes};
use super::mobilenet::mobilenet;
use super::ops::Activation::{Identity, Relu};
use super::vgg::vgg;
use crate::data::Shape;
use crate::error::{Error, Result};

/// A kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Three dense layers: 512 and 256 units, then the classes.
    Dense,
    /// LeNet-5's shape (LeCun et al. 1998): two convolutions, each with a pool, three dense layers.
    #[value(name = "lenet")]
    LeNet,
    /// MobileNetV2 (Sandler et al. 2018) for images of 32 to 224 pixels.
    #[value(name = "mobilenet")]
    MobileNet,
    /// Pairs of 3x3 convolutions with pools, then dense layers, as VGG (Simonyan and Zisserman
    /// 2015): `features` and `classifier`, for transfer learning.
    Vgg,
}

/// The number of units, in a network whose layers are `width` times as wide.
pub(super) fn wide(units: usize, width: f32) -> usize {
    ((units as f32 * width).round() as usize).max(1)
}

impl ModelKind {
    /// Whether its layers normalize by what they learn of batches.
    pub(crate) const fn has_batch_norm(self) -> bool {
        matches!(self, Self::MobileNet)
    }

    /// Adds the layers.
    pub(super) fn build(
        self,
        builder: &mut Builder,
        shape: Shape,
        classes: usize,
        width: f32,
    ) -> Result<()> {
        match self {
            Self::Dense => dense(builder, shape, classes, width),
            Self::LeNet => lenet(builder, shape, classes, width),
            Self::MobileNet => mobilenet(builder, shape, classes, width),
            Self::Vgg => vgg(builder, shape, classes, width),
        }
    }
}

fn dense(builder: &mut Builder, shape: Shape, classes: usize, width: f32) -> Result<()> {
    let (first, second) = (wide(512, width), wide(256, width));
    builder.linear("dense1", shape.count(), first, Relu)?;
    builder.linear("dense2", first, second, Relu)?;
    builder.linear("dense3", second, classes, Identity)
}

fn lenet(builder: &mut Builder, shape: Shape, classes: usize, width: f32) -> Result<()> {
    let Shape { channels, rows, columns } = shape;
    // Twice a convolution removes 4 pixels of each side and a pool halves it.
    let side = |pixels: usize| pixels.checked_sub(12).map(|rest| rest / 4).filter(|side| *side > 0);
    let (Some(height), Some(width_left)) = (side(rows), side(columns)) else {
        return Err(Error::Unfit(format!(
            "images are {rows}x{columns}: LeNet needs sides of at least 16 pixels: give --side 28"
        )));
    };
    let (first, second) = (wide(6, width), wide(16, width));
    let conv = |from, to| ConvSizes { from, to, kernel: 5, stride: 1, padding: 0 };
    builder.conv("conv1", conv(channels, first), Relu)?;
    builder.pool("pool1");
    builder.conv("conv2", conv(first, second), Relu)?;
    builder.pool("pool2");
    let (third, fourth) = (wide(120, width), wide(84, width));
    builder.linear("dense1", second * height * width_left, third, Relu)?;
    builder.linear("dense2", third, fourth, Relu)?;
    builder.linear("dense3", fourth, classes, Identity)
}
