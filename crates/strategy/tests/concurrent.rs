//! Steps that share a device: one computes while another waits, and each ends as if it were alone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod network;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Device, OnDevice, Optimizer, Settings, Strategy, Trainer, share,
};

use network::{Network, part};

#[test]
fn a_device_computes_for_one_step_at_a_time_in_the_order_of_asking() {
    let device = Device::new();
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
    let device = Device::new();
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
fn trained(comm: Communicator, device: &Arc<Device>, strategy: Strategy, start: usize) -> Vec<f32> {
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
            let device = Arc::new(Device::new());
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

/// A trainer of sharded gradients has memory for two buckets: the backward pass waits for the
/// exchange of the first one before it fills the third.
#[test]
fn ranks_that_share_a_device_wait_for_no_exchange_while_they_have_it() {
    let device = Arc::new(Device::new());
    let starts = on_ranks(2, |comm: &mut Communicator| {
        trained(comm.duplicate().unwrap(), &device, Strategy::ShardedGradients, 0)
    });
    assert_eq!(starts[0], starts[1]);
}
