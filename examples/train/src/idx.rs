//! Files in IDX format: big-endian magic number and dimensions, then one byte per pixel or label;
//! `.gz` files are decompressed on the way. Law: a file has exactly the bytes its header promises.
//! A header is not trusted: no memory is taken for bytes that have not been read.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// Grey images of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Height in pixels.
    pub rows: usize,
    /// Width in pixels.
    pub columns: usize,
    /// All pixels: count x rows x columns.
    pub pixels: Vec<u8>,
}

impl Images {
    /// Pixels of one image.
    #[must_use]
    pub fn area(&self) -> usize {
        self.rows * self.columns
    }

    /// How many images.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pixels.len() / self.area()
    }
}

/// A file that is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct IdxError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a file. Byte counts are of the decompressed content.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It can't be opened.
    #[error("{0}")]
    Open(io::Error),
    /// Reading or decompressing it failed on the way.
    #[error("reading failed after {found} of {expected} bytes: {source}")]
    Read {
        /// Bytes that it should have.
        expected: u128,
        /// Bytes that came.
        found: usize,
        /// Why no more came.
        source: io::Error,
    },
    /// It ends too early.
    #[error("truncated: expected {expected} bytes, found {found}")]
    Truncated {
        /// Bytes that it should have.
        expected: u128,
        /// Bytes that it has.
        found: usize,
    },
    /// It goes on after its end.
    #[error("too long: expected {expected} bytes by its header, found more")]
    TooLong {
        /// Bytes that it should have.
        expected: u128,
    },
    /// It is another kind of file.
    #[error(
        "magic number is {found:#010x}, expected {expected:#010x} ({kind} in IDX format){hint}"
    )]
    Magic {
        /// What it should be.
        expected: u32,
        /// What it is.
        found: u32,
        /// What was looked for.
        kind: &'static str,
        /// What it might be.
        hint: &'static str,
    },
    /// A header that describes nothing.
    #[error("holds nothing: its header says {}", dimensions(.0))]
    Empty(Vec<u32>),
    /// A label that is none of the classes.
    #[error("label {label} at position {at}, expected 0 to {}", classes - 1)]
    Label {
        /// Its position, from 0.
        at: usize,
        /// Its value.
        label: u8,
        /// The number of classes.
        classes: u8,
    },
    /// Images and labels that do not belong together.
    #[error("holds {labels} labels, but {} holds {images} images", of.display())]
    Count {
        /// Labels in this file.
        labels: usize,
        /// The file with the images.
        of: PathBuf,
        /// Images in it.
        images: usize,
    },
}

fn dimensions(sizes: &[u32]) -> String {
    sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" x ")
}

/// Reads images.
///
/// # Errors
/// [`IdxError`], if the file can't be read or is not exactly a set of images.
pub fn read_images(file: &Path) -> Result<Images, IdxError> {
    match read(file, "images", 0x0803) {
        Ok(([_, rows, columns], pixels)) => {
            Ok(Images { rows: rows as usize, columns: columns as usize, pixels })
        }
        Err(problem) => Err(IdxError { file: file.into(), problem }),
    }
}

/// Reads labels, each below `classes`.
///
/// # Errors
/// [`IdxError`], if the file can't be read, is not exactly a set of labels, or one is too large.
pub fn read_labels(file: &Path, classes: u8) -> Result<Vec<u8>, IdxError> {
    let labels = read(file, "labels", 0x0801).and_then(|([_], labels)| {
        match labels.iter().position(|&label| label >= classes) {
            Some(at) => Err(Problem::Label { at, label: labels[at], classes }),
            None => Ok(labels),
        }
    });
    labels.map_err(|problem| IdxError { file: file.into(), problem })
}

/// The `D` dimensions and the content of a file whose magic number should be `magic`.
fn read<const D: usize>(
    file: &Path,
    kind: &'static str,
    magic: u32,
) -> Result<([u32; D], Vec<u8>), Problem> {
    let opened = BufReader::new(File::open(file).map_err(Problem::Open)?);
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
            return Err(Problem::Magic { expected: magic, found, kind, hint });
        }
        _ if bytes.len() < header => {
            return Err(Problem::Truncated { expected: header as u128, found: bytes.len() });
        }
        _ => {}
    }
    let mut sizes = [0; D];
    sizes.copy_from_slice(&words[1..]);
    if sizes.contains(&0) {
        return Err(Problem::Empty(sizes.into()));
    }
    let expected = header as u128 + sizes.iter().map(|&size| u128::from(size)).product::<u128>();
    fill(&mut input, &mut bytes, expected + 1)?;
    match bytes.len() as u128 {
        found if found < expected => Err(Problem::Truncated { expected, found: bytes.len() }),
        found if found > expected => Err(Problem::TooLong { expected }),
        _ => Ok((sizes, bytes.split_off(header))),
    }
}

/// Reads on until `bytes` holds `total` or the input ends.
fn fill(input: &mut dyn Read, bytes: &mut Vec<u8>, total: u128) -> Result<(), Problem> {
    let rest = u64::try_from(total - bytes.len() as u128).unwrap_or(u64::MAX);
    match input.take(rest).read_to_end(bytes) {
        Ok(_) => Ok(()),
        Err(source) => Err(Problem::Read { expected: total, found: bytes.len(), source }),
    }
}
