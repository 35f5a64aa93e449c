//! Nonblocking operations: in scopes, with owned buffers, as futures; forgotten handles, operations
//! that fail and callers that panic.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use harness::barrier::Barrier;
use harness::ranks::{on_ranks, pair};
use ringreduce::{Communicator, Error, Pending};

use super::SUM;

/// A rank's contribution at every position.
fn mine(comm: &Communicator) -> u32 {
    comm.rank() as u32 + 1
}

fn total(n: usize) -> u32 {
    (n * (n + 1) / 2) as u32
}

#[test]
fn verbs_of_a_scope_borrow_and_own_buffers() {
    for n in 1..=5 {
        on_ranks(n, |comm| {
            let (rank, me, all) = (comm.rank(), mine(comm), total(n));
            let everybody: Vec<u32> = (1..=n as u32).collect();
            let (mut a, mut b, mut c) = (vec![me; 1000], [0_u32; 3], [0_u32]);
            let (whole, mut gathered, mut d) = (vec![me; n], vec![0; n], vec![me; n]);
            let mut cast = [me; 7];
            comm.scope(|s| {
                let first = s.all_reduce(&mut a, SUM);
                let second = s.all_reduce_into([me; 3], &mut b, SUM);
                let third = s.reduce_scatter(&whole, &mut c, SUM);
                let fourth = s.all_gather([me], &mut gathered);
                let fifth = s.reduce_scatter_in_place(&mut d, SUM);
                let sixth = s.broadcast(&mut cast[..], n - 1);
                s.barrier().wait()?;
                // Operations before the barrier end before it.
                assert!(first.is_done() && second.is_done() && third.is_done());
                assert!(fourth.is_done() && fifth.is_done());
                let cast = sixth.wait()?;
                assert_eq!(cast, [n as u32; 7]);
                cast[0] = 9;
                let a = first.wait()?;
                assert_eq!(a[..], [all; 1000]);
                a[0] = 7;
                let (sent, b) = second.wait()?;
                assert_eq!((sent, *b), ([me; 3], [all; 3]));
                let again = s.all_gather_in_place(fourth.wait()?.1);
                assert_eq!(again.wait()?[..], everybody);
                Ok::<_, Error>(())
            })
            .unwrap();
            assert_eq!((a[0], c, d[rank], cast[0]), (7, [all], all, 9));
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn handles_may_move_to_other_threads() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Communicator>();
    is_send::<Pending<&mut [f32]>>();
    is_sync::<Pending<Vec<f32>>>();
    on_ranks(2, |comm| {
        let pending = comm.nonblocking().all_reduce(vec![1_u32; 10], SUM);
        let waited = thread::spawn(|| pending.wait());
        assert_eq!(waited.join().unwrap().unwrap(), [2; 10]);
    });
}

#[test]
fn a_start_does_not_wait_for_other_ranks() {
    let [mut early, mut late] = pair();
    let (go, may_go) = channel();
    let other = thread::spawn(move || {
        may_go.recv().unwrap();
        late.all_reduce(&mut [1_u32; 100], SUM)?;
        late.all_reduce(&mut [1_u32; 100], SUM)
    });
    let mut buf = [1_u32; 100];
    early.scope(|s| {
        let pending = s.all_reduce(&mut buf, SUM);
        assert!(!pending.is_done());
        go.send(()).unwrap();
        assert_eq!(pending.wait().unwrap(), &[2; 100]);
    });
    let owned = early.nonblocking().all_reduce(buf, SUM);
    other.join().unwrap().unwrap();
    assert_eq!(owned.wait().unwrap(), [3; 100]);
}

#[test]
fn operations_end_in_the_order_of_their_start() {
    on_ranks(3, |comm| {
        let mut buffers: Vec<_> = (0..40).map(|i| vec![1_u32; 1 + i * 997 % 5000]).collect();
        comm.scope(|s| {
            let all: Vec<_> = buffers.iter_mut().map(|buf| s.all_reduce(buf, SUM)).collect();
            // Handles are read from the last on: all operations before a completed one are
            // complete.
            while !all.iter().all(|one| one.is_done()) {
                let done: Vec<_> = all.iter().rev().map(|one| one.is_done()).collect();
                assert!(done.is_sorted(), "{done:?}");
                thread::yield_now();
            }
        });
        assert!(buffers.iter().flatten().all(|&it| it == 3));
    });
}

#[test]
fn operations_of_forgotten_handles_are_carried_out() {
    on_ranks(4, |comm| {
        let (mut a, mut b) = (vec![1_u32; 5000], vec![1_u32; 5000]);
        comm.scope(|s| {
            forget(s.all_reduce(&mut a, SUM));
            drop(s.all_reduce(&mut b, SUM));
        });
        assert_eq!((&a[..], &b[..]), (&[4; 5000][..], &[4; 5000][..]));
        forget(comm.nonblocking().all_reduce(a, SUM));
        drop(comm.nonblocking().all_reduce(b, SUM));
        comm.barrier().unwrap();
    });
}

#[test]
fn a_scope_may_return_early_and_other_scopes_may_follow() {
    on_ranks(3, |comm| {
        let mut a = vec![1_u32; 5000];
        let result: Result<(), &str> = comm.scope(|s| {
            let _later = s.all_reduce(&mut a, SUM);
            Err("enough")
        });
        assert_eq!((result, &a[..]), (Err("enough"), &[3; 5000][..]));
        let nothing = comm.scope(|_| 5);
        let one = comm.scope(|s| s.all_reduce(&mut a, SUM).wait().map(|a| a[0]));
        assert_eq!((nothing, one.unwrap()), (5, 9));
        // The result of a scope may be a borrowed buffer.
        let back = comm.scope(|s| s.all_reduce(&mut a, SUM).wait());
        assert_eq!(back.unwrap()[..], [27; 5000]);
    });
}

#[test]
fn blocking_calls_wait_for_owned_buffers() {
    on_ranks(3, |comm| {
        for round in 0..20 {
            let first = comm.nonblocking().all_reduce(vec![1_u32; 3000], SUM);
            let second = comm.nonblocking().all_reduce(vec![1_u32; 10].into_boxed_slice(), SUM);
            if round % 3 > 0 {
                comm.barrier().unwrap();
                assert!(first.is_done() && second.is_done());
            }
            let mut borrowed = [1_u32; 10];
            if round % 2 == 0 {
                comm.scope(|s| drop(s.all_reduce(&mut borrowed, SUM)));
                assert!(first.is_done() && second.is_done());
                assert_eq!(borrowed, [3; 10]);
            }
            assert_eq!(first.wait().unwrap(), [3; 3000]);
            assert_eq!(second.wait().unwrap()[..], [3; 10]);
        }
        // All ranks have made the same number of calls.
        assert!(format!("{comm:?}").contains("calls: 63"), "{comm:?}");
    });
}

#[test]
fn an_operation_may_drop_its_own_communicator() {
    let (give, take) = channel::<Communicator>();
    let mut comm = Communicator::local(1).unwrap().remove(0);
    let done = comm.nonblocking().start((), move |_, ()| {
        drop(take.recv());
        Ok(())
    });
    give.send(comm).unwrap();
    done.wait().unwrap();
}

#[test]
fn handles_outlive_their_communicator() {
    let comms = Communicator::local(3).unwrap();
    let pending: Vec<_> = comms
        .into_iter()
        .map(|mut comm| {
            let pending = comm.nonblocking().all_reduce(vec![1_u32; 3000], SUM);
            // The drop waits for the operation, so each rank has a thread for it.
            (thread::spawn(move || drop(comm)), pending)
        })
        .collect();
    for (thread, pending) in pending {
        thread.join().unwrap();
        assert!(pending.is_done());
        assert_eq!(pending.wait().unwrap(), [3; 3000]);
    }
}

/// A waker that counts its calls and unparks a thread.
struct Counter(Thread, AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let counter = Arc::new(Counter(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&counter));
    loop {
        let before = counter.1.load(Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while counter.1.load(Ordering::SeqCst) == before {
            thread::park();
        }
    }
}

#[test]
fn handles_are_futures() {
    on_ranks(4, |comm| {
        let owned = block_on(async {
            let first = comm.nonblocking().all_reduce(vec![1_u32; 3000], SUM).await?;
            comm.nonblocking().all_reduce(first, SUM).await
        });
        assert_eq!(owned.unwrap(), [16; 3000]);
        let mut borrowed = [1_u32; 100];
        comm.scope(|s| {
            let pending = s.all_reduce(&mut borrowed, SUM);
            assert_eq!(block_on(pending).unwrap(), &[4; 100]);
        });
    });
}

#[test]
fn a_future_wakes_the_last_task_and_gives_its_result_once() {
    let [mut early, mut late] = pair();
    let mut pending = std::pin::pin!(early.nonblocking().barrier());
    let counter = || Arc::new(Counter(thread::current(), AtomicUsize::new(0)));
    let (first, second) = (counter(), counter());
    for counter in [&first, &second] {
        let waker = Waker::from(Arc::clone(counter));
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    thread::spawn(move || late.barrier()).join().unwrap().unwrap();
    while second.1.load(Ordering::SeqCst) == 0 {
        thread::park();
    }
    assert_eq!(first.1.load(Ordering::SeqCst), 0, "the first task is not woken");
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(pending.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    let Poll::Ready(Err(error)) = pending.as_mut().poll(&mut context) else { panic!("waits") };
    assert!(error.to_string().starts_with("poll: "), "{error}");
}

#[test]
fn a_failed_operation_breaks_all_later_ones() {
    let [mut comm, other] = pair();
    drop(other);
    let (mut a, mut b) = ([1_u32; 10], [1_u32; 10]);
    comm.scope(|s| {
        let (first, second) = (s.all_reduce(&mut a, SUM), s.all_reduce(&mut b, SUM));
        let second = second.wait().unwrap_err();
        assert!(matches!(second, Error::Broken { .. }), "{second}");
        assert!(second.to_string().contains("lost rank 1"), "{second}");
        assert!(matches!(first.wait().unwrap_err(), Error::PeerLost { .. }));
    });
    let owned = comm.nonblocking().all_reduce(vec![1_u32], SUM).wait().unwrap_err();
    assert!(matches!(owned, Error::Broken { .. }), "{owned}");
    assert!(matches!(comm.barrier().unwrap_err(), Error::Broken { .. }));
}

#[test]
fn a_wrong_argument_breaks_nothing() {
    on_ranks(3, |comm| {
        let mut all = [0_u32; 3];
        comm.scope(|s| {
            let wrong = s.all_gather([1_u32], vec![0_u32; 4]).wait().unwrap_err();
            assert!(matches!(wrong, Error::Argument { .. }), "{wrong}");
            drop(s.all_gather([1_u32], &mut all));
        });
        assert_eq!(all, [1; 3]);
    });
}

#[test]
fn a_panic_in_a_scope_aborts_its_pending_operations() {
    let [mut comm, mut other] = pair();
    let mut a = [1_u32; 10];
    let panic = catch_unwind(AssertUnwindSafe(|| {
        comm.scope(|s| {
            let _pending = s.all_reduce(&mut a, SUM);
            // The other rank makes no such call: only an abort lets the scope end.
            panic!("on purpose");
        })
    }));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "on purpose");
    assert_eq!(a, [1; 10], "the buffer is unchanged");
    assert!(matches!(comm.barrier().unwrap_err(), Error::Broken { .. }));
    // The other rank may also see the aborted call, which was not a barrier.
    let error = other.barrier().unwrap_err();
    assert!(matches!(error, Error::Aborted { .. } | Error::Mismatch { .. }), "{error}");
}

#[test]
fn a_panic_aborts_pending_operations_on_owned_buffers() {
    let [mut comm, _other] = pair();
    let (give, given) = channel();
    let thread = thread::spawn(move || {
        give.send(comm.nonblocking().all_reduce(vec![1_u32], SUM)).unwrap();
        panic!("on purpose");
    });
    assert!(thread.join().is_err());
    let error = given.recv().unwrap().wait().unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
}

#[test]
fn a_panic_of_an_operation_is_an_error_at_all_ranks() {
    on_ranks(2, |comm| {
        let bad = comm.rank() == 0;
        let pending = comm.nonblocking().start(vec![1_u32; 10], move |comm, buf| {
            assert!(!bad, "on purpose");
            comm.all_reduce(buf, SUM)
        });
        let error = pending.wait().unwrap_err();
        match bad {
            true => assert!(error.to_string().contains("panicked"), "{error}"),
            false => assert!(matches!(error, Error::PeerLost { .. }), "{error}"),
        }
        assert!(matches!(comm.barrier().unwrap_err(), Error::Broken { .. }));
    });
}

#[test]
fn operations_may_start_operations() {
    on_ranks(3, |comm| {
        let pending = comm.nonblocking().start(Vec::new(), |comm, out| {
            let inner = comm.nonblocking().all_reduce(vec![1_u32; 10], SUM);
            comm.scope(|s| s.barrier().wait())?;
            out.extend(inner.wait()?);
            // This operation is still pending when the outer one returns.
            drop(comm.nonblocking().all_reduce(vec![1_u32; 5000], SUM));
            Ok(())
        });
        comm.barrier().unwrap();
        assert_eq!(pending.wait().unwrap(), [3; 10]);
    });
}

#[test]
fn abort_ends_pending_operations() {
    let [mut comm, _other] = pair();
    let handle = comm.monitor();
    let pending = comm.nonblocking().barrier();
    handle.abort();
    assert!(matches!(pending.wait().unwrap_err(), Error::Aborted { .. }));
    comm.scope(|s| assert!(matches!(s.barrier().wait().unwrap_err(), Error::Broken { .. })));
}

#[test]
fn rank_size_and_peers_can_be_read_while_operations_are_pending() {
    let [mut early, mut late] = pair();
    let gate = Arc::new(Barrier::new(2));
    let pass = Arc::clone(&gate);
    let other = thread::spawn(move || {
        pass.wait();
        late.barrier()
    });
    let pending = early.nonblocking().barrier();
    assert_eq!((early.rank(), early.size(), early.transports()), (0, 2, vec!["threads"]));
    assert_eq!(early.peers()[1].rank, 1);
    assert!(format!("{early:?} {pending:?}").contains("done: false"));
    gate.wait();
    other.join().unwrap().unwrap();
    pending.wait().unwrap();
}
