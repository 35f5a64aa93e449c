//! Images that a formula makes, so that a training needs no files.

use core::f32::consts::TAU;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Dataset, Samples, Shape};

const CLASSES: u32 = 10;

/// The form of generated images: two spots per class, shaken, under noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// True for 32x32 pixels with a tint per class, as CIFAR-10 has; else 28x28 grey ones, as
    /// MNIST.
    pub is_colour: bool,
    /// The training images.
    pub train: usize,
    /// The test images.
    pub test: usize,
}

impl Default for Generated {
    fn default() -> Self {
        Self { is_colour: false, train: 2_000, test: 500 }
    }
}

impl Generated {
    pub(super) fn load(self) -> Dataset {
        let mut rng = StdRng::seed_from_u64(0);
        let train = self.samples(self.train, &mut rng);
        let test = self.samples(self.test, &mut rng);
        Dataset {
            origin: "generated images".into(),
            shape: train.shape(),
            classes: (0..CLASSES).map(|class| class.to_string()).collect(),
            train: Arc::new(train),
            test: Arc::new(test),
        }
    }

    fn samples(self, count: usize, rng: &mut StdRng) -> Samples {
        let (channels, side) = if self.is_colour { (3, 32) } else { (1, 28) };
        let mut labels = Vec::with_capacity(count);
        let mut pixels = Vec::with_capacity(count * channels * side * side);
        for _ in 0..count {
            let class = rng.random_range(0..CLASSES);
            labels.push(class);
            let angle = class as f32 / CLASSES as f32 * TAU;
            let shift = [rng.random_range(-2.0..2.0), rng.random_range(-2.0..2.0)];
            // One spot is in the middle, one on a circle around it at the angle of the class.
            let middle = side as f32 / 2.0;
            let spots = [0.0, 8.0].map(|radius: f32| {
                [middle + shift[0] + radius * angle.sin(), middle + shift[1] + radius * angle.cos()]
            });
            for channel in 0..channels {
                let tint = if self.is_colour {
                    0.7 + 0.3 * (angle + channel as f32 / 3.0 * TAU).cos()
                } else {
                    1.0
                };
                for place in 0..side * side {
                    let (y, x) = ((place / side) as f32, (place % side) as f32);
                    let light: f32 = spots
                        .iter()
                        .map(|s| (-((y - s[0]).powi(2) + (x - s[1]).powi(2)) / 6.0).exp())
                        .sum();
                    let value = light * tint * 130.0 + rng.random_range(0.0..120.0);
                    pixels.push(value.min(255.0) as u8);
                }
            }
        }
        Samples::of_pixels(Shape { channels, rows: side, columns: side }, pixels, labels)
    }
}
