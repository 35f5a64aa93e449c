//! A wrong argument is refused before a byte moves, and the error names it with its value and the
//! expected one; arguments that differ between ranks are a mismatch.

use std::time::Duration;

use ringreduce::{CallOptions, Communicator, DataType, Error, ReduceOp};

use super::{SUM, message};
use harness::on_ranks;

#[test]
fn arguments_that_do_not_fit_are_named_and_harmless() {
    on_ranks(3, |comm| {
        let me = comm.rank();
        let (mut four, mut five, mut six) = ([0_i32; 4], [0_i32; 5], [0_i32; 6]);
        let text = message(comm.all_reduce_into(&four, &mut five, ReduceOp::Sum));
        assert_eq!(text, "all_reduce: recv is 20 bytes long, expected 16 bytes, as send");
        let text = message(comm.reduce_scatter(&four, &mut five, ReduceOp::Sum));
        assert_eq!(text, "reduce_scatter: send is 16 bytes long, expected 60 bytes, size x recv");
        let text = message(comm.all_gather(&four, &mut five));
        assert_eq!(text, "all_gather: recv is 20 bytes long, expected 48 bytes, size x send");
        let text = message(comm.all_gather_in_place(&mut five));
        assert_eq!(text, "all_gather: buf is 5 elements long, expected a multiple of the size, 3");
        let text = message(comm.broadcast(&mut four, 3));
        assert_eq!(text, "broadcast: root is 3, expected a rank below the size, 3");
        let mut odd = [0_u8; 7];
        let text = message(comm.all_reduce_bytes(&mut odd, DataType::F32, ReduceOp::Sum));
        assert!(text.contains("buf is 7 bytes long, expected a multiple of 4"), "{text}");
        let text = message(comm.reduce(&mut four, SUM, 3));
        assert_eq!(text, "reduce: root is 3, expected a rank below the size, 3");
        let text = message(comm.reduce_into(&four, &mut six, SUM, me));
        assert_eq!(text, "reduce: recv is 24 bytes long, expected 16 bytes, as send");
        let text = message(comm.gather(&four, &mut six, me));
        assert_eq!(text, "gather: recv is 24 bytes long, expected 48 bytes, size x send");
        let text = message(comm.scatter(&four, &mut six, me));
        assert_eq!(text, "scatter: send is 16 bytes long, expected 72 bytes, size x recv");
        let text = message(comm.all_to_all(&four, &mut six));
        assert_eq!(text, "all_to_all: send is 4 elements long, expected a multiple of the size, 3");
        let text = message(comm.all_to_all(&six, &mut four));
        assert_eq!(text, "all_to_all: recv is 16 bytes long, expected 24 bytes, as send");
        let text = message(comm.scan(&mut four, ReduceOp::Avg));
        assert!(text.starts_with("scan: op is avg, expected another operation"), "{text}");
        let text = message(comm.all_gather_v(&four, &mut six, &[4, 2]));
        let each = "expected 3, one for each rank";
        assert_eq!(text, format!("all_gather_v: counts is 2 numbers long, {each}"));
        let mut counts = [1; 3];
        counts[me] = 3;
        let text = message(comm.all_gather_v(&four, &mut six, &counts));
        let expected = format!("expected 3, the entry of rank {me} in counts");
        assert_eq!(text, format!("all_gather_v: send is 4 elements long, {expected}"));
        counts[me] = 4;
        counts[(me + 1) % 3] = usize::MAX;
        let text = message(comm.all_gather_v(&four, &mut six, &counts));
        let given = "more elements than the address space has";
        assert_eq!(
            text,
            format!("all_gather_v: counts is {given}, expected 6, the length of recv")
        );
        let text = message(comm.all_to_all_v(&four, &[1, 1, 1], &mut six, &[2, 2, 2]));
        let given = "send_counts is 3 elements in all";
        assert_eq!(text, format!("all_to_all_v: {given}, expected 4, the length of send"));
        let mut gets = [0; 3];
        gets[(me + 1) % 3] = 6;
        let mut gives = [0; 3];
        gives[me] = 4;
        let text = message(comm.all_to_all_v(&four, &gives, &mut six, &gets));
        let given = "recv_counts is 0 for this rank itself";
        assert_eq!(text, format!("all_to_all_v: {given}, expected 4, as send_counts"));
        let (odd, dtype) = ([0; 7], DataType::F32);
        let text = message(comm.reduce_scatter_v_bytes(&odd, &mut [0; 4], &[1; 3], dtype, SUM));
        let odd = "send is 7 bytes long, expected a multiple of 4, the size of float";
        assert_eq!(text, format!("reduce_scatter_v: {odd}"));
        let text = message(comm.send(&four, me));
        let other = format!("a rank below the size, 3, and not this one, {me}");
        assert_eq!(text, format!("send: to is {me}, expected {other}"));
        let text = message(comm.send_recv(&four, me, &mut six, me));
        assert!(text.starts_with("send_recv: recv is 24 bytes long, expected 16 bytes"), "{text}");
        comm.barrier().unwrap();
    });
    assert!(Communicator::local(0).is_err());
}

