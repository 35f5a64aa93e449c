//! Samples in memory or in files, and batches of them.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use image::imageops::{FilterType, resize};
use image::{ImageBuffer, Luma};

use super::{FileError, Shape, folder};
use crate::error::{Error, Result};

/// The mean and the standard deviation of the pixels by which batches are normalised: about those
/// of Fashion-MNIST, and about those of photographs.
const GREY: (f32, f32) = (72.0, 90.0);
const COLOUR: (f32, f32) = (120.0, 64.0);

/// Images and the class of each.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The form of the images in a batch.
    shape: Shape,
    /// The form of the images as they are; one in a file may have another size.
    original: Shape,
    images: Images,
    labels: Arc<Vec<u32>>,
    /// The images of these that count.
    range: Range<usize>,
}

/// Where the images are.
#[derive(Clone, Debug)]
enum Images {
    /// All pixels: count x channels x rows x columns.
    Memory(Arc<Vec<u8>>),
    /// One file for each.
    Files(Arc<Vec<PathBuf>>),
}

/// Some images, for a model.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Normalised values: count x channels x rows x columns, `f32`.
    pub images: Tensor,
    /// The classes: count, `u32`.
    pub labels: Tensor,
}

impl Batch {
    /// How many images there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.elem_count()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Samples {
    /// Images whose pixels (count x channels x rows x columns) are in memory.
    pub(super) fn of_pixels(shape: Shape, pixels: Vec<u8>, labels: Vec<u32>) -> Self {
        Self::new(shape, Images::Memory(Arc::new(pixels)), labels)
    }

    /// Images in files, the first of which has this shape.
    pub(super) fn of_files(shape: Shape, files: Vec<PathBuf>, labels: Vec<u32>) -> Self {
        Self::new(shape, Images::Files(Arc::new(files)), labels)
    }

    fn new(shape: Shape, images: Images, labels: Vec<u32>) -> Self {
        let range = 0..labels.len();
        Self { shape, original: shape, images, labels: Arc::new(labels), range }
    }

    /// How many images there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The form of the images in a batch.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The class of each image.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels[self.range.clone()]
    }

    /// Some of the images, without a copy.
    pub(super) fn range(&self, range: Range<usize>) -> Self {
        let range = self.range.start + range.start..self.range.start + range.end;
        Self { range, ..self.clone() }
    }

    /// The same images, resized to `side` x `side` pixels when a batch is made.
    pub(super) fn resized(&self, side: usize) -> Self {
        Self { shape: Shape { rows: side, columns: side, ..self.shape }, ..self.clone() }
    }

    /// The images at these places.
    ///
    /// # Errors
    /// If a place is beyond the last image; if a file can't be decoded.
    pub fn batch(&self, places: &[usize]) -> Result<Batch> {
        let count = self.len();
        if let Some(place) = places.iter().find(|place| **place >= count) {
            return Err(Error::Unfit(format!("there is no image {place}: there are {count}")));
        }
        let (mean, deviation) = if self.shape.channels == 1 { GREY } else { COLOUR };
        let mut values = Vec::with_capacity(places.len() * self.shape.count());
        for place in places {
            let pixels = self.pixels(self.range.start + place)?;
            values.extend(pixels.iter().map(|&pixel| (f32::from(pixel) - mean) / deviation));
        }
        let labels: Vec<u32> = places.iter().map(|place| self.labels()[*place]).collect();
        let Shape { channels, rows, columns } = self.shape;
        let images =
            Tensor::from_vec(values, (places.len(), channels, rows, columns), &Device::Cpu)?;
        let labels = Tensor::from_vec(labels, places.len(), &Device::Cpu)?;
        Ok(Batch { images, labels })
    }

    /// An image in the form of a batch.
    fn pixels(&self, at: usize) -> Result<Cow<'_, [u8]>> {
        let (original, pixels) = match &self.images {
            Images::Memory(pixels) => {
                let area = self.original.count();
                (self.original, Cow::Borrowed(&pixels[at * area..][..area]))
            }
            Images::Files(files) => {
                let (original, pixels) = folder::decode(&files[at])?;
                // A file may have been replaced since its size was looked at.
                if self.shape == self.original && original != self.shape {
                    let Shape { rows, columns, .. } = original;
                    let problem = format!("is {rows}x{columns} now: it was changed; start again");
                    return Err(FileError { file: files[at].clone(), problem }.into());
                }
                (original, Cow::Owned(pixels))
            }
        };
        if original == self.shape {
            return Ok(pixels);
        }
        let mut resized = Vec::with_capacity(self.shape.count());
        for plane in pixels.chunks_exact(original.rows * original.columns) {
            let (columns, rows) = (original.columns as u32, original.rows as u32);
            let Some(plane) = ImageBuffer::<Luma<u8>, _>::from_raw(columns, rows, plane) else {
                return Err(Error::Unfit(format!("an image of {columns}x{rows} is too large")));
            };
            let (columns, rows) = (self.shape.columns as u32, self.shape.rows as u32);
            resized.extend(resize(&plane, columns, rows, FilterType::Triangle).into_raw());
        }
        Ok(Cow::Owned(resized))
    }
}
