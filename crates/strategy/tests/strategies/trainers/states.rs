//! A training goes on from its state, whatever the strategy and the number of ranks.

use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Error, JobConfig, Layout, Member, Optimizer, Policy, Role, Server,
    ServerSettings, Settings, State, Strategy, Trainer, Worker, share,
};

use crate::network::{Network, part};

const MIRRORED: Strategy = Strategy::Mirrored(CrossDeviceOp::AllReduce);
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
const BATCH: usize = 13;
const RATE: f32 = 0.1;

fn settings(strategy: Strategy, optimizer: Optimizer) -> Settings {
    let buckets = Some(BucketSizes { first: 100, others: 200 });
    Settings { strategy, optimizer, clip_norm: None, buckets }
}

/// The state of rank 0 after steps of `n` ranks from `state`, or from the start.
fn trained(n: usize, settings: Settings, state: Option<&State>, until: u64) -> State {
    let states = on_ranks(n, |comm: &mut Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut network = Network::new(0.0);
        let mut trainer = Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
        if state.is_some() {
            let state = state.filter(|_| rank == 0);
            trainer.load_state(&mut network, state).unwrap();
        }
        while trainer.steps() < until {
            let step = trainer.steps() as usize % 40_usize.div_ceil(BATCH);
            let (places, total) = share(40, BATCH, step, rank, size);
            trainer.step(&mut network, &[part(places, total)], RATE).unwrap();
        }
        let state = trainer.state::<Infallible>().unwrap();
        if let Some(state) = &state {
            let values: Vec<f32> =
                state.parameters.iter().flat_map(|it| it.values.clone()).collect();
            assert_eq!(values, network.values());
        }
        state
    });
    assert!(states[1..].iter().all(Option::is_none), "rank 0 alone has the state");
    states.into_iter().next().flatten().unwrap()
}

/// The state at the first worker after steps of two workers and some servers from `state`, or from
/// the start.
fn served(servers: usize, optimizer: Optimizer, state: Option<&State>, until: u64) -> State {
    let states = on_ranks(servers + 2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let state = state.filter(|_| comm.rank() == servers);
        let (layout, config) = (Layout::new(servers), JobConfig::default());
        let member = match state {
            Some(state) => Member::resume(comm, layout, config, state.steps).unwrap(),
            None => Member::new(comm, layout, config).unwrap(),
        };
        if let Role::Server(_) = member.role() {
            let policy = Policy::Synchronous { backups: 0 };
            let settings = ServerSettings { policy, optimizer, rate: RATE, snapshots: None };
            Server::new(member, settings).unwrap().serve(|_, _| {}).unwrap();
            return None;
        }
        let mut network = Network::new(0.0);
        let mut worker = match state {
            Some(state) => Worker::resume(member, &mut network, optimizer, state).unwrap(),
            None => Worker::new(member, &mut network).unwrap(),
        };
        while worker.steps() < until {
            let step = worker.steps() as usize % 40_usize.div_ceil(BATCH);
            let (places, _) = share(40, BATCH, step, worker.number(), 2);
            let samples = places.len();
            worker.step(&mut network, &part(places, samples)).unwrap();
        }
        let is_first = worker.number() == 0;
        let state = is_first.then(|| worker.state(&network, optimizer).unwrap().unwrap());
        worker.end().unwrap();
        state
    });
    states.into_iter().flatten().next().unwrap()
}

#[test]
fn servers_go_on_from_the_state_of_a_trainer_and_a_trainer_from_theirs() {
    for optimizer in
        [MOMENTUM, Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.0 }]
    {
        let whole = trained(1, settings(MIRRORED, optimizer), None, 8);
        let half = trained(2, settings(MIRRORED, optimizer), None, 4);
        for servers in [1, 3] {
            let what = format!("{servers} servers, {optimizer:?}");
            close(&whole, &served(servers, optimizer, None, 8), &what);
            close(&whole, &served(servers, optimizer, Some(&half), 8), &what);
            let theirs = served(servers, optimizer, None, 4);
            close(&half, &theirs, &what);
            close(&whole, &trained(3, settings(MIRRORED, optimizer), Some(&theirs), 8), &what);
            close(&whole, &served(4 - servers, optimizer, Some(&theirs), 8), &what);
            assert_eq!(served(servers, optimizer, Some(&theirs), 4), theirs, "{what}");
        }
    }
}

/// A state of asynchronous servers has more updates than steps, and Adam's averages depend on them.
#[test]
fn servers_go_on_with_the_updates_of_a_state() {
    let adam = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.0 };
    let half = trained(1, settings(MIRRORED, adam), None, 4);
    let asynchronous = State { updates: 8, ..half.clone() };
    // The samples of step 9 are those of step 5.
    let expected = trained(1, settings(MIRRORED, adam), Some(&State { steps: 8, ..half }), 9);
    let found = served(2, adam, Some(&asynchronous), 5);
    assert_eq!((found.steps, found.updates), (5, 9));
    close(&expected, &State { steps: 9, ..found }, "9 updates");
}

