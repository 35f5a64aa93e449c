//! Lesson 1: a ring against the naive all-reduce. Bytes on the wire by formula and as counted.

use std::time::{Duration, Instant};

use ringreduce::{Algorithm, Builder, Communicator, ReduceOp};

use super::Checks;
use crate::error::Result;
use crate::report::print;
use crate::run::world::{self, sent_bytes};

/// The values that each rank has: 2, 3 and 4 divide them.
const COUNT: usize = 12 << 16;

/// Rank 0 gets copies of all values, adds them up, and sends copies of the sum.
fn naive(comm: &mut Communicator, values: &mut [f32]) -> ringreduce::Result<()> {
    if comm.rank() > 0 {
        comm.send(values, 0)?;
        return comm.recv(values, 0);
    }
    let mut copy = vec![0.0; values.len()];
    for rank in 1..comm.size() {
        comm.recv(&mut copy, rank)?;
        values.iter_mut().zip(&copy).for_each(|(sum, it)| *sum += it);
    }
    (1..comm.size()).try_for_each(|rank| comm.send(values, rank))
}

/// The bytes that each rank has sent and their time, once as a ring and once naively.
type Ran = [(u64, Duration); 2];

fn rank(mut comm: Communicator) -> Result<Ran> {
    let mut ran = [(0, Duration::ZERO); 2];
    for (is_naive, ran) in [false, true].into_iter().zip(&mut ran) {
        let mut values = vec![comm.rank() as f32 + 1.0; COUNT];
        comm.barrier()?;
        let (before, start) = (sent_bytes(&comm.monitor()), Instant::now());
        if is_naive {
            naive(&mut comm, &mut values)?;
        } else {
            comm.all_reduce(&mut values, ReduceOp::Sum)?;
        }
        *ran = (sent_bytes(&comm.monitor()) - before, start.elapsed());
        comm.barrier()?;
    }
    Ok(ran)
}

pub(super) fn run(checks: &mut Checks) -> Result<()> {
    let bytes = (COUNT * size_of::<f32>()) as u64;
    print(&format!("all-reduce of S = {bytes} bytes by n ranks"))?;
    for size in [2, 3, 4] {
        let ring = Builder::default().algorithm(Algorithm::Ring);
        let ranks = world::run(&ring, size, &rank)?;
        let n = size as u64;
        for (rank, ran) in ranks.iter().enumerate() {
            let what = format!("n = {size}, ring, bytes that rank {rank} sends, 2(n-1)/n S");
            checks.equal(&what, 2 * (n - 1) * bytes / n, ran[0].0)?;
        }
        let root = ranks.first().map_or(0, |ran| ran[1].0);
        let others: u64 = ranks.iter().skip(1).map(|ran| ran[1].0).sum();
        let what = format!("n = {size}, naive, bytes to and from rank 0, 2(n-1) S");
        checks.equal(&what, 2 * (n - 1) * bytes, root + others)?;
        let most = |at: usize| ranks.iter().map(|ran| ran[at].1).max().unwrap_or_default();
        print(&format!("        n = {size}: ring {:.1?}, naive {:.1?}", most(0), most(1)))?;
    }
    Ok(())
}
