//! The running moments of batch norm, which no gradient carries: in checkpoints, at ranks that
//! join, and on the wire.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod folder;
mod launch;

use std::fs;
use std::process::Command;

use folder::{Folder, assert_wide, small_data};

/// The values of the running moments of batch norm in the last checkpoint.
fn buffers(folder: &Folder) -> Vec<(String, Vec<f32>)> {
    let all = folder.tensors().into_iter();
    all.filter(|(name, _)| name.starts_with("buffer:")).collect()
}

#[test]
fn the_first_worker_goes_on_with_its_moments_of_batch_norm() {
    let data = Folder::new();
    let training = format!(
        "--model=mobilenet --data={} --batch=12 --ranks=2 --strategy=parameter-server",
        small_data(&data)
    );
    let (steady, other) = (Folder::new(), Folder::new());
    steady.trained(&format!("{training} --epochs=2"));
    other.trained(&format!("{training} --epochs=1"));
    other.trained(&format!("{training} --epochs=2 --resume"));
    assert_eq!(buffers(&other), buffers(&steady));
}

/// Two ranks learn other moments, whose mean has more digits than gradients on the wire.
#[test]
fn the_wire_type_of_gradients_is_not_that_of_the_moments_of_batch_norm() {
    let folder = Folder::new();
    let training =
        format!("--model=mobilenet --data={} --batch=12 --epochs=1 --ranks=2", small_data(&folder));
    let ran = folder.command(&training).env("RINGREDUCE_WIRE", "bf16").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_wide(buffers(&folder).iter().flat_map(|(_, values)| values));
}

/// The inputs of the first layer of batch norm are the same for any number of ranks, so their means
/// over the halves of a batch average to the mean over the batch.
#[test]
fn a_checkpoint_within_an_epoch_has_the_average_of_the_moments_of_the_ranks() {
    let data = Folder::new();
    let training = format!(
        "--model=mobilenet --data={} --batch=24 --epochs=1 --checkpoint-every=1 --keep=2",
        small_data(&data)
    );
    let first_means = |ranks: usize| {
        let folder = Folder::new();
        folder.trained(&format!("{training} --ranks={ranks}"));
        assert_eq!(folder.steps(), [1, 2], "the second step ends the epoch");
        fs::remove_file(folder.checkpoints().join(&folder.files()[1])).unwrap();
        folder.tensors().remove("buffer:stem.norm.mean").unwrap()
    };
    let (whole, halves) = (first_means(1), first_means(2));
    assert!(!whole.is_empty() && whole.len() == halves.len());
    for (one, two) in whole.iter().zip(&halves) {
        assert!((one - two).abs() < 1e-4 * one.abs().max(0.01), "{two}, not {one}");
    }
}

/// Moments of batch norm are averaged over ranks before each checkpoint, so those of a rank that
/// joins without them would show. Steps are short, because long ones enlarge what other numbers of
/// ranks round differently: at the usual rate up to 0.02 of the moments, here 0.002.
#[test]
fn a_rank_that_joins_takes_over_the_moments_of_batch_norm() {
    let Some(ringrun) = launch::ringrun("a_rank_that_joins_takes_over") else { return };
    let data = Folder::new();
    let training = format!(
        "--model=mobilenet --data={} --batch=12 --epochs=1 --decay=constant --lr=0.001 \
         --sync-batch-norm",
        small_data(&data)
    );
    let steady = Folder::new();
    steady.trained(&format!("{training} --ranks=2"));
    let other = Folder::new();
    let command = other.command(&format!("{training} --lose=2"));
    let mut job = Command::new(ringrun);
    job.args(launch::HERE);
    job.args(["--elastic", "1:2"]).arg(command.get_program()).args(command.get_args());
    let ran = job.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let (steady, other) = (buffers(&steady), buffers(&other));
    assert!(!steady.is_empty() && steady.len() == other.len());
    for ((name, steady), (_, other)) in steady.iter().zip(&other) {
        for (one, two) in steady.iter().zip(other) {
            assert!((one - two).abs() < 1e-2 * one.abs().max(0.1), "{name}: {two}, not {one}");
        }
    }
}
