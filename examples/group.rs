//! Neighbours exchange the edges of their parts of a line, and all ranks agree on the largest
//! change: one group of calls, in any order.

use ringreduce::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    let mut part = vec![rank as f32; 1000];
    let (mut left, mut right) = ([0.0_f32; 2], [0.0_f32; 2]);
    let mut change = [part[0]];
    comm.group(|g| {
        g.recv(&mut left, (rank + size - 1) % size)?;
        g.recv(&mut right, (rank + 1) % size)?;
        g.send(&part[998..], (rank + 1) % size)?;
        g.send(&part[..2], (rank + size - 1) % size)?;
        g.all_reduce(&mut change, ReduceOp::Max)
    })?;
    part[0] = (left[1] + part[1]) / 2.0;
    println!("rank {rank} of {size}: {left:?} {} {right:?}, {change:?}", part[0]);
    Ok(())
}
