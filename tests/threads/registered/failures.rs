//! Ranks whose calls on registered memory differ, or that leave: every rank gets an error, and no
//! data is overwritten.

use std::time::Duration;

use ringreduce::{CallOptions, Communicator, Error, FoldOrder, ReduceOp};

use super::is_shared;
use harness::barrier::Barrier;
use harness::on_ranks;

#[test]
fn an_impossible_length_is_an_error_at_that_rank_alone() {
    for len in [usize::MAX, usize::MAX / 8, 1 << 40] {
        on_ranks(3, |comm| {
            // The other ranks notice nothing.
            if comm.rank() == 2 {
                let error = comm.alloc::<u32>(len).map(drop).unwrap_err();
                let is_typed = matches!(error, Error::Argument { .. } | Error::Exhausted { .. });
                assert!(is_typed, "{len} {error}");
            }
            let mut buf = comm.alloc::<u32>(10_000).unwrap();
            buf.fill(1);
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(buf.iter().all(|&it| it == 3));
        });
    }
}

/// Both ranks make a call, which must fail with a mismatch and change no buffer.
fn both_fail(
    call: impl Fn(&mut Communicator, bool, &mut [u32], &mut [u32]) -> ringreduce::Result<()> + Sync,
) {
    for error in on_ranks(2, |comm| {
        let (rank, mut one) = (comm.rank(), comm.alloc::<u32>(10_000).unwrap());
        let mut two = comm.alloc::<u32>(20_000).unwrap();
        one.fill(7 + rank as u32);
        two.fill(9 + rank as u32);
        let error = call(comm, rank == 1, &mut one, &mut two).unwrap_err();
        assert!(one.iter().all(|&it| it == 7 + rank as u32));
        assert!(two.iter().all(|&it| it == 9 + rank as u32));
        let after = comm.all_reduce(&mut one, ReduceOp::Sum).unwrap_err();
        assert!(matches!(after, Error::Broken { .. }));
        error
    }) {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

#[test]
fn calls_that_differ_change_no_buffer() {
    // The calls differ in operation, length, collective.
    both_fail(|comm, odd, one, _| {
        comm.all_reduce(one, if odd { ReduceOp::Max } else { ReduceOp::Sum })
    });
    both_fail(|comm, odd, one, two| comm.all_reduce(if odd { two } else { one }, ReduceOp::Sum));
    both_fail(|comm, odd, one, _| {
        comm.all_reduce(&mut one[..if odd { 8 } else { 9000 }], ReduceOp::Sum)
    });
    both_fail(|comm, odd, one, _| match odd {
        true => comm.broadcast(one, 0),
        false => comm.all_gather_in_place(one),
    });
    // One rank passes ordinary memory.
    for count in [8, LEAST, 9000] {
        both_fail(|comm, odd, one, _| {
            let mut plain = vec![0; count];
            comm.all_reduce(if odd { &mut plain } else { one }, ReduceOp::Sum)
        });
        both_fail(|comm, odd, one, _| match odd {
            true => comm.broadcast(&mut vec![0; count], 0),
            false => comm.all_reduce(&mut one[..count], ReduceOp::Sum),
        });
    }
    both_fail(|comm, odd, one, _| match odd {
        true => comm.barrier(),
        false => comm.all_reduce(one, ReduceOp::Sum),
    });
}

/// The fewest elements with which a call of two ranks uses registered memory: 2 KiB for each rank,
/// and a whole page.
const LEAST: usize = 1024;

#[test]
fn a_short_call_may_be_on_other_memory_at_one_rank() {
    on_ranks(2, |comm| {
        let odd = comm.rank() == 1;
        let mut buf = comm.alloc::<u32>(10_000).unwrap();
        let mut other = vec![0; LEAST];
        for count in [1, LEAST - 1] {
            let mine = if odd { &mut other[..count] } else { &mut buf[count..2 * count] };
            mine.fill(3 + u32::from(odd));
            comm.all_reduce(mine, ReduceOp::Sum).unwrap();
            assert!(mine.iter().all(|&it| it == 7), "{count}");
        }
        // Half of these bytes lie in no whole page.
        let mine = if odd { &mut other[..] } else { &mut buf[1..=LEAST] };
        mine.fill(3 + u32::from(odd));
        comm.all_reduce(mine, ReduceOp::Sum).unwrap();
        assert!(mine.iter().all(|&it| it == 7));
    });
}

#[test]
fn a_lost_rank_is_an_error_and_no_peer_can_write_to_the_buffer_any_more() {
    for count in [4000, 100_000] {
        let ranks = Communicator::local(3).unwrap();
        let all = Barrier::new(3);
        std::thread::scope(|scope| {
            for mut comm in ranks {
                let all = &all;
                scope.spawn(move || {
                    let rank = comm.rank();
                    let mut buf = comm.alloc::<u32>(count).unwrap();
                    comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
                    all.wait();
                    if rank == 1 {
                        return;
                    }
                    buf.fill(5);
                    let error = comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
                    assert!(matches!(&error, Error::PeerLost { .. }), "{error}");
                    assert!(buf.iter().all(|&it| it == 5));
                    assert!(!is_shared(&buf), "others can still write to it");
                    buf.fill(6);
                });
            }
        });
    }
}

#[test]
fn an_aborted_call_ends_at_all_ranks_and_names_the_rank() {
    let errors = on_ranks(3, |comm| {
        let mut buf = comm.alloc::<u32>(50_000).unwrap();
        if comm.rank() == 0 {
            comm.monitor().abort();
        }
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err()
    });
    assert!(matches!(errors[0], Error::Aborted { .. }));
    let all = errors.iter().all(|error| matches!(error, Error::Aborted { by, .. } if by.rank == 0));
    assert!(all, "{errors:?}");
}

#[test]
fn a_function_that_panics_breaks_the_call_at_all_ranks() {
    on_ranks(3, |comm| {
        let rank = comm.rank();
        let mut buf = comm.alloc::<u32>(50_000).unwrap();
        let add = |a: &u32, b: &u32| {
            assert!(rank != 1, "on purpose");
            a + b
        };
        let mut call = || comm.all_reduce_by(&mut buf, FoldOrder::Any, add);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut call)) {
            Ok(result) => assert!(matches!(result, Err(Error::PeerLost { .. })), "{rank}"),
            Err(_) => assert_eq!(rank, 1),
        }
        assert!(matches!(call(), Err(Error::Broken { .. })));
        assert!(!is_shared(&buf), "others can still write to it");
    });
}

/// Rank 0 has a shorter timeout than rank 1, which learns from rank 0 that rank 2 is absent.
#[test]
fn a_timeout_of_one_rank_ends_the_call_of_its_peer() {
    let (before, after) = (Barrier::new(2), Barrier::new(3));
    let errors = on_ranks(3, |comm| {
        let mut buf = comm.alloc::<u32>(100_000).unwrap();
        let error = match comm.rank() {
            0 => {
                before.wait();
                let soon = CallOptions::new().timeout(Duration::from_secs(2));
                comm.with(soon).all_reduce(&mut buf, ReduceOp::Sum).err()
            }
            1 => {
                before.wait();
                comm.all_reduce(&mut buf, ReduceOp::Sum).err()
            }
            _ => None,
        };
        after.wait();
        error
    });
    assert!(matches!(&errors[0], Some(Error::Stalled { peer, .. }) if peer.rank == 2));
    let text = errors[1].as_ref().unwrap().to_string();
    assert!(matches!(&errors[1], Some(Error::Stalled { peer, .. }) if peer.rank == 2), "{text}");
}
