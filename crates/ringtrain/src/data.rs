//! Training and test images with their labels: read from a folder, or generated. Law: every rank
//! that loads the same folder holds the same data in the same order.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::error::{Error, Result};
use crate::idx::{IdxError, Images, read_images, read_labels};
use crate::model::CLASSES;

/// Images and the class of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub images: Images,
    pub labels: Vec<u8>,
}

/// The images for training and for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// A description of the source.
    pub origin: String,
    pub train: Split,
    pub test: Split,
}

impl Split {
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The images at `indices` (count x 1 x rows x columns, -1 to 1) and their classes (count).
    pub fn batch(&self, indices: &[usize]) -> Result<(Tensor, Tensor)> {
        let area = self.images.area();
        let shape = (indices.len(), 1, self.images.rows, self.images.columns);
        let pixels: Vec<f32> = indices
            .iter()
            .flat_map(|&index| &self.images.pixels[index * area..][..area])
            .map(|&pixel| f32::from(pixel) / 90.0 - 0.8)
            .collect();
        let classes: Vec<u32> =
            indices.iter().map(|&index| u32::from(self.labels[index])).collect();
        let count = classes.len();
        Ok((
            Tensor::from_vec(pixels, shape, &Device::Cpu)?,
            Tensor::from_vec(classes, count, &Device::Cpu)?,
        ))
    }

    /// Keeps the first `count` images and returns the others.
    fn split_off(&mut self, count: usize) -> Self {
        let pixels = self.images.pixels.split_off(count * self.images.area());
        Self { images: Images { pixels, ..self.images }, labels: self.labels.split_off(count) }
    }
}

impl Dataset {
    /// Reads the folder `dir`. Without training files a tenth of the test files is for testing.
    pub fn load(dir: &Path) -> Result<Self> {
        let folder = |problem: String| Error::Folder { dir: dir.into(), problem };
        std::fs::read_dir(dir).map_err(|error| folder(error.to_string()))?;
        let origin = dir.display().to_string();
        match (read_split(dir, "train")?, read_split(dir, "t10k")?) {
            (Some(train), Some(test)) => {
                let (a, b) = (&train.images, &test.images);
                if (a.rows, a.columns) != (b.rows, b.columns) {
                    return Err(folder(format!(
                        "training images are {}x{}, but test images {}x{}",
                        a.rows, a.columns, b.rows, b.columns
                    )));
                }
                Ok(Self { origin, train, test })
            }
            (None, Some(train)) if train.len() < 2 => {
                Err(folder("no train files, and t10k has but one image: nothing to split".into()))
            }
            (None, Some(mut train)) => {
                let test = train.split_off(train.len() - train.len().div_ceil(10));
                let origin = format!("{origin} (no train files: t10k split 9:1)");
                Ok(Self { origin, train, test })
            }
            (_, None) => Err(folder(format!(
                "no {} and no {0}.gz in it; these are MNIST's file names",
                file_name("t10k", "images-idx3")
            ))),
        }
    }

    /// 2,000 training and 500 test images of 28x28: two spots per class, shaken, under noise.
    pub fn generated() -> Self {
        let mut rng = StdRng::seed_from_u64(0);
        let train = generate(2_000, &mut rng);
        let test = generate(500, &mut rng);
        Self { origin: "generated images".into(), train, test }
    }

    /// Keeps the first `count` training images only.
    pub fn limit(&mut self, count: Option<usize>) {
        if let Some(count) = count.filter(|&count| count < self.train.len()) {
            self.train.split_off(count);
        }
    }
}

fn file_name(set: &str, part: &str) -> String {
    format!("{set}-{part}-ubyte")
}

/// The file as it is, else compressed, else none.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join(format!("{name}.gz"))].into_iter().find(|path| path.exists())
}

/// The images and labels of a set; none if both files are missing.
fn read_split(dir: &Path, set: &str) -> Result<Option<Split>> {
    let (images, labels) = (file_name(set, "images-idx3"), file_name(set, "labels-idx1"));
    let (images_file, labels_file) = match (find(dir, &images), find(dir, &labels)) {
        (Some(images), Some(labels)) => (images, labels),
        (None, None) => return Ok(None),
        (found, _) => {
            let (here, missing) = if found.is_some() { (images, labels) } else { (labels, images) };
            let problem = format!("has {here}, but neither {missing} nor {missing}.gz");
            return Err(Error::Folder { dir: dir.into(), problem });
        }
    };
    let images = read_images(&images_file)?;
    let labels = read_labels(&labels_file, CLASSES)?;
    if images.count() != labels.len() {
        let (labels, images) = (labels.len(), images.count());
        let of = images_file.display();
        let problem = format!("holds {labels} labels, but {of} holds {images} images");
        return Err(IdxError { file: labels_file, problem }.into());
    }
    Ok(Some(Split { images, labels }))
}

fn generate(count: usize, rng: &mut StdRng) -> Split {
    const SIDE: usize = 28;
    let mut labels = Vec::with_capacity(count);
    let mut pixels = Vec::with_capacity(count * SIDE * SIDE);
    for _ in 0..count {
        let class = rng.random_range(0..CLASSES);
        labels.push(class);
        let angle = f32::from(class) / f32::from(CLASSES) * core::f32::consts::TAU;
        let shift = [rng.random_range(-2.0..2.0), rng.random_range(-2.0..2.0)];
        // One spot is in the middle, one on a circle around it at the angle of the class.
        let spots = [0.0, 8.0].map(|radius: f32| {
            [14.0 + shift[0] + radius * angle.sin(), 14.0 + shift[1] + radius * angle.cos()]
        });
        for place in 0..SIDE * SIDE {
            let (y, x) = ((place / SIDE) as f32, (place % SIDE) as f32);
            let light: f32 = spots
                .iter()
                .map(|s| (-((y - s[0]).powi(2) + (x - s[1]).powi(2)) / 6.0).exp())
                .sum();
            pixels.push((light * 130.0 + rng.random_range(0.0..120.0)).min(255.0) as u8);
        }
    }
    Split { images: Images { rows: SIDE, columns: SIDE, pixels }, labels }
}
