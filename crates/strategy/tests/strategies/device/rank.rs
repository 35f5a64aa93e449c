//! A rank that trains the network on a device. The host computes what a framework's kernels would,
//! and copies it from and to the device in the order of the stream.

use std::env;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use cuda::harness::library_folder;
use cudarc::driver::{CudaContext, CudaStream, CudaViewMut};
use harness::untracked::untracked_stream;
use ringreduce::Communicator;
use strategy::{DeviceTrainer, Model, Optimizer, Parameters, Part, Settings, Shard, Sink};

use crate::network::{Network, Samples};

/// Set in the process that loads the stand-in.
const INSIDE: &str = "TEST_INSIDE";

/// Runs this module's test of this name in processes that load the stand-in, one for each number of
/// devices.
pub(crate) fn on_standin(name: &str, devices: &[usize], test: impl Fn()) {
    if env::var_os(INSIDE).is_some() {
        return test();
    }
    let start = |devices: &usize| {
        let mut inside = Command::new("timeout");
        inside.args(["--signal=KILL", "120"]).arg(env::current_exe().unwrap());
        inside.args(["--exact", &format!("device::{name}"), "--nocapture"]).env(INSIDE, "1");
        inside.env("LD_LIBRARY_PATH", library_folder().unwrap());
        // A kernel has few blocks then, which is faster where they are interpreted.
        inside.env("RINGREDUCE_MULTIPROCESSORS", "1");
        // The output of the child is not mixed with this program's, which is counted.
        inside.stdout(Stdio::piped()).stderr(Stdio::piped());
        inside.env("STANDIN_CUDA_DEVICES", devices.to_string()).spawn().unwrap()
    };
    let started: Vec<_> = devices.iter().map(start).collect();
    for (devices, inside) in devices.iter().zip(started) {
        let ended = inside.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        let is_passed = ended.status.success() && said.contains("1 passed");
        assert!(is_passed, "{devices} devices: {}\n{said}", ended.status);
    }
}

/// The number of devices.
pub(crate) fn devices() -> usize {
    CudaContext::device_count().unwrap() as usize
}

/// A stream of the rank's device. Ranks are dealt out to the devices.
pub(crate) fn stream(comm: &Communicator) -> Arc<CudaStream> {
    untracked_stream(comm.rank() % devices())
}

/// Adds numbers to memory of the device, or writes them where it is 0 yet.
fn add(stream: &Arc<CudaStream>, mut to: CudaViewMut<'_, f32>, numbers: &[f32], is_zero: bool) {
    let mut sum = numbers.to_vec();
    if !is_zero {
        let before = stream.clone_dtoh(&to.as_view()).unwrap();
        sum.iter_mut().zip(before).for_each(|(sum, it)| *sum += it);
    }
    stream.memcpy_htod(&sum, &mut to).unwrap();
}

fn square_sum(values: &[f32]) -> f32 {
    values.iter().map(|it| it * it).sum()
}

/// A rank with its model on a device.
pub(crate) struct Rank {
    pub(crate) network: Network,
    pub(crate) trainer: DeviceTrainer,
    pub(crate) stream: Arc<CudaStream>,
    settings: Settings,
}

impl Rank {
    pub(crate) fn new(comm: &mut Communicator, settings: Settings) -> Self {
        let (stream, network) = (stream(comm), Network::new(comm.rank() as f32));
        let is_root = comm.rank() == 0;
        let comm = comm.duplicate().unwrap();
        let shapes = network.parameters();
        let mut trainer = DeviceTrainer::new(comm, &stream, &shapes, settings).unwrap();
        for (at, (_, count)) in shapes.iter().enumerate().filter(|_| is_root) {
            let mut values = vec![0.0; *count];
            network.read(at, &mut values).unwrap();
            stream.memcpy_htod(&values, &mut trainer.parameter_mut(at).unwrap()).unwrap();
        }
        trainer.broadcast().unwrap();
        Self { network, trainer, stream, settings }
    }

