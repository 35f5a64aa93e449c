//! Ranks that are threads train as one rank does on all the data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::thread;

use burn::backend::{Autodiff, NdArray};
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use gradients::BucketSizes;
use ringreduce::Communicator;
use ringreduce_burn::DataParallel;

type Cpu = Autodiff<NdArray>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Param<Tensor<B, 2>>,
    second: Param<Tensor<B, 2>>,
    unused: Param<Tensor<B, 1>>,
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<Cpu, D> {
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

impl Net<Cpu> {
    /// A network of each rank's own values; all begin with those of rank 0.
    fn new(rank: usize, unused: usize) -> Self {
        let values = |count: usize, seed: usize| {
            (0..count).map(|i| ((i * 37 + seed) % 17) as f32 / 17.0 + rank as f32).collect()
        };
        Self {
            first: Param::from_tensor(tensor(values(24, 1), [3, 8])),
            second: Param::from_tensor(tensor(values(64, 2), [8, 8])),
            unused: Param::from_tensor(tensor(values(unused, 3), [unused])),
        }
    }

    fn loss(&self, x: Tensor<Cpu, 2>) -> Tensor<Cpu, 1> {
        let hidden = x.matmul(self.first.val()).tanh().matmul(self.second.val()).tanh();
        hidden.matmul(self.second.val()).powi_scalar(2).mean()
    }

    fn values(&self) -> Vec<f32> {
        let flat = |tensor: TensorData| tensor.to_vec::<f32>().unwrap();
        let parts = [
            flat(self.first.val().into_data()),
            flat(self.second.val().into_data()),
            flat(self.unused.val().into_data()),
        ];
        parts.concat()
    }
}

fn data(rank: usize, size: usize) -> Tensor<Cpu, 2> {
    let row = |row: usize| (0..3).map(move |i| (row * 3 + i) as f32 / 20.0);
    tensor((rank..12).step_by(size).flat_map(row).collect(), [12 / size, 3])
}

/// The parameters after ten steps at each of `size` ranks.
fn trained(size: usize, sizes: BucketSizes) -> Vec<Vec<f32>> {
    let work = move |comm: Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let (mut ddp, mut net) = DataParallel::new(comm, Net::new(rank, 5), sizes).unwrap();
        let mut sgd = SgdConfig::new().init();
        for _ in 0..10 {
            let gradients = net.loss(data(rank, size)).backward();
            let gradients = GradientsParams::from_grads(gradients, &net);
            let gradients = ddp.average(gradients, &net).unwrap();
            net = sgd.step(0.5, net, gradients);
        }
        net.values()
    };
    let ranks = Communicator::local(size).unwrap();
    let threads: Vec<_> = ranks.into_iter().map(|comm| thread::spawn(move || work(comm))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn ranks_train_as_one_rank_does() {
    let alone = trained(1, BucketSizes::default()).remove(0);
    for (size, sizes) in [(2, BucketSizes { first: 4, others: 4 }), (3, BucketSizes::default())] {
        let ranks = trained(size, sizes);
        for one in &ranks {
            assert_eq!(*one, ranks[0], "ranks differ");
            // Means of means round otherwise than one mean.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(one.iter().zip(&alone).all(is_near), "{one:?} {alone:?}");
        }
    }
}

#[test]
fn other_models_are_errors_at_all_ranks() {
    let work = |comm: Communicator| {
        let rank = comm.rank();
        let made = DataParallel::new(comm, Net::new(rank, 5 + rank), BucketSizes::default());
        made.unwrap_err().to_string()
    };
    let ranks = Communicator::local(2).unwrap();
    let threads: Vec<_> = ranks.into_iter().map(|comm| thread::spawn(move || work(comm))).collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        let said = thread.join().unwrap();
        assert!(said.contains(&format!("than those of rank {}", 1 - rank)), "{said}");
    }
}
