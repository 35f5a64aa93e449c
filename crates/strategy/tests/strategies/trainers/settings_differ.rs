//! Ranks whose trainers have other settings or other parameters learn so before the first step.

use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, Groups, JobConfig, Layout, Member, Model, Optimizer, Parameters, Part,
    PipelineSchedule, PipelineSettings, PipelineTrainer, Policy, Role, Server, ServerSettings,
    Settings, Sink, Stage, Strategy, Trainer, Worker,
};

/// Parameters that nothing trains.
struct Untrained(Vec<(String, usize)>);

impl Untrained {
    fn new(counts: [usize; 2]) -> Self {
        Self(["first", "second"].map(String::from).into_iter().zip(counts).collect())
    }
}

impl Parameters for Untrained {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.0.clone()
    }

    fn read(&self, _: usize, _: &mut [f32]) -> Result<(), Infallible> {
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Model for Untrained {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, _: &Sink) -> Result<f32, Infallible> {
        Ok(0.0)
    }
}

impl Stage for Untrained {
    fn forward(&mut self, _: usize, _: &[f32]) -> Result<Vec<f32>, Infallible> {
        Ok(Vec::new())
    }

    fn backward(
        &mut self,
        _: usize,
        _: &[f32],
        _: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, Infallible> {
        Ok(Vec::new())
    }
}

const COUNTS: [usize; 2] = [10, 20];
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };

/// All ranks of `n` say that the last one has `given` where rank 0 has `expected`.
#[track_caller]
fn check(errors: &[String], given: &str, expected: &str) {
    let last = errors.len() - 1;
    for error in errors {
        assert!(error.contains(&format!("{given} at rank {last}")), "{error}");
        assert!(error.contains(&format!("expected {expected}, as at rank 0")), "{error}");
    }
}

#[test]
fn trainers_with_other_settings_or_parameters_are_refused_at_all_ranks() {
    let sizes = |first| Some(BucketSizes { first, others: 400 });
    for strategy in Strategy::ALL {
        let settings =
            Settings { strategy, optimizer: MOMENTUM, clip_norm: None, buckets: sizes(100) };
        let errors = |other: Settings, counts: [usize; 2]| {
            on_ranks(3, |comm: &mut Communicator| {
                let (settings, counts) =
                    if comm.rank() == 2 { (other, counts) } else { (settings, COUNTS) };
                let comm = comm.duplicate().unwrap();
                Trainer::new(comm, &mut Untrained::new(counts), settings).unwrap_err().to_string()
            })
        };
        let clips = Settings { clip_norm: Some(0.5), ..settings };
        check(&errors(clips, COUNTS), "clip_norm Some(0.5)", "clip_norm None");
        let decay = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.02 };
        let decays = Settings { optimizer: decay, ..settings };
        let (given, expected) = (format!("optimizer {decay:?}"), format!("optimizer {MOMENTUM:?}"));
        check(&errors(decays, COUNTS), &given, &expected);
        let packs = Settings { buckets: sizes(120), ..settings };
        let words = |settings: &Settings| format!("buckets {:?}", settings.buckets);
        check(&errors(packs, COUNTS), &words(&packs), &words(&settings));
        // The same elements, in other parameters.
        let (given, expected) = ("the parameter first of 11 elements", "the parameter first of 10");
        check(&errors(settings, [11, 19]), given, &format!("{expected} elements"));
    }
}

#[test]
fn pipelines_with_other_settings_or_parameters_are_refused() {
    let settings = PipelineSettings {
        stages: 2,
        schedule: PipelineSchedule::FillDrain,
        optimizer: MOMENTUM,
        clip_norm: None,
    };
    let errors = |other: PipelineSettings, counts: [usize; 2]| -> Vec<String> {
        let ends = on_ranks(4, |comm: &mut Communicator| {
            let (settings, counts) =
                if comm.rank() == 3 { (other, counts) } else { (settings, COUNTS) };
            let comm = comm.duplicate().unwrap();
            let made = PipelineTrainer::new(comm, &mut Untrained::new(counts), settings);
            made.err().map(|error| error.to_string())
        });
        ends.into_iter().flatten().collect()
    };
    let one = PipelineSettings { stages: 4, ..settings };
    check_pipeline(&errors(one, COUNTS), 4, "stages 4 at rank 3, expected stages 2");
    let one = PipelineSettings { clip_norm: Some(1.0), ..settings };
    check_pipeline(&errors(one, COUNTS), 4, "clip_norm Some(1.0) at rank 3");
    // Ranks 1 and 3 have the same stage, and are ranks 0 and 1 of its replicas.
    let said = "the parameter first of 11 elements at rank 1, expected the parameter first of 10";
    check_pipeline(&errors(settings, [11, 19]), 2, said);
}

/// The workers of such servers lose them.
#[test]
fn servers_with_other_settings_are_refused() {
    let (policy, optimizer) = (Policy::Synchronous { backups: 0 }, MOMENTUM);
    let settings = |rate| ServerSettings { policy, optimizer, rate, snapshots: None };
    for groups in [Groups::Each, Groups::Number(0)] {
        let ends = on_ranks(4, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let layout = Layout { groups, ..Layout::new(2) };
            let member = Member::new(comm, layout, JobConfig::default()).unwrap();
            if let Role::Server(part) = member.role() {
                let made = Server::new(member, settings([0.1, 0.2][part]));
                return Some(made.unwrap_err().to_string());
            }
            let words = Worker::new(member, &mut Untrained::new(COUNTS)).unwrap_err().to_string();
            assert!(words.contains("lost rank"), "rank {rank}: {words}");
            None
        });
        let errors: Vec<String> = ends.into_iter().flatten().collect();
        assert_eq!(errors.len(), 2);
        check(&errors, "rate 0.2", "rate 0.1");
    }
}

#[track_caller]
fn check_pipeline(errors: &[String], ranks: usize, expected: &str) {
    assert_eq!(errors.len(), ranks, "{errors:?}");
    assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
}
