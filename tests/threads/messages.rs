//! Messages by rank and tag among threads: order, any source, nonblocking ones in any order, and
//! what goes wrong.

use std::time::Duration;

use harness::ranks::on_ranks;
use ringreduce::{Communicator, DataType, Error, ReduceOp, Source, Tag};

const LONG: usize = 3_000_000;

#[test]
fn messages_of_every_length_arrive() {
    on_ranks(3, |comm| {
        let (me, messages) = (comm.rank(), comm.messenger());
        for len in [0, 1, 7, 1000, 4096, 5000, 100_000, LONG] {
            let (next, previous) = ((me + 1) % 3, (me + 2) % 3);
            let theirs = messages.irecv(vec![0_u8; len], previous, 5).unwrap();
            messages.send(&vec![me as u8 + 1; len], next, 5).unwrap();
            let (theirs, status) = theirs.wait().unwrap();
            assert_eq!(theirs, vec![previous as u8 + 1; len]);
            let found = (status.rank, status.tag, status.dtype, status.bytes);
            assert_eq!(found, (previous, 5, DataType::U8, len));
        }
    });
}

#[test]
fn both_ranks_may_receive_first_and_then_send() {
    on_ranks(2, |comm| {
        let (messages, other) = (comm.messenger(), 1 - comm.rank());
        let theirs = messages.irecv(vec![0_u64; LONG], other, 0).unwrap();
        let mine = messages.isend(vec![comm.rank() as u64; LONG], other, 0).unwrap();
        assert_eq!(mine.wait().unwrap().0.len(), LONG);
        assert_eq!(theirs.wait().unwrap().0, vec![other as u64; LONG]);
    });
}

#[test]
fn tags_choose_and_messages_of_one_tag_keep_their_order() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        if comm.rank() == 0 {
            for value in 0..20_u32 {
                messages.send(&[value], 1, value % 2).unwrap();
            }
            return;
        }
        for tag in [1, 0] {
            for value in (0..10_u32).map(|at| 2 * at + tag) {
                let mut got = [0_u32];
                messages.recv(&mut got, 0, tag).unwrap();
                assert_eq!(got, [value]);
            }
        }
    });
}

#[test]
fn a_message_waits_for_no_collective() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        if comm.rank() == 0 {
            // Rank 1 starts its collective only after the messages of this one.
            let mut pending = comm.nonblocking();
            let sum = pending.all_reduce(vec![1_i32; 100_000], ReduceOp::Sum);
            messages.send(&vec![3_u8; LONG], 1, 1).unwrap();
            let mut answer = [0_u8];
            messages.recv(&mut answer, 1, 2).unwrap();
            assert_eq!(sum.wait().unwrap(), vec![2; 100_000]);
        } else {
            let mut long = vec![0_u8; LONG];
            messages.recv(&mut long, 0, 1).unwrap();
            messages.send(&[9_u8], 0, 2).unwrap();
            comm.all_reduce(&mut vec![1_i32; 100_000], ReduceOp::Sum).unwrap();
        }
    });
}

