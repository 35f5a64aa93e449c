//! Steps that share a device: one computes while another waits, and each ends as if it were alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Model, OnDevice, Optimizer, Parameters, Part, Settings, Sink,
    Strategy, Trainer, Turns, share,
};

use crate::network::{Network, part};

#[test]
fn a_device_computes_for_one_step_at_a_time_in_the_order_of_asking() {
    let device = Turns::new();
    let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        for _ in 0..200 {
            device.compute(|| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                total.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            });
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(total.into_inner(), 800);
    // A panic does not keep the device.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.compute(|| panic!("a model's"));
    }));
    assert!(caught.is_err());
    assert_eq!(device.compute(|| 7), 7);
}

#[test]
fn a_step_that_waits_leaves_the_device_to_another_one() {
    let device = Turns::new();
    let (to_first, from_second) = channel();
    let device = &device;
    std::thread::scope(|scope| {
        // The first step waits for what the second one computes: for ever, if it kept the device.
        let first = scope.spawn(move || {
            device.compute(|| ());
            let value: usize = from_second.recv().unwrap();
            device.compute(|| value + 1)
        });
        scope.spawn(move || to_first.send(device.compute(|| 41)).unwrap());
        assert_eq!(first.join().unwrap(), 42);
    });
}

/// The parameters after 20 steps, of a training whose samples begin at `start`.
fn trained(comm: Communicator, device: &Arc<Turns>, strategy: Strategy, start: usize) -> Vec<f32> {
    let (rank, size) = (comm.rank(), comm.size());
    let settings = Settings {
        strategy,
        optimizer: Optimizer::SGD,
        clip_norm: None,
        buckets: Some(BucketSizes { first: 4, others: 4 }),
    };
    let mut model = OnDevice { device: Arc::clone(device), inner: Network::new(0.0) };
    let mut trainer = Trainer::new(comm, &mut model, settings).unwrap();
    for step in 0..20 {
        let (places, total) = share(40, 7, step % 6, rank, size);
        let part = part(places.start + start..places.end + start, total);
        trainer.step(&mut model, &[part], 0.1).unwrap();
    }
    model.inner.values()
}

#[test]
fn two_trainings_on_each_device_end_as_one_after_the_other() {
    let starts = [0, 100];
    for strategy in [Strategy::Mirrored(CrossDeviceOp::AllReduce), Strategy::ShardedGradients] {
        let alone = on_ranks(3, |comm: &mut Communicator| {
            starts.map(|start| trained(comm.duplicate().unwrap(), &Arc::default(), strategy, start))
        });
        let concurrent = on_ranks(3, |comm: &mut Communicator| {
            let device = Arc::new(Turns::new());
            let ends = std::thread::scope(|scope| {
                let device = &device;
                let steps = starts.map(|start| {
                    let comm = comm.duplicate().unwrap();
                    scope.spawn(move || trained(comm, device, strategy, start))
                });
                steps.map(|step| step.join().unwrap())
            });
            assert!(!device.busy().is_zero());
            ends
        });
        for (alone, concurrent) in alone.iter().zip(&concurrent) {
            assert!(alone == concurrent);
            assert!(alone[0] != alone[1]);
        }
    }
}

/// A model whose gradients come from two threads.
struct Threads;

impl Parameters for Threads {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        (0..8).map(|it| (it.to_string(), 1)).collect()
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.fill(0.0);
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Model for Threads {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Infallible> {
        std::thread::scope(|scope| {
            for first in [0, 4] {
                scope.spawn(move || (first..first + 4).for_each(|it| sink(it, &[1.0])));
            }
        });
        Ok(0.0)
    }
}

#[test]
fn gradients_may_come_from_several_threads() {
    let device = Arc::new(Turns::new());
    let mut model = OnDevice { device: Arc::clone(&device), inner: Threads };
    let (taken, count) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let sink: Sink = Arc::new(move |_, _| {
        // Another thread comes meanwhile.
        std::thread::yield_now();
        counted.fetch_add(1, Ordering::SeqCst);
    });
    std::thread::scope(|scope| {
        // Another step waits for the device, and gets it in a pause.
        scope.spawn(|| {
            for _ in 0..100 {
                device.compute(|| taken.fetch_add(1, Ordering::SeqCst));
            }
        });
        for _ in 0..100 {
            model.gradients(&Part { batch: Some(()), total: 1 }, &sink).unwrap();
        }
    });
    assert_eq!((count.load(Ordering::SeqCst), taken.into_inner()), (800, 100));
}

/// A trainer of sharded gradients has memory for two buckets: the backward pass waits for the
/// exchange of the first one before it fills the third.
#[test]
fn ranks_that_share_a_device_wait_for_no_exchange_while_they_have_it() {
    let device = Arc::new(Turns::new());
    let starts = on_ranks(2, |comm: &mut Communicator| {
        trained(comm.duplicate().unwrap(), &device, Strategy::ShardedGradients, 0)
    });
    assert_eq!(starts[0], starts[1]);
}
