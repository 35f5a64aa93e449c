//! Communicators made from another one by split and duplicate, used side by side; options of single
//! calls; and ranks that leave or make another call meanwhile.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use harness::process::in_own_process;
use harness::ranks::{on_ranks, pair};
use ringreduce::{CallOptions, Communicator, Error};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::SUM;

/// Bytes of a rank's request to `split`.
const REQUEST: usize = 136;

/// The names of all ranks of `comm`, in order.
fn names(comm: &mut Communicator, name: u32) -> Vec<u32> {
    let mut all = vec![0; comm.size()];
    comm.all_gather(&[name], &mut all).unwrap();
    all
}

#[test]
fn colors_choose_subgroups_and_keys_their_order() {
    for n in 1..=8_usize {
        for colors in 1..=3 {
            on_ranks(n, |comm| {
                let rank = comm.rank();
                let same = |other: &usize| other % colors == rank % colors;
                let natural: Vec<u32> = (0..n).filter(same).map(|it| it as u32).collect();
                let color = Some((rank % colors) as u32);
                // Equal keys keep the order, falling keys reverse it; the extreme values are valid.
                let mut first = comm.split(color, 7).unwrap().unwrap();
                assert_eq!(names(&mut first, rank as u32), natural);
                let mut turned = comm.split(color, -(rank as i64)).unwrap().unwrap();
                let reversed: Vec<u32> = natural.iter().rev().copied().collect();
                assert_eq!(names(&mut turned, rank as u32), reversed);
                let key = if rank + 1 == n { i64::MIN } else { i64::MAX };
                let mut last = comm.split(Some(u32::MAX), key).unwrap().unwrap();
                assert_eq!(last.rank(), (rank + 1) % n);
                for group in [&mut first, &mut turned, &mut last] {
                    assert_eq!(group.peers().len(), group.size());
                    assert_eq!(group.peers()[group.rank()].rank, group.rank());
                    let mut sum = [1_u32; 100];
                    group.all_reduce(&mut sum, SUM).unwrap();
                    assert_eq!(sum, [group.size() as u32; 100]);
                }
                comm.barrier().unwrap();
            });
        }
    }
}

#[test]
fn a_rank_without_a_color_gets_no_subgroup() {
    on_ranks(5, |comm| {
        let odd = comm.rank() % 2 == 1;
        let group = comm.split(odd.then_some(0), 0).unwrap();
        assert_eq!(group.is_some(), odd);
        assert_eq!(group.map_or(2, |group| group.size()), 2);
        assert!(comm.split(None, 0).unwrap().is_none());
        comm.barrier().unwrap();
    });
}

#[test]
fn subgroups_can_be_split_and_outlive_their_parents() {
    let sizes = on_ranks(8, |comm| {
        let rank = comm.rank() as u32;
        let mut half = comm.split(Some(rank / 4), 0).unwrap().unwrap();
        let mut pair = half.split(Some(rank / 2), 0).unwrap().unwrap();
        drop(half);
        let mut twin = pair.duplicate().unwrap();
        drop(pair);
        let mut all = [rank];
        twin.all_reduce(&mut all, SUM).unwrap();
        assert_eq!(all, [rank / 2 * 4 + 1]);
        twin.size()
    });
    assert_eq!(sizes, [2; 8]);
}

#[test]
fn two_communicators_may_be_used_in_two_threads() {
    on_ranks(3, |comm| {
        let mut twin = comm.duplicate().unwrap();
        assert_eq!((twin.rank(), twin.size()), (comm.rank(), comm.size()));
        let calls = |comm: &mut Communicator, times: usize, step: usize| {
            for call in 0..times {
                let mut buf = vec![1_u32; 1 + call * step % 3000];
                comm.all_reduce(&mut buf, SUM).unwrap();
                assert!(buf.iter().all(|&it| it == 3));
            }
        };
        thread::scope(|scope| {
            // Each communicator counts its own calls.
            scope.spawn(|| calls(&mut twin, 300, 7));
            calls(comm, 200, 13);
        });
        comm.scope(|s| {
            let mut there = [1_u32; 10];
            twin.scope(|t| {
                let (mine, other) = (s.barrier(), t.all_reduce(&mut there, SUM));
                assert_eq!(other.wait().unwrap(), &[3; 10]);
                mine.wait().unwrap();
            });
        });
    });
}

#[test]
fn two_threads_may_split_their_communicators_at_a_time() {
    on_ranks(4, |comm| {
        let mut twin = comm.duplicate().unwrap();
        let work = |comm: &mut Communicator, turn: i64| {
            for round in 0..20 {
                let key = comm.rank() as i64 * turn;
                let mut group = comm.split(Some(comm.rank() as u32 % 2), key).unwrap().unwrap();
                let mut sum = [round];
                group.all_reduce(&mut sum, SUM).unwrap();
                assert_eq!(sum, [2 * round]);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| work(&mut twin, -1));
            work(comm, 1);
        });
    });
}

#[test]
fn a_nonblocking_operation_may_duplicate_and_a_split_is_compared_with_other_calls() {
    on_ranks(3, |comm| {
        let pending = comm.nonblocking().start(None, |comm, twin| {
            *twin = Some(comm.duplicate()?);
            Ok(())
        });
        let mut twin = pending.wait().unwrap().unwrap();
        twin.barrier().unwrap();
    });
    let errors = on_ranks(2, |comm| match comm.rank() {
        0 => comm.split(Some(0), 0).map(drop).unwrap_err(),
        _ => comm.barrier().unwrap_err(),
    });
    assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
}

