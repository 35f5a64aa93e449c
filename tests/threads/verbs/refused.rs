//! What does not fit is refused before a byte moves, with argument, expected and given; and what
//! two ranks mean differently is a mismatch.

use ringreduce::{Algorithm, CallOptions, DataType, Error, ReduceOp};

use super::rank::SUM;
use harness::on_ranks;

pub(super) fn message(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arguments_that_do_not_fit_are_named_and_harmless() {
    on_ranks(3, |comm| {
        let me = comm.rank();
        let (mut four, mut six) = ([0_i32; 4], [0_i32; 6]);
        let says = message(comm.reduce(&mut four, SUM, 3));
        assert_eq!(says, "reduce: root is 3, expected a rank below the size, 3");
        let says = message(comm.reduce_into(&four, &mut six, SUM, me));
        assert_eq!(says, "reduce: recv is 24 bytes long, expected 16 bytes, as send");
        let says = message(comm.gather(&four, &mut six, me));
        assert_eq!(says, "gather: recv is 24 bytes long, expected 48 bytes, size x send");
        let says = message(comm.scatter(&four, &mut six, me));
        assert_eq!(says, "scatter: send is 16 bytes long, expected 72 bytes, size x recv");
        let says = message(comm.all_to_all(&four, &mut six));
        assert_eq!(says, "all_to_all: send is 4 elements long, expected a multiple of the size, 3");
        let says = message(comm.all_to_all(&six, &mut four));
        assert_eq!(says, "all_to_all: recv is 16 bytes long, expected 24 bytes, as send");
        let says = message(comm.scan(&mut four, ReduceOp::Avg));
        assert!(says.starts_with("scan: op is avg, expected another operation"), "{says}");
        let says = message(comm.all_gather_v(&four, &mut six, &[4, 2]));
        let each = "expected 3, one for each rank";
        assert_eq!(says, format!("all_gather_v: counts is 2 numbers long, {each}"));
        let mut counts = [1; 3];
        counts[me] = 3;
        let says = message(comm.all_gather_v(&four, &mut six, &counts));
        let expected = format!("expected 3, what counts says of rank {me}");
        assert_eq!(says, format!("all_gather_v: send is 4 elements long, {expected}"));
        counts[me] = 4;
        counts[(me + 1) % 3] = usize::MAX;
        let says = message(comm.all_gather_v(&four, &mut six, &counts));
        let given = "more than there is address space elements together";
        assert_eq!(
            says,
            format!("all_gather_v: counts is {given}, expected 6, the length of recv")
        );
        let says = message(comm.all_to_all_v(&four, &[1, 1, 1], &mut six, &[2, 2, 2]));
        let given = "send_counts is 3 elements together";
        assert_eq!(says, format!("all_to_all_v: {given}, expected 4, the length of send"));
        let mut gets = [0; 3];
        gets[(me + 1) % 3] = 6;
        let mut gives = [0; 3];
        gives[me] = 4;
        let says = message(comm.all_to_all_v(&four, &gives, &mut six, &gets));
        let given = "recv_counts is 0 for this rank itself";
        assert_eq!(says, format!("all_to_all_v: {given}, expected 4, as send_counts"));
        let (odd, dtype) = ([0; 7], DataType::F32);
        let says = message(comm.reduce_scatter_v_bytes(&odd, &mut [0; 4], &[1; 3], dtype, SUM));
        let odd = "send is 7 bytes long, expected a multiple of 4, the size of float";
        assert_eq!(says, format!("reduce_scatter_v: {odd}"));
        let says = message(comm.send(&four, me));
        let other = format!("a rank below the size, 3, and not this one, {me}");
        assert_eq!(says, format!("send: to is {me}, expected {other}"));
        let says = message(comm.send_recv(&four, me, &mut six, me));
        assert!(says.starts_with("send_recv: recv is 24 bytes long, expected 16 bytes"), "{says}");
        comm.barrier().unwrap();
    });
}

/// Both ends must mean the same: the receiver says so before its buffer is touched.
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
            let want = "the message is 32 bytes of uint32 there, 36 bytes of uint32 here";
            assert!(error.contains(want), "{error}");
            assert_eq!(long, [7; 9]);
        }
    });
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 1).unwrap();
        } else {
            let error = comm.recv(&mut [0_f32; 8], 0).unwrap_err().to_string();
            let want = "the message is 32 bytes of uint32 there, 32 bytes of float here";
            assert!(error.contains(want), "{error}");
        }
    });
    // Sent before the barrier and received after it, though the barrier does not use this link.
    on_ranks(4, |comm| {
        // The first collective may measure the links, and would meet what lies there.
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 2).unwrap();
        }
        comm.with(CallOptions::new().algorithm(Algorithm::Ring)).barrier().unwrap();
        if comm.rank() == 2 {
            let error = comm.recv(&mut [0_u32; 8], 0).unwrap_err();
            assert!(matches!(error, Error::Mismatch { field: "sequence", .. }), "{error}");
            let want = "that of a message after call #1 there, that of a message after call #2";
            assert!(error.to_string().contains(want), "{error}");
        }
    });
    // Of a part that is longer than the other end says, not even the start is taken.
    on_ranks(2, |comm| {
        let [here, there] = if comm.rank() == 0 { [100_000, 0] } else { [0, 90_000] };
        let counts = [there, here];
        let (long, mut recv) = (vec![1_u8; here + there], vec![7_u8; here + there]);
        let error = comm.all_to_all_v(&long, &counts, &mut recv, &counts).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
        assert!(recv.iter().all(|&byte| byte == 7));
    });
}

/// Two ranks that differ over what one gives the other, were it nothing at all: the one that gets
/// it says so in this very call, and the other has lost it in the next one at the latest.
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
            let differs = matches!(&errors[1], Some(Error::Mismatch { ranks, at, .. })
                if ranks[0].rank == 0 && at.operation == "all_to_all_v");
            assert!(differs, "{given} for {expected}: {:?}", errors[1]);
            assert!(errors[0].is_some() && errors[2].is_some(), "{given} for {expected}");
        }
    }
}

/// What all ranks must say alike is compared even where the parts that differ go past a rank.
#[test]
fn other_counts_of_other_ranks_are_a_mismatch_too() {
    let errors = on_ranks(3, |comm| {
        let (me, counts) = (comm.rank(), [1, 2, 3 + usize::from(comm.rank() == 1)]);
        let send = vec![1_u8; [1, 2, 3][me]];
        let mut recv = vec![7_u8; if me == 0 { 6 } else { 0 }];
        let error = comm.gather_v(&send, &mut recv, &counts, 0).err();
        error.filter(|_| me == 0)
    });
    assert!(matches!(&errors[0], Some(Error::Mismatch { .. })), "{:?}", errors[0]);
    // And where one rank has nothing to give but another one is told so much of it.
    for (mine, told) in [(0, 5), (5, 0)] {
        let errors = on_ranks(2, |comm| {
            let counts = [1, if comm.rank() == 1 { mine } else { told }];
            let mut recv = vec![7_u8; 1 + told];
            comm.gather_v(&vec![1; counts[comm.rank()]], &mut recv, &counts, 0).err()
        });
        assert!(matches!(&errors[0], Some(Error::Mismatch { .. })), "{:?}", errors[0]);
    }
}
