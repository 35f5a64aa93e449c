//! Ranks that go on when others are lost: each time a call fails for want of a rank, those that are
//! left make a communicator without it. Here the last rank leaves after some rounds, and then the
//! last of those that are left.
//!
//! ```sh
//! target/release/ringrun -n 4 target/release/examples/survive
//! ```

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

/// Rounds in which all stay, and how long survivors wait for each other.
const ROUNDS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Error> {
    let mut comm = Communicator::from_env()?;
    let first = comm.rank();
    let mut round = 0;
    loop {
        // The last one leaves, unless it is the only one.
        if round == ROUNDS && comm.size() > 1 && comm.rank() + 1 == comm.size() {
            println!("rank {first} leaves");
            return Ok(());
        }
        let mut sum = [1.0_f32];
        match comm.all_reduce(&mut sum, ReduceOp::Sum) {
            Ok(()) if comm.size() == 1 => break,
            Ok(()) => round += 1,
            Err(
                lost @ (Error::PeerLost { .. } | Error::Stalled { .. } | Error::Aborted { .. }),
            ) => {
                if comm.rank() == 0 {
                    println!("{lost}");
                }
                // Who is stopped is left behind.
                comm = comm.evict(DEADLINE)?;
                round = 0;
            }
            Err(other) => return Err(other),
        }
    }
    println!("rank {first} is left");
    Ok(())
}