#[test]
fn a_worker_refuses_a_state_of_another_optimizer() {
    let state = trained(1, settings(MIRRORED, Optimizer::ADAM), None, 2);
    let refused = on_ranks(2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (layout, config, is_worker) = (Layout::new(1), JobConfig::default(), comm.rank() == 1);
        let steps = if is_worker { state.steps } else { 0 };
        let member = match is_worker {
            true => Member::resume(comm, layout, config, steps).unwrap(),
            false => Member::new(comm, layout, config).unwrap(),
        };
        let resumed = |member| Worker::resume(member, &mut Network::new(0.0), MOMENTUM, &state);
        is_worker.then(|| resumed(member).unwrap_err().to_string())
    });
    let said = refused.into_iter().flatten().next().unwrap();
    assert!(said.contains("it is of the optimizer adam, and this training uses sgd"), "{said}");
}

#[track_caller]
fn close(one: &State, other: &State, what: &str) {
    assert_eq!((&one.optimizer, one.steps), (&other.optimizer, other.steps), "{what}");
    for (one, other) in one.parameters.iter().zip(&other.parameters) {
        assert_eq!(one.name, other.name, "{what}");
        let mut pairs = vec![(&one.values, &other.values)];
        pairs.extend(one.moments.iter().zip(&other.moments));
        assert_eq!(one.moments.len(), other.moments.len(), "{what}");
        for (one, other) in pairs {
            assert_eq!(one.len(), other.len(), "{what}");
            let close =
                |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-5 * one.abs().max(1.0);
            assert!(one.iter().zip(other).all(close), "{what}: {one:?} {other:?}");
        }
    }
}

#[test]
fn a_training_goes_on_by_any_strategy_on_any_number_of_ranks() {
    for optimizer in
        [MOMENTUM, Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.0 }]
    {
        let whole = trained(1, settings(MIRRORED, optimizer), None, 20);
        for first in Strategy::ALL {
            let half = trained(4, settings(first, optimizer), None, 10);
            for second in Strategy::ALL {
                for n in [1, 2, 3] {
                    let end = trained(n, settings(second, optimizer), Some(&half), 20);
                    close(&whole, &end, &format!("{first} to {second} on {n}, {optimizer:?}"));
                }
            }
        }
    }
}

#[test]
fn a_state_that_goes_out_and_in_has_the_same_bits() {
    for strategy in Strategy::ALL {
        let state = trained(3, settings(strategy, Optimizer::ADAM), None, 4);
        let names: Vec<_> = state.parameters.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["first.weight", "first.bias", "second.weight", "second.bias"]);
        for n in [1, 2, 4] {
            let again = trained(n, settings(strategy, Optimizer::ADAM), Some(&state), 4);
            assert_eq!(again, state, "{strategy} on {n}");
        }
        // Files may have them in another order.
        let mut turned = state.clone();
        turned.parameters.reverse();
        assert_eq!(trained(2, settings(strategy, Optimizer::ADAM), Some(&turned), 4), state);
    }
}

/// The errors by which all ranks refuse the state, given to rank 0.
fn refusals(state: Option<&State>, optimizer: Optimizer) -> Vec<String> {
    on_ranks(2, |comm: &mut Communicator| {
        let mut network = Network::new(0.0);
        let settings = settings(MIRRORED, optimizer);
        let rank = comm.rank();
        let mut trainer = Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
        let before = network.values();
        let error = trainer.load_state(&mut network, state.filter(|_| rank == 0)).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{error}");
        assert_eq!((network.values(), trainer.steps()), (before, 0));
        // The ranks are still in step.
        trainer.step(&mut network, &[part(6 * rank..6 * rank + 6, 12)], RATE).unwrap();
        error.to_string()
    })
}

#[test]
fn a_state_of_another_model_or_optimizer_names_what_differs() {
    let state = trained(2, settings(MIRRORED, MOMENTUM), None, 2);
    let changed = |change: &dyn Fn(&mut State)| {
        let mut state = state.clone();
        change(&mut state);
        refusals(Some(&state), MOMENTUM)
    };
    let cases = [
        (refusals(None, MOMENTUM), "rank 0 has passed none"),
        (
            refusals(Some(&state), Optimizer::ADAM),
            "of the optimizer sgd, and this training uses adam",
        ),
        (
            refusals(Some(&state), Optimizer::SGD),
            "first.weight has 1 moments there, and sgd keeps 0 here",
        ),
        (
            changed(&|it| it.parameters[2].name = "third".into()),
            "it has no parameter second.weight",
        ),
        (
            changed(&|it| it.parameters[1].values.truncate(5)),
            "first.bias has 5 values there, and 7 here",
        ),
        (
            changed(&|it| it.parameters[1].moments[0].truncate(5)),
            "velocity of first.bias has 5 values, not 7",
        ),
        (
            changed(&|it| {
                let other = it.parameters[0].clone();
                it.parameters.push(strategy::ParameterState { name: "third".into(), ..other });
            }),
            "this model has no parameter third",
        ),
    ];
    for (errors, expected) in cases {
        for error in errors {
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