    /// The parameters on the device, which the network has then.
    pub(crate) fn values(&mut self) -> Vec<f32> {
        for at in 0..self.network.parameters().len() {
            let values = self.stream.clone_dtoh(&self.trainer.parameter(at).unwrap()).unwrap();
            self.network.write(at, &values).unwrap();
        }
        self.network.values()
    }

    /// The gradients of a part of a batch by parameter, and the loss.
    pub(crate) fn gradients(&mut self, part: &Part<Samples>) -> (Vec<Vec<f32>>, f32) {
        self.values();
        let all = Arc::new(Mutex::new(vec![Vec::new(); self.network.parameters().len()]));
        let to = Arc::clone(&all);
        let sink: Sink = Arc::new(move |at, gradient| to.lock().unwrap()[at] = gradient.to_vec());
        let loss = self.network.gradients(part, &sink).unwrap();
        let all = all.lock().unwrap().clone();
        (all, loss)
    }

    /// The backward pass of a part of a batch.
    pub(crate) fn part(&mut self, part: &Part<Samples>, (is_first, is_last): (bool, bool)) {
        self.trainer.begin_part(is_last).unwrap();
        if part.batch.is_some() {
            let (gradients, loss) = self.gradients(part);
            let checks = gradients.iter().map(|it| square_sum(it));
            let said: Vec<f32> = [loss, 0.0].into_iter().chain(checks).collect();
            add(&self.stream, self.trainer.report_mut(), &said, is_first);
            for (at, gradient) in gradients.iter().enumerate().rev() {
                let to = self.trainer.gradient_mut(at).unwrap();
                add(&self.stream, to, gradient, is_first);
                self.trainer.ready(at).unwrap();
            }
        }
        self.trainer.reduce().unwrap();
    }

    /// The parts of a batch.
    pub(crate) fn parts(&mut self, parts: &[Part<Samples>]) {
        for (at, part) in parts.iter().enumerate() {
            self.part(part, (at == 0, at + 1 == parts.len()));
        }
    }

    /// The loss and the norm over all ranks.
    pub(crate) fn sum_totals(&mut self) {
        let stream = Arc::clone(&self.stream);
        let sum =
            |shard: Shard<'_>| square_sum(&stream.clone_dtoh(&shard.gradients.as_view()).unwrap());
        let sum = self.trainer.shards().unwrap().map(sum).sum();
        stream.memcpy_htod(&[sum], &mut self.trainer.report_mut().slice_mut(1..2)).unwrap();
        self.trainer.sum_totals().unwrap();
    }

    /// Updates the shards by SGD with momentum, clipped by the totals on the device.
    pub(crate) fn update(&mut self, rate: f32) {
        let Settings { clip_norm, optimizer, .. } = self.settings;
        let Optimizer::Sgd { momentum, weight_decay } = optimizer else { panic!("{optimizer:?}") };
        let scale = clip_norm.map_or(1.0, |limit| {
            let totals = self.stream.clone_dtoh(&self.trainer.totals()).unwrap();
            (limit / totals[1].sqrt()).min(1.0)
        });
        for mut shard in self.trainer.shards().unwrap() {
            let mut values = self.stream.clone_dtoh(&shard.parameters.as_view()).unwrap();
            let gradients = self.stream.clone_dtoh(&shard.gradients.as_view()).unwrap();
            let mut velocity = match shard.moments.first() {
                Some(velocity) => self.stream.clone_dtoh(&velocity.as_view()).unwrap(),
                None => vec![0.0; values.len()],
            };
            for ((value, velocity), it) in values.iter_mut().zip(&mut velocity).zip(gradients) {
                *velocity = momentum * *velocity + scale * it + weight_decay * *value;
                *value -= rate * *velocity;
            }
            self.stream.memcpy_htod(&values, &mut shard.parameters).unwrap();
            if let Some(moment) = shard.moments.first_mut() {
                self.stream.memcpy_htod(&velocity, moment).unwrap();
            }
        }
        self.trainer.publish().unwrap();
    }
}
