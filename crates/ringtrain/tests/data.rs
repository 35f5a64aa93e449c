//! CIFAR-10's form, folders of images, generated images, resizing, and batches made ahead.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{Rgb, RgbImage};
use ringtrain::data::{Batch, Dataset, Generated, Loader, Shape, Source};
use strategy::{epoch_order, share};
use tempfile::TempDir;

fn put(path: impl AsRef<Path>, bytes: &[u8]) -> PathBuf {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path.as_ref().into()
}

/// An image whose pixels all have this colour.
fn picture(path: impl AsRef<Path>, (rows, columns): (u32, u32), colour: [u8; 3]) -> PathBuf {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    RgbImage::from_pixel(columns, rows, Rgb(colour)).save(&path).unwrap();
    path.as_ref().into()
}

fn load(dir: &Path) -> ringtrain::Result<Dataset> {
    Dataset::load(&Source::detect(dir)?, None)
}

/// The message, which must begin with the path.
#[track_caller]
fn refused(path: &Path, result: ringtrain::Result<Dataset>) -> String {
    let message = result.map_err(|error| error.to_string()).unwrap_err();
    let name = format!("{}: ", path.display());
    message.strip_prefix(&name).unwrap_or_else(|| panic!("{message} does not name it")).to_owned()
}

fn values(batch: &Batch) -> Vec<f32> {
    batch.images.flatten_all().unwrap().to_vec1().unwrap()
}

fn labels(batch: &Batch) -> Vec<u32> {
    batch.labels.to_vec1().unwrap()
}

/// Records of these classes, whose pixels all have the value of the record's place.
fn records(classes: &[u8]) -> Vec<u8> {
    let record = |(place, class): (usize, &u8)| [vec![*class], vec![place as u8; 3072]].concat();
    classes.iter().enumerate().flat_map(record).collect()
}

fn cifar(dir: &TempDir) {
    for number in 1..=5 {
        put(dir.path().join(format!("data_batch_{number}.bin")), &records(&[number, 9]));
    }
    put(dir.path().join("test_batch.bin"), &records(&[7, 8, 0]));
}

#[test]
fn cifar_is_read_in_the_order_of_its_files() {
    let dir = TempDir::new().unwrap();
    cifar(&dir);
    assert_eq!(Source::detect(dir.path()).unwrap(), Source::Cifar10(dir.path().into()));
    let data = load(dir.path()).unwrap();
    assert_eq!(data.shape, Shape { channels: 3, rows: 32, columns: 32 });
    assert_eq!(data.train.labels(), [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]);
    assert_eq!(data.test.labels(), [7, 8, 0]);
    let batch = data.test.batch(&[2, 1]).unwrap();
    assert_eq!((batch.images.dims(), labels(&batch)), (&[2, 3, 32, 32][..], vec![0, 8]));
    // A value v is (v - 120) / 64.
    let expected = [2.0_f32, 1.0].map(|value| vec![(value - 120.0) / 64.0; 3072]).concat();
    assert_eq!(values(&batch), expected);
    assert_eq!(data.classes[3], "3");
    let names = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    put(dir.path().join("batches.meta.txt"), names.as_bytes());
    assert_eq!(load(dir.path()).unwrap().classes[3], "cat");
}

#[test]
fn damaged_files_of_cifar_are_refused() {
    let dir = TempDir::new().unwrap();
    cifar(&dir);
    let path = dir.path().join("data_batch_4.bin");
    let complete = fs::read(&path).unwrap();
    for cut in [0, 1, 3072, 3074, complete.len() - 1] {
        put(&path, &complete[..cut]);
        let message = refused(&path, load(dir.path()));
        let expected = format!("has {cut} bytes, which are {} records", cut / 3073);
        assert!(message.starts_with(&expected), "{message}");
        assert!(message.contains("it is truncated, or not CIFAR-10's"), "{message}");
    }
    put(&path, &records(&[0, 10]));
    let message = refused(&path, load(dir.path()));
    assert!(message.starts_with("label 10 in record 1, expected 0 to 9"), "{message}");
    fs::remove_file(&path).unwrap();
    let message = refused(dir.path(), load(dir.path()));
    assert!(message.starts_with("data_batch_4.bin is missing"), "{message}");
    put(&path, &complete);
    let names = put(dir.path().join("batches.meta.txt"), b"cat\ndog\n");
    assert!(refused(&names, load(dir.path())).starts_with("holds 2 names, expected 10"));
}

