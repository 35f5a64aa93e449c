//! Monitors: any thread sees the call under way, the first failure and the lost ranks, while calls
//! hang, and after the communicator was dropped.

use std::sync::mpsc::channel;
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

use ringreduce::{Algorithm, CallOptions, Communicator, CurrentCall, Error, Monitor, Result};

use super::SUM;

/// The value, once there is one.
fn eventually<T>(mut value: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < until, "it does not come");
        yield_now();
    }
}

fn two() -> [Communicator; 2] {
    Communicator::local(2).unwrap().try_into().unwrap()
}

/// A sum over links, whose walk has steps.
fn sum_by_ring(comm: &mut Communicator, len: usize) -> Result<()> {
    comm.with(CallOptions::new().algorithm(Algorithm::Ring))
        .all_reduce(&mut vec![1.0_f32; len], SUM)
}

#[test]
fn the_call_under_way_is_seen_and_aborted_from_another_thread() {
    let [mut one, mut other] = two();
    let monitors = [one.monitor(), other.monitor()];
    assert!(monitors.iter().all(|monitor| monitor.current_call().is_none()));
    let (came, comes) = channel();
    scope(|scope| {
        let waits = scope.spawn(move || {
            one.barrier()?;
            sum_by_ring(&mut one, 2000)
        });
        let late = scope.spawn(move || {
            other.barrier()?;
            comes.recv().unwrap();
            sum_by_ring(&mut other, 2000)
        });
        let waiting = |call: &CurrentCall| call.name == "all_reduce" && call.step > 0;
        let call = eventually(|| monitors[0].current_call().filter(waiting));
        assert_eq!((call.sequence, call.bytes, call.algorithm), (2, 8000, Some("ring")));
        assert!(call.steps.is_some_and(|steps| call.step < steps), "{call:?}");
        assert_eq!(call.peer.map(|peer| peer.rank), Some(1));
        assert!(call.elapsed < Duration::from_secs(60));
        eventually(|| monitors[1].current_call().is_none().then_some(()));
        assert!(monitors[0].error().is_none());
        monitors[0].abort();
        let error = waits.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("all_reduce #2") && error.contains("aborted"), "{error}");
        assert_eq!(monitors[0].error().unwrap().to_string(), error);
        assert!(monitors[0].current_call().is_none());
        came.send(()).unwrap();
        let error = late.join().unwrap().unwrap_err().to_string();
        assert_eq!(monitors[1].error().unwrap().to_string(), error);
    });
    // The first failure stays, also after the communicators are gone.
    assert!(monitors.iter().all(|it| matches!(it.error(), Some(Error::Aborted { .. }))));
}

/// Steps of a call in rounds count from the first round on.
#[test]
fn a_long_call_tells_how_far_it_is() {
    let ranks = two();
    let monitors = ranks.each_ref().map(Communicator::monitor);
    let (done, is_done) = channel();
    scope(|scope| {
        for mut comm in ranks {
            let done = done.clone();
            scope.spawn(move || {
                for _ in 0..3 {
                    sum_by_ring(&mut comm, 8 << 20).unwrap();
                }
                done.send(()).unwrap();
            });
        }
        drop(done);
        let mut seen = Vec::new();
        while is_done.try_recv().is_err() {
            let call = monitors[0].current_call().filter(|call| call.name == "all_reduce");
            if let Some(CurrentCall { step, steps: Some(steps), .. }) = call {
                assert!(step <= steps);
                seen.push((step, steps));
            }
            yield_now();
        }
        let late = seen.iter().filter(|(step, steps)| 2 * step > *steps && *steps > 8);
        assert!(late.count() > 0 && seen.iter().any(|(step, steps)| 2 * step < *steps), "{seen:?}");
    });
}

#[test]
fn a_failure_that_nobody_has_asked_for_and_a_lost_rank_are_told() {
    let [mut one, other] = two();
    let (monitor, dropped) = (one.monitor(), other.monitor());
    assert!(monitor.lost().is_empty() && dropped.error().is_none());
    let messages = one.messenger();
    drop(other);
    let error = dropped.error().unwrap().to_string();
    assert!(error.contains("the communicator was dropped"), "{error}");
    // A message that fails breaks no collective.
    messages.recv(&mut [0_u8], 1, 0).unwrap_err();
    assert!(monitor.lost() == [1] && monitor.error().is_none());
    // The operation fails on the worker's thread, and its handle is dropped.
    drop(one.nonblocking().all_reduce(vec![1.0_f32; 10], SUM));
    let error = eventually(|| monitor.error());
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    assert_eq!(monitor.lost(), [1]);
    drop(one);
    assert_eq!(monitor.error().unwrap().to_string(), error.to_string());
    monitor.abort();
}

/// Monitors go to any thread.
#[test]
fn a_monitor_is_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Monitor>();
    let ranks = Communicator::local(1).unwrap();
    assert!(format!("{:?}", ranks[0].monitor()).contains("error: None"));
}
