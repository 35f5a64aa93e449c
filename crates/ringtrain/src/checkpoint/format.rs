//! The content of a checkpoint: each parameter as a tensor of its name, the optimizer's moments as
//! `MOMENT:NAME`, buffers of batch norm as `buffer:NAME`, parameters that are not trained as
//! `frozen:NAME`, and what the training is in the metadata.

use std::collections::BTreeMap;
use std::fmt;

use flate2::Crc;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use strategy::{ParameterState, State};

use super::{Buffers, Snapshot};
use crate::cli::name;
use crate::data::{Dataset, Shape};
use crate::run::{History, Job};
use crate::ways::StrategyName;

/// The version of this format.
const VERSION: u32 = 3;
/// The keys of the metadata: what the training is, what it has done, and the CRC-32 (IEEE 802.3) of
/// both texts and of all tensors with their names.
const KEY: &str = "ringtrain";
const HISTORY: &str = "history";
const CHECKSUM: &str = "crc32";
pub(super) const BUFFER: &str = "buffer";
pub(super) const FROZEN: &str = "frozen";

/// The format of a file, whatever else it has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The training that a checkpoint is of.
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
    updates: u64,
    seed: u64,
    batch: usize,
    images: Images,
}

/// The images of a training, as far as a resumed one must have the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Images {
    count: usize,
    /// Where they come from, which a message names. A folder may get another name.
    name: String,
    /// Channels, rows, columns.
    shape: [usize; 3],
    classes: usize,
    /// The CRC-32 of the labels, which tells sets of the same form from each other.
    labels: u32,
}

impl Images {
    fn of(data: &Dataset) -> Self {
        let Shape { channels, rows, columns } = data.shape;
        let mut labels = Crc::new();
        data.train.labels().iter().for_each(|label| labels.update(&label.to_le_bytes()));
        Self {
            count: data.train.len(),
            name: data.name().to_owned(),
            shape: [channels, rows, columns],
            classes: data.classes.len(),
            labels: labels.sum(),
        }
    }

    /// Why a training with these images can't go on with others.
    fn mismatch(&self, own: &Self) -> Option<String> {
        if (Self { name: own.name.clone(), ..self.clone() }) == *own {
            return None;
        }
        let remedy = match self.name == own.name {
            true if self.shape != own.shape => format!("--side {}", self.shape[1]),
            true if self.count != own.count => format!("--limit {}", self.count),
            _ => "the same --data".into(),
        };
        Some(format!("its training has {self}, and this one {own}: give {remedy}"))
    }
}

impl fmt::Display for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [channels, rows, columns] = self.shape;
        let Self { count, name, classes, .. } = self;
        write!(f, "{count} images of {channels}x{rows}x{columns} in {classes} classes ({name})")
    }
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
            images: Images::of(&job.data),
        }
    }

    /// Why this job can't go on from it; the strategy and the number of ranks may be others.
    fn mismatch(&self, job: &Job) -> Option<String> {
        let settings = &job.settings;
        let model = name(&settings.model);
        if self.model != model {
            let given = &self.model;
            return Some(format!("it is of the model {given}, not {model}: give --model {given}"));
        }
        if self.optimizer != settings.optimizer().name() {
            let given = &self.optimizer;
            return Some(format!("it is of the optimizer {given}: give --optimizer {given}"));
        }
        let moments = settings.optimizer().moment_names();
        if self.moments != moments {
            let remedy = match self.moments.is_empty() {
                true => "was without momentum: give --momentum 0",
                false => "was with momentum: give --momentum above 0, such as 0.9",
            };
            return Some(format!("its training {remedy}"));
        }
        if let Some(other) = self.images.mismatch(&Images::of(&job.data)) {
            return Some(other);
        }
        let numbers = [
            ("--batch", self.batch as u64, settings.batch as u64),
            ("--seed", self.seed, settings.seed),
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

/// The checksum of a file's texts, and of its tensors in the order of their names.
fn checksum<'a>(texts: [&str; 2], tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut sum = Crc::new();
    texts.iter().for_each(|text| sum.update(text.as_bytes()));
    for (name, bytes) in tensors {
        sum.update(name.as_bytes());
        sum.update(bytes);
    }
    format!("{:08x}", sum.sum())
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
    frozen: &Buffers,
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
    for (kind, all) in [(BUFFER, &snapshot.buffers), (FROZEN, frozen)] {
        values.extend(all.iter().map(|(name, own)| (format!("{kind}:{name}"), bytes(own))));
    }
    let mut tensors = Vec::new();
    for (name, bytes) in &values {
        let tensor = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
        tensors.push((name, tensor.map_err(|error| error.to_string())?));
    }
    let text = |value: serde_json::Result<String>| value.map_err(|error| error.to_string());
    let training = text(serde_json::to_string(training))?;
    let history = text(serde_json::to_string(history))?;
    let sum = checksum(
        [&training, &history],
        values.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())),
    );
    let metadata = [(KEY, training), (HISTORY, history), (CHECKSUM, sum)];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    safetensors::serialize(tensors, Some(metadata)).map_err(|error| error.to_string())
}

