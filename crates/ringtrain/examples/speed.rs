//! Training steps per second on one core, of each network and of single operations beside those of
//! candle: `RAYON_NUM_THREADS=1 cargo run --release --example speed [FILTER]`.
#![allow(missing_docs, reason = "a program")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{Conv2d, Conv2dConfig, Module, ops::log_softmax};
use ringtrain::Result;
use ringtrain::data::{Dataset, Generated, Source};
use ringtrain::models::{ModelKind, Network};
use strategy::{Model, Part, Sink};

/// The least time of a step, of as many as fit in some seconds.
fn measure(name: &str, images: usize, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if !name.contains(&wanted) {
        return Ok(());
    }
    let (start, mut least, mut steps) = (Instant::now(), Duration::MAX, 0);
    while steps < 3 || start.elapsed() < Duration::from_secs(5) {
        let begin = Instant::now();
        step()?;
        least = least.min(begin.elapsed());
        steps += 1;
    }
    let rate = images as f64 / least.as_secs_f64();
    println!("{name}: {:.1} ms, {rate:.0} images/s (least of {steps})", least.as_secs_f64() * 1e3);
    Ok(())
}

/// A step of a whole network of this crate.
fn network(kind: ModelKind, is_colour: bool, batch: usize, width: f32) -> Result<()> {
    let form = Generated { is_colour, train: batch, test: 1 };
    let data = Dataset::load(&Source::Generated(form), None)?;
    let places: Vec<usize> = (0..batch).collect();
    let mut network = Network::with_width(kind, data.shape, data.classes.len(), 1, width)?;
    let part = Part { batch: Some(data.train.batch(&places)?), total: batch };
    let name = format!("{kind:?} x{width}, batch {batch} of {:?}", data.shape);
    let sink: Sink = Arc::new(|_, _| {});
    measure(&name, batch, || network.gradients(&part, &sink).map(drop))
}

fn var(shape: &[usize]) -> Result<Var> {
    Ok(Var::rand(-0.1_f32, 0.1, shape, &Device::Cpu)?)
}

/// LeNet of candle's operations.
fn candle_lenet(batch: usize) -> Result<()> {
    let conv = |from, to| -> Result<Conv2d> {
        let (weight, bias) = (var(&[to, from, 5, 5])?, var(&[to])?);
        Ok(Conv2d::new(weight.into_inner(), Some(bias.into_inner()), Conv2dConfig::default()))
    };
    let (one, two) = (conv(1, 6)?, conv(6, 16)?);
    let dense = [(256, 120), (120, 84), (84, 10)]
        .map(|(from, to)| Ok((var(&[to, from])?, var(&[to])?)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let images = Tensor::rand(-1_f32, 1.0, (batch, 1, 28, 28), &Device::Cpu)?;
    let labels = Tensor::zeros((batch, 1), DType::U32, &Device::Cpu)?;
    measure(&format!("candle's LeNet, batch {batch}"), batch, || {
        let mut x = one.forward(&images)?.relu()?.max_pool2d(2)?;
        x = two.forward(&x)?.relu()?.max_pool2d(2)?.flatten_from(1)?;
        for (place, (weight, bias)) in dense.iter().enumerate() {
            x = x.matmul(&weight.t()?)?.broadcast_add(bias)?;
            x = if place < 2 { x.relu()? } else { x };
        }
        log_softmax(&x, D::Minus1)?.gather(&labels, 1)?.mean_all()?.neg()?.backward()?;
        Ok(())
    })
}

/// A convolution with a kernel of each channel by candle's operations.
fn candle_depthwise(batch: usize, channels: usize, side: usize, stride: usize) -> Result<()> {
    let (weight, images) = (var(&[channels, 1, 3, 3])?, var(&[batch, channels, side, side])?);
    let name = format!("candle's depthwise, batch {batch}, {channels}x{side}x{side}, /{stride}");
    measure(&name, batch, || {
        let groups = images.conv2d(&weight, 1, stride, 1, channels)?;
        groups.sum_all()?.backward()?;
        Ok(())
    })
}

fn main() -> Result<()> {
    network(ModelKind::LeNet, false, 256, 1.0)?;
    candle_lenet(256)?;
    network(ModelKind::Dense, false, 256, 1.0)?;
    network(ModelKind::Dense, false, 64, 7.4)?;
    network(ModelKind::MobileNet, true, 64, 1.0)?;
    candle_depthwise(64, 96, 32, 2)?;
    candle_depthwise(64, 144, 16, 1)?;
    network(ModelKind::Vgg, true, 64, 1.0)
}
