//! A small VGG: `features` of pairs of 3x3 convolutions, each with a pool, and a `classifier` of
//! dense layers.

use super::builder::{Builder, ConvSizes};
use super::kinds::wide;
use super::ops::Activation::{Identity, Relu};
use crate::data::Shape;
use crate::error::{Error, Result};

/// The channels of each pair of convolutions.
const CHANNELS: [usize; 4] = [32, 64, 128, 256];
const UNITS: usize = 256;

pub(super) fn vgg(builder: &mut Builder, shape: Shape, classes: usize, width: f32) -> Result<()> {
    let Shape { channels, rows, columns } = shape;
    let (height, length) = (rows >> CHANNELS.len(), columns >> CHANNELS.len());
    if height == 0 || length == 0 {
        return Err(Error::Unfit(format!(
            "images are {rows}x{columns}: VGG needs sides of at least 16 pixels: give --side 32"
        )));
    }
    let mut from = channels;
    for (pair, to) in CHANNELS.into_iter().enumerate() {
        let to = wide(to, width);
        let sizes = |from| ConvSizes { from, to, kernel: 3, stride: 1, padding: 1 };
        builder.conv(&format!("features.conv{}", 2 * pair + 1), sizes(from), Relu)?;
        builder.conv(&format!("features.conv{}", 2 * pair + 2), sizes(to), Relu)?;
        builder.pool(&format!("features.pool{}", pair + 1));
        from = to;
    }
    let units = wide(UNITS, width);
    builder.linear("classifier.dense1", from * height * length, units, Relu)?;
    builder.linear("classifier.dense2", units, classes, Identity)
}
