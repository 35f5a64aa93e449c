//! Fits a small network to a function, each rank on its part of the points:
//! `ringrun -n 2 target/release/examples/train`

use burn::backend::{Autodiff, NdArray};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use ringreduce::{Communicator, ReduceOp, Result};
use ringreduce_burn::DataParallel;

type Cpu = Autodiff<NdArray>;

const STEPS: usize = 300;
const POINTS: usize = 256;

/// Two layers.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self { first: linear(1, 32), second: linear(32, 1) }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(self.first.forward(x).tanh())
    }
}

/// This rank's points of the function.
fn points(rank: usize, size: usize) -> (Tensor<Cpu, 2>, Tensor<Cpu, 2>) {
    let x: Vec<f32> = (rank..POINTS).step_by(size).map(|i| i as f32 / 40.0 - 3.0).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let tensor = |values: Vec<f32>| {
        let count = values.len();
        Tensor::from_data(TensorData::new(values, [count, 1]), &Default::default())
    };
    (tensor(x), tensor(y))
}

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    let (x, y) = points(rank, size);
    let net = Net::<Cpu>::new(&Default::default());

    let (mut ddp, mut net) = DataParallel::new(comm, net, Default::default())?;
    let mut optimizer = SgdConfig::new().init();
    for step in 0..=STEPS {
        let loss = MseLoss::new().forward(net.forward(x.clone()), y.clone(), Reduction::Mean);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        let gradients = ddp.average(gradients, &net)?;
        net = optimizer.step(0.1, net, gradients);
        if step % 100 == 0 {
            let mut mean = [loss.into_scalar()];
            ddp.communicator().all_reduce(&mut mean, ReduceOp::Avg)?;
            if rank == 0 {
                println!("step {step}: loss {:.4}", mean[0]);
            }
        }
    }
    Ok(())
}
