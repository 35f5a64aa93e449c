//! Any call as a value: each collective, in place and out of place, on parts of equal and of
//! different lengths, by each front end; and what is refused.

use harness::on_ranks;
use ringreduce::{
    Algorithm, Buffers, Call, CallOptions, Collective, Communicator, Counts, DataType, ReduceOp,
    Result, Verb,
};

use super::{SUM, message};

/// A front end that makes calls.
type FrontEnd = fn(&mut Communicator, Call<'_>, Buffers<&[u8], &mut [u8]>) -> Result<()>;

const FRONT_ENDS: [(&str, FrontEnd); 3] = [
    ("communicator", |comm, call, buffers| comm.call(&call, buffers)),
    ("queue", |comm, call, buffers| comm.scope(|queue| queue.call(call, buffers).wait().map(drop))),
    ("group", |comm, call, buffers| comm.group(|group| group.call(call, buffers))),
];

/// Element `at` of part `part` that a rank gives.
fn given(rank: usize, part: usize, at: usize) -> u32 {
    (rank * 1_000_003 + part * 1009 + at) as u32
}

fn parts(rank: usize, parts: impl IntoIterator<Item = usize>, count: usize) -> Vec<u32> {
    let part = |part| (0..count).map(move |at| given(rank, part, at));
    parts.into_iter().flat_map(part).collect()
}

/// The data that rank `me` sends, and its result; `None` for a buffer that the call does not write.
fn oracle(
    collective: Collective,
    (me, size): (usize, usize),
    count: usize,
) -> (Vec<u32>, Option<Vec<u32>>) {
    let sum = |ranks: std::ops::Range<usize>, part: usize| -> Vec<u32> {
        let of =
            |at| ranks.clone().fold(0_u32, |sum, rank| sum.wrapping_add(given(rank, part, at)));
        (0..count).map(of).collect()
    };
    let [one, all] = [parts(me, [0], count), parts(me, 0..size, count)];
    let from_all = |part| (0..size).flat_map(|rank| parts(rank, [part], count)).collect();
    match collective {
        Collective::AllReduce => (one, Some(sum(0..size, 0))),
        Collective::ReduceScatter => (all, Some(sum(0..size, me))),
        Collective::AllGather => (one, Some(from_all(0))),
        Collective::AllToAll => (all, Some(from_all(me))),
        Collective::Scan => (one, Some(sum(0..me + 1, 0))),
        Collective::Exscan => (one, (me > 0).then(|| sum(0..me, 0))),
        Collective::Broadcast { root } => (one, Some(parts(root as usize, [0], count))),
        Collective::Reduce { root } => (one, (root as usize == me).then(|| sum(0..size, 0))),
        Collective::Gather { root } => (one, (root as usize == me).then(|| from_all(0))),
        Collective::Scatter { root } => {
            let send = if root as usize == me { all } else { Vec::new() };
            (send, Some(parts(root as usize, [me], count)))
        }
        _ => (Vec::new(), Some(Vec::new())),
    }
}

/// The one buffer of a call in place before the call, and this rank's result in it.
fn in_place(send: &[u32], recv: usize, me: usize) -> (Vec<u32>, std::ops::Range<usize>) {
    if send.len() >= recv {
        let mine = if send.len() > recv && recv > 0 { me * recv..(me + 1) * recv } else { 0..recv };
        return (send.to_vec(), mine);
    }
    let mut buf = vec![7; recv];
    let mine = if send.is_empty() { 0..0 } else { me * send.len()..(me + 1) * send.len() };
    buf[mine].copy_from_slice(send);
    (buf, 0..recv)
}

fn check(comm: &mut Communicator, front_end: FrontEnd, collective: Collective, count: usize) {
    let (me, size) = (comm.rank(), comm.size());
    let (send, want) = oracle(collective, (me, size), count);
    let call = Call::new(collective, DataType::U32).by(SUM);
    let unwritten = vec![7; count];
    let mut recv = vec![7; want.as_ref().map_or(count, Vec::len)];
    let buffers = Buffers::OutOfPlace {
        send: bytemuck::cast_slice(&send),
        recv: bytemuck::cast_slice_mut(&mut recv),
    };
    front_end(comm, call, buffers).unwrap();
    assert_eq!(recv, want.as_deref().unwrap_or(&unwritten), "{collective:?} apart, {count}");
    let written = want.as_ref().map_or(0, Vec::len);
    let (mut buf, mine) = in_place(&send, written, me);
    let before = buf.clone();
    front_end(comm, call, Buffers::InPlace(bytemuck::cast_slice_mut(&mut buf))).unwrap();
    match want {
        Some(want) => assert_eq!(buf[mine], want, "{collective:?} in place, {count}"),
        None => assert_eq!(buf, before, "{collective:?} in place, {count}"),
    }
}

#[test]
fn every_collective_is_right_by_every_front_end_in_place_and_apart() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            for collective in Collective::all(size as u32) {
                for (name, front_end) in FRONT_ENDS {
                    for count in [0, 1, 1000, 70_000] {
                        if count > 1000 && name != "communicator" {
                            continue;
                        }
                        check(comm, front_end, collective, count);
                    }
                }
            }
        });
    }
}

