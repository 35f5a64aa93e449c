//! Pipelines beside one rank that has all layers.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Error, Optimizer, PipelineSchedule, PipelineSettings, PipelineStep, PipelineTrainer, State,
};

use crate::layers::{LAYERS, Layers, SAMPLES, cut};

const SCHEDULES: [PipelineSchedule; 2] =
    [PipelineSchedule::FillDrain, PipelineSchedule::OneForwardOneBackward];

const STEPS: usize = 50;
const RATE: f32 = 0.05;

fn settings(stages: usize, schedule: PipelineSchedule) -> PipelineSettings {
    PipelineSettings { stages, schedule, optimizer: Optimizer::SGD, clip_norm: None }
}

/// The weights and the losses after [`STEPS`] steps of `replicas` pipelines.
fn trained(
    replicas: usize,
    settings: PipelineSettings,
    count: usize,
) -> (Vec<Vec<f32>>, Vec<PipelineStep>) {
    let stages = settings.stages;
    let ends = on_ranks(replicas * stages, |comm: &mut Communicator| {
        let (replica, stage) = (comm.rank() / stages, comm.rank() % stages);
        let mut layers = Layers::new(stage, stages, replica as f32);
        let comm = comm.duplicate().unwrap();
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        // The last replica has the most samples; a replica may have fewer than micro-batches.
        let samples = cut(&(0..SAMPLES), replicas)[replica].clone();
        let count = count.min(samples.len());
        layers.micro_batches = cut(&samples, count);
        let step = |_| trainer.step(&mut layers, count, RATE).unwrap();
        let steps: Vec<_> = (0..STEPS).map(step).collect();
        assert!(layers.held.is_empty());
        assert_eq!(trainer.steps(), STEPS as u64);
        (layers.weights, steps)
    });
    let weights = |replica: usize| {
        let ends = &ends[replica * stages..(replica + 1) * stages];
        ends.iter().flat_map(|(weights, _)| weights.clone()).collect::<Vec<_>>()
    };
    assert!((1..replicas).all(|replica| weights(replica) == weights(0)));
    let losses = |at: usize| ends[at].1.iter().map(|step| step.loss).collect::<Vec<_>>();
    assert!((1..ends.len()).all(|rank| losses(rank) == losses(0)));
    (weights(0), ends[0].1.clone())
}

/// The distance of two lists of vectors, relative to the length of the first.
fn distance(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let pairs = || one.iter().flatten().zip(other.iter().flatten());
    let square = |it: f32| f64::from(it).powi(2);
    let apart = pairs().map(|(one, other)| square(one - other)).sum::<f64>();
    (apart / pairs().map(|(one, _)| square(*one)).sum::<f64>()).sqrt()
}

#[test]
fn pipelines_end_with_the_weights_of_one_rank_to_the_bit() {
    let fill_drain = PipelineSchedule::FillDrain;
    let (alone, steps) = trained(1, settings(1, fill_drain), 5);
    let losses = [steps[0].loss, steps[STEPS - 1].loss];
    assert!(losses[1] < 0.9 * losses[0], "{losses:?}");
    for schedule in SCHEDULES {
        for n in 1..=4 {
            assert!(trained(1, settings(n, schedule), 5).0 == alone, "{schedule:?}, {n} stages");
        }
        // Fewer micro-batches than stages, and one: plain model parallelism.
        for count in [1, 2] {
            let alone = trained(1, settings(1, fill_drain), count).0;
            assert!(trained(1, settings(4, schedule), count).0 == alone);
        }
    }
}

#[test]
fn replicas_of_pipelines_end_with_the_weights_of_one_rank() {
    for (optimizer, clip_norm) in [
        (Optimizer::SGD, None),
        (Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 }, Some(0.05)),
        (Optimizer::Lars { momentum: 0.9, weight_decay: 0.01, trust: 0.1 }, None),
    ] {
        let settings = |stages, schedule| PipelineSettings {
            optimizer,
            clip_norm,
            ..settings(stages, schedule)
        };
        let (alone, steps) = trained(1, settings(1, PipelineSchedule::FillDrain), 3);
        for schedule in SCHEDULES {
            for (replicas, stages) in [(1, 3), (2, 1), (2, 2), (3, 2), (9, 1)] {
                let (weights, other) = trained(replicas, settings(stages, schedule), 3);
                let distance = distance(&alone, &weights);
                let what = format!("{schedule:?}, {replicas} x {stages}, {optimizer:?}");
                assert!(distance < 1e-5, "{what}: {distance:e}");
                for (one, other) in steps.iter().zip(&other) {
                    assert!((one.loss - other.loss).abs() < 1e-4 * one.loss, "{what}");
                    assert!((0.0..1.0).contains(&other.bubble), "{what}: {other:?}");
                }
            }
        }
        if clip_norm.is_some() {
            let free =
                PipelineSettings { clip_norm: None, ..settings(1, PipelineSchedule::FillDrain) };
            assert!(distance(&alone, &trained(1, free, 3).0) > 1e-3, "clipping has an effect");
        }
    }
}

