//! Checkpoints: the state of a training in a file of safetensors. `format` is what is in a file,
//! `folder` which files there are, `weights` what another training takes of one.
//! Law: a file is whole or absent, whatever happens while it is written; older files stay whole.

mod folder;
mod format;
mod weights;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};
use strategy::State;

pub use folder::Checkpoints;
pub use weights::Weights;

use crate::error::Result;
use crate::models::Network;

/// The values of each buffer of a network, by its name.
pub type Buffers = BTreeMap<String, Vec<f32>>;

/// All that a training needs to go on, but for its history.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Parameters, the optimizer's state and the number of steps.
    pub state: State,
    /// The running moments of batch norm.
    pub buffers: Buffers,
}

/// The values of a network's buffers.
pub(crate) fn buffers(network: &Network) -> Result<Buffers> {
    read(network.buffers().iter().map(|(name, var)| (name.as_str(), var)))
}

/// The values of each parameter of a network that is not trained.
pub(crate) fn frozen(network: &Network) -> Result<Buffers> {
    read(network.frozen())
}

fn read<'a>(vars: impl Iterator<Item = (&'a str, &'a Var)>) -> Result<Buffers> {
    let read =
        |(name, var): (&str, &Var)| Ok((name.to_owned(), var.flatten_all()?.to_vec1::<f32>()?));
    vars.map(read).collect()
}

/// Sets the values of a network's buffers; those that are not given stay as they are.
pub(crate) fn set_buffers(network: &Network, values: &Buffers) -> Result<()> {
    for (name, var) in network.buffers() {
        if let Some(values) = values.get(name) {
            var.set(&Tensor::from_slice(values, var.shape(), &Device::Cpu)?)?;
        }
    }
    Ok(())
}
