//! The content of a checkpoint: each parameter as a tensor of its name, the optimizer's moments as
//! `MOMENT:NAME`, buffers of batch norm as `buffer:NAME`, and what the training is in the metadata.

use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use strategy::{ParameterState, State};

use super::{Buffers, Snapshot};
use crate::cli::name;
use crate::run::{History, Job};

/// The version of this format.
const VERSION: u32 = 1;
/// The key of the metadata.
const KEY: &str = "ringtrain";
const BUFFER: &str = "buffer";

/// What the training is that a checkpoint is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Training {
    version: u32,
    pub(super) model: String,
    strategy: String,
    ranks: usize,
    optimizer: String,
    /// The names of what the optimizer keeps for each parameter.
    moments: Vec<String>,
    step: u64,
    /// [`State::updates`]; older files have none, as it was that of steps.
    #[serde(default)]
    updates: u64,
    seed: u64,
    batch: usize,
    images: usize,
}

impl Training {
    pub(super) fn of(snapshot: &Snapshot, job: &Job, ranks: usize) -> Self {
        let settings = &job.settings;
        let moments = settings.optimizer().moment_names();
        Self {
            version: VERSION,
            model: name(&settings.model),
            strategy: name(&settings.strategy),
            ranks,
            optimizer: snapshot.state.optimizer.clone(),
            moments: moments.iter().map(|name| (*name).to_owned()).collect(),
            step: snapshot.state.steps,
            updates: snapshot.state.updates,
            seed: settings.seed,
            batch: settings.batch,
            images: job.data.train.len(),
        }
    }

    /// Why this job can't go on from it; the strategy and the number of ranks may be others.
    fn mismatch(&self, job: &Job) -> Option<String> {
        let settings = &job.settings;
        let (model, images) = (name(&settings.model), job.data.train.len());
        if self.model != model {
            let given = &self.model;
            return Some(format!("it is of the model {given}, not {model}: give --model {given}"));
        }
        if self.optimizer != settings.optimizer().name() {
            let given = &self.optimizer;
            return Some(format!("it is of the optimizer {given}: give --optimizer {given}"));
        }
        let numbers = [
            ("--batch", self.batch as u64, settings.batch as u64),
            ("--seed", self.seed, settings.seed),
            ("--limit", self.images as u64, images as u64),
        ];
        let other = numbers.into_iter().find(|(_, theirs, own)| theirs != own);
        other.map(|(flag, theirs, own)| {
            format!(
                "its training has {flag} {theirs} and this one {own}, so the order of images \
                 differs: give {flag} {theirs}"
            )
        })
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let word = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

/// The content of a file.
pub(super) fn encode(
    snapshot: &Snapshot,
    training: &Training,
    history: &History,
) -> Result<Vec<u8>, String> {
    let mut values: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for ParameterState { name, values: own, moments } in &snapshot.state.parameters {
        values.insert(name.clone(), bytes(own));
        for (moment, own) in training.moments.iter().zip(moments) {
            values.insert(format!("{moment}:{name}"), bytes(own));
        }
    }
    for (name, own) in &snapshot.buffers {
        values.insert(format!("{BUFFER}:{name}"), bytes(own));
    }
    let mut tensors = Vec::new();
    for (name, bytes) in &values {
        let tensor = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
        tensors.push((name, tensor.map_err(|error| error.to_string())?));
    }
    let text = |value: serde_json::Result<String>| value.map_err(|error| error.to_string());
    let metadata = HashMap::from([
        (KEY.to_owned(), text(serde_json::to_string(training))?),
        ("history".to_owned(), text(serde_json::to_string(history))?),
    ]);
    safetensors::serialize(tensors, Some(metadata)).map_err(|error| error.to_string())
}

/// The content of a file, for this job.
pub(super) fn decode(file: &[u8], job: &Job) -> Result<(Snapshot, History), String> {
    let damaged = |error: &dyn std::fmt::Display| {
        format!("it is damaged ({error}): remove it, and --resume takes the one before")
    };
    let (_, header) = SafeTensors::read_metadata(file).map_err(|error| damaged(&error))?;
    let metadata = header.metadata().as_ref().cloned().unwrap_or_default();
    let foreign = "no program of this kind has made it";
    let training = metadata.get(KEY).ok_or(foreign)?;
    let training: Training = serde_json::from_str(training).map_err(|error| damaged(&error))?;
    if training.version != VERSION {
        let given = training.version;
        return Err(format!("it is of format {given}, and this program knows {VERSION}"));
    }
    if let Some(mismatch) = training.mismatch(job) {
        return Err(mismatch);
    }
    let history = metadata.get("history").ok_or(foreign)?;
    let history = serde_json::from_str(history).map_err(|error| damaged(&error))?;
    let tensors = SafeTensors::deserialize(file).map_err(|error| damaged(&error))?;
    let (mut parameters, mut buffers) = (BTreeMap::new(), Buffers::new());
    let mut moments: BTreeMap<(String, String), Vec<f32>> = BTreeMap::new();
    for (name, tensor) in tensors.tensors() {
        let values = floats(tensor.data());
        match name.split_once(':') {
            Some((BUFFER, name)) => drop(buffers.insert(name.to_owned(), values)),
            Some((moment, name)) => {
                moments.insert((moment.to_owned(), name.to_owned()), values);
            }
            None => drop(parameters.insert(name, values)),
        }
    }
    let parameter = |(name, values): (String, Vec<f32>)| {
        let moment = |moment: &String| moments.get(&(moment.clone(), name.clone())).cloned();
        let moments = training.moments.iter().filter_map(moment).collect();
        ParameterState { name: name.clone(), values, moments }
    };
    let parameters = parameters.into_iter().map(parameter).collect();
    let Training { optimizer, step: steps, updates, .. } = training;
    let state = State { optimizer, steps, updates: updates.max(steps), parameters };
    Ok((Snapshot { state, buffers }, history))
}
