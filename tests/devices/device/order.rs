//! Two communicators whose calls a rank puts on its device in another order than the others: with
//! queues enough it is no matter; where streams share one, each waits for what is behind the
//! other's wait, and who waits longest says so.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, ReduceOp, Result};

use super::super::standin::on_standin;
use super::stream;
use harness::processes::{run, this_rank};

const QUEUES: &str = "STANDIN_CUDA_QUEUES";
/// How long ranks wait for what never comes; no call takes so long by itself, also where CPUs are
/// few.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// How long they wait for what comes.
const LONG: Duration = Duration::from_secs(60);

/// Calls of both communicators, each on a stream of its own, by this rank in this order.
fn calls(both: &mut [Communicator; 2], is_reversed: bool) -> Result<()> {
    let streams = [stream(&both[0]), stream(&both[1])];
    let mut bufs = streams.each_ref().map(|stream| stream.clone_htod(&[1_i32; 100]).unwrap());
    for (comm, stream) in both.iter_mut().zip(&streams) {
        stream.synchronize().unwrap();
        comm.use_device(stream.context())?;
    }
    both[0].barrier()?;
    let began = Instant::now();
    let mut first = Ok(());
    for at in if is_reversed { [1, 0] } else { [0, 1] } {
        let put = both[at].on_stream(&streams[at]).all_reduce(&mut bufs[at], ReduceOp::Sum);
        first = first.and(put);
    }
    // Whatever was wrong, the streams end.
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let timeout = both[0].timeout();
    assert!(began.elapsed() < 6 * timeout, "after {:?}", began.elapsed());
    for (comm, stream) in both.iter_mut().zip(&streams) {
        first = first.and(comm.on_stream(stream).check());
    }
    first?;
    let n = both[0].size() as i32;
    for (stream, buf) in streams.iter().zip(&bufs) {
        assert_eq!(stream.clone_dtoh(buf).unwrap(), [n; 100]);
    }
    Ok(())
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    fn ordered(
        (body, timeout): (&str, Duration),
        reverses: impl Fn(usize) -> bool,
        expects: impl Fn(Result<()>, usize),
    ) {
        let Some(mut comm) = this_rank() else { return run(body, 2, "shm") };
        let rank = comm.rank();
        let mut both = [comm.duplicate().unwrap(), comm];
        // Before the devices are told of: their calls wait no longer.
        both.iter_mut().for_each(|comm| comm.set_timeout(timeout));
        expects(calls(&mut both, reverses(rank)), rank);
    }

    pub(crate) fn right() {
        ordered(("device::order::body::right", LONG), |_| true, |done, _| done.unwrap());
    }

    pub(crate) fn crossed() {
        let of = ("device::order::body::crossed", LONG);
        ordered(of, |rank| rank == 1, |done, _| done.unwrap());
    }

    pub(crate) fn wrong() {
        let is_named = |done: Result<()>, rank: usize| {
            let error = done.unwrap_err().to_string();
            let other = format!("rank {}", 1 - rank);
            assert!(error.contains(&other), "{error}");
            let named = ["makes other calls", "has not come to it", "lost"];
            assert!(named.iter().any(|it| error.contains(it)), "{error}");
        };
        ordered(("device::order::body::wrong", TIMEOUT), |rank| rank == 1, is_named);
    }
}

#[test]
fn one_order_needs_one_queue() {
    on_standin("device::order::body::right", &[(QUEUES, "1")]);
}

#[test]
fn with_queues_enough_any_order_will_do() {
    on_standin("device::order::body::crossed", &[(QUEUES, "2")]);
}

#[test]
fn a_wrong_order_in_one_queue_is_found_out() {
    on_standin("device::order::body::wrong", &[(QUEUES, "1")]);
}
