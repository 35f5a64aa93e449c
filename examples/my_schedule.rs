//! An all-reduce by a schedule of your own: a chain from rank 0 to the last rank sums in rank
//! order, then the result travels round the ring. The simulator proves it, then the ranks run it.
//! Alone: `cargo run --example my_schedule`. Real ranks: `ringrun -n 4 target/.../my_schedule`.

use ringreduce::schedule::{Collective, Op, Place, Schedule, Step};
use ringreduce::{Communicator, ReduceOp, Result};

/// The steps of rank `me` of `size`: a pure function, so every rank knows the schedules of all.
fn line(size: u32, me: u32) -> Schedule {
    let (mine, sum) = (Place::input(0), Place::output(0));
    let (before, after) = ((me + size - 1) % size, (me + 1) % size);
    let step = |op: Op, place| {
        let from = if op.receives() { before } else { me };
        let to = if op.sends() { after } else { me };
        Step::new(op, me, place).from(from).to(to)
    };
    let last = size - 1;
    let steps = if size == 1 {
        vec![step(Op::Copy, mine).into(sum)]
    } else if me == last {
        vec![step(Op::RecvReduceCopySend, mine).into(sum).last(true)]
    } else {
        vec![
            step(if me == 0 { Op::Send } else { Op::RecvReduceSend }, mine),
            step(if after == last { Op::Recv } else { Op::RecvCopySend }, sum),
        ]
    };
    Schedule { steps, ..Schedule::new(1, 1) }
}

fn work(mut comm: Communicator) -> Result<()> {
    let size = comm.size() as u32;
    // A wrong schedule is refused: here the last rank does not store the result.
    let forgetful = comm.prove(Collective::AllReduce, |me| {
        let mut own = line(size, me);
        if size > 1 && me == size - 1 {
            own.steps[0] = Step { op: Op::RecvReduceSend, dst: own.steps[0].src, ..own.steps[0] };
        }
        own
    });
    if let Err(violation) = forgetful {
        println!("refused: {violation}");
    }
    match comm.prove(Collective::AllReduce, |me| line(size, me)) {
        Ok(proven) => {
            let input: Vec<f32> = (0..8).map(|i| (comm.rank() * 8 + i) as f32).collect();
            let mut output = vec![0.0; input.len()];
            comm.run_reduction(&proven, &input, &mut output, ReduceOp::Sum)?;
            println!("rank {} (in rank order: {}): {output:?}", comm.rank(), proven.rank_order());
        }
        Err(violation) => println!("refused: {violation}"),
    }
    Ok(())
}

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    if comm.size() > 1 {
        return work(comm);
    }
    let ranks = Communicator::local(4)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().flat_map(|thread| thread.join()).collect()
    })
}
