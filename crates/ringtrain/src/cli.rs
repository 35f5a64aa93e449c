//! The command line. Law: an invalid value is refused here, before the training starts.

use std::path::PathBuf;

use serde::Serialize;

/// Trains a LeNet-style network on images in IDX format, data-parallel over the ranks.
#[derive(Clone, Debug, clap::Parser)]
#[command(version, about)]
pub struct Args {
    /// Folder with MNIST's file names (train-images-idx3-ubyte[.gz], ...); else generated images
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Use the first N training images only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub limit: Option<usize>,
    /// Write settings and results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Lose the last rank in this step, to see that the others go on: for ringrun --elastic
    #[arg(long, value_name = "N", value_parser = positive)]
    pub lose: Option<usize>,
    /// How to train.
    #[command(flatten)]
    pub settings: Settings,
}

/// How to train.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Settings {
    /// Times to go through the training images
    #[arg(long, default_value = "12", value_name = "N", value_parser = positive)]
    pub epochs: usize,
    /// Images per step over all ranks; what is left over at an epoch's end is not used
    #[arg(long, default_value = "24", value_name = "N", value_parser = positive)]
    pub batch: usize,
    /// Learning rate at the start; it falls by the same amount each step, to 0 at the end
    #[arg(long, default_value = "0.02", value_parser = learning_rate)]
    pub lr: f32,
    /// Momentum, 0 for none
    #[arg(long, default_value = "0.9", value_parser = momentum)]
    pub momentum: f32,
    /// Seed of the first weights and of the order of images
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,
    /// Bytes of gradients per all-reduce
    #[arg(long, default_value = "1048576", value_name = "N", value_parser = bucket_bytes)]
    pub bucket_bytes: usize,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn bucket_bytes(text: &str) -> Result<usize, String> {
    match positive(text)? {
        bytes if bytes % size_of::<f32>() == 0 => Ok(bytes),
        _ => Err("must be a multiple of 4, the bytes of one gradient".into()),
    }
}

fn learning_rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        Ok(_) => Err("must be above 0 and finite".into()),
        Err(error) => Err(format!("{error}")),
    }
}

fn momentum(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(momentum) if (0.0..1.0).contains(&momentum) => Ok(momentum),
        Ok(_) => Err("must be from 0 to below 1".into()),
        Err(error) => Err(format!("{error}")),
    }
}