#[test]
fn calls_with_a_root_are_right_by_every_algorithm_in_place_and_apart() {
    on_ranks(4, |comm| {
        let mut made = 0;
        for algorithm in Algorithm::ALL {
            for root in 0..4 {
                let to_root = [Collective::Gather { root }, Collective::Reduce { root }];
                let from_root = [Collective::Scatter { root }, Collective::Broadcast { root }];
                for collective in to_root.into_iter().chain(from_root) {
                    let options = CallOptions::new().algorithm(algorithm);
                    let mut with = comm.with(options);
                    if with.explain(collective, 1, DataType::U32).is_ok() {
                        made += 1;
                        check(&mut with, FRONT_ENDS[0].1, collective, 30_000);
                    }
                }
            }
        }
        assert!(made >= 4 * 4 * 2, "{made} calls");
    });
}

#[test]
fn parts_of_different_lengths_are_those_of_the_verbs() {
    let counts = [3, 0, 1000];
    on_ranks(3, |comm| {
        let (me, total) = (comm.rank(), counts.iter().sum::<usize>());
        let send = parts(me, [0], counts[me]);
        let want: Vec<_> = (0..3).flat_map(|rank| parts(rank, [0], counts[rank])).collect();
        for (_, front_end) in FRONT_ENDS {
            let mut recv = vec![0; total];
            let call = Call::new(Collective::AllGather, DataType::U32).with(Counts::Parts(&counts));
            let (given, got) = (bytemuck::cast_slice(&send), bytemuck::cast_slice_mut(&mut recv));
            front_end(comm, call, Buffers::OutOfPlace { send: given, recv: got }).unwrap();
            assert_eq!(recv, want);
            // Rank a sends b + 1 elements to rank b.
            let (to, from) = ([1, 2, 3], [me + 1; 3]);
            let send: Vec<_> = (0..3).flat_map(|part| parts(me, [part], to[part])).collect();
            let want: Vec<_> = (0..3).flat_map(|rank| parts(rank, [me], me + 1)).collect();
            let mut recv = vec![0; want.len()];
            let pairs = Counts::Pairs { send: &to, recv: &from };
            let call = Call::new(Collective::AllToAll, DataType::U32).with(pairs);
            let (given, got) = (bytemuck::cast_slice(&send), bytemuck::cast_slice_mut(&mut recv));
            front_end(comm, call, Buffers::OutOfPlace { send: given, recv: got }).unwrap();
            assert_eq!(recv, want);
        }
    });
}

