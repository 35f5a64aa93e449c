//! Buckets are exchanged beside the backward pass, each after the work that writes it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use harness::on_ranks;
use harness::untracked::Address;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, DeviceTrainer, Optimizer, Settings, Strategy, memory_bytes,
};

use super::rank::{on_standin, stream};

/// Parameters of so many elements, each in a bucket of its own.
const COUNT: usize = 300;
const LAYERS: usize = 5;

fn shapes() -> Vec<(String, usize)> {
    (0..LAYERS).map(|layer| (layer.to_string(), COUNT)).collect()
}

fn settings(strategy: Strategy) -> Settings {
    let buckets = Some(BucketSizes { first: 1, others: 1 });
    Settings { strategy, optimizer: Optimizer::ADAM, clip_norm: None, buckets }
}

/// The sums of the gradients 1 and 2 are there after the last part.
fn ends_with_sums(trainer: &mut DeviceTrainer, stream: &Arc<CudaStream>, strategy: Strategy) {
    trainer.reduce().unwrap();
    for shard in trainer.shards().unwrap() {
        let sums = stream.clone_dtoh(&shard.gradients.as_view()).unwrap();
        assert!(sums.iter().all(|it| *it == 3.0), "{strategy}: {sums:?}");
    }
    trainer.check().unwrap();
}

#[test]
fn a_bucket_is_exchanged_before_the_next_one_is_written_and_no_stream_waits_for_other_ranks() {
    let name = "overlap::a_bucket_is_exchanged_before_the_next_one_is_written_and_no_stream_waits_\
                for_other_ranks";
    on_standin(name, &[1, 3], || {
        for strategy in Strategy::ALL {
            on_ranks(2, |comm: &mut Communicator| {
                let (rank, stream, look) = (comm.rank(), stream(comm), stream(comm));
                let own = comm.duplicate().unwrap();
                let mut trainer =
                    DeviceTrainer::new(own, &stream, &shapes(), settings(strategy)).unwrap();
                let write = |trainer: &mut DeviceTrainer, layer: usize| {
                    let numbers = vec![(1 + rank) as f32; COUNT];
                    let mut to = trainer.gradient_mut(layer).unwrap();
                    stream.memcpy_htod(&numbers, &mut to).unwrap();
                };
                // A step without gradients, whose sums are where those of the next one will be.
                trainer.begin_part(true).unwrap();
                trainer.reduce().unwrap();
                let first = trainer.shards().unwrap().next();
                let sums = first.map(|shard| Address::of(&shard.gradients.as_view(), &stream));
                trainer.publish().unwrap();
                let last = LAYERS - 1;
                if rank == 1 {
                    // Rank 0 has passed the gradients below then.
                    comm.barrier().unwrap();
                }
                trainer.begin_part(true).unwrap();
                write(&mut trainer, last);
                trainer.ready(last).unwrap();
                write(&mut trainer, last - 1);
                if rank == 0 {
                    // An exchange on this stream would wait for rank 1, which has not come yet.
                    stream.synchronize().unwrap();
                    comm.barrier().unwrap();
                    // The sum comes although the gradients of this bucket alone are ready.
                    while sums.unwrap().read(&look).iter().any(|it| *it != 3.0) {}
                }
                for layer in (0..last).rev() {
                    write(&mut trainer, layer);
                    trainer.ready(layer).unwrap();
                }
                ends_with_sums(&mut trainer, &stream, strategy);
            });
        }
    });
}

#[test]
fn an_exchange_waits_for_the_work_that_writes_its_bucket() {
    let name = "overlap::an_exchange_waits_for_the_work_that_writes_its_bucket";
    on_standin(name, &[1, 3], || {
        for strategy in Strategy::ALL {
            on_ranks(2, |comm: &mut Communicator| {
                let (rank, stream, other) = (comm.rank(), stream(comm), stream(comm));
                // A call that rank 1 makes late holds the stream of rank 0. Rank 1 makes it on
                // another stream than its gradients, which wait for exchanges with rank 0.
                let mut gate = comm.duplicate().unwrap();
                gate.use_device(stream.context()).unwrap();
                let mut word = gate.alloc_device::<f32>(&stream, 1).unwrap();
                let own = comm.duplicate().unwrap();
                let mut trainer =
                    DeviceTrainer::new(own, &stream, &shapes(), settings(strategy)).unwrap();
                trainer.begin_part(true).unwrap();
                if rank == 0 {
                    gate.on_stream(&stream).broadcast(&mut word, 1).unwrap();
                }
                for layer in (0..LAYERS).rev() {
                    let numbers = vec![(1 + rank) as f32; COUNT];
                    let mut to = trainer.gradient_mut(layer).unwrap();
                    stream.memcpy_htod(&numbers, &mut to).unwrap();
                    trainer.ready(layer).unwrap();
                }
                comm.barrier().unwrap();
                if rank == 1 {
                    gate.on_stream(&other).broadcast(&mut word, 1).unwrap();
                }
                ends_with_sums(&mut trainer, &stream, strategy);
            });
        }
    });
}

#[test]
fn a_trainer_allocates_what_the_formula_says() {
    on_standin("overlap::a_trainer_allocates_what_the_formula_says", &[1], || {
        let (bytes, bucket) = (4 * COUNT * LAYERS, 4 * COUNT);
        for n in 1..=4 {
            for strategy in Strategy::ALL {
                let ranks = on_ranks(n, |comm: &mut Communicator| {
                    let stream = stream(comm);
                    let used = |comm: &mut Communicator| {
                        comm.barrier().unwrap();
                        let (free, total) = stream.context().mem_get_info().unwrap();
                        comm.barrier().unwrap();
                        total - free
                    };
                    let (before, own) = (used(comm), comm.duplicate().unwrap());
                    let mut trainer =
                        DeviceTrainer::new(own, &stream, &shapes(), settings(strategy)).unwrap();
                    for is_last in [false, true] {
                        trainer.begin_part(is_last).unwrap();
                        trainer.reduce().unwrap();
                    }
                    trainer.publish().unwrap();
                    stream.synchronize().unwrap();
                    let grown = used(comm) - before;
                    trainer.check().unwrap();
                    let formula = memory_bytes(
                        strategy,
                        Optimizer::ADAM,
                        bytes as u64,
                        bucket as u64,
                        (comm.rank(), n),
                    ) as usize;
                    (trainer.allocated_bytes(), formula, grown)
                });
                // The report and its sum.
                let small = 2 * 4 * (2 + LAYERS);
                for (rank, (said, formula, _)) in ranks.iter().enumerate() {
                    // Copies that are added up by hand on the host need a bucket more there.
                    let is_less = said + bucket == formula + small;
                    let what = format!("{strategy}, rank {rank} of {n}: {said}, not {formula}");
                    assert!(*said == formula + small || adds_copies(strategy) && is_less, "{what}");
                }
                let said: usize = ranks.iter().map(|(said, ..)| said).sum();
                let grown = ranks[0].2;
                assert_eq!(grown, said, "{strategy}, {n} ranks");
            }
        }
    });
}

fn adds_copies(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Naive | Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy))
}
