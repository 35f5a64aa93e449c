//! Trainings go on when ranks are killed and when they join, and end with the parameters of one
//! rank that was never disturbed. A rank is this test program, which executes [`rank`].

use std::convert::Infallible;
use std::process::{Command, Stdio};

use harness::process::Process;
use harness::processes::this_rank;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Error, JobConfig, Optimizer, Settings, State, Strategy, Trainer,
    share,
};

use crate::network::{Network, part};
use crate::processes;

const STEPS: u64 = 40;
const BATCH: usize = 13;
const MIRRORED: Strategy = Strategy::Mirrored(CrossDeviceOp::AllReduce);
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
/// The name of the strategy, `rank@step+calls` of each victim, and what a rank does about a lost
/// state.
const PLAN: &str = "TEST_PLAN";
/// The word of a plan whose ranks compute their samples in two parts.
const ACCUMULATES: &str = "accumulates";
/// The prefix of the line by which a rank reports its end.
const END: &str = "training ends: ";
/// The step at which the ranks wait until as many are there as in the beginning.
const GROWN: u64 = 30;

fn settings(strategy: Strategy) -> Settings {
    let buckets = Some(BucketSizes { first: 100, others: 200 });
    Settings { strategy, optimizer: MOMENTUM, clip_norm: None, buckets }
}

/// Makes a step if there is one to do; otherwise waits for ranks that join.
fn proceed(
    trainer: &mut Trainer,
    network: &mut Network,
    losses: &mut Vec<f32>,
    first_size: usize,
) -> Result<(), Error<Infallible>> {
    let (rank, size) = trainer.with_communicator(|comm| (comm.rank(), comm.size()));
    let is_waiting = std::env::var("TEST_GROWS").is_ok() && trainer.steps() == GROWN;
    if is_waiting && size < first_size {
        trainer.grow(network, losses)?;
        return Ok(());
    }
    let step = trainer.steps() as usize % 40_usize.div_ceil(BATCH);
    let (places, total) = share(40, BATCH, step, rank, size);
    let middle = places.start + places.len() / 2;
    let parts = match std::env::var(PLAN) {
        Ok(plan) if plan.contains(ACCUMULATES) => {
            vec![part(places.start..middle, total), part(middle..places.end, total)]
        }
        _ => vec![part(places, total)],
    };
    losses.push(trainer.step(network, &parts, 0.1)?.loss);
    Ok(())
}

/// The calls of the model after which this rank kills itself in this step.
fn death(plan: &[&str], rank: Option<usize>, step: u64) -> Option<usize> {
    plan.iter().find_map(|it| {
        let (at, calls) = it.split_once('+')?;
        let calls = calls.parse().unwrap();
        (Some(at.to_owned()) == rank.map(|rank| format!("{rank}@{step}"))).then_some(calls)
    })
}

/// A rank, if this program is one.
#[test]
fn rank() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let plan: Vec<&str> = plan.split(' ').collect();
    let strategy = Strategy::ALL.into_iter().find(|it| it.name() == plan[0]).unwrap();
    let comm = this_rank().unwrap_or_else(|| Communicator::from_env().unwrap());
    let first = (comm.epoch() == 0).then(|| comm.rank());
    let first_size = std::env::var("TEST_GROWS").map_or(0, |size| size.parse().unwrap());
    let mut network = Network::new(comm.rank() as f32);
    if first.is_some() {
        network = Network::new(0.0);
    }
    let mut losses: Vec<f32> = Vec::new();
    let config = JobConfig::from_iter([("strategy".to_owned(), strategy.to_string())]);
    let mut trainer =
        Trainer::elastic(comm, &mut network, settings(strategy), config, &mut losses).unwrap();
    let mut checkpoint: Option<State> = None;
    let mut is_saved = false;
    while trainer.steps() < STEPS {
        network.dies_after = death(&plan, first, trainer.steps());
        if trainer.is_state_lost() {
            let error = trainer.step(&mut network, &[], 0.1).unwrap_err();
            assert!(matches!(error, Error::StateLost(_)), "{error}");
            let error = trainer.state::<Infallible>().unwrap_err();
            assert!(matches!(error, Error::StateLost(_)), "zeros are no state: {error}");
            trainer.load_state(&mut network, checkpoint.as_ref()).unwrap();
            losses.truncate(trainer.steps() as usize);
            eprintln!("state lost");
            continue;
        }
        if trainer.steps() == 4 && !is_saved && plan.contains(&"saves") {
            checkpoint = trainer.state::<Infallible>().unwrap();
            is_saved = true;
        }
        if let Err(error) = proceed(&mut trainer, &mut network, &mut losses, first_size) {
            trainer.recover(error, &mut network, &mut losses).unwrap();
        }
        assert_eq!(losses.len() as u64, trainer.steps());
    }
    let numbers: Vec<String> = network.values().iter().map(|it| it.to_bits().to_string()).collect();
    let size = trainer.with_communicator(|comm| comm.size());
    eprintln!("{END}{size} {} {}", losses[losses.len() - 1], numbers.join(" "));
    // No rank leaves while another one is in its last step.
    let _ = trainer.with_communicator(Communicator::barrier);
}

