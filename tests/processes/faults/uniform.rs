//! Uniform calls: whichever rank dies at any time, the same calls succeed at all survivors, and a
//! failed call can be repeated on the same buffer.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use ringreduce::{CallOptions, Communicator, DataType, Error, FoldOrder, ReduceOp};

use super::Links;
use harness::processes::{Process, World, this_builder};

/// The prefix of the line by which a rank reports its successful calls.
const REPORT: &str = "successful calls ";
const LONG: Duration = Duration::from_secs(20);
/// Elements of a call of one slot, and of many slots.
const LENGTHS: [usize; 2] = [3, 60_000];

fn member() -> Option<Communicator> {
    let (builder, ..) = this_builder()?;
    let mut comm = builder.uniform(true).retry_safe(true).build().unwrap();
    comm.set_timeout(LONG);
    Some(comm)
}

/// A rank's contribution; the sum shows the contributors.
fn own(rank: usize, len: usize) -> Vec<u64> {
    vec![1_u64 << (8 * rank); len]
}

/// Makes calls until one fails: the number of successful ones, the buffer of the failed one, and
/// its error.
fn work(comm: &mut Communicator) -> (usize, Vec<u64>, Error) {
    let (n, me) = (comm.size(), comm.rank());
    let all: u64 = (0..n).map(|rank| 1 << (8 * rank)).sum();
    for round in 0.. {
        let mut buf = own(me, LENGTHS[usize::from(round % 4 == 0)]);
        if let Err(error) = comm.all_reduce(&mut buf, ReduceOp::Sum) {
            return (round, buf, error);
        }
        assert!(buf.iter().all(|&it| it == all), "round {round}");
        if round == 1 {
            // An agreement among uniform calls.
            comm.agree(0, LONG).unwrap();
        }
        if round == 3 {
            Process::works();
        }
    }
    unreachable!()
}

/// A process: a rank that works until a peer is killed, and goes on without it.
pub(crate) fn survivor() {
    let Some(mut comm) = member() else { return };
    let me = comm.rank();
    let (rounds, mut buf, error) = work(&mut comm);
    let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
    assert!(buf == own(me, buf.len()), "a failed call has changed its input");
    let mut rest = comm.shrink(LONG).unwrap();
    // The survivors repeat the failed call.
    rest.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    eprintln!("{REPORT}{rounds} then {:x} of {} without {}", buf[0], buf.len(), peer.rank);
}

/// Kills a rank in or between calls, in a world where the ranks have links between all pairs or few
/// links; every survivor must report the same.
fn check_survivors(n: usize, transport: &'static str, trials: usize, links: Links) {
    for trial in 0..trials {
        let mut world =
            World::start("faults::uniform::survivor", n, transport, |_| links.settings());
        world.is_at_work();
        std::thread::sleep(Duration::from_micros(harness::share::random_range(0..20_000)));
        let victim = world.0.remove(trial % n);
        victim.kill();
        let line =
            |lines: String| lines.lines().find(|it| it.starts_with(REPORT)).unwrap().to_owned();
        let reports: Vec<_> = world.succeeds(transport).into_iter().map(line).collect();
        let left: u64 = (0..n).filter(|&rank| rank != trial % n).map(|rank| 1 << (8 * rank)).sum();
        assert!(reports.iter().all(|it| *it == reports[0]), "{reports:#?}");
        assert!(reports[0].contains(&format!("then {left:x} of")), "{}", reports[0]);
        assert!(reports[0].ends_with(&format!("without {}", trial % n)), "{}", reports[0]);
    }
}

#[test]
fn calls_on_one_host_succeed_at_all_survivors_or_at_none() {
    check_survivors(2, "shm", 2, Links::AllPairs);
    check_survivors(3, "shm", 6, Links::AllPairs);
    check_survivors(4, "shm", 8, Links::AllPairs);
}

#[test]
fn calls_over_tcp_succeed_at_all_survivors_or_at_none() {
    check_survivors(3, "tcp", 6, Links::AllPairs);
    check_survivors(4, "tcp", 4, Links::AllPairs);
}

#[test]
fn calls_succeed_at_all_survivors_or_at_none_without_links_between_all_pairs() {
    check_survivors(6, "shm", 3, Links::Few);
    check_survivors(7, "tcp", 3, Links::Few);
}

/// A process: rank 1 makes its agreement late, and rank 2 is stopped while it waits for that one.
pub(crate) fn suspects() {
    let Some(mut comm) = member() else { return };
    let me = comm.rank();
    comm.barrier().unwrap();
    if me == 1 {
        raise(Signal::SIGSTOP).unwrap();
    }
    // Rank 0 first says after 5 seconds for whom it waits.
    assert_eq!(comm.agree(3, 3 * LONG).unwrap(), 3);
    let error = comm.all_reduce(&mut own(me, 3), ReduceOp::Sum).unwrap_err();
    let names_it = |error: &Error| matches!(error, Error::PeerLost { peer, .. } if peer.rank == 2);
    assert!(me == 2 || names_it(&error), "{error}");
    match (me, comm.shrink(LONG)) {
        (0 | 1, Ok(mut two)) => two.barrier().unwrap(),
        (2, Err(Error::Evicted { .. })) => return,
        (_, other) => panic!("{other:?}"),
    }
    Process::works();
    // Rank 2 learns of its eviction from living peers.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn no_call_succeeds_after_an_agreement_that_gave_a_rank_up() {
    if !harness::share::makes_test(3) {
        return;
    }
    let transport = ["shm", "tcp"][harness::share::random_range(0..2)];
    let mut world = World::start("faults::uniform::suspects", 3, transport, |_| Vec::new());
    // Rank 0 says this while it has the call of rank 2.
    let until = Instant::now() + 3 * LONG;
    while !world.0[0].next_line(until).unwrap().contains("in agree for rank 1,") {}
    world.0[2].signal(Signal::SIGSTOP);
    world.0[1].signal(Signal::SIGCONT);
    world.0[..2].iter_mut().for_each(Process::is_at_work);
    world.0[2].signal(Signal::SIGCONT);
    world.0.pop().unwrap().succeeds(transport);
    world.0.iter_mut().for_each(|rank| rank.write_stdin(b"go on\n"));
    world.succeeds(transport);
}