/// The content of a file whose checksum fits.
pub(super) struct Content {
    pub(super) training: Training,
    history: String,
    /// The tensors, in the order of their names.
    pub(super) tensors: Vec<(String, Vec<f32>)>,
    pub(super) checksum: String,
}

fn damaged(error: &dyn fmt::Display) -> String {
    format!(
        "it is damaged ({error}): remove it; --resume and --weights take a folder's newest file"
    )
}

impl Content {
    pub(super) fn read(file: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(file).map_err(|error| damaged(&error))?;
        let metadata = header.metadata().as_ref().cloned().unwrap_or_default();
        let foreign = "no program of this kind has made it";
        let text = metadata.get(KEY).ok_or(foreign)?;
        let Version { version } = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        if version != VERSION {
            return Err(format!("it is of format {version}, and this program knows {VERSION}"));
        }
        let history = metadata.get(HISTORY).ok_or(foreign)?;
        let tensors = SafeTensors::deserialize(file).map_err(|error| damaged(&error))?;
        let mut all = tensors.tensors();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some((name, _)) = all.iter().find(|(_, tensor)| tensor.dtype() != Dtype::F32) {
            return Err(damaged(&format!("{name} is not of the type F32")));
        }
        let named = all.iter().map(|(name, it)| (name.as_str(), it.data()));
        let checksum = checksum([text, history], named);
        if metadata.get(CHECKSUM) != Some(&checksum) {
            return Err(damaged(&"its checksum does not fit"));
        }
        let training: Training = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        let tensors = all.into_iter().map(|(name, tensor)| (name, floats(tensor.data()))).collect();
        Ok(Self { training, history: history.clone(), tensors, checksum })
    }

    /// The history of the training, which must have as many steps as it says.
    fn history(&self, job: &Job) -> Result<History, String> {
        let history: History =
            serde_json::from_str(&self.history).map_err(|error| damaged(&error))?;
        let (steps, losses) = (job.steps_per_epoch() as u64, history.losses.len() as u64);
        let known = steps.saturating_mul(history.epochs.len() as u64).saturating_add(losses);
        let step = self.training.step;
        // A worker that has joined may not know of steps of the others.
        let is_worker = self.training.strategy == name(&StrategyName::ParameterServer);
        if losses > steps || known > step || (known < step && !is_worker) {
            let (epochs, losses) = (history.epochs.len(), history.losses.len());
            return Err(damaged(&format!(
                "it has {epochs} epochs of {steps} steps, {losses} more losses and the step {step}"
            )));
        }
        Ok(history)
    }
}

