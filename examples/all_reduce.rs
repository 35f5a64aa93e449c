//! Every rank contributes a few numbers, and every rank gets their sums.
//! Alone: `cargo run --example all_reduce`. Four ranks: `ringrun -n 4 target/.../all_reduce`.

use ringreduce::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut numbers = vec![comm.rank() as f32, 1.0, 10.0];
    comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
    println!("rank {} of {}: {numbers:?}", comm.rank(), comm.size());
    Ok(())
}