#[test]
fn a_pending_message_progresses_while_its_rank_is_in_a_collective() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        let other = 1 - comm.rank();
        if comm.rank() == 0 {
            let long = messages.isend(vec![3_u8; LONG], other, 1).unwrap();
            comm.barrier().unwrap();
            long.wait().unwrap();
        } else {
            let mut long = vec![0_u8; LONG];
            messages.recv(&mut long, other, 1).unwrap();
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn a_server_hears_from_any_rank() {
    on_ranks(4, |comm| {
        let messages = comm.messenger();
        const ROUNDS: usize = 50;
        if comm.rank() > 0 {
            for round in 0..ROUNDS {
                let mut answer = vec![0_u32; 3000];
                messages.send(&vec![round as u32; 3000], 0, comm.rank() as u32).unwrap();
                messages.recv(&mut answer, 0, 0).unwrap();
                assert_eq!(answer, vec![round as u32 + 1; 3000]);
            }
            return;
        }
        for _ in 0..3 * ROUNDS {
            let mut value = vec![0_u32; 3000];
            let status = messages.recv(&mut value, Source::Any, Tag::Any).unwrap();
            assert_eq!(status.tag as usize, status.rank);
            let answer: Vec<_> = value.iter().map(|it| it + 1).collect();
            messages.send(&answer, status.rank, 0).unwrap();
        }
    });
}

#[test]
fn a_probe_says_what_comes() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        if comm.rank() == 0 {
            messages.send(&[1.0_f64; 17], 1, 4).unwrap();
            messages.send(&vec![1.0_f64; LONG], 1, 5).unwrap();
            return;
        }
        let found = messages.probe(Source::Any, 5).unwrap();
        assert_eq!((found.bytes, found.dtype), (8 * LONG, DataType::F64));
        assert!(messages.try_probe(0, 6).unwrap().is_none());
        assert_eq!(messages.try_probe(0, 4).unwrap().unwrap().bytes, 136);
        messages.recv(&mut vec![0.0_f64; LONG], 0, 5).unwrap();
        messages.recv(&mut [0.0_f64; 17], 0, Tag::Any).unwrap();
    });
}

/// Fails if this is not the mismatch of ranks 0 and 1 with these two values.
fn names_both(error: &Error, [theirs, ours]: [&str; 2]) {
    let text = error.to_string();
    assert!(matches!(error, Error::Mismatch { .. }), "{text}");
    assert!(text.contains("rank 0 (host ") && text.contains("rank 1 (host "), "{text}");
    assert!(text.contains(&format!("is {theirs} there, {ours} here")), "{text}");
}

#[test]
fn another_length_or_type_is_an_error_that_names_both_ends_and_harms_nothing_else() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        if comm.rank() == 0 {
            messages.send(&[1_u32; 4], 1, 1).unwrap();
            messages.send(&[1_u32; 4], 1, 2).unwrap();
            let error = messages.send(&vec![1_u8; LONG], 1, 3).unwrap_err();
            names_both(&error, ["2999999 bytes", "3000000 bytes"]);
            messages.send(&[5_u8], 1, 4).unwrap();
            return;
        }
        let mut short = [7_u32; 3];
        names_both(&messages.recv(&mut short, 0, 1).unwrap_err(), ["16 bytes", "12 bytes"]);
        assert_eq!(short, [7; 3]);
        names_both(&messages.recv(&mut [0.0_f32; 4], 0, 2).unwrap_err(), ["uint32", "float"]);
        let error = messages.recv(&mut vec![0_u8; LONG - 1], 0, 3).unwrap_err();
        names_both(&error, ["3000000 bytes", "2999999 bytes"]);
        let mut last = [0_u8];
        messages.recv(&mut last, 0, 4).unwrap();
        assert_eq!(last, [5]);
    });
}

#[test]
fn a_rank_that_leaves_fails_its_own_messages_alone() {
    on_ranks(3, |comm| {
        let messages = comm.messenger();
        let (me, other) = (comm.rank(), 1 - comm.rank().min(1));
        if me == 2 {
            messages.send(&[1_u8], 0, 0).unwrap();
            return;
        }
        if me == 0 {
            // The message that came before the end is still there.
            messages.recv(&mut [0_u8], 2, 0).unwrap();
        }
        let text = messages.recv(&mut [0_u8], 2, 0).unwrap_err().to_string();
        assert!(text.contains("lost rank 2 (host "), "{text}");
        let error = messages.send(&vec![0_u8; LONG], 2, 0).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        let theirs = messages.irecv(vec![0_u8; LONG], Source::Any, 3).unwrap();
        messages.send(&vec![9_u8; LONG], other, 3).unwrap();
        assert_eq!(theirs.wait().unwrap().0, vec![9; LONG]);
        assert!(comm.barrier().is_err());
        messages.send(&[1_u8], other, 9).unwrap();
        messages.recv(&mut [0_u8], other, 9).unwrap();
    });
}

