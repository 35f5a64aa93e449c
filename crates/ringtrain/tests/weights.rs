//! Trainings that begin with the parameters of a checkpoint.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod folder;

use std::fs;

use folder::Folder;

/// A folder with ten images of each of so many classes.
fn pictures(folder: &Folder, classes: u8) -> String {
    let dir = folder.0.path().join("pictures");
    for class in 0..classes {
        let class_dir = dir.join(class.to_string());
        fs::create_dir_all(&class_dir).unwrap();
        for number in 0..10 {
            let image = image::RgbImage::from_pixel(20, 20, image::Rgb([class * 80, number, 9]));
            image.save(class_dir.join(format!("{number}.png"))).unwrap();
        }
    }
    format!("--data={} --limit=16 --batch=8", dir.display())
}

#[test]
fn another_training_begins_with_the_parameters_of_a_checkpoint() {
    let first = Folder::new();
    first.trained("--epochs=1 --decay=constant --ranks=2");
    let (from, learnt) = (first.checkpoints(), first.tensors());
    let file = from.join(&first.files()[0]);
    let is_dense = |name: &str| name.starts_with("dense") || name.contains(":dense");
    for strategy in [
        "--ranks=2",
        "--ranks=2 --strategy=pipeline",
        "--ranks=2 --strategy=tensor-parallel",
        "--ranks=3 --strategy=parameter-server --optimizer=adam",
    ] {
        let folder = Folder::new();
        let weights = format!("--weights={} --freeze=conv", file.display());
        let common = format!("--epochs=1 --decay=constant {strategy}");
        folder.trained(&format!("{common} {weights} --seed=8"));
        assert_eq!(folder.steps(), [5], "{strategy}: it begins with step 0");
        let tensors = folder.tensors();
        assert!(tensors.len() >= 14, "{strategy}: ten parameters, and moments of six");
        for (name, values) in &tensors {
            match name.split_once(':') {
                Some(("frozen", name)) => assert_eq!(values, &learnt[name], "{strategy}: {name}"),
                _ => assert!(is_dense(name), "{strategy}: {name}"),
            }
        }
        let again = format!("--epochs=2 --decay=constant {strategy} --seed=8 --resume");
        let said = folder.refused(&format!("{again} --freeze=conv"));
        assert!(said.contains("give the same --weights"), "{strategy}: {said}");
        let said = folder.refused(&format!("{again} --weights={}", from.display()));
        let expected =
            "its training has not trained conv1.bias: give --freeze conv1, or begin anew";
        assert!(said.contains(expected), "{strategy}: {said}");
        folder.trained(&format!("{again} {weights}"));
        // All of its parameters, also those that it has not trained.
        let third = Folder::new();
        third.trained(&format!("{common} --weights={}", folder.checkpoints().display()));
    }
    let said = first.refused("--epochs=2 --decay=constant --ranks=2 --resume --freeze=conv");
    let expected =
        "its training has trained conv1.bias: leave --freeze out, or begin anew: --weights";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn weights_that_do_not_fit_are_refused_with_the_option() {
    let first = Folder::new();
    first.trained(&format!("--epochs=1 {}", pictures(&first, 3)));
    let weights = format!("--weights={}", first.checkpoints().display());
    let other = Folder::new();
    let classes = pictures(&other, 2);
    let said = other.refused(&format!("--epochs=1 {weights} {classes}"));
    assert!(said.contains("dense3.weight has 252 values there, and 168 here"), "{said}");
    assert!(said.contains("--weights-except dense3 leaves"), "{said}");
    other.trained(&format!("--epochs=1 {weights} {classes} --weights-except=dense3 --freeze=conv"));
    let another = Folder::new();
    let said = another.refused(&format!("--epochs=1 {weights} --model=dense"));
    assert!(said.contains("it is of the model lenet, not dense: give --model lenet"), "{said}");
    let said = another.refused(&format!("--epochs=1 {weights} --weights-except=head"));
    assert!(said.contains("--weights-except head is the beginning of no"), "{said}");
    let said = another.refused("--epochs=1 --weights=/proc/self/task");
    assert!(said.contains("--weights needs a folder with a checkpoint"), "{said}");
    let said = another.refused("--epochs=1 --weights=/nowhere/at/all");
    assert!(said.contains("/nowhere/at/all: No such file"), "{said}");
}
