//! Calls of many buffers, and groups of several operations: among threads, and among processes over
//! shared memory and TCP.

pub(crate) mod calls;
pub(crate) mod deadlock_freedom;
pub(crate) mod many_buffers;
pub(crate) mod message_programs;
pub(crate) mod options;
pub(crate) mod processes;

use ringreduce::Communicator;

use super::{SUM, message};

/// Element `i` of message number `turn` from rank `from` to rank `to`.
fn sent(from: usize, to: usize, turn: usize, i: usize) -> u32 {
    (from * 1_000_003 + to * 10_007 + turn * 101 + i) as u32
}

/// Makes a group of an all-reduce and messages; `lengths` gives the lengths by sender and receiver.
/// Every rank has an order of its own, receives first.
fn exchange(comm: &mut Communicator, lengths: &dyn Fn(usize, usize) -> Vec<usize>) {
    let (me, n) = (comm.rank(), comm.size());
    let links = |outgoing: bool| {
        let ends = move |peer| if outgoing { (me, peer) } else { (peer, me) };
        (0..n).map(move |at| (at + me) % n).flat_map(move |peer| {
            let (from, to) = ends(peer);
            lengths(from, to).into_iter().enumerate().map(move |(turn, len)| (peer, turn, len))
        })
    };
    let out: Vec<_> = links(true)
        .map(|(to, turn, len)| (to, (0..len).map(|i| sent(me, to, turn, i)).collect::<Vec<u32>>()))
        .collect();
    let mut came: Vec<_> =
        links(false).map(|(from, turn, len)| (from, turn, vec![0_u32; len])).collect();
    let mut all = [me as u64 + 1; 100];
    comm.group(|g| {
        g.all_reduce(&mut all, SUM)?;
        for (from, _, buf) in &mut came {
            g.recv(buf, *from)?;
        }
        out.iter().try_for_each(|(to, buf)| g.send(buf, *to))
    })
    .unwrap();
    for (from, turn, buf) in came {
        let right = buf.iter().enumerate().all(|(i, &it)| it == sent(from, me, turn, i));
        assert!(right, "message {turn} from {from} to {me} of {n}");
    }
    assert_eq!(all, [(n * (n + 1) / 2) as u64; 100]);
}
