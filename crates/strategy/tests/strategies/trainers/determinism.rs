//! In the deterministic mode the parameters have the same bits over all transports, by every
//! algorithm that keeps the order, and by all strategies that add up in the order of ranks. And how
//! far gradients that travel as `bfloat16` lead away.

use harness::processes::this_builder;
use ringreduce::schedule::Algorithm;
use ringreduce::{Builder, Communicator, DataType};
use strategy::{BucketSizes, CrossDeviceOp, Optimizer, Settings, Strategy, Trainer, share};

use crate::network::{Network, part};
use crate::processes;

/// The name of the strategy of a rank.
const PLAN: &str = "TEST_STRATEGY";
/// The prefix of the line with the bits of a rank's parameters.
const END: &str = "parameters ";
const MIRRORED: Strategy = Strategy::Mirrored(CrossDeviceOp::AllReduce);
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
const HIERARCHICAL: Strategy = Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy);

fn settings(strategy: Strategy, optimizer: Optimizer) -> Settings {
    let buckets = Some(BucketSizes { first: 100, others: 200 });
    Settings { strategy, optimizer, clip_norm: None, buckets }
}

/// The parameters after 50 steps with batches of 13 samples, of which 40 are divided.
fn trained(comm: Communicator, strategy: Strategy, optimizer: Optimizer) -> Vec<f32> {
    let (rank, size) = (comm.rank(), comm.size());
    let mut network = Network::new(0.0);
    let mut trainer = Trainer::new(comm, &mut network, settings(strategy, optimizer)).unwrap();
    for step in 0..50 {
        let (places, total) = share(40, 13, step % 4, rank, size);
        trainer.step(&mut network, &[part(places, total)], 0.1).unwrap();
    }
    network.values()
}

/// The parameters of all ranks, which are threads.
fn by_threads(builder: Builder, n: usize, strategy: Strategy, optimizer: Optimizer) -> Vec<f32> {
    let ranks = builder.local(n).unwrap();
    std::thread::scope(|scope| {
        let start = |comm| scope.spawn(move || trained(comm, strategy, optimizer));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        let all: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert!(all.iter().all(|it| bits(it) == bits(&all[0])), "{strategy}");
        all.into_iter().next().unwrap()
    })
}

fn bits(values: &[f32]) -> String {
    values.iter().map(|it| format!("{:08x}", it.to_bits())).collect()
}

/// A rank, if this program is one.
#[test]
fn rank() {
    let Ok(name) = std::env::var(PLAN) else { return };
    let strategy = Strategy::ALL.into_iter().find(|it| it.name() == name).unwrap();
    let (builder, ..) = this_builder().unwrap();
    let comm = builder.deterministic(true).build().unwrap();
    eprintln!("{END}{}", bits(&trained(comm, strategy, MOMENTUM)));
}

#[test]
fn transports_algorithms_and_strategies_give_the_same_bits() {
    for n in [2, 3, 4] {
        let builder = || Communicator::builder().deterministic(true);
        let mirrored = bits(&by_threads(builder(), n, MIRRORED, MOMENTUM));
        for strategy in Strategy::ALL {
            let expected = bits(&by_threads(builder(), n, strategy, MOMENTUM));
            // A tree of four ranks adds up in another order than theirs.
            if strategy != HIERARCHICAL {
                assert_eq!(expected, mirrored, "{strategy}");
            }
            for algorithm in [Algorithm::AllPairs, Algorithm::Staged] {
                let end = by_threads(builder().algorithm(algorithm), n, strategy, MOMENTUM);
                assert_eq!(bits(&end), expected, "{strategy} by {algorithm}");
            }
            for transport in ["shm", "tcp"] {
                let ends = processes::ends(module_path!(), n, transport, (PLAN, strategy.name()));
                for (rank, (ended, lines)) in ends.into_iter().enumerate() {
                    let context = format!("{strategy}, rank {rank} of {n} by {transport}");
                    assert!(ended, "{context}: {lines}");
                    let end = lines.lines().find_map(|line| line.strip_prefix(END));
                    assert_eq!(end, Some(&*expected), "{context}");
                }
            }
        }
    }
}

#[test]
fn gradients_that_travel_as_bfloat16_lead_nearly_there() {
    let norm = |it: &[f32]| it.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
    let exact = by_threads(Communicator::builder(), 1, MIRRORED, Optimizer::SGD);
    for strategy in Strategy::ALL {
        for n in [2, 4] {
            let builder = Communicator::builder().wire(DataType::BF16);
            let end = by_threads(builder, n, strategy, Optimizer::SGD);
            let apart: Vec<f32> = exact.iter().zip(&end).map(|(one, other)| one - other).collect();
            let distance = norm(&apart) / norm(&exact);
            // Messages have no wire type.
            if strategy == Strategy::Naive || strategy == HIERARCHICAL {
                assert!(distance < 1e-5, "{strategy}, {n} ranks: {distance:e}");
                continue;
            }
            // A gradient has 8 bits; what they lack cancels out over the steps, nearly.
            assert!(distance < 2e-2, "{strategy}, {n} ranks: {distance:e}");
            assert!(distance > 1e-6, "{strategy}, {n} ranks: nothing travels as bfloat16");
        }
    }
}
