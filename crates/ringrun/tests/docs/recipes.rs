//! The functions that the documents show: compiled here, and run by the tests below.

use std::panic::resume_unwind;
use std::time::Duration;

use ringreduce::schedule::Collective;
use ringreduce::{CallOptions, Communicator, DataType, FoldOrder, LocF32, ReduceOp, Result};

/// The span that covers the spans of all ranks.
fn widest_span(comm: &mut Communicator, mine: [f32; 2]) -> Result<[f32; 2]> {
    let mut span = [mine];
    comm.all_reduce_by(&mut span, FoldOrder::Any, |a, b| [a[0].min(b[0]), a[1].max(b[1])])?;
    Ok(span[0])
}

/// An average that fails after five seconds; its errors say that it was about gradients.
fn average_soon(comm: &mut Communicator, gradients: &mut [f32]) -> Result<()> {
    let options = CallOptions::new().tag("gradients").timeout(Duration::from_secs(5));
    comm.with(options).all_reduce(gradients, ReduceOp::Avg)
}

/// Sums `next` over all ranks while `current` is used.
fn sum_while(comm: &mut Communicator, next: Vec<f32>, current: &[f32]) -> Result<(Vec<f32>, f32)> {
    let sum = comm.nonblocking().all_reduce(next, ReduceOp::Sum);
    let norm = current.iter().map(|it| it * it).sum::<f32>().sqrt();
    Ok((sum.wait()?, norm))
}

/// Averages the same gradients many times, in memory that the ranks of a host share.
fn average_often(comm: &mut Communicator, gradients: &mut Vec<f32>, times: usize) -> Result<()> {
    let mut registered = comm.register(gradients)?;
    for _ in 0..times {
        comm.all_reduce(&mut registered, ReduceOp::Avg)?;
    }
    Ok(())
}

/// Runs `work` once for each of `n` ranks, on a thread each.
fn on_threads(n: usize, work: impl Fn(Communicator) -> Result<()> + Sync) -> Result<()> {
    let ranks = Communicator::local(n)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|it| resume_unwind(it)))
    })
}

/// Joins a world of two ranks, which meet at an address such as `"host:port"`.
fn join(rank: usize, address: &str) -> Result<Communicator> {
    Communicator::builder().rank(rank).size(2).store(address).build()
}

/// Sums `numbers` over all ranks that are left, however many are lost meanwhile.
fn sum_of_survivors(comm: &mut Communicator, numbers: &[f32]) -> Result<Vec<f32>> {
    loop {
        let mut sum = numbers.to_vec();
        match comm.all_reduce(&mut sum, ReduceOp::Sum) {
            Ok(()) => return Ok(sum),
            Err(error) if error.is_lost_rank() => *comm = comm.evict(Duration::from_secs(10))?,
            Err(other) => return Err(other),
        }
    }
}

/// One step of training: each rank has its own gradients, and all take the same step.
fn step(comm: &mut Communicator, weights: &mut [f32], gradients: &mut [f32]) -> Result<()> {
    comm.all_reduce(gradients, ReduceOp::Avg)?;
    for (weight, gradient) in weights.iter_mut().zip(gradients) {
        *weight -= 0.01 * *gradient;
    }
    Ok(())
}

/// The numbers of this rank's samples: each sample belongs to one rank.
fn own_samples(comm: &Communicator, samples: usize) -> impl Iterator<Item = usize> {
    (comm.rank()..samples).step_by(comm.size())
}

/// Averages the gradients of all layers by one call.
fn average_layers(comm: &mut Communicator, layers: &mut [Vec<f32>]) -> Result<()> {
    comm.all_reduce_many(layers, ReduceOp::Avg)
}

/// Averages gradients in buckets of `bucket` elements, each while the next one is prepared.
fn average_buckets(comm: &mut Communicator, gradients: &mut [f32], bucket: usize) -> Result<()> {
    comm.scope(|s| {
        let mut pending = Vec::new();
        for bucket in gradients.chunks_mut(bucket) {
            // Compute this bucket's gradients here; the buckets before it are on their way.
            pending.push(s.all_reduce(bucket, ReduceOp::Avg));
        }
        pending.into_iter().try_for_each(|bucket| bucket.wait().map(drop))
    })
}

/// The average over all samples, where ranks have different numbers of them, or none.
fn weighted_average(comm: &mut Communicator, sum: &mut [f32], samples: usize) -> Result<()> {
    let mut all = [samples as f32];
    comm.all_reduce_many(&mut [&mut *sum, &mut all[..]], ReduceOp::Sum)?;
    sum.iter_mut().for_each(|it| *it /= all[0].max(1.0));
    Ok(())
}

/// True while any rank has a batch left; a rank without one goes on with an empty batch.
fn any_has_more(comm: &mut Communicator, have_more: bool) -> Result<bool> {
    let mut any = [u8::from(have_more)];
    comm.all_reduce(&mut any, ReduceOp::LogicalOr)?;
    Ok(any[0] != 0)
}

/// All ranks' parts, whose lengths differ.
fn gather_uneven(comm: &mut Communicator, mine: &[f32]) -> Result<Vec<f32>> {
    let mut counts = vec![0_u64; comm.size()];
    comm.all_gather(&[mine.len() as u64], &mut counts)?;
    let counts: Vec<usize> = counts.into_iter().map(|it| it as usize).collect();
    let mut all = vec![0.0; counts.iter().sum()];
    comm.all_gather_v(mine, &mut all, &counts)?;
    Ok(all)
}