#[test]
fn a_number_that_is_not_finite_names_rank_stage_and_layer_and_changes_nothing() {
    // Stages have layers 0-1, 2-3 and 4-5; two replicas.
    let cases = [
        ((None, Some(2)), "rank 4 (stage 1) has such a gradient of layer 2"),
        ((Some(3), None), "rank 4 (stage 1) has such an output, behind layer 3"),
        ((Some(5), None), "rank 5 (stage 2) has such a loss"),
    ];
    for ((output, gradient), expected) in cases {
        on_ranks(6, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let mut layers = Layers::new(rank % 3, 3, 0.0);
            let settings = settings(3, PipelineSchedule::OneForwardOneBackward);
            let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
            layers.micro_batches = cut(&(0..SAMPLES), 2);
            let before = layers.weights.clone();
            if rank >= 3 {
                (layers.damaged_output, layers.damaged_gradient) = (output, gradient);
            }
            let error = trainer.step(&mut layers, 2, RATE).unwrap_err();
            let Error::Diverged { step: 1, cause, .. } = error else { panic!("{error}") };
            assert_eq!(cause.to_string(), expected);
            assert_eq!(layers.weights, before);
            // The ranks are still in step.
            (layers.damaged_output, layers.damaged_gradient) = (None, None);
            assert!(trainer.step(&mut layers, 2, RATE).unwrap().loss.is_finite());
            assert_ne!(layers.weights, before);
        });
    }
}

/// The other ranks make the step; no one of them waits for the rank with the error.
#[test]
fn a_gradient_of_a_wrong_length_is_an_error_of_its_rank() {
    for damaged in [None, Some(1)] {
        let ends = on_ranks(4, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let mut layers = Layers::new(rank % 2, 2, 0.0);
            let settings = settings(2, PipelineSchedule::OneForwardOneBackward);
            let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
            layers.micro_batches = cut(&cut(&(0..SAMPLES), 2)[rank / 2], 2);
            layers.long_gradient = Some(4).filter(|_| rank == 3);
            layers.damaged_gradient = damaged.filter(|_| rank == 0);
            trainer.step(&mut layers, 2, RATE).map(|_| ()).map_err(|error| error.to_string())
        });
        let said = ends[3].clone().unwrap_err();
        assert!(said.contains("41 elements of parameter 1"), "{said}");
        for end in &ends[..3] {
            match damaged {
                None => assert_eq!(*end, Ok(())),
                Some(_) => assert!(end.clone().unwrap_err().contains("rank 0 (stage 0) has such")),
            }
        }
    }
}

#[test]
fn a_state_goes_from_pipelines_to_pipelines_of_other_stages() {
    let optimizer = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.01 };
    let settings = |stages| PipelineSettings {
        optimizer,
        ..settings(stages, PipelineSchedule::OneForwardOneBackward)
    };
    let whole = after((1, settings(1)), 10, None);
    assert_eq!((whole.steps, whole.parameters.len()), (10, LAYERS));
    let half = after((1, settings(3)), 5, None);
    assert_eq!(after((1, settings(2)), 5, Some(&half)), whole);
    assert_eq!(after((1, settings(2)), 0, Some(&whole)), whole);
    let replicas = after((2, settings(3)), 5, Some(&half));
    let values =
        |state: &State| state.parameters.iter().map(|it| it.values.clone()).collect::<Vec<_>>();
    assert!(distance(&values(&whole), &values(&replicas)) < 1e-5);
    // Another model's state is refused at all ranks, and changes nothing.
    let mut other = half.clone();
    other.parameters[4].name = "layer 9".into();
    for (state, expected) in [(Some(&other), "no parameter layer 4"), (None, "passed none")] {
        on_ranks(2, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let mut layers = Layers::new(rank, 2, 0.0);
            let mut trainer = PipelineTrainer::new(comm, &mut layers, settings(2)).unwrap();
            let before = layers.weights.clone();
            let error = trainer.load_state(&mut layers, state).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!((&layers.weights, trainer.steps()), (&before, 0));
        });
    }
}

/// The state of replicas of a pipeline after `steps` steps from another state.
fn after(
    (replicas, settings): (usize, PipelineSettings),
    steps: usize,
    from: Option<&State>,
) -> State {
    let stages = settings.stages;
    let states = on_ranks(replicas * stages, |comm: &mut Communicator| {
        let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
        let mut layers = Layers::new(rank % stages, stages, 0.0);
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        if from.is_some() {
            // Only rank 0 needs it.
            trainer.load_state(&mut layers, from.filter(|_| rank == 0)).unwrap();
        }
        layers.micro_batches = cut(&cut(&(0..SAMPLES), replicas)[rank / stages], 2);
        for _ in 0..steps {
            trainer.step(&mut layers, 2, RATE).unwrap();
        }
        trainer.state(&layers).unwrap()
    });
    assert!(states[1..].iter().all(Option::is_none));
    states.into_iter().next().unwrap().unwrap()
}

#[test]
fn stages_that_do_not_divide_the_ranks_are_refused() {
    for stages in [0, 2] {
        let errors = on_ranks(3, |comm: &mut Communicator| {
            let (mut layers, comm) = (Layers::new(0, 1, 0.0), comm.duplicate().unwrap());
            let settings = settings(stages, PipelineSchedule::FillDrain);
            PipelineTrainer::new(comm, &mut layers, settings).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|it| it.contains("a number that divides the 3 ranks")));
    }
}

#[test]
fn a_lost_stage_ends_the_others_with_an_error_that_names_it() {
    let errors = on_ranks(3, |comm: &mut Communicator| {
        let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
        let mut layers = Layers::new(rank, 3, 0.0);
        layers.micro_batches = cut(&(0..SAMPLES), 4);
        let settings = settings(3, PipelineSchedule::OneForwardOneBackward);
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        if rank == 1 {
            return None;
        }
        trainer.step(&mut layers, 4, RATE).err()
    });
    assert_eq!(errors.iter().flatten().count(), 2);
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