/// The receiver reports a difference before its buffer is written.
#[test]
fn a_message_of_another_length_or_type_is_a_mismatch() {
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 1).unwrap();
            comm.send(&[1_u32; 8], 1).unwrap();
        } else {
            let mut right = [0_u32; 8];
            comm.recv(&mut right, 0).unwrap();
            assert_eq!(right, [1; 8]);
            let mut long = [7_u32; 9];
            let error = comm.recv(&mut long, 0).unwrap_err().to_string();
            let want = "the length is 32 bytes there, 36 bytes here";
            assert!(error.contains(want), "{error}");
            assert_eq!(long, [7; 9]);
        }
    });
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 1).unwrap();
        } else {
            let error = comm.recv(&mut [0_f32; 8], 0).unwrap_err().to_string();
            let want = "the type is uint32 there, float here";
            assert!(error.contains(want), "{error}");
        }
    });
    // A message may be received after a collective before which it was sent.
    on_ranks(4, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 2).unwrap();
        }
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            let mut buf = [0; 8];
            comm.recv(&mut buf, 0).unwrap();
            assert_eq!(buf, [1_u32; 8]);
        }
        comm.barrier().unwrap();
    });
    // A rank waits for a message of another one, which waits for it in a collective.
    on_ranks(2, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            let hurried = CallOptions::new().timeout(Duration::from_millis(20));
            let error = loop {
                match comm.with(hurried.clone()).recv(&mut [0_u32; 8], 1).unwrap_err() {
                    // The other rank has not come to the collective yet.
                    Error::Timeout { .. } => {}
                    error => break error,
                }
            };
            let Error::Stalled { peer, state, .. } = &error else { panic!("{error}") };
            assert_eq!(peer.rank, 1, "{error}");
            assert_eq!(state.to_string(), "is in call #2, which this rank has not made");
        }
        comm.barrier().unwrap();
    });
    // A block that is longer than the receiver expects is not written at all.
    on_ranks(2, |comm| {
        let [here, there] = if comm.rank() == 0 { [100_000, 0] } else { [0, 90_000] };
        let counts = [there, here];
        let (long, mut recv) = (vec![1_u8; here + there], vec![7_u8; here + there]);
        let error = comm.all_to_all_v(&long, &counts, &mut recv, &counts).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
        assert!(recv.iter().all(|&byte| byte == 7));
    });
}

/// Two ranks disagree over the length of a block, which may be empty: the receiver reports it in
/// the same call, and the sender loses the receiver in the next call at the latest.
#[test]
fn counts_that_disagree_are_a_mismatch_where_they_are_received() {
    let pairs = [(5, 0), (0, 5), (0, 1), (5, 6), (90_000, 0), (0, 90_000)];
    for (given, expected) in pairs {
        for others in [0, 3] {
            let errors = on_ranks(3, |comm| {
                let (mut gives, mut gets) = ([others; 3], [others; 3]);
                match comm.rank() {
                    0 => gives[1] = given,
                    1 => gets[0] = expected,
                    _ => {}
                }
                let send = vec![1_u8; gives.iter().sum()];
                let mut recv = vec![7_u8; gets.iter().sum()];
                let error = comm.all_to_all_v(&send, &gives, &mut recv, &gets).err();
                let from_0 = &recv[..if comm.rank() == 1 { expected } else { 0 }];
                assert!(from_0.iter().all(|&byte| byte == 7));
                error.or_else(|| comm.all_reduce(&mut [1_u8], SUM).err())
            });
            let is_mismatch = matches!(&errors[1], Some(Error::Mismatch { ranks, at, .. })
                if ranks[0].rank == 0 && at.operation == "all_to_all_v");
            assert!(is_mismatch, "{given} for {expected}: {:?}", errors[1]);
            assert!(errors[0].is_some() && errors[2].is_some(), "{given} for {expected}");
        }
    }
}

/// Counts are compared even where a rank neither sends nor receives the blocks that differ.
#[test]
fn counts_that_differ_for_other_ranks_are_a_mismatch() {
    let errors = on_ranks(3, |comm| {
        let (me, counts) = (comm.rank(), [1, 2, 3 + usize::from(comm.rank() == 1)]);
        let send = vec![1_u8; [1, 2, 3][me]];
        let mut recv = vec![7_u8; if me == 0 { 6 } else { 0 }];
        let error = comm.gather_v(&send, &mut recv, &counts, 0).err();
        error.filter(|_| me == 0)
    });
    assert!(matches!(&errors[0], Some(Error::Mismatch { .. })), "{:?}", errors[0]);
    // One rank has an empty block where the root expects elements, or the other way round.
    for (mine, expected) in [(0, 5), (5, 0)] {
        let errors = on_ranks(2, |comm| {
            let counts = [1, if comm.rank() == 1 { mine } else { expected }];
            let mut recv = vec![7_u8; 1 + expected];
            comm.gather_v(&vec![1; counts[comm.rank()]], &mut recv, &counts, 0).err()
        });
        assert!(matches!(&errors[0], Some(Error::Mismatch { .. })), "{:?}", errors[0]);
    }
}
