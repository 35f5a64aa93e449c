//! A sum over all ranks in memory that the ranks of a host map from each other.
use ringreduce::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut gradients = comm.alloc::<f32>(1 << 20)?;
    gradients.fill(1.0);
    comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    println!("rank {} of {}: {}", comm.rank(), comm.size(), gradients[7]);
    Ok(())
}