/// A barrier looks at no buffer: with any, it is the call that the method makes.
#[test]
fn a_barrier_is_one_call_whatever_its_buffers_are() {
    on_ranks(3, |comm| {
        let barrier = Call::new(Collective::Barrier, DataType::U64);
        for (_, front_end) in FRONT_ENDS {
            for len in [0, 3] {
                let (send, mut recv) = (vec![0; len], vec![0; len]);
                let apart = Buffers::OutOfPlace { send: &send[..], recv: &mut recv[..] };
                match comm.rank() {
                    0 => comm.barrier().unwrap(),
                    1 => front_end(comm, barrier, apart).unwrap(),
                    _ => front_end(comm, barrier, Buffers::InPlace(&mut recv)).unwrap(),
                }
            }
        }
    });
}

#[test]
fn counts_that_no_memory_can_have_are_refused_at_every_rank() {
    on_ranks(2, |comm| {
        // This rank's own entry is right; the other one's can't be.
        let me = comm.rank();
        let counts: [usize; 2] =
            std::array::from_fn(|rank| if rank == me { me } else { usize::MAX });
        let (mine, mut recv) = (vec![0_u64; me], vec![0_u64; me]);
        let given = [
            message(comm.gather_v(&mine, &mut [], &counts, 0)),
            message(comm.scatter_v(&[], &mut recv, &counts, 0)),
        ];
        for text in given {
            assert!(text.contains("counts is "), "{text}");
        }
        if me == 1 {
            let bytes = message(comm.gather_v(&mine, &mut [], &[usize::MAX / 8, 1], 0));
            assert!(bytes.contains("counts is more elements than"), "{bytes}");
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn messages_go_round_by_every_front_end() {
    on_ranks(3, |comm| {
        let (me, next, before) = (comm.rank(), (comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        for (name, front_end) in FRONT_ENDS {
            let mut got = [9];
            let verb = Verb::SendRecv { to: next, from: before };
            let buffers = Buffers::OutOfPlace { send: &[me as u8][..], recv: &mut got[..] };
            front_end(comm, Call::of(verb, DataType::U8), buffers).unwrap();
            assert_eq!(got, [before as u8], "{name}");
            let (send, recv) = (Verb::Send { to: next }, Verb::Recv { from: before });
            let order = if me == 0 { [send, recv] } else { [recv, send] };
            for verb in order {
                let mut byte = [if verb == send { me as u8 + 10 } else { 0 }];
                let call = Call::of(verb, DataType::U8);
                front_end(comm, call, Buffers::InPlace(&mut byte)).unwrap();
                assert!(verb == send || byte == [before as u8 + 10], "{name}");
            }
        }
    });
}

#[test]
fn what_a_call_lacks_or_has_too_much_is_named() {
    on_ranks(2, |comm| {
        let mut buf = [0_u8; 8];
        let mut text = |call: Call<'_>| message(comm.call(&call, Buffers::InPlace(&mut buf)));
        let sum = Call::new(Collective::AllReduce, DataType::U8);
        assert_eq!(text(sum), "all_reduce: op is missing, expected a reduction");
        let avg = Call::new(Collective::Scan, DataType::U8).by(ReduceOp::Avg);
        assert!(text(avg).starts_with("scan: op is avg"), "{}", text(avg));
        let uneven = Call::new(Collective::AllGather, DataType::U8).with(Counts::Parts(&[4, 4]));
        assert!(
            text(uneven).starts_with("all_gather_v: buffers is one buffer"),
            "{}",
            text(uneven)
        );
        let root = Call::new(Collective::Broadcast { root: 2 }, DataType::U8);
        assert_eq!(text(root), "broadcast: root is 2, expected a rank below the size, 2");
        let odd = Call::new(Collective::Gather { root: 0 }, DataType::F64);
        let at = |rank: usize, text: String| (rank, text);
        let given = at(comm.rank(), message(comm.call(&odd, Buffers::InPlace(&mut [0; 12]))));
        assert!(given.1.contains("buf is 12 bytes long, expected a multiple of 8"), "{given:?}");
        let peer = 1 - comm.rank();
        let both = Call::of(Verb::SendRecv { to: peer, from: peer }, DataType::U8);
        let given = message(comm.call(&both, Buffers::InPlace(&mut [0; 8])));
        assert!(given.starts_with("send_recv: buffers is one buffer"), "{given}");
        // No refusal has made a call: the ranks are still in step.
        comm.barrier().unwrap();
    });
}

#[test]
fn counts_and_roots_that_a_call_does_not_have_are_refused() {
    on_ranks(2, |comm| {
        let (peer, mut recv) = (1 - comm.rank(), [0_u8; 8]);
        let mut text = |call: Call<'_>| {
            let buffers = Buffers::OutOfPlace { send: &[0_u8; 8][..], recv: &mut recv[..] };
            message(comm.call(&call, buffers))
        };
        let counts = Counts::Pairs { send: &[4, 4], recv: &[4, 4] };
        for collective in [Collective::AllReduce, Collective::AllGather] {
            let pairs = Call::new(collective, DataType::U8).by(SUM).with(counts);
            assert!(
                text(pairs).contains("counts is given, expected none for pairs"),
                "{}",
                text(pairs)
            );
        }
        for collective in [Collective::AllReduce, Collective::AllToAll, Collective::Scan] {
            let call = Call::new(collective, DataType::U8).by(SUM).with(Counts::Parts(&[4, 4]));
            assert!(text(call).contains("counts is given, expected none: all_g"), "{}", text(call));
        }
        let bad =
            Call::new(Collective::Gather { root: 2 }, DataType::U8).with(Counts::Parts(&[4, 4]));
        assert!(text(bad).starts_with("gather_v: root is 2, expected"), "{}", text(bad));
        for verb in [Verb::Send { to: peer }, Verb::Recv { from: peer }] {
            let call = Call::of(verb, DataType::U8).with(Counts::Parts(&[4, 4]));
            assert!(
                text(call).contains("counts is given, expected none: a message"),
                "{}",
                text(call)
            );
        }
        let most = message(comm.broadcast_bytes(&mut [0; 8], DataType::U8, 1 << 32));
        assert!(most.starts_with("broadcast: root is 4294967295 or more, expected"), "{most}");
        let most = message(comm.gather_object(&1, 1 << 32).map(drop));
        assert!(most.starts_with("gather_object: root is 4294967295 or more"), "{most}");
        // No byte of a broadcast that is refused is copied at the root.
        let (broadcast, mut kept) = (Collective::Broadcast { root: comm.rank() as u32 }, [7; 12]);
        let buffers = Buffers::OutOfPlace { send: &[0_u8; 12][..], recv: &mut kept[..] };
        let given = message(comm.call(&Call::new(broadcast, DataType::F64), buffers));
        assert!(given.contains("send is 12 bytes long, expected a multiple of 8"), "{given}");
        let buffers = Buffers::OutOfPlace { send: &[0_u8; 12][..], recv: &mut kept[..] };
        let direct = CallOptions::new().algorithm(Algorithm::Direct);
        let given = message(comm.with(direct).call(&Call::new(broadcast, DataType::U8), buffers));
        assert!(given.contains("algorithm is direct, expected"), "{given}");
        assert_eq!(kept, [7; 12]);
        // An empty message sends nothing of the other buffer.
        let (send, recv) = (Verb::Send { to: peer }, Verb::Recv { from: peer });
        let order = if comm.rank() == 0 { [send, recv] } else { [recv, send] };
        for verb in order {
            let buffers = match verb == send {
                true => Buffers::OutOfPlace { send: &[][..], recv: &mut [1; 8][..] },
                false => Buffers::InPlace(&mut [][..]),
            };
            comm.call(&Call::of(verb, DataType::U8), buffers).unwrap();
        }
        // No refusal has made a call: the ranks are still in step.
        comm.barrier().unwrap();
    });
}
