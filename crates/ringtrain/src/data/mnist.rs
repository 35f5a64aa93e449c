//! A folder of IDX files under MNIST's names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Dataset, FileError, Samples, Shape, read_images, read_labels};
use crate::error::{Error, Result};

const CLASSES: u8 = 10;

/// True if the folder has a file of this form.
pub(super) fn is_in(dir: &Path) -> bool {
    let names = ["train", "t10k"]
        .into_iter()
        .flat_map(|set| [file_name(set, "images-idx3"), file_name(set, "labels-idx1")]);
    names.into_iter().any(|name| find(dir, &name).is_some())
}

/// Reads the folder `dir`. Without training files a tenth of the test files is for testing.
pub(super) fn load(dir: &Path) -> Result<Dataset> {
    let folder = |problem: String| Error::Folder { dir: dir.into(), problem };
    std::fs::read_dir(dir).map_err(|error| folder(error.to_string()))?;
    let origin = dir.display().to_string();
    let classes = (0..CLASSES).map(|class| class.to_string()).collect();
    let (origin, train, test) = match (read_split(dir, "train")?, read_split(dir, "t10k")?) {
        (Some(train), Some(test)) => {
            let (a, b) = (train.shape(), test.shape());
            if a != b {
                return Err(folder(format!(
                    "training images are {}x{}, but test images {}x{}",
                    a.rows, a.columns, b.rows, b.columns
                )));
            }
            (origin, train, test)
        }
        (None, Some(all)) if all.len() < 2 => {
            return Err(folder(
                "no train files, and t10k has but one image: nothing to split".into(),
            ));
        }
        (None, Some(all)) => {
            let train = all.len() - all.len().div_ceil(10);
            let origin = format!("{origin} (no train files: t10k split 9:1)");
            (origin, all.range(0..train), all.range(train..all.len()))
        }
        (_, None) => {
            return Err(folder(format!(
                "no {} and no {0}.gz in it; these are MNIST's file names",
                file_name("t10k", "images-idx3")
            )));
        }
    };
    let shape = train.shape();
    Ok(Dataset { origin, shape, classes, train: Arc::new(train), test: Arc::new(test) })
}

fn file_name(set: &str, part: &str) -> String {
    format!("{set}-{part}-ubyte")
}

/// The file as it is, else compressed, else none.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join(format!("{name}.gz"))].into_iter().find(|path| path.exists())
}

/// The images and labels of a set; none if both files are missing.
fn read_split(dir: &Path, set: &str) -> Result<Option<Samples>> {
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
        return Err(FileError { file: labels_file, problem }.into());
    }
    let shape = Shape { channels: 1, rows: images.rows, columns: images.columns };
    let labels = labels.into_iter().map(u32::from).collect();
    Ok(Some(Samples::of_pixels(shape, images.pixels, labels)))
}
