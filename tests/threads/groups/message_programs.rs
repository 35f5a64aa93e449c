//! Programs of messages, some in groups and some single, that end even if every send waits for its
//! receiver: here they end for all lengths.

use ringreduce::sim::Random;
use ringreduce::{Communicator, Error};

use super::sent;
use harness::ranks::on_ranks;

/// One message of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) outgoing: bool,
    pub(crate) peer: usize,
    /// The number of the message in the program.
    pub(crate) number: usize,
    pub(crate) len: usize,
}

/// The calls of each rank, in order; a call of several messages is a group.
pub(crate) type Program = Vec<Vec<Vec<Part>>>;

/// A program of messages (from, to, length), in an order in which they could be sent one by one.
/// `merge` gives the number of messages of a rank's next call.
fn program(
    n: usize,
    messages: &[(usize, usize, usize)],
    mut merge: impl FnMut(usize) -> usize,
) -> Program {
    let part = |me: usize, number: usize| {
        let (from, to, len) = messages[number];
        let outgoing = from == me;
        Part { outgoing, peer: if outgoing { to } else { from }, number, len }
    };
    let rank = |me| {
        let own = |&number: &usize| messages[number].0 == me || messages[number].1 == me;
        let mut own = (0..messages.len()).filter(own).map(|number| part(me, number)).peekable();
        let mut calls = Vec::new();
        while own.peek().is_some() {
            let mut call: Vec<Part> = own.by_ref().take(merge(me)).collect();
            // Receives come first in a group.
            call.sort_by_key(|part| part.outgoing);
            calls.push(call);
        }
        calls
    };
    (0..n).map(rank).collect()
}

/// Messages between random pairs: in groups of up to four or, with some seeds, all in one group of
/// each rank.
pub(crate) fn random(n: usize, seed: u64, lengths: &[usize]) -> Program {
    let mut random = Random::new(seed);
    let messages: Vec<_> = (0..12 * n)
        .map(|_| {
            let from = random.below(n);
            let to = (from + 1 + random.below(n - 1)) % n;
            (from, to, lengths[random.below(lengths.len())])
        })
        .collect();
    let is_one_group = seed.is_multiple_of(3);
    program(n, &messages, |_| if is_one_group { usize::MAX } else { 1 + random.below(4) })
}

/// Programs in which one rank has a group where others make single calls; each message has `len`
/// elements.
pub(crate) fn named(len: usize) -> Vec<(&'static str, Program)> {
    let there = (0, 1, len);
    let back = (1, 0, len);
    let relay = [there, (1, 2, len), (2, 0, len)];
    let twice = [there, there, (1, 2, len), (2, 0, len)];
    let at_once = |rank| move |me| if me == rank { 9 } else { 1 };
    vec![
        ("at once, against recv and send", program(2, &[there, back], at_once(0))),
        ("at once, against send and recv", program(2, &[back, there], at_once(0))),
        ("a relay", program(3, &relay, at_once(0))),
        ("a relay of two on one link", program(3, &twice, at_once(0))),
        ("a group against two", program(2, &[there, back, there, back], |me| 4 - 2 * me)),
        ("everybody at once", program(3, &relay, |_| 9)),
    ]
}

/// Makes this rank's calls of `program` and checks the received messages.
fn follow(comm: &mut Communicator, what: &str, program: &Program) {
    let me = comm.rank();
    let ends = |part: &Part| if part.outgoing { (me, part.peer) } else { (part.peer, me) };
    let value = |part: &Part, i| {
        let (from, to) = ends(part);
        sent(from, to, part.number, i)
    };
    for call in program.get(me).into_iter().flatten() {
        let mut buffers: Vec<Vec<u32>> = call
            .iter()
            .map(|part| (0..part.len).map(|i| value(part, i) * u32::from(part.outgoing)).collect())
            .collect();
        let done = match (&call[..], &mut buffers[..]) {
            ([one], [buf]) if one.outgoing => comm.send(buf, one.peer),
            ([one], [buf]) => comm.recv(buf, one.peer),
            ([got, given], [into, from]) if !got.outgoing && given.outgoing => {
                comm.send_recv(from, given.peer, into, got.peer)
            }
            _ => comm.group(|g| {
                call.iter().zip(&mut buffers).try_for_each(|(part, buf)| {
                    if part.outgoing { g.send(buf, part.peer) } else { g.recv(buf, part.peer) }
                })
            }),
        };
        done.unwrap_or_else(|error: Error| unreachable!("{what}, rank {me}: {error}"));
        for (part, buf) in call.iter().zip(&buffers) {
            let right = buf.iter().enumerate().all(|(i, &it)| it == value(part, i));
            assert!(right, "{what}: {part:?} at rank {me}");
        }
    }
}

/// Makes all programs in a world of at least three ranks.
pub(crate) fn follow_all(comm: &mut Communicator) {
    for len in [0, 1, 250_000, 750_000, 7_500_000] {
        for (what, program) in named(len) {
            follow(comm, what, &program);
        }
    }
    for seed in 0..6 {
        let lengths = [0, 1, 1000, 17_000, 60_000, 300_000];
        let program = random(comm.size(), seed, &lengths);
        follow(comm, &format!("random {seed}"), &program);
    }
    comm.barrier().unwrap();
}

#[test]
fn programs_of_messages_end_among_threads() {
    on_ranks(3, follow_all);
    for n in [2, 5, 9] {
        on_ranks(n, |comm| {
            for seed in 0..10 {
                let program = random(n, seed, &[0, 1, 1000, 17_000, 60_000, 300_000]);
                follow(comm, &format!("random {seed} of {n}"), &program);
            }
        });
    }
}
