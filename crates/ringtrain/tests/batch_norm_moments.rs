//! The running moments of batch norm, which no gradient carries: in checkpoints, at ranks that
//! join, and on the wire.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod folder;
mod launch;

use std::fs;
use std::process::Command;

use folder::{Folder, small_data};

/// The values of the running moments of batch norm in the last checkpoint.
fn buffers(folder: &Folder) -> Vec<(String, Vec<f32>)> {
    let file = fs::read(folder.checkpoints().join(folder.files().pop().unwrap())).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let values = |data: &[u8]| {
        let word = |it: &[u8]| f32::from_le_bytes(it.try_into().unwrap());
        data.chunks_exact(4).map(word).collect()
    };
    let mut buffers: Vec<_> = tensors
        .tensors()
        .into_iter()
        .filter(|(name, _)| name.starts_with("buffer:"))
        .map(|(name, tensor)| (name, values(tensor.data())))
        .collect();
    buffers.sort_by(|one, other| one.0.cmp(&other.0));
    buffers
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
    let buffers = buffers(&folder);
    let values = buffers.iter().flat_map(|(_, values)| values);
    let (narrow, wide): (Vec<f32>, Vec<f32>) = values.partition(|it| it.to_bits() << 16 == 0);
    assert!(wide.len() > 10 * narrow.len(), "{} and {}", wide.len(), narrow.len());
}

/// Moments of batch norm are averaged over ranks before each checkpoint, so those of a rank that
/// joins without them would show.
#[test]
fn a_rank_that_joins_takes_over_the_moments_of_batch_norm() {
    let Some(ringrun) = launch::ringrun("a_rank_that_joins_takes_over") else { return };
    let data = Folder::new();
    let training = format!(
        "--model=mobilenet --data={} --batch=12 --epochs=1 --decay=constant --sync-batch-norm",
        small_data(&data)
    );
    let steady = Folder::new();
    steady.trained(&format!("{training} --ranks=2"));
    let other = Folder::new();
    let command = other.command(&format!("{training} --lose=2"));
    let mut job = Command::new(ringrun);
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