/// A process: after the last rank was lost, rank 1 is busy for longer than the least settlement
/// takes, and than the timeout that calls had before. The timeout of its call is longer.
pub(crate) fn is_busy() {
    let Some(mut comm) = member() else { return };
    comm.set_timeout(Duration::from_secs(1));
    comm.agree(0, LONG).unwrap();
    comm.set_timeout(LONG);
    match comm.rank() {
        2 => raise(Signal::SIGKILL).unwrap(),
        1 => std::thread::sleep(Duration::from_secs(4)),
        _ => {}
    }
    let error = comm.all_reduce(&mut own(0, 3), ReduceOp::Sum).unwrap_err();
    assert!(matches!(&error, Error::PeerLost { peer, .. } if peer.rank == 2), "{error}");
    let mut two = comm.shrink(LONG).unwrap();
    assert_eq!(two.size(), 2);
    two.barrier().unwrap();
}

#[test]
fn survivors_wait_for_the_report_of_a_busy_one_as_long_as_calls_may_take() {
    let mut world = World::start("faults::uniform::is_busy", 3, "shm", |_| Vec::new());
    let lost = world.0.pop();
    world.succeeds("shm");
    drop(lost);
}

/// Tells a rank the kind of its calls.
const KIND: &str = "TEST_UNIFORM_KIND";

/// Repeats a call until it fails.
fn until_it_fails(mut call: impl FnMut() -> Result<(), Error>) {
    for round in 0.. {
        if call().is_err() {
            return;
        }
        if round == 3 {
            Process::works();
        }
    }
}

/// A process: a rank that makes calls of one kind until a peer is killed.
pub(crate) fn keeps_its_input() {
    let Some(mut comm) = member() else { return };
    let (n, me) = (comm.size() as u64, comm.rank());
    // The buffers are filled again before each call.
    const LEN: usize = 300_000;
    // Calls on these floats are made in several pieces.
    let mut floats = vec![0.0_f32; 5 * LEN];
    let mut integers = vec![me as u64; LEN];
    let mut registered = comm.alloc::<u64>(LEN).unwrap();
    let kind = std::env::var(KIND).unwrap();
    until_it_fails(|| {
        floats.fill(me as f32);
        integers.fill(me as u64);
        registered.fill(me as u64);
        match &*kind {
            "wire" => {
                let wire = CallOptions::new().wire(DataType::BF16);
                comm.with(wire).all_reduce(&mut floats, ReduceOp::Sum)
            }
            "many" => {
                let (one, other) = integers.split_at_mut(LEN / 3);
                comm.all_reduce_many(&mut [one, other], ReduceOp::Sum)
            }
            "by" => comm.all_reduce_by(&mut integers, FoldOrder::Ranks, |a, b| a + b),
            "scatter" => comm.all_to_all_in_place(&mut integers[..LEN / n as usize * n as usize]),
            _ => comm.all_reduce(&mut registered, ReduceOp::Sum),
        }
    });
    let mut rest = comm.shrink(LONG).unwrap();
    rest.barrier().unwrap();
    assert!(floats.iter().all(|&it| it == me as f32), "{kind}");
    assert!(integers.iter().chain(&*registered).all(|&it| it == me as u64), "{kind}");
}

#[test]
fn a_failed_call_of_any_kind_restores_its_buffer() {
    for kind in ["wire", "many", "by", "scatter", "registered"] {
        for transport in ["shm", "tcp", "shm"] {
            let settings = |_| vec![(KIND, kind.to_owned())];
            let mut world =
                World::start("faults::uniform::keeps_its_input", 3, transport, settings);
            world.is_at_work();
            std::thread::sleep(Duration::from_micros(harness::share::random_range(0..20_000)));
            let victim = world.0.remove(1);
            victim.kill();
            world.succeeds(&format!("{kind} by {transport}"));
        }
    }
}

#[test]
fn threads_refuse_uniform_and_accept_retry_safe() {
    let refused = Communicator::builder().uniform(true).local(2).unwrap_err();
    assert!(refused.to_string().contains("uniform"), "{refused}");
    // Buffers of failed calls are restored among threads too.
    let comms = Communicator::builder().retry_safe(true).local(2).unwrap();
    let mut left = comms.into_iter();
    let (mut one, other) = (left.next().unwrap(), left.next());
    drop(other);
    let mut buf = [7_u32; 5];
    one.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert_eq!(buf, [7; 5]);
}
