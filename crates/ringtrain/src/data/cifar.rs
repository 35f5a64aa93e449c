//! A folder of CIFAR-10 in its binary form (Krizhevsky 2009): records of a label and 3 x 32 x 32
//! pixels. Law: a file has whole records, and labels from 0 to 9.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{Dataset, FileError, Samples, Shape};
use crate::error::{Error, Result};

const SHAPE: Shape = Shape { channels: 3, rows: 32, columns: 32 };
const RECORD: usize = 1 + SHAPE.count();
const CLASSES: usize = 10;
const BATCHES: usize = 5;
const NAMES: &str = "batches.meta.txt";

/// True if the folder has a file of this form.
pub(super) fn is_in(dir: &Path) -> bool {
    (1..=BATCHES).map(batch).chain([test()]).any(|name| dir.join(name).exists())
}

fn batch(number: usize) -> String {
    format!("data_batch_{number}.bin")
}

fn test() -> String {
    "test_batch.bin".into()
}

pub(super) fn load(dir: &Path) -> Result<Dataset> {
    if let Some(name) = (1..=BATCHES).map(batch).chain([test()]).find(|it| !dir.join(it).exists()) {
        let problem = format!(
            "{name} is missing: CIFAR-10's binary form has five data_batch files and {}",
            test()
        );
        return Err(Error::Folder { dir: dir.into(), problem });
    }
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for name in (1..=BATCHES).map(batch) {
        read(&dir.join(name), &mut pixels, &mut labels)?;
    }
    let train = Samples::of_pixels(SHAPE, pixels, labels);
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    read(&dir.join(test()), &mut pixels, &mut labels)?;
    let test = Samples::of_pixels(SHAPE, pixels, labels);
    Ok(Dataset {
        origin: dir.display().to_string(),
        shape: SHAPE,
        classes: classes(&dir.join(NAMES))?,
        train: Arc::new(train),
        test: Arc::new(test),
    })
}

/// The names in a file of one per line; numbers if there is no such file.
fn classes(file: &Path) -> Result<Vec<String>> {
    if !file.exists() {
        return Ok((0..CLASSES).map(|class| class.to_string()).collect());
    }
    let wrong = |problem: String| FileError { file: file.into(), problem };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Into::into).collect();
    if names.len() != CLASSES {
        let count = names.len();
        return Err(wrong(format!(
            "holds {count} names, expected {CLASSES}; without this file classes have numbers"
        ))
        .into());
    }
    Ok(names)
}

/// Adds the records of a file.
fn read(file: &Path, pixels: &mut Vec<u8>, labels: &mut Vec<u32>) -> Result<()> {
    let wrong = |problem: String| FileError { file: file.into(), problem };
    let bytes = fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let rest = bytes.len() % RECORD;
    if bytes.is_empty() || rest != 0 {
        return Err(wrong(format!(
            "has {} bytes, which are {} records of {RECORD} bytes and {rest} more: \
             it is truncated, or not CIFAR-10's binary form; download it again",
            bytes.len(),
            bytes.len() / RECORD
        ))
        .into());
    }
    for (at, record) in bytes.chunks_exact(RECORD).enumerate() {
        let label = u32::from(record[0]);
        if label as usize >= CLASSES {
            return Err(wrong(format!(
                "label {label} in record {at}, expected 0 to {}: it is damaged, or not CIFAR-10's \
                 binary form",
                CLASSES - 1
            ))
            .into());
        }
        labels.push(label);
        pixels.extend_from_slice(&record[1..]);
    }
    Ok(())
}
