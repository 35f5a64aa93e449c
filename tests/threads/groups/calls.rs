//! Groups of messages and collectives: they end in any order of calls, and a wrong argument is
//! refused before a byte moves.

use ringreduce::{DataType, ReduceOp};

use super::{SUM, message};
use harness::ranks::on_ranks;

#[test]
fn cycles_of_messages_end_beside_collectives() {
    for n in [1, 2, 3, 5] {
        on_ranks(n, |comm| {
            let me = comm.rank();
            let (next, before) = ((me + 1) % n, (me + n - 1) % n);
            // The messages are longer than a link holds.
            let (mine, mut theirs, mut all) = (vec![me as u32; 300_000], vec![9; 300_000], [1_u32]);
            let (mut around, mut own) = (vec![9; 5], [0_u8; 3]);
            comm.group(|g| {
                g.all_reduce(&mut all, SUM)?;
                g.send_recv(&mine, next, &mut theirs, before)?;
                g.send_recv(&mine[..5], before, &mut around, next)?;
                g.send_recv(&[7_u8; 3], me, &mut own, me)
            })
            .unwrap();
            assert_eq!((all, own), ([n as u32], [7; 3]));
            assert_eq!((theirs, around), (vec![before as u32; 300_000], vec![next as u32; 5]));
        });
    }
    // A message to the rank itself may be received anywhere in the group, and must be.
    on_ranks(3, |comm| {
        let (me, next) = (comm.rank(), (comm.rank() + 1) % 3);
        let (mine, mut own, mut theirs) = ([me as u32; 2], [9; 2], [9_u32; 2]);
        comm.group(|g| {
            g.send_recv(&mine, me, &mut theirs, (me + 2) % 3)?;
            g.recv(&mut own, me)?;
            g.send(&mine, next)
        })
        .unwrap();
        assert_eq!((own, theirs), (mine, [((me + 2) % 3) as u32; 2]));
        let text = message(comm.group(|g| g.send_recv(&mine, me, &mut theirs, next)));
        assert!(
            text.starts_with("group: recv is missing, expected as its send: 8 bytes"),
            "{text}"
        );
        let text = message(comm.group(|g| g.send_recv(&mine, me, &mut theirs[..1], me)));
        assert!(text.starts_with("group: recv is 4 bytes of uint32, expected as its"), "{text}");
        let text = message(comm.group(|g| {
            // A refused call that the group ignores leaves no half behind.
            let refused = g.send_recv(&mine, next, &mut theirs, 3);
            assert!(message(refused).starts_with("send_recv: from is 3"));
            g.send_recv(&mine, 3, &mut own, next)
        }));
        assert!(text.starts_with("send_recv: to is 3, expected a rank below"), "{text}");
        comm.group(|g| g.send_recv(&mine, next, &mut theirs, 3).or(Ok(()))).unwrap();
        comm.barrier().unwrap();
    });
}

#[test]
fn messages_of_a_group_match_single_sends_and_receives() {
    on_ranks(3, |comm| {
        let (mut long, mut short) = (vec![0_u32; 200_000], [0_f64; 3]);
        match comm.rank() {
            0 => comm.group(|g| {
                g.recv(&mut short, 1)?;
                g.send(&[5_u32; 200_000], 1)?;
                g.send(&[6_u32; 200_000], 1)?;
                g.send(&[1.5_f64; 3], 1)
            }),
            1 => {
                let result = comm.send(&[2.5_f64; 3], 0).and_then(|()| comm.recv(&mut long, 0));
                assert_eq!(long, [5; 200_000]);
                let result = result.and_then(|()| comm.recv(&mut long, 0));
                assert_eq!(long, [6; 200_000]);
                result.and_then(|()| comm.recv(&mut short, 0))
            }
            _ => Ok(()),
        }
        .unwrap();
        assert_eq!(short, [[2.5; 3], [1.5; 3], [0.0; 3]][comm.rank()]);
        comm.barrier().unwrap();
    });
}

