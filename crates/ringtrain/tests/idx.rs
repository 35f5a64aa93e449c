//! The errors of the reader of IDX files and of folders.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use ringtrain::data::{read_images, read_labels};
use ringtrain::{Dataset, Result, Source};
use tempfile::TempDir;

/// `count` images of 16x20 whose pixels count up.
fn images(count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0x0803, count, 16, 20] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend((0..count * 320).map(|pixel| pixel as u8));
    bytes
}

fn labels(classes: &[u8]) -> Vec<u8> {
    let mut bytes = 0x0801u32.to_be_bytes().to_vec();
    bytes.extend((classes.len() as u32).to_be_bytes());
    bytes.extend(classes);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn put(dir: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn load(dir: &Path) -> Result<Dataset> {
    Dataset::load(&Source::Idx(dir.into()), None)
}

/// The message, which must begin with the file's name.
fn refused<T: std::fmt::Debug>(path: &Path, result: Result<T, impl std::fmt::Display>) -> String {
    let message = result.map_err(|error| error.to_string()).unwrap_err();
    let name = format!("{}: ", path.display());
    message.strip_prefix(&name).unwrap_or_else(|| panic!("{message} does not name it")).to_owned()
}

#[test]
fn images_and_labels_are_read_plain_and_compressed() {
    let dir = TempDir::new().unwrap();
    for (name, bytes) in [("images", images(3)), ("images.gz", gzip(&images(3)))] {
        let read = read_images(&put(&dir, name, &bytes)).unwrap();
        assert_eq!((read.count(), read.rows, read.columns, read.area()), (3, 16, 20, 320));
        assert_eq!(read.pixels, images(3)[16..]);
    }
    for (name, bytes) in [("labels", labels(&[9, 0, 3])), ("labels.gz", gzip(&labels(&[9, 0, 3])))]
    {
        assert_eq!(read_labels(&put(&dir, name, &bytes), 10).unwrap(), [9, 0, 3]);
    }
}

#[test]
fn a_file_cut_anywhere_says_what_is_missing() {
    let dir = TempDir::new().unwrap();
    let complete = images(1);
    for cut in 0..complete.len() {
        let expected = if cut < 16 { 16 } else { complete.len() };
        let path = put(&dir, "images", &complete[..cut]);
        let message = refused(&path, read_images(&path));
        assert_eq!(message, format!("truncated: expected {expected} bytes, found {cut}"));
    }
    let complete = labels(&[1, 2]);
    for cut in 0..complete.len() {
        let expected = if cut < 8 { 8 } else { complete.len() };
        let path = put(&dir, "labels", &complete[..cut]);
        let message = refused(&path, read_labels(&path, 10));
        assert_eq!(message, format!("truncated: expected {expected} bytes, found {cut}"));
    }
}

#[test]
fn a_compressed_file_cut_or_damaged_is_refused() {
    let dir = TempDir::new().unwrap();
    let complete = gzip(&images(2));
    for cut in 0..complete.len() {
        let path = put(&dir, "images.gz", &complete[..cut]);
        let message = refused(&path, read_images(&path));
        let said = message.contains("reading failed after") || message.starts_with("truncated");
        assert!(said, "cut at {cut}: {message}");
    }
    // Each byte of the content and its checksum is damaged in turn; the gzip header is not checked.
    for at in 10..complete.len() {
        let mut bytes = complete.clone();
        bytes[at] ^= 0x55;
        let path = put(&dir, "images.gz", &bytes);
        refused(&path, read_images(&path));
    }
}

#[test]
fn a_file_that_goes_on_after_its_end_is_refused() {
    let dir = TempDir::new().unwrap();
    let mut bytes = images(2);
    bytes.push(0);
    for (name, bytes) in [("images", bytes.clone()), ("images.gz", gzip(&bytes))] {
        let path = put(&dir, name, &bytes);
        let message = refused(&path, read_images(&path));
        assert_eq!(message, "too long: expected 656 bytes by its header, found more");
    }
}

#[test]
fn another_kind_of_file_is_refused_by_its_magic_number() {
    let dir = TempDir::new().unwrap();
    let path = put(&dir, "images", &labels(&[1; 40]));
    assert_eq!(
        refused(&path, read_images(&path)),
        "magic number is 0x00000801, expected 0x00000803 (images in IDX format)"
    );
    let path = put(&dir, "labels", &images(1));
    assert!(refused(&path, read_labels(&path, 10)).contains("expected 0x00000801 (labels"));
    let path = put(&dir, "images", &gzip(&images(1)));
    assert!(refused(&path, read_images(&path)).ends_with("it is compressed: name it .gz"));
}

#[test]
fn a_header_that_promises_nothing_or_too_much_is_refused() {
    let dir = TempDir::new().unwrap();
    for dimension in [4, 8, 12] {
        let mut bytes = images(1);
        bytes[dimension..dimension + 4].fill(0);
        let path = put(&dir, "images", &bytes);
        assert!(refused(&path, read_images(&path)).starts_with("holds nothing"));
    }
    let mut bytes = images(1);
    bytes[4..16].fill(0xff); // more than 64 bits can count, and no memory is taken for it
    let path = put(&dir, "images", &bytes);
    let expected = u128::from(u32::MAX).pow(3) + 16;
    let message = refused(&path, read_images(&path));
    assert_eq!(message, format!("truncated: expected {expected} bytes, found 336"));
}

#[test]
fn a_label_that_is_no_class_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = put(&dir, "labels", &labels(&[3, 9, 10, 255]));
    assert_eq!(refused(&path, read_labels(&path, 10)), "label 10 at position 2, expected 0 to 9");
}

#[test]
fn a_folder_is_read_under_the_names_of_mnist() {
    let dir = TempDir::new().unwrap();
    let classes: Vec<u8> = (0..25).map(|label| label % 10).collect();
    put(&dir, "t10k-images-idx3-ubyte.gz", &gzip(&images(25)));
    put(&dir, "t10k-labels-idx1-ubyte", &labels(&classes));
    let split = load(dir.path()).unwrap();
    assert!(split.origin.ends_with("(no train files: t10k split 9:1)"), "{}", split.origin);
    assert_eq!((split.train.len(), split.test.len()), (22, 3));
    assert_eq!(split.test.labels(), [2, 3, 4]);
    // The last image of the file is the last one for tests; a value v is (v - 72) / 90.
    let batch = split.test.batch(&[2]).unwrap();
    assert_eq!(batch.labels.to_vec1::<u32>().unwrap(), [4]);
    let values = batch.images.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let pixels = values.iter().map(|value| (value * 90.0 + 72.0).round() as u8);
    assert!(pixels.eq(images(25)[16 + 24 * 320..].iter().copied()));

    put(&dir, "train-images-idx3-ubyte", &images(4));
    put(&dir, "train-labels-idx1-ubyte.gz", &gzip(&labels(&[4, 3, 2, 1])));
    let mut both = load(dir.path()).unwrap();
    assert_eq!((both.train.len(), both.test.len()), (4, 25));
    both.limit(3);
    assert_eq!(both.train.labels(), [4, 3, 2]);
    both.limit(100);
    assert_eq!(both.train.len(), 3);
}

#[test]
fn a_folder_that_lacks_something_is_refused() {
    let dir = TempDir::new().unwrap();
    let nowhere = dir.path().join("nowhere");
    assert!(refused(&nowhere, load(&nowhere)).contains("No such file"));
    let message = refused(dir.path(), load(dir.path()));
    assert!(message.starts_with("no t10k-images-idx3-ubyte and no t10k-images"), "{message}");

    put(&dir, "t10k-images-idx3-ubyte", &images(2));
    let message = refused(dir.path(), load(dir.path()));
    assert!(message.contains("but neither t10k-labels-idx1-ubyte nor"), "{message}");

    let of = dir.path().join("t10k-images-idx3-ubyte");
    let path = put(&dir, "t10k-labels-idx1-ubyte", &labels(&[1, 2, 3]));
    let message = refused(&path, load(dir.path()));
    assert_eq!(message, format!("holds 3 labels, but {} holds 2 images", of.display()));

    put(&dir, "t10k-labels-idx1-ubyte", &labels(&[1, 2]));
    let mut wide = images(2);
    wide.swap(11, 15); // 20x16
    put(&dir, "train-images-idx3-ubyte", &wide);
    put(&dir, "train-labels-idx1-ubyte", &labels(&[1, 2]));
    let message = refused(dir.path(), load(dir.path()));
    assert_eq!(message, "training images are 20x16, but test images 16x20");
}