#[test]
fn a_split_without_a_lost_rank_is_an_error_at_every_peer() {
    on_ranks(4, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            return;
        }
        let error = comm.split(Some(0), 0).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        assert!(error.to_string().contains("in all_gather #2 \"split\", step"), "{error}");
    });
}

#[test]
fn a_rank_that_leaves_during_a_split_is_an_error_in_its_subgroup_alone() {
    on_ranks(5, |comm| {
        comm.set_timeout(Duration::from_secs(5));
        if comm.rank() == 2 {
            // The rank announces that it joins subgroup 0, and leaves.
            let mut card = [0_u8; REQUEST];
            card[0] = 1;
            comm.all_gather(&card, &mut [0; 5 * REQUEST]).unwrap();
            return;
        }
        let other = comm.rank() == 4;
        match comm.split(Some(u32::from(other)), 0) {
            Ok(group) => assert!(other && group.unwrap().size() == 1),
            Err(error) => {
                // A rank that waits for the lost one names it; a rank that waits for that rank
                // loses it or runs into the timeout too.
                use Error::{Handshake, PeerLost, Timeout};
                let lost = matches!(error, Handshake { .. } | PeerLost { .. } | Timeout { .. });
                assert!(lost && !other, "{error}");
            }
        }
    });
}

#[test]
fn a_rank_that_cannot_listen_is_named_by_every_peer_and_breaks_nothing() {
    on_ranks(4, |comm| {
        if comm.rank() == 1 {
            let mut card = [0_u8; REQUEST];
            card[0] = 2;
            comm.all_gather(&card, &mut [0; 4 * REQUEST]).unwrap();
        } else {
            let error = comm.split(Some(0), 0).unwrap_err();
            assert!(error.to_string().starts_with("handshake with rank 1 (host "), "{error}");
        }
        comm.barrier().unwrap();
        assert_eq!(comm.duplicate().unwrap().size(), 4);
    });
}

#[test]
fn options_hold_for_one_call_and_the_innermost_one_wins() {
    let [mut comm, mut other] = pair();
    let default = comm.timeout();
    let mut twins = thread::scope(|scope| {
        let theirs = scope.spawn(|| other.duplicate().unwrap());
        let mine = comm.duplicate().unwrap();
        [mine, theirs.join().unwrap()]
    });
    let short = Duration::from_millis(20);
    let options = CallOptions::new().timeout(short).tag("gradients");
    let error = comm.with(options.clone()).barrier().unwrap_err();
    assert!(matches!(error, Error::Stalled { after, .. } if after == short), "{error}");
    assert!(error.to_string().contains("in barrier #2 \"gradients\", step "), "{error}");
    assert_eq!(comm.timeout(), default);
    // The innermost option counts, and an operation keeps the options of its start.
    let set = twins[0].nonblocking().start((), |comm, ()| {
        comm.set_timeout(Duration::from_secs(7));
        Ok(())
    });
    let seen = twins[0].nonblocking().start(default, |comm, timeout| {
        *timeout = comm.timeout();
        Ok(())
    });
    let pending = {
        let mut with = twins[0].with(CallOptions::new().timeout(default));
        let mut inner = with.with(options);
        assert_eq!(inner.timeout(), short);
        inner.nonblocking().barrier()
    };
    twins[0].scope(|s| {
        drop(s.start((), |comm, ()| {
            comm.set_timeout(Duration::from_secs(7));
            Ok(())
        }));
    });
    set.wait().unwrap();
    assert_eq!((seen.wait().unwrap(), twins[0].timeout()), (default, default));
    let error = pending.wait().unwrap_err();
    assert!(error.to_string().contains("\"gradients\", step "), "{error}");
}

#[test]
fn a_stalled_rank_is_named() {
    let [mut comm, mut other] = pair();
    thread::scope(|scope| {
        scope.spawn(|| other.barrier().unwrap());
        comm.barrier().unwrap();
    });
    comm.set_timeout(Duration::from_millis(20));
    let error = comm.barrier().unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
}

#[test]
fn a_communicator_has_a_timeout_of_its_own() {
    let mut comms = Communicator::local(1).unwrap();
    let comm = &mut comms[0];
    comm.set_timeout(Duration::from_secs(7));
    let mut twin = comm.duplicate().unwrap();
    twin.set_timeout(Duration::MAX);
    assert_eq!(comm.timeout(), Duration::from_secs(7));
    let third = twin.duplicate().unwrap();
    assert!(third.timeout() > Duration::from_secs(1_000_000));
}

/// Records the name and the tag of each span.
#[derive(Clone, Default)]
struct Tags(Arc<Mutex<Vec<String>>>);

impl Visit for Tags {
    fn record_str(&mut self, field: &Field, value: &str) {
        if ["name", "tag"].contains(&field.name()) {
            self.0.lock().unwrap().push(value.into());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Tags {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut self.clone());
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A process of its own, as other threads may register the same spans meanwhile.
pub(crate) fn tagged_calls() {
    let mut comms = Communicator::local(1).unwrap();
    let tags = Tags::default();
    tracing::subscriber::with_default(tags.clone(), || {
        comms[0].barrier().unwrap();
        let mut with = comms[0].with(CallOptions::new().tag(String::from("mine")));
        with.all_reduce(&mut [1_u32], SUM).unwrap();
    });
    assert_eq!(*tags.0.lock().unwrap(), ["all_reduce", "mine"]);
}

#[test]
fn calls_and_their_tags_are_spans() {
    in_own_process("subgroups::tagged_calls");
}