/// The last loss and the parameters of one rank.
fn alone() -> Vec<f32> {
    let mut network = Network::new(0.0);
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut trainer = Trainer::new(comm, &mut network, settings(MIRRORED)).unwrap();
    let mut losses = Vec::new();
    while trainer.steps() < STEPS {
        proceed(&mut trainer, &mut network, &mut losses, 1).unwrap();
    }
    [&losses[losses.len() - 1..], &network.values()].concat()
}

/// The ends of `n` ranks: the number of ranks at the end, the last loss and the parameters.
fn ends(n: usize, transport: &str, plan: &str, victims: &[usize]) -> Vec<(usize, Vec<f32>)> {
    let ends = processes::ends(module_path!(), n, transport, (PLAN, plan)).into_iter().enumerate();
    ends.filter(|(rank, _)| !victims.contains(rank))
        .flat_map(|(rank, (ended, lines))| {
            assert!(ended, "{plan}: rank {rank}: {lines}");
            parse(&lines)
        })
        .collect()
}

fn parse(lines: &str) -> Vec<(usize, Vec<f32>)> {
    let end = |line: &str| {
        let (_, end) = line.split_once(END)?;
        let mut words = end.split(' ');
        let size = words.next()?.parse().unwrap();
        let loss = words.next()?.parse().unwrap();
        let bits = words.map(|it| f32::from_bits(it.trim().parse().unwrap()));
        Some((size, [loss].into_iter().chain(bits).collect()))
    };
    lines.lines().filter_map(end).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt()
}

#[track_caller]
fn check(ends: &[(usize, Vec<f32>)], left: usize, what: &str) {
    check_within(1e-5, ends, left, what);
}

#[track_caller]
fn check_within(bound: f64, ends: &[(usize, Vec<f32>)], left: usize, what: &str) {
    assert_eq!(ends.len(), left, "{what}");
    let expected = alone();
    for (size, end) in ends {
        assert_eq!((*size, end.len()), (left, expected.len()), "{what}");
        let apart: Vec<f32> = end.iter().zip(&expected).map(|(it, other)| it - other).collect();
        let distance = norm(&apart) / norm(&expected);
        assert!(distance < bound, "{what}: {distance:e}");
        let bits = |it: &[f32]| it.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(end), bits(&ends[0].1), "{what}: equal bits");
    }
}

#[test]
fn every_strategy_goes_on_when_ranks_are_killed_in_their_steps() {
    // The model is called four times for gradients, unless the batch has none for the rank, and
    // then four times to take its parameters.
    let plans: [(usize, &str, &[usize]); 7] = [
        (3, "2@0+1", &[2]),
        (3, "0@5+0", &[0]),
        (3, "1@7+3", &[1]),
        (4, "3@9+6 0@20+2", &[3, 0]),
        (4, "1@6+4 3@7+0", &[1, 3]),
        (2, "0@12+7", &[0]),
        // Rank 1 dies in the recovery from the loss of rank 3: no rank completes this step.
        (4, "3@9+2 1@9+5", &[1, 3]),
    ];
    for strategy in Strategy::ALL {
        for (n, deaths, victims) in plans {
            let plan = format!("{strategy} {deaths}");
            let ends = ends(n, "shm", &plan, victims);
            check(&ends, n - victims.len(), &plan);
        }
    }
}

#[test]
fn a_rank_that_is_killed_between_the_parts_of_its_batch_leaves_none_of_its_gradients() {
    // Four gradients in the first part, then four in the second.
    let plans: [(usize, &str, &[usize]); 4] =
        [(3, "1@7+2", &[1]), (3, "2@9+4", &[2]), (2, "0@5+6", &[0]), (4, "1@6+4 3@6+5", &[1, 3])];
    for strategy in Strategy::ALL {
        for (n, deaths, victims) in plans {
            let plan = format!("{strategy} {deaths} {ACCUMULATES}");
            // Sums of parts are rounded once more than those of the rank that is not disturbed.
            check_within(2e-5, &ends(n, "shm", &plan, victims), n - victims.len(), &plan);
        }
    }
}

#[test]
fn ranks_on_tcp_go_on_too() {
    for strategy in [MIRRORED, Strategy::ShardedGradients] {
        let plan = format!("{strategy} 1@8+2");
        check(&ends(4, "tcp", &plan, &[1]), 3, &plan);
    }
}

#[test]
fn a_state_that_was_lost_with_its_copy_comes_from_a_checkpoint() {
    // Ranks 1 and 2 die in the same step, before the others can recover.
    let plan = "sharded-optimizer 1@9+0 2@9+0 saves";
    check(&ends(4, "shm", plan, &[1, 2]), 2, plan);
}

#[test]
fn restarted_ranks_join_and_take_over_the_state() {
    let ringrun = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("ringrun");
    if !ringrun.is_file() {
        let why = format!("{} is not built", ringrun.display());
        return harness::skip("restarted_ranks_join_and_take_over_the_state", &why);
    }
    for strategy in Strategy::ALL {
        let mut command = Command::new(&ringrun);
        command.args(["--elastic", "2:4"]).arg(std::env::current_exe().unwrap());
        let plan = format!("{strategy} 3@5+2 0@12+5");
        command.args(processes::as_rank(module_path!())).stdin(Stdio::null());
        command.env(PLAN, &plan).env("TEST_GROWS", "4");
        let (ended, lines) = Process::start(command).end();
        assert!(ended, "{plan}: {lines}");
        check(&parse(&lines), 4, &plan);
    }
}