/// The content of a file, for this job, whose parameters that are not trained are these.
pub(super) fn decode(
    file: &[u8],
    job: &Job,
    frozen: &Buffers,
) -> Result<(Snapshot, History), String> {
    let content = Content::read(file)?;
    if let Some(mismatch) = content.training.mismatch(job) {
        return Err(mismatch);
    }
    let history = content.history(job)?;
    let Content { training, tensors, .. } = content;
    let (mut parameters, mut buffers) = (BTreeMap::new(), Buffers::new());
    let mut moments: BTreeMap<(String, String), Vec<f32>> = BTreeMap::new();
    let mut theirs = Buffers::new();
    for (name, values) in tensors {
        match name.split_once(':') {
            Some((BUFFER, name)) => drop(buffers.insert(name.to_owned(), values)),
            Some((FROZEN, name)) => drop(theirs.insert(name.to_owned(), values)),
            Some((moment, name)) => {
                moments.insert((moment.to_owned(), name.to_owned()), values);
            }
            None => drop(parameters.insert(name, values)),
        }
    }
    if let Some(mismatch) = frozen_mismatch(&theirs, frozen) {
        return Err(mismatch);
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

/// Why a training with these parameters that are not trained can't go on with others.
fn frozen_mismatch(theirs: &Buffers, own: &Buffers) -> Option<String> {
    let anew = "or begin anew: --weights takes its parameters, and --checkpoint another folder";
    if let Some(name) = own.keys().find(|name| !theirs.contains_key(*name)) {
        return Some(format!("its training has trained {name}: leave --freeze out, {anew}"));
    }
    if let Some(name) = theirs.keys().find(|name| !own.contains_key(*name)) {
        let layer = name.rsplit_once('.').map_or(&**name, |(layer, _)| layer);
        return Some(format!("its training has not trained {name}: give --freeze {layer}, {anew}"));
    }
    let other = theirs.iter().find(|(name, values)| own.get(*name) != Some(values));
    let (name, _) = other?;
    Some(format!(
        "{name}, which is not trained, has other values there: give the same --weights and \
         --weights-except, {anew}"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::cli::Settings;
    use crate::data::{Generated, Source};

    /// The checksum of such a file fits.
    #[test]
    fn a_step_that_contradicts_the_losses_is_refused() {
        let source = Source::Generated(Generated { train: 8, test: 1, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        for (strategy, steps, losses, is_right) in [
            (StrategyName::Mirrored, 1, 1, true),
            (StrategyName::Mirrored, 2, 2, true),
            (StrategyName::Mirrored, 2, 1, false),
            (StrategyName::Mirrored, 1, 2, false),
            (StrategyName::Mirrored, 3, 3, false),
            (StrategyName::Mirrored, u64::MAX, 1, false),
            // A worker may not know of all steps.
            (StrategyName::ParameterServer, 2, 1, true),
            (StrategyName::ParameterServer, 1, 2, false),
        ] {
            let job =
                Job::new(data.clone(), Settings { strategy, batch: 4, ..Settings::default() });
            let history = History { losses: vec![1.0; losses], ..History::default() };
            let state =
                State { optimizer: "sgd".into(), steps, updates: steps, parameters: Vec::new() };
            let snapshot = Snapshot { state, buffers: Buffers::new() };
            let training = Training::of(&snapshot, &job, 1);
            let none = Buffers::new();
            let file = encode(&snapshot, &none, &training, &history).unwrap();
            let read = decode(&file, &job, &none);
            assert_eq!(read.is_ok(), is_right, "{strategy:?}, {steps}, {losses}: {read:?}");
            let said = read.err().unwrap_or_else(|| "it is damaged".into());
            assert!(said.contains("it is damaged"), "{said}");
        }
    }

    /// The images for tests take the place of those for training.
    #[test]
    fn a_training_with_other_labels_of_the_same_form_is_refused() {
        let source = Source::Generated(Generated { train: 8, test: 8, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        let other = Dataset { train: data.test.clone(), ..data.clone() };
        assert_ne!(other.train.labels(), data.train.labels());
        let settings = Settings { batch: 4, ..Settings::default() };
        let [job, other] = [data, other].map(|data| Job::new(data, settings.clone()));
        let optimizer = "sgd".into();
        let state = State { optimizer, steps: 0, updates: 0, parameters: Vec::new() };
        let none = Buffers::new();
        let snapshot = Snapshot { state, buffers: none.clone() };
        let training = Training::of(&snapshot, &job, 1);
        let file = encode(&snapshot, &none, &training, &History::default()).unwrap();
        decode(&file, &job, &none).unwrap();
        let said = decode(&file, &other, &none).unwrap_err();
        assert!(said.contains("give the same --data"), "{said}");
    }
}