/// The largest loss of all ranks, and the rank that has it.
fn worst(comm: &mut Communicator, loss: f32) -> Result<(f32, u32)> {
    let mut worst = [LocF32::new(loss, comm.rank() as u32)];
    comm.all_reduce(&mut worst, ReduceOp::MaxLoc)?;
    Ok((worst[0].value, worst[0].index))
}

/// A communicator for the ranks of this host, and one of the first ranks of all hosts.
fn by_hosts(comm: &mut Communicator) -> Result<(Option<Communicator>, Option<Communicator>)> {
    let (rank, host) = (comm.rank(), comm.host());
    let first = comm.peers().iter().position(|peer| peer.host == host).unwrap_or(rank);
    let by_host = comm.split(Some(first as u32), rank as i64)?;
    let leaders = comm.split((first == rank).then_some(0), rank as i64)?;
    Ok((by_host, leaders))
}

/// A second communicator, so that a thread of its own can send what is not urgent.
fn with_second(
    comm: &mut Communicator,
    metrics: Vec<f32>,
    gradients: &mut [f32],
) -> Result<Vec<f32>> {
    let mut second = comm.duplicate()?;
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut sums = metrics;
            second.all_reduce(&mut sums, ReduceOp::Sum).map(|()| sums)
        });
        comm.all_reduce(gradients, ReduceOp::Avg)?;
        sent.join().unwrap_or_else(|it| resume_unwind(it))
    })
}

/// Prints the algorithm that an all-reduce of a million floats takes, and why.
fn explain(comm: &mut Communicator) -> Result<()> {
    let why = comm.explain(Collective::AllReduce, 1_000_000, DataType::F32)?;
    if comm.rank() == 0 {
        println!("{why}");
    }
    Ok(())
}

#[test]
fn recipes_of_numbers_give_the_expected_numbers() {
    on_threads(3, |mut comm| {
        let rank = comm.rank() as f32;
        assert_eq!(widest_span(&mut comm, [-rank, rank])?, [-2.0, 2.0]);
        let mut average = [rank; 4];
        average_soon(&mut comm, &mut average)?;
        assert_eq!(average, [1.0; 4]);
        assert_eq!(sum_while(&mut comm, vec![rank], &[3.0, 4.0])?, (vec![3.0], 5.0));
        let mut often = vec![rank; 5000];
        average_often(&mut comm, &mut often, 2)?;
        assert_eq!(often, [1.0; 5000]);
        assert_eq!(sum_of_survivors(&mut comm, &[rank])?, [3.0]);
        assert_eq!(worst(&mut comm, -rank)?, (0.0, 0));
        explain(&mut comm)
    })
    .unwrap();
}

#[test]
fn recipes_of_training_give_the_expected_numbers() {
    on_threads(3, |mut comm| {
        let rank = comm.rank() as f32;
        let mut weights = [1.0];
        step(&mut comm, &mut weights, &mut [rank * 100.0])?;
        assert_eq!(weights, [0.0]);
        assert!(own_samples(&comm, 8).eq((comm.rank()..8).step_by(3)));
        let mut layers = vec![vec![rank; 3], vec![2.0 * rank]];
        average_layers(&mut comm, &mut layers)?;
        assert_eq!(layers, [vec![1.0; 3], vec![2.0]]);
        let mut gradients = [rank; 10];
        average_buckets(&mut comm, &mut gradients, 4)?;
        assert_eq!(gradients, [1.0; 10]);
        // Rank 0 has no sample, rank 1 one, rank 2 two.
        let mut sum = [rank * rank];
        let samples = comm.rank();
        weighted_average(&mut comm, &mut sum, samples)?;
        assert_eq!(sum, [5.0 / 3.0]);
        assert!(any_has_more(&mut comm, samples == 2)?);
        assert!(!any_has_more(&mut comm, false)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn recipes_of_parts_and_groups_give_the_expected_numbers() {
    on_threads(3, |mut comm| {
        let rank = comm.rank();
        assert_eq!(gather_uneven(&mut comm, &vec![rank as f32; rank])?, [1.0, 2.0, 2.0]);
        let (host, leaders) = by_hosts(&mut comm)?;
        assert_eq!((host.map(|it| it.size()), leaders.is_some()), (Some(3), rank == 0));
        let mut gradients = [rank as f32];
        assert_eq!(with_second(&mut comm, vec![1.0], &mut gradients)?, [3.0]);
        assert_eq!(gradients, [1.0]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_that_are_told_who_they_are_meet() {
    let address = format!("unix:@ringreduce-docs-{}", std::process::id());
    let other = address.clone();
    let second = std::thread::spawn(move || join(1, &other)?.barrier());
    join(0, &address).and_then(|mut comm| comm.barrier()).unwrap();
    second.join().unwrap().unwrap();
}

/// A world of one under `cargo test`, and a rank of the job that `super::job` starts: there the
/// last rank does not come to the second call.
#[test]
fn late() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
    if comm.size() > 1 && comm.rank() + 1 == comm.size() {
        std::thread::sleep(Duration::from_secs(60));
    }
    comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)
}