#[test]
fn a_folder_of_images_is_read_with_its_split() {
    let dir = TempDir::new().unwrap();
    for (name, colour) in [("train/cat/b.png", 9), ("train/cat/a.png", 5), ("train/dog/a.PNG", 7)] {
        picture(dir.path().join(name), (4, 6), [colour, 100, 200]);
    }
    picture(dir.path().join("test/cat/c.png"), (4, 6), [1, 2, 3]);
    picture(dir.path().join("test/dog/c.png"), (4, 6), [1, 2, 3]);
    put(dir.path().join("train/.hidden"), b"not looked at");
    let data = load(dir.path()).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    assert_eq!(data.shape, Shape { channels: 3, rows: 4, columns: 6 });
    assert_eq!(data.test.labels(), [0, 1]);
    let batch = data.train.batch(&[0, 1, 2]).unwrap();
    let values = values(&batch);
    let mut seen: Vec<_> = labels(&batch).into_iter().zip(values.chunks(72)).collect();
    seen.sort_by(|one, other| one.partial_cmp(other).unwrap());
    let image = |red: f32| [red, 100.0, 200.0].map(|it| vec![(it - 120.0) / 64.0; 24]).concat();
    let (a, b, dog) = (image(5.0), image(9.0), image(7.0));
    assert_eq!(seen, [(0, &a[..]), (0, &b[..]), (1, &dog[..])]);
}

#[test]
fn the_first_images_of_a_folder_are_of_all_classes() {
    let dir = TempDir::new().unwrap();
    for (class, colour) in [("a", 10), ("b", 20), ("c", 30)] {
        for number in 0..20 {
            let name = format!("{class}/{class}{number:03}.png");
            picture(dir.path().join(name), (3, 3), [colour, 0, 0]);
        }
    }
    let mut data = load(dir.path()).unwrap();
    data.limit(30);
    data.limit_tests(6);
    for samples in [&data.train, &data.test] {
        let count = |class: u32| samples.labels().iter().filter(|it| **it == class).count();
        assert_eq!([0, 1, 2].map(count), [samples.len() / 3; 3]);
    }
    let all: Vec<usize> = (0..30).collect();
    let batch = data.train.batch(&all).unwrap();
    let of_colour = |class: u32| ((class + 1) as f32 * 10.0 - 120.0) / 64.0;
    let reds: Vec<f32> = values(&batch).chunks(27).map(|image| image[0]).collect();
    assert_eq!(reds, labels(&batch).into_iter().map(of_colour).collect::<Vec<_>>());
}

#[test]
fn a_folder_without_a_split_gets_one_that_stays() {
    let dir = TempDir::new().unwrap();
    for class in ["a", "b"] {
        for number in 0..11 {
            picture(dir.path().join(class).join(format!("{number}.png")), (3, 3), [number, 0, 0]);
        }
    }
    let data = load(dir.path()).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (18, 4));
    let red = |samples: &ringtrain::data::Samples| -> Vec<f32> {
        let places: Vec<usize> = (0..samples.len()).collect();
        values(&samples.batch(&places).unwrap()).chunks(27).map(|image| image[0]).collect()
    };
    let (train, test) = (red(&data.train), red(&data.test));
    assert!(test.iter().all(|it| !train.contains(it)), "no image is in both sets");
    assert_eq!(test, red(&load(dir.path()).unwrap().test));
    picture(dir.path().join("c/only.png"), (3, 3), [0, 0, 0]);
    let message = refused(&dir.path().join("c"), load(dir.path()));
    assert!(message.starts_with("holds one image"), "{message}");
}

#[test]
fn images_are_resized_to_the_side_asked_for() {
    let dir = TempDir::new().unwrap();
    picture(dir.path().join("train/a/1.png"), (10, 30), [120, 0, 184]);
    picture(dir.path().join("train/b/1.jpg"), (50, 20), [120, 120, 120]);
    picture(dir.path().join("test/a/1.png"), (7, 7), [0, 0, 0]);
    picture(dir.path().join("test/b/1.png"), (7, 7), [0, 0, 0]);
    let source = Source::detect(dir.path()).unwrap();
    let message = refused(&dir.path().join("train/b/1.jpg"), Dataset::load(&source, None));
    assert!(message.starts_with("is 50x20, but "), "{message}");
    assert!(message.ends_with("is 10x30: give --side N, which resizes all images"), "{message}");
    let data = Dataset::load(&source, Some(40)).unwrap();
    assert_eq!(data.shape, Shape { channels: 3, rows: 40, columns: 40 });
    let batch = data.train.batch(&[0, 1]).unwrap();
    assert_eq!(batch.images.dims(), [2, 3, 40, 40]);
    let values = values(&batch);
    let (first, second) = values.split_at(4800);
    assert_eq!(first, [0.0, -1.875, 1.0].map(|value| vec![value; 1600]).concat());
    assert!(second.iter().all(|value| value.abs() < 0.05), "JPEG is not exact");
    for side in [0, 225] {
        let error = Dataset::load(&source, Some(side)).unwrap_err().to_string();
        assert!(error.contains("say 1 to 224"), "{error}");
    }
    let generated = Source::Generated(Generated { train: 3, test: 1, is_colour: true });
    let data = Dataset::load(&generated, Some(224)).unwrap();
    assert_eq!(data.train.batch(&[2]).unwrap().images.dims(), [1, 3, 224, 224]);
}

