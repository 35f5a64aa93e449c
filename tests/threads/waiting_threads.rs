//! A thread that waits for a nonblocking operation runs operations itself; the worker runs those
//! that nobody waits for.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};

use harness::is_alone;
use harness::ranks::{on_ranks, pair};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringreduce::{Communicator, Error};

use super::SUM;

/// Rounds after which a waiting thread has surely been faster than the worker once.
const ROUNDS: usize = 10_000;

fn alone() -> Communicator {
    Communicator::local(1).unwrap().remove(0)
}

/// Sends the thread that runs the operation.
fn tell_thread(comm: &mut Communicator, to: &Sender<ThreadId>) -> ringreduce::Pending<()> {
    let to = to.clone();
    comm.nonblocking().start((), move |_, ()| {
        to.send(thread::current().id()).unwrap();
        Ok(())
    })
}

#[test]
fn a_waiting_thread_runs_operations_and_the_worker_those_that_nobody_waits_for() {
    let mut comm = alone();
    let (tell, told) = channel();
    let me = thread::current().id();
    let ran_here = (0..ROUNDS).any(|_| {
        tell_thread(&mut comm, &tell).wait().unwrap();
        told.recv().unwrap() == me
    });
    assert!(ran_here);
    for _ in 0..3 {
        drop(tell_thread(&mut comm, &tell));
        assert_ne!(told.recv().unwrap(), me);
    }
    // The worker goes on with what is left when the waiting thread has its result.
    let first = tell_thread(&mut comm, &tell);
    drop(tell_thread(&mut comm, &tell));
    first.wait().unwrap();
    told.recv().unwrap();
    assert_ne!(told.recv().unwrap(), me);
}

#[test]
fn operations_keep_their_order_whoever_runs_them() {
    on_ranks(3, |comm| {
        for round in 0..50 {
            let mut buffers = vec![[1_u32; 4]; 20];
            comm.scope(|s| {
                let mut all: Vec<_> = buffers.iter_mut().map(|it| s.all_reduce(it, SUM)).collect();
                // Each round waits for another one first.
                let first = all.swap_remove(round % 20);
                assert_eq!(first.wait().unwrap(), &[3; 4]);
                for one in all {
                    assert_eq!(one.wait().unwrap(), &[3; 4]);
                }
            });
        }
    });
}

#[test]
fn several_threads_wait_for_operations_of_one_communicator() {
    on_ranks(2, |comm| {
        for _ in 0..50 {
            let mut buffers = vec![vec![1_u32; 300]; 8];
            comm.scope(|s| {
                let all: Vec<_> = buffers.iter_mut().map(|it| s.all_reduce(it, SUM)).collect();
                thread::scope(|threads| {
                    for one in all {
                        threads.spawn(|| assert_eq!(one.wait().unwrap()[..], [2; 300]));
                    }
                });
            });
        }
    });
}

#[test]
fn a_panic_of_an_operation_stays_out_of_the_thread_that_waits() {
    let me = thread::current().id();
    let ran_here = (0..ROUNDS).any(|_| {
        let (tell, told) = channel();
        let mut comm = alone();
        let pending = comm.nonblocking().start((), move |_, ()| -> ringreduce::Result<()> {
            tell.send(thread::current().id()).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"))
        });
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        assert!(matches!(comm.barrier().unwrap_err(), Error::Broken { .. }));
        told.recv().unwrap() == me
    });
    assert!(ran_here);
}

#[test]
fn an_operation_may_drop_its_own_communicator_in_the_thread_that_waits() {
    let me = thread::current().id();
    let ran_here = (0..ROUNDS).any(|_| {
        let (give, take) = channel::<Communicator>();
        let mut comm = alone();
        let dropped = comm.nonblocking().start(None, move |_, by| {
            drop(take.recv());
            *by = Some(thread::current().id());
            Ok(())
        });
        let later = comm.nonblocking().barrier();
        give.send(comm).unwrap();
        assert!(matches!(later.wait().unwrap_err(), Error::Broken { .. }));
        dropped.wait().unwrap() == Some(me)
    });
    assert!(ran_here);
}

#[test]
fn a_lost_rank_ends_the_wait_of_a_thread_that_runs_operations() {
    for _ in 0..20 {
        let [mut comm, other] = pair();
        let pending = comm.nonblocking().all_reduce(vec![1_u32; 10], SUM);
        let dropped = thread::spawn(move || drop(other));
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        dropped.join().unwrap();
    }
}

/// The worker threads of this process.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|it| it.starts_with("ringreduce-work"))).count()
}

/// Communicators of a test of worker threads.
const COMMUNICATORS: usize = 400;

#[test]
fn many_communicators_share_a_worker_thread() {
    if !is_alone("waiting_threads::many_communicators_share_a_worker_thread") {
        return;
    }
    let mut all: Vec<_> = (0..COMMUNICATORS).map(|_| alone()).collect();
    let me = thread::current().id();
    for round in 0..5 {
        for comm in &mut all {
            let (tell, told) = channel();
            let pending = tell_thread(comm, &tell);
            if round % 2 == 0 {
                // No thread waits, so a worker runs it.
                assert_ne!(told.recv().unwrap(), me);
            }
            pending.wait().unwrap();
            // Returns once the worker has nothing to do here.
            comm.barrier().unwrap();
        }
        assert_eq!(workers(), 1);
    }
    while workers() > 0 {
        thread::yield_now();
    }
    let (tell, told) = channel();
    drop(tell_thread(&mut all[0], &tell));
    assert_ne!(told.recv().unwrap(), me);
}

#[test]
fn a_start_without_a_thread_leaves_its_communicator_as_it_was() {
    if !is_alone("waiting_threads::a_start_without_a_thread_leaves_its_communicator_as_it_was") {
        return;
    }
    let [mut first, mut second] = [alone(), alone()];
    let (tell, told) = channel();
    tell_thread(&mut first, &tell).wait().unwrap();
    first.barrier().unwrap();
    // The only thread goes to the second communicator, and stays there.
    let (go, may_go) = channel();
    let held = second.nonblocking().start((), move |_, ()| {
        may_go.recv().unwrap();
        Ok(())
    });
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, 1 << 20, hard).unwrap();
    let refused = tell_thread(&mut first, &tell).wait();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
    first.barrier().unwrap();
    tell_thread(&mut first, &tell).wait().unwrap();
    go.send(()).unwrap();
    held.wait().unwrap();
    assert_eq!(told.into_iter().take(2).count(), 2);
}

/// One thread for two communicators would wait for the other rank's second call in its first.
#[test]
fn communicators_whose_calls_start_in_other_orders_have_a_worker_each() {
    let parts: [Vec<_>; 2] = Default::default();
    let [mut here, mut there] = (0..20).fold(parts, |[mut here, mut there], _| {
        let [first, second] = pair();
        here.push(first);
        there.push(second);
        [here, there]
    });
    there.reverse();
    let calls = |comms: &mut [Communicator]| {
        let all: Vec<_> = comms.iter_mut().map(|it| it.nonblocking().barrier()).collect();
        // Nobody waits for one before all are done.
        while !all.iter().all(|one| one.is_done()) {
            thread::yield_now();
        }
        all.into_iter().for_each(|one| one.wait().unwrap());
    };
    thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|_| calls(&mut there)));
        (0..20).for_each(|_| calls(&mut here));
    });
}