#[test]
fn a_receive_that_waits_too_long_is_given_up_and_leaves_its_message_to_the_next() {
    let says = |error: &Error, words: &str| error.to_string().contains(words);
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        let hurried = messages.with_timeout(Duration::from_millis(20));
        if comm.rank() == 0 {
            let error = hurried.recv(&mut [0_u8], 1, 1).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            let text = hurried.recv(&mut [0_u8], Source::Any, 1).unwrap_err().to_string();
            assert!(text.contains("no message from any rank for 20.0ms"), "{text}");
            let error = hurried.send(&vec![1_u8; LONG], 1, 1).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert!(says(&error, "rank 1 (") && says(&error, "posts no receive for it"), "{error}");
            let error = hurried.recv(&mut [0_u8], 0, 1).unwrap_err();
            assert!(says(&error, "this rank has not sent to itself"), "{error}");
            comm.barrier().unwrap();
            messages.recv(&mut [0_u8], 1, 1).unwrap();
            messages.send(&vec![2_u8; LONG], 1, 1).unwrap();
        } else {
            comm.barrier().unwrap();
            messages.send(&[1_u8], 0, 1).unwrap();
            let mut long = vec![0_u8; LONG];
            messages.recv(&mut long, 0, 1).unwrap();
            assert_eq!(long, vec![2; LONG], "the message that was given up never comes");
        }
    });
}

#[test]
fn wrong_arguments_are_refused() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        let me = comm.rank();
        let is_refused = |error: Error, words: &str| {
            let text = error.to_string();
            assert!(matches!(error, Error::Argument { .. }) && text.contains(words), "{text}");
        };
        is_refused(messages.send(&[0_u8], 2, 0).unwrap_err(), "to is 2");
        is_refused(messages.recv(&mut [0_u8], 7, 0).unwrap_err(), "from is 7");
        is_refused(messages.send(&[0_u8], me, 0).unwrap_err(), "a receive posted before");
        is_refused(messages.send(&[0_u8], 1 - me, u32::MAX).unwrap_err(), "tag is 4294967295");
        is_refused(messages.recv(&mut [0_u8], 1 - me, u32::MAX).unwrap_err(), "tag is 4294967295");
        let half = messages.send_bytes(&[0; 6], DataType::F32, 1 - me, 0);
        is_refused(half.unwrap_err(), "buf is");
        let pending: Vec<_> =
            (0..4096).map(|_| messages.irecv(vec![0_u8], 1 - me, 1).unwrap()).collect();
        is_refused(messages.irecv(vec![0_u8], 1 - me, 1).unwrap_err(), "4096 pending");
        pending.into_iter().for_each(|request| drop(request.cancel()));
        comm.barrier().unwrap();
    });
}

#[test]
fn a_rank_may_send_to_itself() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let messages = comm.messenger();
    let theirs = messages.irecv(vec![0_u16; 40_000], 0, 1).unwrap();
    messages.send(&vec![3_u16; 40_000], 0, 1).unwrap();
    assert_eq!(theirs.wait().unwrap().0, vec![3; 40_000]);
    let mine = messages.isend(vec![4_u16; 10], 0, 2).unwrap();
    let mut got = [0_u16; 10];
    messages.recv(&mut got, Source::Any, Tag::Any).unwrap();
    assert_eq!((got, mine.is_done()), ([4; 10], true));
}

#[test]
fn requests_outlive_their_handles_and_fail_with_their_communicator() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        let other = 1 - comm.rank();
        drop(messages.isend(vec![comm.rank() as u8; LONG], other, 0).unwrap());
        let mut theirs = vec![0_u8; LONG];
        messages.recv(&mut theirs, other, 0).unwrap();
        assert_eq!(theirs, vec![other as u8; LONG]);
        comm.barrier().unwrap();
    });
    let comm = Communicator::local(1).unwrap().remove(0);
    let messages = comm.messenger();
    let pending = messages.irecv(vec![0_u8], 0, 0).unwrap();
    drop(comm);
    let text = pending.wait().unwrap_err().to_string();
    assert!(text.contains("its communicator was dropped"), "{text}");
    assert!(matches!(messages.send(&[0_u8], 0, 0), Err(Error::Broken { .. })));
}

