//! Ranks that go on when others are lost: each time a call fails because of a lost rank, the
//! survivors make a communicator without it. Here the last rank leaves after some rounds, then the
//! last of the survivors, and so on.
//!
//! ```sh
//! target/release/ringrun -n 4 target/release/examples/survive
//! ```

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

/// The rounds before a rank leaves, and the longest wait of survivors for each other.
const ROUNDS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Error> {
    let mut comm = Communicator::from_env()?;
    let first = comm.rank();
    let mut round = 0;
    loop {
        // The last rank leaves, unless no other is left.
        if round == ROUNDS && comm.size() > 1 && comm.rank() + 1 == comm.size() {
            println!("rank {first} leaves");
            return Ok(());
        }
        let mut sum = [1.0_f32];
        match comm.all_reduce(&mut sum, ReduceOp::Sum) {
            Ok(()) if comm.size() == 1 => break,
            Ok(()) => round += 1,
            Err(error) if error.is_lost_rank() => {
                if comm.rank() == 0 {
                    println!("{error}");
                }
                // A stopped rank is evicted.
                comm = comm.evict(DEADLINE)?;
                round = 0;
            }
            Err(other) => return Err(other),
        }
    }
    println!("rank {first} is left");
    Ok(())
}
