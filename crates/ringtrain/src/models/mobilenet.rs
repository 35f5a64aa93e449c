//! MobileNetV2: blocks that widen few channels, filter each by itself, and narrow them again.

use super::builder::Builder;
use super::ops::Activation::{Identity, Relu6};
use crate::data::Shape;
use crate::error::{Error, Result};

/// How much a block widens, its output channels, the number of such blocks and the stride of the
/// first (Sandler et al. 2018, table 2).
const BLOCKS: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];
const STEM: usize = 32;
const HEAD: usize = 1280;
/// The smallest image that the network of the paper, which divides its sides by 32, leaves large
/// enough; smaller ones are divided by 16.
const LARGE: usize = 96;

/// Channels `width` times as many, divisible by 8 and at least nine tenths of that (as the authors'
/// program has it).
fn wide(channels: usize, width: f32) -> usize {
    let wanted = channels as f32 * width;
    let rounded = (((wanted + 4.0) / 8.0).floor() as usize * 8).max(8);
    if (rounded as f32) < 0.9 * wanted { rounded + 8 } else { rounded }
}

pub(super) fn mobilenet(
    builder: &mut Builder,
    shape: Shape,
    classes: usize,
    width: f32,
) -> Result<()> {
    let Shape { channels, rows, columns } = shape;
    if rows.min(columns) < 28 {
        return Err(Error::Unfit(format!(
            "images are {rows}x{columns}: MobileNet needs sides of 28 or more: give --side 32"
        )));
    }
    let stride = if rows.min(columns) < LARGE { 1 } else { 2 };
    let mut from = wide(STEM, width);
    builder.conv_norm("stem", (channels, from), (3, stride), Relu6)?;
    let mut number = 0;
    for (widening, to, count, stride) in BLOCKS {
        let to = wide(to, width);
        for repeated in 0..count {
            number += 1;
            let stride = if repeated == 0 { stride } else { 1 };
            block(builder, number, (from, from * widening, to), stride)?;
            from = to;
        }
    }
    // A narrower network keeps the width of its head.
    let head = wide(HEAD, width.max(1.0));
    builder.conv_norm("head", (from, head), (1, 1), Relu6)?;
    builder.mean("mean");
    builder.linear("classifier", head, classes, Identity)
}

/// An inverted residual.
fn block(
    builder: &mut Builder,
    number: usize,
    (from, middle, to): (usize, usize, usize),
    stride: usize,
) -> Result<()> {
    let name = format!("block{number}");
    builder.block(&name, stride == 1 && from == to, |builder| {
        if middle != from {
            builder.conv_norm(&format!("{name}.expand"), (from, middle), (1, 1), Relu6)?;
        }
        builder.depthwise_norm(&format!("{name}.depthwise"), middle, stride, Relu6)?;
        builder.conv_norm(&format!("{name}.project"), (middle, to), (1, 1), Identity)
    })
}