#[test]
fn many_threads_of_a_rank_send_and_receive_at_once() {
    const THREADS: u32 = 6;
    on_ranks(2, |comm| {
        let (messages, other) = (comm.messenger(), 1 - comm.rank());
        std::thread::scope(|scope| {
            for tag in 0..THREADS {
                let messages = messages.clone();
                scope.spawn(move || {
                    for round in 0..200_u32 {
                        let len = [1, 3000, 40_000][(round % 3) as usize];
                        let mine = vec![round ^ tag; len];
                        let theirs = messages.irecv(vec![0; len], other, tag).unwrap();
                        messages.send(&mine, other, tag).unwrap();
                        assert_eq!(theirs.wait().unwrap().0, mine);
                    }
                });
            }
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_revokes_ends_its_messages() {
    on_ranks(2, |comm| {
        let messages = comm.messenger();
        if comm.rank() == 0 {
            messages.recv(&mut [0_u8], 1, 0).unwrap();
            comm.revoke().unwrap();
            let text = messages.send(&[0_u8], 1, 0).unwrap_err().to_string();
            assert!(text.contains("this rank has revoked its communicator"), "{text}");
            return;
        }
        let pending = messages.irecv(vec![0_u8], 0, 1).unwrap();
        messages.send(&[0_u8], 0, 0).unwrap();
        let error = pending.wait().unwrap_err();
        assert!(matches!(&error, Error::PeerLost { peer, .. } if peer.rank == 0), "{error}");
    });
}

#[test]
fn requests_that_are_given_up_leave_their_buffers() {
    on_ranks(2, |comm| {
        let (messages, other) = (comm.messenger(), 1 - comm.rank());
        let theirs = messages.irecv(vec![7_u8; 10], other, 1).unwrap();
        assert!(!theirs.is_done());
        assert_eq!(theirs.cancel(), Some(vec![7; 10]));
        // A long message whose receive is not posted waits here.
        let mine = messages.isend(vec![1_u8; LONG], other, 2).unwrap();
        assert_eq!(mine.cancel().map(|it| it.len()), Some(LONG));
        comm.barrier().unwrap();
        messages.send(&[comm.rank() as u8], other, 3).unwrap();
        let mut last = [9_u8];
        messages.recv(&mut last, other, Tag::Any).unwrap();
        assert_eq!(last, [other as u8]);
    });
}

#[test]
fn short_messages_wait_for_no_collective_of_their_receiver() {
    const MANY: u32 = 1000;
    on_ranks(2, |comm| {
        let messages = comm.messenger().with_timeout(Duration::from_secs(30));
        // Both have a messenger before the first message.
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            (0..MANY).for_each(|value| messages.send(&[value], 1, 0).unwrap());
            comm.barrier().unwrap();
            return;
        }
        comm.barrier().unwrap();
        for value in 0..MANY {
            let mut got = [0_u32];
            messages.recv(&mut got, 0, 0).unwrap();
            assert_eq!(got, [value]);
        }
    });
}

#[test]
fn a_rank_without_others_left_waits_for_nobody() {
    on_ranks(3, |comm| {
        let messages = comm.messenger();
        if comm.rank() > 0 {
            return;
        }
        for _ in 0..2 {
            let error = messages.probe(Source::Any, Tag::Any).unwrap_err();
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
            let error = messages.recv(&mut [0_u8], Source::Any, Tag::Any).unwrap_err();
            assert!(error.to_string().contains("all other ranks are lost as well"), "{error}");
        }
        assert_eq!(messages.lost(), [1, 2]);
    });
}
