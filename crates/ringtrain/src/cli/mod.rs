//! The command line: `ringtrain [train] ..`, `ringtrain compare ..`, `ringtrain lesson ..`.
//! `settings` says how to train · `choices` the names of optimizers and policies ·
//! `options` which option belongs to which strategies · `values` the numbers.
//! Law: a value that no training can have is refused here.

mod choices;
mod options;
mod settings;
mod values;

use std::path::PathBuf;

pub use choices::{Decay, OptimizerName, PipelineOrder, PolicyName, WorkerGroups, name};
use clap::{CommandFactory, FromArgMatches, ValueEnum};
pub use settings::Settings;

use crate::error::Result;
use crate::ways::StrategyName;
use values::positive;

/// Trains image models on several ranks by every strategy of ringreduce.
#[derive(Clone, Debug, clap::Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub train: TrainArgs,
}

impl Cli {
    /// The command line of this process. Where it can't be understood, the process ends and says
    /// why.
    ///
    /// # Errors
    /// If an option is not for the strategy.
    pub fn read() -> Result<Self> {
        let command = Self::command();
        let matches = command.clone().get_matches();
        let cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let (called, given) = match matches.subcommand() {
            Some((name, given)) => (command.find_subcommand(name).unwrap_or(&command), given),
            None => (&command, &matches),
        };
        let (strategies, optimizer) = match &cli.command {
            None => (vec![cli.train.settings.strategy], cli.train.settings.optimizer),
            Some(Command::Train(args)) => (vec![args.settings.strategy], args.settings.optimizer),
            Some(Command::Compare(args)) => {
                options::check_compared(given)?;
                (args.strategies(), args.settings.optimizer)
            }
            Some(Command::Lesson(_)) => return Ok(cli),
        };
        options::check(called, given, &strategies, optimizer)?;
        Ok(cli)
    }
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Train a model; the same as no subcommand
    Train(TrainArgs),
    /// Train one model by all strategies on 1, 2 and 4 ranks, and show what each costs
    Compare(CompareArgs),
    /// Run a lesson, and compare its figures with the expected ones
    Lesson(LessonArgs),
}

/// Where images come from.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DataArgs {
    /// Folder with MNIST's files, CIFAR-10's binary files, or train/CLASS/IMAGE; else generated
    /// images
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Resize images to N x N
    #[arg(long, value_name = "N", value_parser = positive)]
    pub side: Option<usize>,
    /// Use the first N training images only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub limit: Option<usize>,
}

/// A training: how, on what, and what is written.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub settings: Settings,
    /// Train on N threads of this process; else on the processes of a launcher such as ringrun
    #[arg(long, value_name = "N", value_parser = positive)]
    pub ranks: Option<usize>,
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
    /// Write settings and results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw loss and accuracy into this file as SVG
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Write steps.csv and epochs.csv to this folder while training
    #[arg(long, value_name = "DIR")]
    pub events: Option<PathBuf>,
    /// Lose the last rank in this step, to see that the others go on: for ringrun --elastic.
    /// The step after the last one is the time in which the last checkpoint is saved
    #[arg(long, value_name = "STEP", value_parser = positive)]
    pub lose: Option<usize>,
}

/// Where and when the state of the training is saved.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CheckpointArgs {
    /// Save a checkpoint in this folder after each epoch, and at Ctrl-C
    #[arg(long = "checkpoint", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Save one every N steps, too
    #[arg(long = "checkpoint-every", value_name = "N", requires = "dir", value_parser = positive)]
    pub every: Option<usize>,
    /// Keep the N newest checkpoints
    #[arg(long, default_value = "3", value_name = "N", requires = "dir", value_parser = positive)]
    pub keep: usize,
    /// Go on from the newest checkpoint, if there is one
    #[arg(long, requires = "dir")]
    pub resume: bool,
}

/// A comparison of strategies.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("strategy", |it| it.hide(true)), mut_arg("policy", |it| it.hide(true)))]
pub struct CompareArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub settings: Settings,
    /// Numbers of ranks
    #[arg(long, default_value = "1,2,4", value_delimiter = ',', value_parser = positive)]
    pub worlds: Vec<usize>,
    /// Compare these strategies only
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<StrategyName>,
    /// Write a page with charts and pictures to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the charts and pictures to this file as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl CompareArgs {
    /// The strategies to compare.
    #[must_use]
    pub fn strategies(&self) -> Vec<StrategyName> {
        if self.only.is_empty() {
            StrategyName::value_variants().to_vec()
        } else {
            self.only.clone()
        }
    }
}

/// A lesson.
#[derive(Clone, Debug, clap::Args)]
pub struct LessonArgs {
    /// Which one
    #[arg(value_enum)]
    pub name: LessonName,
    /// Folder of images of the lesson's form; else generated ones
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Take less than a minute: fewer images and epochs
    #[arg(long)]
    pub quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LessonName {
    /// Ring against naive all-reduce: bytes on the wire
    Ring,
    /// LeNet on Fashion-MNIST's form with 2 ranks
    Lenet,
    /// MobileNetV2 with Adam on CIFAR-10's form
    Mobilenet,
    /// Speed over 1, 2 and 4 ranks, for small and large batches
    Scaling,
    /// Transfer learning: a network with frozen layers on a folder of images
    Transfer,
}
