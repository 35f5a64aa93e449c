//! Synchronous strategies on buffers of CUDA devices, with a stand-in for the driver.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::env;
use std::process::Command;

use cuda::harness::library_folder;
use cudarc::driver::CudaContext;
use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{CrossDeviceOp, DeviceTrainer, Strategy};

/// Set in the process that loads the stand-in.
const INSIDE: &str = "TEST_INSIDE";
/// No multiple of the numbers of ranks.
const ELEMENTS: usize = 1001;
const STEPS: usize = 50;
const RATE: f32 = 0.1;

/// The value that a rank's samples pull a parameter to.
fn target(rank: usize, at: usize) -> f32 {
    ((rank * 31 + at) % 17) as f32 - 8.0
}

/// A rank's gradients: those of half the square distance to its targets, over the batch of all.
fn gradients(parameters: &[f32], rank: usize, size: usize) -> Vec<f32> {
    let gradient = |(at, it): (usize, &f32)| (it - target(rank, at)) / size as f32;
    parameters.iter().enumerate().map(gradient).collect()
}

/// The parameters that rank 0 begins with.
fn first(at: usize) -> f32 {
    at as f32 / 100.0
}

/// The parameters of one rank with the samples of all.
fn alone(size: usize) -> Vec<f32> {
    let mut parameters: Vec<f32> = (0..ELEMENTS).map(first).collect();
    for _ in 0..STEPS {
        let mut sum = vec![0.0; ELEMENTS];
        for rank in 0..size {
            let mine = gradients(&parameters, rank, size);
            sum.iter_mut().zip(mine).for_each(|(sum, it)| *sum += it);
        }
        parameters.iter_mut().zip(sum).for_each(|(value, it)| *value -= RATE * it);
    }
    parameters
}

/// The parameters of a rank after some steps on its device.
fn trained(comm: &mut Communicator, strategy: Strategy) -> Vec<f32> {
    let (rank, size) = (comm.rank(), comm.size());
    let device = rank % CudaContext::device_count().unwrap() as usize;
    let stream = CudaContext::new(device).unwrap().new_stream().unwrap();
    let comm = comm.duplicate().unwrap();
    let mut trainer = DeviceTrainer::new(comm, &stream, strategy, ELEMENTS).unwrap();
    if rank == 0 {
        let values: Vec<f32> = (0..ELEMENTS).map(first).collect();
        let mut all = trainer.parameters().view_mut();
        stream.memcpy_htod(&values, &mut all.slice_mut(..ELEMENTS)).unwrap();
    }
    trainer.broadcast().unwrap();
    let owned = trainer.owned();
    for _ in 0..STEPS {
        // What kernels of a framework would do.
        let parameters = stream.clone_dtoh(&trainer.parameters().slice(..ELEMENTS)).unwrap();
        let mine = gradients(&parameters, rank, size);
        let mut all = trainer.gradients().view_mut();
        stream.memcpy_htod(&mine, &mut all.slice_mut(..ELEMENTS)).unwrap();
        trainer.reduce().unwrap();
        if !owned.is_empty() {
            let sums = stream.clone_dtoh(&trainer.gradients().slice(owned.clone())).unwrap();
            let updated: Vec<f32> = parameters[owned.clone()]
                .iter()
                .zip(sums)
                .map(|(it, sum)| it - RATE * sum)
                .collect();
            let mut all = trainer.parameters().view_mut();
            stream.memcpy_htod(&updated, &mut all.slice_mut(owned.clone())).unwrap();
        }
        trainer.publish().unwrap();
    }
    let parameters = stream.clone_dtoh(&trainer.parameters().slice(..ELEMENTS)).unwrap();
    trainer.check().unwrap();
    parameters
}

fn all_strategies() {
    for size in 1..=3 {
        let alone = alone(size);
        for strategy in Strategy::ALL {
            let adds_copies = matches!(
                strategy,
                Strategy::Naive | Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy)
            );
            if adds_copies {
                continue;
            }
            for parameters in on_ranks(size, |comm: &mut Communicator| trained(comm, strategy)) {
                let apart = alone.iter().zip(&parameters).map(|(one, other)| (one - other).abs());
                let apart = apart.fold(0.0, f32::max);
                assert!(apart < 1e-5, "{strategy}, {size} ranks: {apart:e}");
            }
        }
    }
    let errors = on_ranks(1, |comm: &mut Communicator| {
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        DeviceTrainer::new(comm.duplicate().unwrap(), &stream, Strategy::Naive, 10).unwrap_err()
    });
    assert!(errors[0].to_string().contains("naive"), "{}", errors[0]);
}

#[test]
fn strategies_on_devices_end_with_the_parameters_of_one_rank() {
    if env::var_os(INSIDE).is_some() {
        return all_strategies();
    }
    for devices in ["1", "3"] {
        let name = "strategies_on_devices_end_with_the_parameters_of_one_rank";
        let mut inside = Command::new("timeout");
        inside.args(["--signal=KILL", "120"]).arg(env::current_exe().unwrap());
        inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
        inside.env("LD_LIBRARY_PATH", library_folder().unwrap());
        let status = inside.env("STANDIN_CUDA_DEVICES", devices).status().unwrap();
        assert!(status.success(), "{devices} devices: {status}");
    }
}