#[test]
fn bad_folders_of_images_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(refused(dir.path(), load(dir.path())).starts_with("holds no images"));
    assert!(refused(&path("none"), load(&path("none"))).contains("No such file"));
    for name in ["train/a/1.png", "train/b/1.png"] {
        picture(path(name), (4, 4), [1, 2, 3]);
    }
    assert!(refused(dir.path(), load(dir.path())).contains("no folder test beside it"));
    picture(path("test/a/1.png"), (4, 4), [1, 2, 3]);
    picture(path("test/c/1.png"), (4, 4), [1, 2, 3]);
    assert!(refused(&path("test"), load(dir.path())).starts_with("has no class b"));
    fs::rename(path("test/c"), path("test/b")).unwrap();
    load(dir.path()).unwrap();

    fs::create_dir(path("train/c")).unwrap();
    assert!(refused(&path("train/c"), load(dir.path())).starts_with("holds no images"));
    fs::remove_dir(path("train/c")).unwrap();
    let foreign = put(path("train/b/notes.txt"), b"text");
    assert!(refused(&foreign, load(dir.path())).contains("only .png, .jpg and .jpeg are read"));
    fs::rename(foreign, path("train/b/2.png")).unwrap();
    let message = refused(&path("train/b/2.png"), load(dir.path()));
    assert!(message.starts_with("begins neither like a PNG nor like a JPEG"), "{message}");

    // The header of a truncated image is whole, so that its pixels are missed when they are used.
    let whole = fs::read(path("train/b/1.png")).unwrap();
    put(path("train/b/2.png"), &whole[..whole.len() - 30]);
    let data = load(dir.path()).unwrap();
    let message = data.train.batch(&[2]).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: ", path("train/b/2.png").display())), "{message}");
    assert!(message.ends_with("it is damaged"), "{message}");
    assert!(data.train.batch(&[3]).unwrap_err().to_string().contains("there are 3"));
}

#[test]
fn generated_images_are_the_same_each_time() {
    for is_colour in [false, true] {
        let source = Source::Generated(Generated { is_colour, train: 50, test: 7 });
        let (one, other) =
            (Dataset::load(&source, None).unwrap(), Dataset::load(&source, None).unwrap());
        assert_eq!((one.train.len(), one.test.len(), one.classes.len()), (50, 7, 10));
        let all: Vec<usize> = (0..50).collect();
        let batches = [&one, &other].map(|data| values(&data.train.batch(&all).unwrap()));
        assert_eq!(batches[0], batches[1]);
        assert_eq!(one.train.labels(), other.train.labels());
    }
}

/// Data whose labels tell one image from another, roughly.
fn data(count: usize) -> Dataset {
    let form = Generated { train: count, test: 1, ..Generated::default() };
    Dataset::load(&Source::Generated(form), None).unwrap()
}

#[test]
fn batches_come_in_order_whatever_the_threads() {
    let data = data(60);
    let order = epoch_order(60, 5, 0);
    for (workers, depth) in [(1, 1), (3, 1), (4, 8), (50, 2), (0, 0)] {
        let mut seen = 0;
        for rank in 0..3 {
            let places = |step| order[share(60, 8, step, rank, 3).0].to_vec();
            let steps: Vec<Vec<usize>> = (0..8).map(places).collect();
            let train = Arc::clone(&data.train);
            let loader = Loader::new(train, steps.clone(), workers, depth).unwrap();
            let batches: Vec<Batch> = loader.map(Result::unwrap).collect();
            assert_eq!(batches.len(), 8);
            for (batch, places) in batches.iter().zip(&steps) {
                let expected = data.train.batch(places).unwrap();
                assert_eq!(labels(batch), labels(&expected));
                assert_eq!(values(batch), values(&expected));
                seen += batch.len();
            }
        }
        assert_eq!(seen, 60, "each sample once over all ranks");
    }
}

#[test]
fn the_first_error_comes_after_the_batches_before_it_and_ends_them() {
    let data = data(10);
    for workers in [1, 3] {
        let steps = vec![vec![0], vec![1], vec![100], vec![200], vec![2]];
        let mut loader = Loader::new(Arc::clone(&data.train), steps, workers, 4).unwrap();
        assert!(loader.next().unwrap().is_ok() && loader.next().unwrap().is_ok());
        assert!(loader.next().unwrap().unwrap_err().to_string().contains("no image 100"));
        assert!(loader.next().is_none());
    }
}

#[test]
fn a_dropped_loader_ends_its_threads() {
    let data = data(10);
    for taken in 0..3 {
        let steps = vec![vec![0, 1, 2]; 1000];
        let loader = Loader::new(Arc::clone(&data.train), steps, 3, 4).unwrap();
        assert_eq!(loader.take(taken).count(), taken);
        // A drop joins the threads, each of which holds the images.
        assert_eq!(Arc::strong_count(&data.train), 1);
    }
}
