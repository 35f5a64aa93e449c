//! Fits a small network to a function, each rank on its part of the points:
//! `ringrun -n 2 target/release/examples/train`

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss::mse};
use ringreduce::{Communicator, ReduceOp};
use ringreduce_candle::{DataParallel, Result};

const STEPS: usize = 600;
const POINTS: usize = 256;

/// Two layers.
struct Net(Linear, Linear);

impl Net {
    fn new(vars: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self(linear(1, 32, vars.pp("1"))?, linear(32, 1, vars.pp("2"))?))
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.1.forward(&self.0.forward(x)?.tanh()?)
    }
}

/// This rank's points of the function.
fn points(rank: usize, size: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let x: Vec<f32> = (rank..POINTS).step_by(size).map(|i| i as f32 / 40.0 - 3.0).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let count = x.len();
    Ok((
        Tensor::from_vec(x, (count, 1), &Device::Cpu)?,
        Tensor::from_vec(y, (count, 1), &Device::Cpu)?,
    ))
}

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    let (x, y) = points(rank, size)?;
    let vars = VarMap::new();
    Net::new(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;

    let ddp = DataParallel::of_var_map(comm, &vars, Default::default())?;
    let mut optimizer = SGD::new(vars.all_vars(), 0.02)?;
    for step in 0..=STEPS {
        let net = Net::new(VarBuilder::from_tensors(ddp.watched()?, DType::F32, &Device::Cpu))?;
        let loss = mse(&net.forward(&x)?, &y)?;
        let gradients = ddp.backward(&loss)?;
        optimizer.step(&gradients)?;
        if step % 200 == 0 {
            let mut mean = [loss.to_scalar::<f32>()?];
            ddp.with_communicator(|comm| comm.all_reduce(&mut mean, ReduceOp::Avg))?;
            if rank == 0 {
                println!("step {step}: loss {:.4}", mean[0]);
            }
        }
    }
    Ok(())
}
