//! Lessons on files: in MNIST's form, in CIFAR-10's and in folders of images. Missing and damaged
//! files are refused with their names, before anything is trained.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use image::RgbImage;
use ringtrain::data::{Dataset, Generated, Samples, Source};
use tempfile::TempDir;

/// Images to write: their pixels, channel by channel, and their classes.
struct Images {
    side: usize,
    pixels: Vec<Vec<u8>>,
    classes: Vec<u8>,
}

/// Generated images for training and for tests, which a network can learn.
fn images(is_colour: bool, train: usize, test: usize) -> [Images; 2] {
    let data = Dataset::load(&Source::Generated(Generated { is_colour, train, test }), None);
    let data = data.unwrap();
    let of = |samples: &Samples| {
        let image = |at: usize| {
            let values = samples.batch(&[at]).unwrap().images.flatten_all().unwrap();
            let values = values.to_vec1::<f32>().unwrap().into_iter();
            values.map(|it| (it * 64.0 + 120.0).round() as u8).collect()
        };
        let classes = samples.labels().iter().map(|class| *class as u8).collect();
        Images { side: data.shape.rows, pixels: (0..samples.len()).map(image).collect(), classes }
    };
    [of(&data.train), of(&data.test)]
}

/// A folder with MNIST's files.
fn idx(train: usize, test: usize) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (set, Images { side, pixels, classes }) in
        ["train", "t10k"].into_iter().zip(images(false, train, test))
    {
        let write = |what: &str, sizes: &[usize], values: &[u8]| {
            let mut bytes = vec![0, 0, 8, sizes.len() as u8];
            sizes.iter().for_each(|size| bytes.extend((*size as u32).to_be_bytes()));
            bytes.extend(values);
            fs::write(dir.path().join(format!("{set}-{what}-ubyte")), bytes).unwrap();
        };
        write("images-idx3", &[classes.len(), side, side], &pixels.concat());
        write("labels-idx1", &[classes.len()], &classes);
    }
    dir
}

/// A folder with CIFAR-10's binary files.
fn cifar(train: usize, test: usize) -> TempDir {
    let dir = TempDir::new().unwrap();
    let [train, test] = images(true, train, test);
    let write = |name: &str, images: &Images, numbers: std::ops::Range<usize>| {
        let record = |at: usize| [&[images.classes[at]], &images.pixels[at][..]].concat();
        let records: Vec<u8> = numbers.flat_map(record).collect();
        fs::write(dir.path().join(name), records).unwrap();
    };
    let count = train.classes.len();
    for number in 0..5 {
        let name = format!("data_batch_{}.bin", number + 1);
        write(&name, &train, count * number / 5..count * (number + 1) / 5);
    }
    write("test_batch.bin", &test, 0..test.classes.len());
    dir
}

/// A folder of PNG files by class.
fn folder(train: usize, test: usize) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (set, Images { side, pixels, classes }) in
        ["train", "test"].into_iter().zip(images(true, train, test))
    {
        for (at, (pixels, class)) in pixels.iter().zip(&classes).enumerate() {
            let class = dir.path().join(set).join(format!("class{class}"));
            fs::create_dir_all(&class).unwrap();
            let area = side * side;
            let planes = (0..area).flat_map(|at| [0, 1, 2].map(|plane| pixels[plane * area + at]));
            let image = RgbImage::from_raw(side as u32, side as u32, planes.collect()).unwrap();
            image.save(class.join(format!("{at}.png"))).unwrap();
        }
    }
    dir
}

/// A lesson on the images in a folder.
fn lesson(name: &str, dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
    command.args(["lesson", name, "--quick", "--data"]).arg(dir);
    command.output().unwrap()
}

/// The output of a lesson that finds all figures as expected.
#[track_caller]
fn passed(name: &str, dir: &Path) -> String {
    let output = lesson(name, dir);
    let said = String::from_utf8(output.stdout).unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("MISSED"), "{name}: {message}\n{said}");
    said
}

#[track_caller]
fn refused(name: &str, dir: &Path, expected: &str) {
    let output = lesson(name, dir);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{name}: {message}");
    assert!(message.contains(expected), "{name}: {message}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("loss"), "something was trained");
}

#[test]
fn lenet_learns_images_in_mnists_form() {
    let dir = idx(4_096, 1_000);
    let said = passed("lenet", dir.path());
    assert!(said.starts_with(&format!("{}: 4096 images", dir.path().display())), "{said}");
    assert!(said.contains("accuracy after all epochs: expected at least 0.500"), "{said}");
}

#[test]
fn mobilenet_learns_images_in_cifars_form() {
    let said = passed("mobilenet", cifar(192, 10).path());
    assert!(said.contains("steps of 2 replicas: expected 6, found 6"), "{said}");
}

#[test]
fn what_a_network_has_learnt_serves_for_other_classes_of_a_folder() {
    let said = passed("transfer", folder(1536, 200).path());
    assert!(said.contains("accuracy on the other classes: expected at least 0.750"), "{said}");
}

/// Changes the bytes of a file.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    path.into()
}

#[test]
fn files_that_are_missing_damaged_or_too_few_are_named() {
    let (few, of_cifar, of_folder) = (idx(200, 10), cifar(20, 5), folder(40, 20));
    let (few, of_cifar, of_folder) = (few.path(), of_cifar.path(), of_folder.path());
    refused("lenet", few, "has 200 training images, and this lesson takes batches of 256");
    let images = change(&few.join("train-images-idx3-ubyte"), |bytes| bytes.truncate(999));
    let expected = format!("{}: truncated: expected 156816 bytes, found 999", images.display());
    refused("lenet", few, &expected);
    fs::remove_file(images).unwrap();
    refused("lenet", few, "train-images-idx3-ubyte");

    refused("mobilenet", of_cifar, "has 20 training images, and this lesson takes batches of 64");
    let batch = change(&of_cifar.join("data_batch_3.bin"), |bytes| bytes.truncate(5_000));
    let expected = format!("{}: has 5000 bytes, which are 1 records", batch.display());
    refused("mobilenet", of_cifar, &expected);
    fs::remove_file(batch).unwrap();
    refused("mobilenet", of_cifar, "data_batch_3.bin is missing");

    let class = of_folder.join("train/class0");
    let image = fs::read_dir(&class).unwrap().next().unwrap().unwrap().path();
    change(&image, |bytes| bytes.truncate(bytes.len() / 2));
    refused("transfer", of_folder, &image.display().to_string());
    fs::remove_dir_all(class).unwrap();
    refused("transfer", of_folder, "class0");
}
