//! Images and their classes, for training and for tests. Law: every rank that loads the same source
//! holds the same samples in the same order.

mod cifar;
mod folder;
mod generated;
mod idx;
mod loader;
mod mnist;
mod samples;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use generated::Generated;
pub use idx::{Images, read_images, read_labels};
pub use loader::Loader;
pub use samples::{Batch, Samples};

use crate::error::{Error, Result};

/// The largest side to which images are resized, in pixels.
const LARGEST_SIDE: usize = 224;

/// The form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// 1 for grey images, 3 for red, green and blue.
    pub channels: usize,
    /// The height in pixels.
    pub rows: usize,
    /// The width in pixels.
    pub columns: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.channels, self.rows, self.columns)
    }
}

impl Shape {
    /// The values of an image.
    #[must_use]
    pub const fn count(self) -> usize {
        self.channels * self.rows * self.columns
    }
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder with MNIST's file names (`train-images-idx3-ubyte[.gz]`, ...).
    Idx(PathBuf),
    /// A folder of CIFAR-10's binary form (`data_batch_1.bin` to `5`, `test_batch.bin`).
    Cifar10(PathBuf),
    /// A folder of images, a folder for each class: `train/CLASS/*.png` and `test/CLASS/*.png`, or
    /// `CLASS/*.png`; JPEG files too.
    Folder(PathBuf),
    /// Images that a formula makes.
    Generated(Generated),
}

impl Source {
    /// Tells the form of a folder by its files' names.
    ///
    /// # Errors
    /// If it can't be read, or has none of the forms.
    pub fn detect(dir: &Path) -> Result<Self> {
        let folder = |problem: String| Error::Folder { dir: dir.into(), problem };
        let entries = std::fs::read_dir(dir).map_err(|error| folder(error.to_string()))?;
        if mnist::is_in(dir) {
            return Ok(Self::Idx(dir.into()));
        }
        if cifar::is_in(dir) {
            return Ok(Self::Cifar10(dir.into()));
        }
        if entries.flatten().any(|entry| entry.path().is_dir()) {
            return Ok(Self::Folder(dir.into()));
        }
        Err(folder(
            "holds no images: neither files with MNIST's names (t10k-images-idx3-ubyte[.gz], ...) \
             nor with CIFAR-10's (data_batch_1.bin, ...) nor a folder for each class"
                .into(),
        ))
    }
}

/// The images for training and for tests.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// A description of the source.
    pub origin: String,
    /// The form of the images in a batch.
    pub shape: Shape,
    /// The name of each class.
    pub classes: Vec<String>,
    /// The images for training.
    pub train: Arc<Samples>,
    /// The images for tests.
    pub test: Arc<Samples>,
}

impl Dataset {
    /// Loads images. With `side`, each is resized to `side` x `side` pixels when a batch is made.
    ///
    /// # Errors
    /// If a file is missing, damaged or foreign, or if files don't fit together; the message names
    /// the file, the place and a remedy.
    pub fn load(source: &Source, side: Option<usize>) -> Result<Self> {
        if let Some(side) = side.filter(|side| !(1..=LARGEST_SIDE).contains(side)) {
            return Err(Error::Unfit(format!(
                "images can't be resized to {side} pixels: say 1 to {LARGEST_SIDE}"
            )));
        }
        let mut data = match source {
            Source::Idx(dir) => mnist::load(dir)?,
            Source::Cifar10(dir) => cifar::load(dir)?,
            Source::Folder(dir) => folder::load(dir, side)?,
            Source::Generated(form) => form.load(),
        };
        if let Some(side) = side {
            data.train = Arc::new(data.train.resized(side));
            data.test = Arc::new(data.test.resized(side));
            data.shape = data.train.shape();
        }
        Ok(data)
    }

    /// The name of the source: of its folder, without the way to it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.origin.rsplit('/').next().unwrap_or(&self.origin)
    }

    /// Keeps the first `count` training images only.
    pub fn limit(&mut self, count: usize) {
        if count < self.train.len() {
            self.train = Arc::new(self.train.range(0..count));
        }
    }

    /// Keeps the first `count` test images only.
    pub fn limit_tests(&mut self, count: usize) {
        if count < self.test.len() {
            self.test = Arc::new(self.test.range(0..count));
        }
    }
}

/// The error of a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct FileError {
    /// The file's path.
    pub file: PathBuf,
    /// The problem, its place and a remedy.
    pub problem: String,
}
