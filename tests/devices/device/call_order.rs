//! Two communicators whose calls one rank enqueues in another order than the other. With enough
//! hardware queues the order does not matter. Where the streams share one, each waits for a call
//! behind the other's wait, and the first rank whose timeout ends reports that.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, ReduceOp, Result};

use super::super::standin::{self, QUEUES, on_standin, this_body};
use super::fixture::stream;
use harness::processes::{run, this_rank};
use harness::{has_own_driver, skip_without_standin};

/// The timeout of calls that can never end; no other call takes so long, also where CPUs are few.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// The timeout of calls that end.
const LONG: Duration = Duration::from_secs(60);

/// Calls of both communicators, each on a stream of its own, in this rank's order.
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
    // The streams end even after an error.
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

/// Functions that tests run with the stand-in.
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
        // The timeout at `use_device` limits the waits of device calls.
        both.iter_mut().for_each(|comm| comm.set_timeout(timeout));
        expects(calls(&mut both, reverses(rank)), rank);
    }

    pub(crate) fn same_order() {
        ordered((this_body!(same_order), LONG), |_| true, |done, _| done.unwrap());
    }

    pub(crate) fn enough_queues() {
        ordered((this_body!(enough_queues), LONG), |rank| rank == 1, |done, _| done.unwrap());
    }

    pub(crate) fn wrong_order() {
        if has_own_driver() {
            // A GPU has more than one queue.
            return skip_without_standin(this_body!(wrong_order));
        }
        let is_named = |done: Result<()>, rank: usize| {
            let error = done.unwrap_err().to_string();
            let other = format!("rank {}", 1 - rank);
            assert!(error.contains(&other), "{error}");
            let named = ["makes other calls", "has not come to it", "lost"];
            assert!(named.iter().any(|it| error.contains(it)), "{error}");
        };
        ordered((this_body!(wrong_order), TIMEOUT), |rank| rank == 1, is_named);
    }
}

on_standin! {
    one_order_needs_one_queue: same_order [QUEUES = "1"];
    with_enough_queues_any_order_works: enough_queues [QUEUES = "2"];
    a_wrong_order_in_one_queue_is_an_error: wrong_order [QUEUES = "1"];
}
