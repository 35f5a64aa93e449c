//! Started messages: their numbers in errors, and their progress while the program goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::Duration;

use harness::ranks::on_ranks;
use ringreduce::Communicator;

#[test]
fn an_error_has_the_number_of_its_request() {
    let comm = Communicator::local(2).unwrap().remove(0);
    let messages = comm.messenger();
    let [first, _later] = [1, 2].map(|tag| messages.irecv(vec![0_u8], 1, tag).unwrap());
    let error = first.wait_for(Duration::from_millis(1)).unwrap_err();
    assert!(error.to_string().contains("irecv #1 \"tag 1\""), "{error}");
}

#[test]
fn messages_arrive_while_their_rank_starts_others_and_never_waits() {
    const LONG: usize = 3_000_000;
    let has_arrived = AtomicBool::new(false);
    on_ranks(2, |comm| {
        let messages = comm.messenger().with_timeout(Duration::from_secs(60));
        if comm.rank() == 1 {
            messages.send(&vec![1_u8; LONG], 0, 1).unwrap();
            return has_arrived.store(true, Ordering::Relaxed);
        }
        let _long = messages.irecv(vec![0_u8; LONG], 1, 1).unwrap();
        // A message of this rank to itself looks at no link.
        while !has_arrived.load(Ordering::Relaxed) {
            let here = messages.irecv(vec![0_u8], 0, 2).unwrap();
            messages.isend(vec![1_u8], 0, 2).unwrap().wait().unwrap();
            here.wait().unwrap();
            yield_now();
        }
    });
}
