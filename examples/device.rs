//! A sum over all ranks on CUDA devices: directly between buffers where ranks share a device.
use std::error::Error;

use cudarc::driver::CudaContext;
use ringreduce::{Communicator, ReduceOp, device_count};

fn main() -> Result<(), Box<dyn Error>> {
    let mut comm = Communicator::from_env()?;
    let context = CudaContext::new(comm.local_rank() % device_count()?)?;
    let stream = context.new_stream()?;
    comm.use_device(&context)?;
    let mut gradients = comm.alloc_device::<f32>(&stream, 1 << 20)?;
    stream.memcpy_htod(&vec![1.0; 1 << 20], &mut gradients.view_mut())?;
    // The call returns at once; later work of the stream sees the sum.
    comm.on_stream(&stream).all_reduce(&mut gradients, ReduceOp::Sum)?;
    let sum = stream.clone_dtoh(&gradients.slice(..1))?;
    comm.on_stream(&stream).check()?;
    println!("rank {} of {}: {}", comm.rank(), comm.size(), sum[0]);
    Ok(())
}
