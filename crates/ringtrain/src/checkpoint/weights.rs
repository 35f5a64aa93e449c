//! The parameters of a checkpoint, with which another training begins: by name, whatever the
//! strategy, the optimizer and the images were.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor, Var};

use super::folder::{Checkpoints, failed};
use super::format::{BUFFER, Content, FROZEN};
use crate::cli::{Settings, name};
use crate::error::{Error, Result};
use crate::models::Network;

/// The parameters and buffers of a checkpoint, by name.
#[derive(Debug)]
pub struct Weights {
    file: PathBuf,
    values: BTreeMap<String, Vec<f32>>,
    /// The checksum of the file's content.
    pub(crate) checksum: String,
}

impl Weights {
    /// The content of this file, or of the newest checkpoint in this folder.
    ///
    /// # Errors
    /// If there is none; if it is damaged, or of another model.
    pub(crate) fn load(path: &Path, settings: &Settings) -> Result<Self> {
        let file = if path.is_dir() { Checkpoints::newest_in(path)? } else { Some(path.into()) };
        let Some(file) = file else {
            let problem =
                "--weights needs a folder with a checkpoint, and this one has none".into();
            return Err(Error::Folder { dir: path.into(), problem });
        };
        let bytes = fs::read(&file).map_err(|error| failed(&file, &error))?;
        let content = Content::read(&bytes)
            .map_err(|problem| Error::Checkpoint { file: file.clone(), problem })?;
        let (theirs, own) = (&content.training.model, name(&settings.model));
        if *theirs != own {
            let problem = format!("it is of the model {theirs}, not {own}: give --model {theirs}");
            return Err(Error::Checkpoint { file, problem });
        }
        let mut values = BTreeMap::new();
        for (name, own) in content.tensors {
            match name.split_once(':') {
                Some((BUFFER | FROZEN, name)) => drop(values.insert(name.to_owned(), own)),
                // Moments are of the training that has ended.
                Some(_) => {}
                None => drop(values.insert(name, own)),
            }
        }
        Ok(Self { file, values, checksum: content.checksum })
    }

    /// Gives a network all its parameters and buffers, but for layers whose name begins with one
    /// of these prefixes.
    pub(crate) fn give(&self, network: &Network, except: &[String]) -> Result<()> {
        let all: Vec<(&str, &Var)> = network.all_values().collect();
        let is_in = |name: &str, prefix: &String| name.starts_with(&**prefix);
        if let Some(prefix) = except.iter().find(|it| !all.iter().any(|(name, _)| is_in(name, it)))
        {
            return Err(Error::Unfit(format!(
                "--weights-except {prefix} is the beginning of no parameter's name: leave it out"
            )));
        }
        for (name, var) in
            all.into_iter().filter(|(name, _)| !except.iter().any(|it| is_in(name, it)))
        {
            let values = self.values.get(name);
            let Some(values) = values.filter(|it| it.len() == var.elem_count()) else {
                let layer = name.rsplit_once('.').map_or(name, |(layer, _)| layer);
                let given = values.map_or(0, Vec::len);
                let problem = format!(
                    "{name} has {given} values there, and {} here: --weights-except {layer} leaves \
                     that layer its first weights",
                    var.elem_count()
                );
                return Err(Error::Checkpoint { file: self.file.clone(), problem });
            };
            var.set(&Tensor::from_slice(values, var.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }
}