#[test]
fn one_group_may_hold_every_collective() {
    on_ranks(3, |comm| {
        let (me, n) = (comm.rank() as u32 + 1, 3);
        let (mine, ones) = ([me; 3], [1; 3]);
        let ([mut a, mut b, mut c, mut d], mut one) = ([mine; 4], [[0_u32; 1]; 4]);
        let (mut gathered, mut all, mut exchanged) = ([0; 3], [0; 3], [me, me, me]);
        let (mut scan, mut earlier, mut cast) = ([me], [me], [me; 9]);
        let [into, by_part, counted, part] = &mut one;
        comm.group(|g| {
            g.all_reduce(&mut a, SUM)?;
            g.reduce(&mut b, SUM, 1)?;
            g.reduce_scatter(&mine, by_part, SUM)?;
            g.reduce_scatter_v(&mine, counted, &ones, SUM)?;
            g.all_reduce_into(&mine[..1], into, ReduceOp::Max)?;
            g.all_gather(&mine[..1], &mut gathered)?;
            g.all_gather_v(&mine[..1], &mut all, &ones)?;
            g.scatter(&[7, 8, 9], part, 2)?;
            g.all_to_all_in_place(&mut exchanged)?;
            g.scan(&mut scan, SUM)?;
            g.exscan(&mut earlier, SUM)?;
            g.broadcast(&mut cast, 2)?;
            g.all_to_all_v(&mine, &ones, &mut c, &ones)?;
            g.barrier()?;
            g.all_reduce(&mut d, SUM)
        })
        .unwrap();
        assert_eq!((a, d, c), ([6; 3], [6; 3], [1, 2, 3]));
        assert_eq!(b, if me == 2 { [6; 3] } else { mine });
        assert_eq!(one, [[3], [6], [6], [6 + me]]);
        assert_eq!((gathered, all, exchanged), ([1, 2, 3], [1, 2, 3], [1, 2, 3]));
        let before = me * (me - 1) / 2;
        assert_eq!(scan, [before + me]);
        assert_eq!(earlier, [if me == 1 { 1 } else { before }]);
        assert_eq!(cast, [n; 9]);
    });
}

#[test]
fn a_group_with_a_wrong_argument_is_refused_before_a_byte_moves() {
    on_ranks(3, |comm| {
        let (me, next) = (comm.rank(), (comm.rank() + 1) % 3);
        let (mut buf, mut five, mut real) = ([me as u32; 4], [7_u32; 5], [0.5_f32]);
        let text = message(comm.group(|g| {
            g.send(&[1_u32; 4], next)?;
            g.all_reduce(&mut buf, SUM)?;
            g.all_gather(&[1_u32; 2], &mut five)
        }));
        assert_eq!(text, "all_gather: recv is 20 bytes long, expected 24 bytes, size x send");
        let text = message(comm.group(|g| {
            g.all_reduce(&mut buf, SUM)?;
            g.broadcast(&mut five, 3)
        }));
        assert_eq!(text, "broadcast: root is 3, expected a rank below the size, 3");
        let text = message(comm.group(|g| g.all_reduce(&mut real, ReduceOp::BitXor)));
        assert!(text.starts_with("all_reduce: op is bxor of float"), "{text}");
        let text = message(comm.group(|g| g.send(&[1_u8], 3)));
        assert!(text.starts_with("send: to is 3, expected a rank below the size, 3"), "{text}");
        let text = message(comm.group(|g| {
            g.send(&[1_u32; 4], next)?;
            g.send(&[1_u32; 4], me)
        }));
        let both = format!("this rank, {me}, is both ends");
        let expected = format!("expected as its send: 16 bytes of uint32; {both}");
        assert_eq!(text, format!("group: recv is missing, {expected}"));
        let text = message(comm.group(|g| {
            g.send(&[1_u32; 4], me)?;
            g.recv(&mut five, me)
        }));
        assert_eq!(text, format!("group: recv is 20 bytes of uint32, {expected}"));
        let text = message(comm.group(|g| g.recv(&mut five, me)));
        assert!(text.starts_with("group: recv is 20 bytes of uint32, expected"), "{text}");
        // The caller's closure may fail by itself.
        let text = message(comm.group(|g| {
            g.all_reduce(&mut buf, SUM)?;
            Ok("mine".parse::<DataType>().map(drop)?)
        }));
        assert!(text.starts_with("unknown data type `mine`"), "{text}");
        assert_eq!((buf, five), ([me as u32; 4], [7; 5]));
        // No message was sent, and ranks are in step.
        let nothing = comm.group(|_| Ok(5)).unwrap();
        comm.all_reduce(&mut buf, SUM).unwrap();
        assert_eq!((nothing, buf), (5, [3; 4]));
    });
}

#[test]
fn a_group_of_too_many_messages_is_refused_before_one_of_them_goes() {
    on_ranks(2, |comm| {
        let other = 1 - comm.rank();
        let (sent, mut received) = ([7_u8; 4097], [0_u8; 4097]);
        let refused = comm.group(|g| {
            for (from, to) in sent.chunks(1).zip(received.chunks_mut(1)) {
                g.send(from, other)?;
                g.recv(to, other)?;
            }
            Ok(())
        });
        let text = message(refused);
        assert!(text.contains("4096 pending ones") && text.contains("rank"), "{text}");
        assert_eq!(received, [0; 4097]);
        comm.send_recv(&[comm.rank() as u32], other, &mut [0_u32], other).unwrap();
    });
}
