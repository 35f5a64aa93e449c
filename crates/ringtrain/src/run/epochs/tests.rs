//! A training whose ranks are lost after the last step, or do not end with the same weights; and
//! the shares of test images that are classified right.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Instant;

use ringreduce::{Builder, Communicator, Error as Failure};
use strategy::{Part, State};

use super::Training;
use crate::checkpoint::{Buffers, Checkpoints, Snapshot};
use crate::cli::{CheckpointArgs, Settings};
use crate::data::{Batch, Dataset, Generated, Source};
use crate::error::{Error, Result};
use crate::models::Network;
use crate::report::{Outputs, Report};
use crate::run::engine::{Division, Done, Engine, Tested};
use crate::run::history::History;
use crate::run::job::Job;
use crate::run::world;

/// A call in which another rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Snapshot,
    Digest,
}

/// An engine that learns nothing. It may lose a rank once its steps are made, and goes on without
/// it.
struct Idle {
    comm: Communicator,
    steps: u64,
    call: Option<Call>,
    has_recovered: bool,
    /// The digest of its weights.
    weights: u64,
    /// The class that it takes all images for.
    class: u32,
}

impl Idle {
    fn new(comm: Communicator) -> Self {
        Self { comm, steps: 0, call: None, has_recovered: false, weights: 7, class: 0 }
    }

    fn make(&self, call: Call) -> Result<()> {
        if self.call == Some(call) && !self.has_recovered {
            return Err(Failure::argument("test", "rank", "1, which is lost", "all ranks").into());
        }
        Ok(())
    }
}

impl Engine for Idle {
    fn division(&self) -> Division {
        Division::ByRank
    }

    fn parameters(&self) -> usize {
        1
    }

    fn digest(&self) -> Result<u64> {
        self.make(Call::Digest).map(|()| self.weights)
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn step(&mut self, _: Vec<Part<Batch>>, _: f32) -> Result<Done> {
        self.steps += 1;
        Ok(Done { loss: 1.0, ..Done::default() })
    }

    fn network(&self) -> &Network {
        unreachable!("an idle engine has no network")
    }

    fn test(&mut self, batch: &Batch) -> Result<Tested> {
        let labels = batch.labels.to_vec1::<u32>()?;
        let right = labels.iter().filter(|label| **label == self.class).count() as u64;
        Ok(Tested { right, diverged: 0 })
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        self.make(Call::Snapshot)?;
        let (steps, parameters) = (self.steps, Vec::new());
        let state = State { optimizer: "sgd".into(), steps, updates: steps, parameters };
        Ok(Some(Snapshot { state, buffers: Buffers::new() }))
    }

    fn load(&mut self, _: Option<&Snapshot>) -> Result<()> {
        Ok(())
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> Option<R> {
        Some(call(&mut self.comm))
    }

    fn recover(self, _: Failure, _: &mut History) -> Result<Self> {
        Ok(Self { has_recovered: true, ..self })
    }
}

/// One epoch of two steps.
fn job(tests: usize) -> Job {
    let source = Source::Generated(Generated { train: 8, test: tests, is_colour: false });
    let data = Dataset::load(&source, None).unwrap();
    Job::new(data, Settings { epochs: 1, batch: 4, ..Settings::default() })
}

fn training<'a>(job: &'a Job, engine: Idle, report: &'a mut Report) -> Training<'a, Idle> {
    Training {
        job,
        engine,
        history: History::default(),
        report,
        checkpoints: None,
        stop: None,
        lose: None,
        may_grow: false,
        has_begun: false,
        sent: None,
        counted: Instant::now(),
    }
}

#[test]
fn a_loss_after_the_last_step_costs_neither_the_last_checkpoint_nor_the_end() {
    for call in [Call::Snapshot, Call::Digest] {
        let job = job(1);
        let folder = tempfile::tempdir().unwrap();
        let args = CheckpointArgs {
            dir: Some(folder.path().into()),
            keep: 3,
            ..CheckpointArgs::default()
        };
        let checkpoints = Checkpoints::new(&args).unwrap();
        let comm = Communicator::local(1).unwrap().swap_remove(0);
        let engine = Idle { call: Some(call), ..Idle::new(comm) };
        let mut report = Report::new(0, Outputs::default()).unwrap();
        let mut training = training(&job, engine, &mut report);
        training.checkpoints = checkpoints.as_ref();
        let outcome = training.run().unwrap();
        assert_eq!((outcome.steps, outcome.epochs.len()), (2, 1), "{call:?}");
        let newest = checkpoints.unwrap().newest().unwrap();
        assert!(newest.is_some(), "{call:?}");
    }
}

/// All images are of one of ten classes.
#[test]
fn each_test_image_counts_once_however_many_ranks_there_are() {
    for count in [1, 2, 5, 7] {
        let job = job(count);
        let labels = job.data.test.labels();
        for (class, ranks) in (0..10).flat_map(|class| [1, 2, 3].map(|ranks| (class, ranks))) {
            let right = labels.iter().filter(|label| **label == class).count();
            let accuracies = world::run(&Builder::default(), ranks, &|comm| {
                let mut report = Report::new(comm.rank(), Outputs::default())?;
                let engine = Idle { class, ..Idle::new(comm) };
                training(&job, engine, &mut report).accuracy()
            });
            let expected = vec![right as f64 / count as f64; ranks];
            let what = format!("class {class} of {count} images at {ranks} ranks");
            assert_eq!(accuracies.unwrap(), expected, "{what}");
        }
    }
}

#[test]
fn ranks_that_end_with_other_weights_all_get_an_error() {
    let job = job(1);
    for weights in [&[7, 8][..], &[8, 7], &[7, 7, 0], &[u64::MAX, 0, 0], &[7, 7, 7]] {
        let ends = world::run(&Builder::default(), weights.len(), &|comm| {
            let rank = comm.rank();
            let mut report = Report::new(rank, Outputs::default())?;
            let engine = Idle { weights: weights[rank], ..Idle::new(comm) };
            Ok(training(&job, engine, &mut report).run())
        });
        let are_equal = weights.iter().all(|it| *it == weights[0]);
        for end in ends.unwrap() {
            assert_eq!(end.is_ok(), are_equal, "{weights:?}: {end:?}");
            if let Err(error) = end {
                assert!(matches!(error, Error::WeightsDiffer(2)), "{weights:?}: {error}");
            }
        }
    }
}
