//! A folder of images (PNG or JPEG), a folder for each class: in `train` and `test`, or else all
//! together, of which a tenth is for tests. Law: the split and the order depend on names alone, and
//! the order mixes the classes.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{DynamicImage, ImageReader};

use super::{Dataset, FileError, Samples, Shape};
use crate::error::{Error, Result};

const CHANNELS: usize = 3;

/// The images of a class.
type Class = (String, Vec<PathBuf>);

fn folder(dir: &Path, problem: impl Into<String>) -> Error {
    Error::Folder { dir: dir.into(), problem: problem.into() }
}

fn file(path: &Path, problem: impl std::fmt::Display) -> Error {
    FileError { file: path.into(), problem: problem.to_string() }.into()
}

pub(super) fn load(dir: &Path, side: Option<usize>) -> Result<Dataset> {
    let (train, test) = (dir.join("train"), dir.join("test"));
    let (train, test) = match (train.is_dir(), test.is_dir()) {
        (true, true) => both(&train, &test)?,
        (false, false) => split(dir)?,
        (true, false) => {
            return Err(folder(dir, "has a folder train, but no folder test beside it"));
        }
        (false, true) => {
            return Err(folder(dir, "has a folder test, but no folder train beside it"));
        }
    };
    let classes = train.iter().map(|(name, _)| name.clone()).collect();
    let mut shape = None;
    for path in train.iter().chain(&test).flat_map(|(_, paths)| paths) {
        let (rows, columns) = size(path)?;
        let (first, of) = *shape.get_or_insert((Shape { channels: CHANNELS, rows, columns }, path));
        if side.is_none() && (first.rows, first.columns) != (rows, columns) {
            let problem = format!(
                "is {rows}x{columns}, but {} is {}x{}: give --side N, which resizes all images",
                of.display(),
                first.rows,
                first.columns
            );
            return Err(file(path, problem));
        }
    }
    let Some((shape, _)) = shape else { return Err(folder(dir, "holds no images")) };
    let samples = |classes: Vec<Class>| {
        // Any first part of the images shall have each class's share, because a training may be
        // limited to it: the images of a class are spread evenly.
        let mut files = Vec::new();
        for (label, (_, mut paths)) in classes.into_iter().enumerate() {
            paths.sort_by_key(|path| hash(path));
            let place = 1.0 / paths.len() as f64;
            let at = |(number, path)| ((number as f64 + 0.5) * place, label as u32, path);
            files.extend(paths.into_iter().enumerate().map(at));
        }
        files.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        let (labels, files) = files.into_iter().map(|(_, label, path)| (label, path)).unzip();
        Arc::new(Samples::of_files(shape, files, labels))
    };
    let origin = dir.display().to_string();
    Ok(Dataset { origin, shape, classes, train: samples(train), test: samples(test) })
}

/// The classes of both folders, which must be the same.
fn both(train: &Path, test: &Path) -> Result<(Vec<Class>, Vec<Class>)> {
    let (in_train, in_test) = (classes(train)?, classes(test)?);
    let lacks = |one: &[Class], other: &[Class]| {
        one.iter().find(|(name, _)| other.iter().all(|(it, _)| it != name)).map(|it| it.0.clone())
    };
    for (dir, name) in [(test, lacks(&in_train, &in_test)), (train, lacks(&in_test, &in_train))] {
        if let Some(name) = name {
            let problem = format!("has no class {name}, which the other set has; add or remove it");
            return Err(folder(dir, problem));
        }
    }
    Ok((in_train, in_test))
}

/// The classes of a folder; of each a tenth, chosen by a hash of the names, is for tests.
fn split(dir: &Path) -> Result<(Vec<Class>, Vec<Class>)> {
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (name, mut paths) in classes(dir)? {
        if paths.len() < 2 {
            let problem = "holds one image: a class needs one for training and one for tests";
            return Err(folder(&dir.join(name), problem));
        }
        paths.sort_by_key(|path| hash(path));
        let of_test = paths.drain(..paths.len().div_ceil(10)).collect();
        train.push((name.clone(), paths));
        test.push((name, of_test));
    }
    Ok((train, test))
}

/// FNV-1a of a file's name (Fowler, Noll and Vo).
fn hash(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// The folders in a folder and the images in each, by name. Hidden files are passed over.
fn classes(dir: &Path) -> Result<Vec<Class>> {
    let mut classes = Vec::new();
    for path in entries(dir)? {
        if !path.is_dir() {
            return Err(file(&path, "is no folder of a class; move it away"));
        }
        let paths = entries(&path)?;
        if paths.is_empty() {
            return Err(folder(&path, "holds no images: remove the class, or add some"));
        }
        if let Some(other) = paths.iter().find(|it| !is_image(it)) {
            let problem = "is no image: only .png, .jpg and .jpeg are read; move it away";
            return Err(file(other, problem));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        classes.push((name, paths));
    }
    if classes.len() < 2 {
        let problem =
            format!("holds {} folders; a class has one, and two are needed", classes.len());
        return Err(folder(dir, problem));
    }
    Ok(classes)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|it| it.to_str()).map(str::to_ascii_lowercase);
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg")) && path.is_file()
}

/// The entries of a folder, by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| folder(dir, error.to_string());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// An image's file, whose form is told by its first bytes.
fn open(path: &Path) -> Result<ImageReader<BufReader<fs::File>>> {
    let opened = fs::File::open(path).map_err(|error| file(path, error))?;
    let reader = ImageReader::new(BufReader::new(opened));
    let reader = reader.with_guessed_format().map_err(|error| file(path, error))?;
    match reader.format() {
        Some(image::ImageFormat::Png | image::ImageFormat::Jpeg) => Ok(reader),
        _ => Err(file(path, "begins neither like a PNG nor like a JPEG file: replace it")),
    }
}

/// The rows and columns by an image's header.
fn size(path: &Path) -> Result<(usize, usize)> {
    let damaged = |error: image::ImageError| file(path, format!("{error}: it is damaged"));
    let (columns, rows) = open(path)?.into_dimensions().map_err(damaged)?;
    Ok((rows as usize, columns as usize))
}

/// The image in a file: channels x rows x columns.
pub(super) fn decode(path: &Path) -> Result<(Shape, Vec<u8>)> {
    let damaged = |error: image::ImageError| file(path, format!("{error}: it is damaged"));
    let image: DynamicImage = open(path)?.decode().map_err(damaged)?;
    let image = image.into_rgb8();
    let (columns, rows) = (image.width() as usize, image.height() as usize);
    let pixels = image.into_raw();
    let channel = |channel: usize| pixels.iter().skip(channel).step_by(CHANNELS).copied();
    let planes = (0..CHANNELS).flat_map(channel).collect();
    Ok((Shape { channels: CHANNELS, rows, columns }, planes))
}
