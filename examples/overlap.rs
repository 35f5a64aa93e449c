//! Overlap of computation and communication: the backward pass goes from the last layer to the
//! first, and each layer's gradient is reduced while the next one is computed.

use ringreduce::{Communicator, Error, ReduceOp};

/// A stand-in for the backward pass of one layer.
fn backward(layer: usize, rank: usize, gradient: &mut [f32]) {
    for (i, it) in gradient.iter_mut().enumerate() {
        *it = ((layer * i) as f32).sin() + rank as f32;
    }
}

fn main() -> Result<(), Error> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    let mut gradients = vec![vec![0.0_f32; 1 << 18]; 8];
    comm.scope(|s| {
        let mut pending = Vec::new();
        for (layer, gradient) in gradients.iter_mut().enumerate().rev() {
            backward(layer, rank, gradient);
            // From here on the buffer is borrowed; `wait` gives it back.
            pending.push(s.all_reduce(gradient, ReduceOp::Avg));
        }
        for layer in pending {
            let gradient = layer.wait()?;
            gradient.iter_mut().for_each(|it| *it *= 0.01);
        }
        Ok::<_, Error>(())
    })?;
    println!("rank {rank} of {size}: {:?}", &gradients[1][..3]);
    Ok(())
}
