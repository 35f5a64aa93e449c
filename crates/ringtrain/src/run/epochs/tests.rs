//! A training whose ranks are lost after the last step.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error as Failure};
use strategy::State;

use super::Training;
use crate::checkpoint::{Buffers, Checkpoints, Snapshot};
use crate::cli::{CheckpointArgs, Settings};
use crate::data::{Batch, Dataset, Generated, Source};
use crate::error::Result;
use crate::report::{Outputs, Report};
use crate::run::engine::{Division, Done, Engine, Pieces, Tested};
use crate::run::history::History;
use crate::run::job::Job;

/// A call in which another rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Snapshot,
    Digest,
}

/// An engine that loses a rank once its steps are made, and goes on without it.
struct Losing {
    comm: Communicator,
    steps: u64,
    call: Option<Call>,
    has_recovered: bool,
}

impl Losing {
    fn make(&self, call: Call) -> Result<()> {
        if self.call == Some(call) && !self.has_recovered {
            return Err(Failure::argument("test", "rank", "1, which is lost", "all ranks").into());
        }
        Ok(())
    }
}

impl Engine for Losing {
    fn division(&self) -> Division {
        Division::ByRank
    }

    fn parameters(&self) -> usize {
        1
    }

    fn digest(&self) -> Result<u64> {
        self.make(Call::Digest).map(|()| 7)
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn step(&mut self, _: Pieces, _: f32) -> Result<Done> {
        self.steps += 1;
        Ok(Done { loss: 1.0, exposed: Duration::ZERO, hidden: Duration::ZERO })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        Ok(())
    }

    fn test(&mut self, _: &Batch) -> Result<Tested> {
        Ok(Tested::default())
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

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> R {
        call(&mut self.comm)
    }

    fn recover(self, _: Failure, _: &mut History) -> Result<Self> {
        Ok(Self { has_recovered: true, ..self })
    }
}

#[test]
fn a_loss_after_the_last_step_costs_neither_the_last_checkpoint_nor_the_end() {
    for call in [Call::Snapshot, Call::Digest] {
        let source = Source::Generated(Generated { train: 8, test: 1, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        let job = Job::new(data, Settings { epochs: 1, batch: 4, ..Settings::default() });
        let folder = tempfile::tempdir().unwrap();
        let args = CheckpointArgs {
            dir: Some(folder.path().into()),
            keep: 3,
            ..CheckpointArgs::default()
        };
        let checkpoints = Checkpoints::new(&args).unwrap();
        let comm = Communicator::local(1).unwrap().swap_remove(0);
        let training = Training {
            job: &job,
            engine: Losing { comm, steps: 0, call: Some(call), has_recovered: false },
            history: History::default(),
            report: &mut Report::new(0, Outputs::default()).unwrap(),
            checkpoints: checkpoints.as_ref(),
            stop: None,
            lose: None,
            may_grow: false,
            has_begun: false,
            sent: None,
            counted: Instant::now(),
        };
        let outcome = training.run().unwrap();
        assert_eq!((outcome.steps, outcome.epochs.len()), (2, 1), "{call:?}");
        let newest = checkpoints.unwrap().newest().unwrap();
        assert!(newest.is_some(), "{call:?}");
    }
}
