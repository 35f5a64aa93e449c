//! Files in IDX format: big-endian magic number and dimensions, then one byte per pixel or label;
//! `.gz` files are decompressed. Law: a file has exactly the bytes that its header promises. A
//! header is not trusted: memory is allocated only for bytes that have been read. Byte counts in
//! messages are of the decompressed content.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::FileError;

/// Grey images of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    pub rows: usize,
    pub columns: usize,
    /// All pixels: count x rows x columns.
    pub pixels: Vec<u8>,
}

impl Images {
    /// Pixels of one image.
    pub fn area(&self) -> usize {
        self.rows * self.columns
    }

    pub fn count(&self) -> usize {
        self.pixels.len() / self.area()
    }
}

fn truncated(expected: u128, found: usize) -> String {
    format!("truncated: expected {expected} bytes, found {found}")
}

pub fn read_images(file: &Path) -> Result<Images, FileError> {
    match read(file, "images", 0x0803) {
        Ok(([_, rows, columns], pixels)) => {
            Ok(Images { rows: rows as usize, columns: columns as usize, pixels })
        }
        Err(problem) => Err(FileError { file: file.into(), problem }),
    }
}

/// Reads labels, each below `classes`.
pub fn read_labels(file: &Path, classes: u8) -> Result<Vec<u8>, FileError> {
    let labels = read(file, "labels", 0x0801).and_then(|([_], labels)| {
        match labels.iter().position(|&label| label >= classes) {
            Some(at) => {
                let (label, most) = (labels[at], classes - 1);
                Err(format!("label {label} at position {at}, expected 0 to {most}"))
            }
            None => Ok(labels),
        }
    });
    labels.map_err(|problem| FileError { file: file.into(), problem })
}

/// The `D` dimensions and the content of a file whose magic number should be `magic`.
fn read<const D: usize>(
    file: &Path,
    kind: &'static str,
    magic: u32,
) -> Result<([u32; D], Vec<u8>), String> {
    let opened = BufReader::new(File::open(file).map_err(|error| error.to_string())?);
    let mut input: Box<dyn Read> = match file.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(opened)),
        _ => Box::new(opened),
    };
    let header = 4 + 4 * D;
    let mut bytes = Vec::new();
    fill(&mut input, &mut bytes, header as u128)?;
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |w, &b| w << 8 | u32::from(b)))
        .collect();
    match words.first() {
        Some(&found) if found != magic => {
            let hint = if found >> 16 == 0x1f8b { "; it is compressed: name it .gz" } else { "" };
            return Err(format!(
                "magic number is {found:#010x}, expected {magic:#010x} ({kind} in IDX format){hint}"
            ));
        }
        _ if bytes.len() < header => return Err(truncated(header as u128, bytes.len())),
        _ => {}
    }
    let mut sizes = [0; D];
    sizes.copy_from_slice(&words[1..]);
    if sizes.contains(&0) {
        let sizes = sizes.map(|size| size.to_string()).join(" x ");
        return Err(format!("holds nothing: its header says {sizes}"));
    }
    let expected = header as u128 + sizes.iter().map(|&size| u128::from(size)).product::<u128>();
    fill(&mut input, &mut bytes, expected + 1)?;
    match bytes.len() as u128 {
        found if found < expected => Err(truncated(expected, bytes.len())),
        found if found > expected => {
            Err(format!("too long: expected {expected} bytes by its header, found more"))
        }
        _ => Ok((sizes, bytes.split_off(header))),
    }
}

/// Reads on until `bytes` holds `total` or the input ends.
fn fill(input: &mut dyn Read, bytes: &mut Vec<u8>, total: u128) -> Result<(), String> {
    let rest = u64::try_from(total - bytes.len() as u128).unwrap_or(u64::MAX);
    match input.take(rest).read_to_end(bytes) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(format!("reading failed after {} of {total} bytes: {error}", bytes.len()))
        }
    }
}
