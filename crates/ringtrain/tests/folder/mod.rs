//! A folder with the checkpoints and the result of a training, and small data.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, of which each uses some")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TRAINING: &str = "--limit=120 --batch=24 --lr=0.01 --seed=7";

/// A folder for checkpoints and results.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.0.path().join("checkpoints")
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
        let own = |word: &&str| !arguments.contains(word.split('=').next().unwrap());
        command.args(TRAINING.split(' ').filter(own)).args(arguments.split(' '));
        command.arg("--checkpoint").arg(self.checkpoints());
        command.arg("--json").arg(self.0.path().join("result.json"));
        command
    }

    pub(crate) fn train(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The result of a training that succeeds.
    pub(crate) fn trained(&self, arguments: &str) -> Value {
        let output = self.train(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {message}");
        serde_json::from_slice(&fs::read(self.0.path().join("result.json")).unwrap()).unwrap()
    }

    /// The message of one that fails.
    pub(crate) fn refused(&self, arguments: &str) -> String {
        let output = self.train(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The checkpoints, the newest one last.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.checkpoints()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let files = entries.map(|entry| name(entry.unwrap()));
        // Servers have files of their own there.
        let mut files: Vec<String> = files.filter(|it| !it.starts_with("server.")).collect();
        files.sort();
        files
    }

    /// The tensors of the last checkpoint, by name.
    pub(crate) fn tensors(&self) -> BTreeMap<String, Vec<f32>> {
        let file = fs::read(self.checkpoints().join(self.files().pop().unwrap())).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let values = |data: &[u8]| {
            let word = |it: &[u8]| f32::from_le_bytes(it.try_into().unwrap());
            data.chunks_exact(4).map(word).collect()
        };
        let all = tensors.tensors().into_iter();
        all.map(|(name, tensor)| (name, values(tensor.data()))).collect()
    }

    /// The steps of the checkpoints.
    pub(crate) fn steps(&self) -> Vec<usize> {
        self.files().iter().map(|file| file[5..13].parse().unwrap()).collect()
    }
}

/// A folder with MNIST's files, of so few test images that they cost no time.
pub(crate) fn small_data(folder: &Folder) -> String {
    let dir = folder.0.path().join("data");
    fs::create_dir(&dir).unwrap();
    for (name, count) in [("train", 48_u32), ("t10k", 10)] {
        let pixels = (0..count * 28 * 28).map(|at| (at * at / 7 % 251) as u8);
        let numbers = [0x803, count, 28, 28].into_iter().flat_map(u32::to_be_bytes);
        let images = dir.join(format!("{name}-images-idx3-ubyte"));
        fs::write(images, numbers.chain(pixels).collect::<Vec<u8>>()).unwrap();
        let numbers = [0x801, count].into_iter().flat_map(u32::to_be_bytes);
        let labels = numbers.chain((0..count).map(|at| (at % 10) as u8));
        let file = dir.join(format!("{name}-labels-idx1-ubyte"));
        fs::write(file, labels.collect::<Vec<u8>>()).unwrap();
    }
    dir.to_str().unwrap().to_owned()
}

/// Most of these values have more digits than `bf16` has.
pub(crate) fn assert_wide<'a>(values: impl IntoIterator<Item = &'a f32>) {
    let (narrow, wide): (Vec<&f32>, Vec<&f32>) =
        values.into_iter().partition(|it| it.to_bits() << 16 == 0);
    assert!(wide.len() > 10 * narrow.len(), "{} and {}", wide.len(), narrow.len());
}
