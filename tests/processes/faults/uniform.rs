//! Calls that end alike: whoever dies whenever, the ranks that are left have the same calls end
//! well; and what failed can be made again on the same buffer.

use std::time::Duration;

use ringreduce::{CallOptions, Communicator, DataType, Error, FoldOrder, ReduceOp};

use harness::processes::{Process, World, this_seat};

const SAID: &str = "ended well ";
const LONG: Duration = Duration::from_secs(20);
/// Elements of a call: of one slot, and of many.
const LENGTHS: [usize; 2] = [3, 60_000];

fn member() -> Option<Communicator> {
    let (builder, ..) = this_seat()?;
    let mut comm = builder.uniform(true).retry_safe(true).build().unwrap();
    comm.set_timeout(LONG);
    Some(comm)
}

/// What a rank contributes, which tells who has.
fn own(rank: usize, len: usize) -> Vec<u64> {
    vec![1_u64 << (8 * rank); len]
}

/// Calls until one fails: how many ended well, and what was in the buffer of the one that did not.
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
            // It knows of that only what is told it later.
            comm.agree(0, LONG).unwrap();
        }
        if round == 3 {
            Process::works();
        }
    }
    unreachable!()
}

/// Not a test of its own: a rank that works until one is killed, and goes on without it.
pub(crate) fn survivor() {
    let Some(mut comm) = member() else { return };
    let me = comm.rank();
    let (rounds, mut buf, error) = work(&mut comm);
    let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
    assert!(buf == own(me, buf.len()), "a failed call has changed its input");
    let mut rest = comm.shrink(LONG).unwrap();
    // The call that failed, by those who are left.
    rest.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    eprintln!("{SAID}{rounds} then {:x} of {} without {}", buf[0], buf.len(), peer.rank);
}

/// Every survivor says the same, whenever a rank is killed: in a call or between two.
fn all_alike(n: usize, transport: &'static str, trials: usize) {
    for trial in 0..trials {
        let mut world = World::start("faults::uniform::survivor", n, transport, |_| Vec::new());
        world.is_at_work();
        std::thread::sleep(Duration::from_micros(harness::share::random_range(0..20_000)));
        let victim = world.0.remove(trial % n);
        victim.kill();
        let says = |rank: Process| {
            let (well, said) = rank.end();
            let line = said.lines().find(|line| line.starts_with(SAID)).map(str::to_owned);
            assert!(well && line.is_some(), "{said}");
            line.unwrap()
        };
        let said: Vec<_> = world.0.into_iter().map(says).collect();
        let left: u64 = (0..n).filter(|&rank| rank != trial % n).map(|rank| 1 << (8 * rank)).sum();
        assert!(said.iter().all(|it| *it == said[0]), "{said:#?}");
        assert!(said[0].contains(&format!("then {left:x} of")), "{}", said[0]);
        assert!(said[0].ends_with(&format!("without {}", trial % n)), "{}", said[0]);
    }
}

#[test]
fn survivors_of_one_host_end_alike() {
    all_alike(2, "shm", 2);
    all_alike(3, "shm", 6);
    all_alike(4, "shm", 8);
}

#[test]
fn survivors_over_tcp_end_alike() {
    all_alike(3, "tcp", 6);
    all_alike(4, "tcp", 4);
}

/// What kind of calls ranks make.
const KIND: &str = "TEST_UNIFORM_KIND";

/// Makes calls of a kind on what is always the same, until one fails.
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

/// Not a test of its own: a rank that makes calls of a kind until one is killed.
pub(crate) fn keeps_its_input() {
    let Some(mut comm) = member() else { return };
    let (n, me) = (comm.size() as u64, comm.rank());
    // Sums that are all alike can be summed again.
    const LEN: usize = 300_000;
    // These go in several pieces.
    let mut floats = vec![0.0_f32; 5 * LEN];
    let mut whole = vec![me as u64; LEN];
    let mut registered = comm.alloc::<u64>(LEN).unwrap();
    let kind = std::env::var(KIND).unwrap();
    until_it_fails(|| {
        floats.fill(me as f32);
        whole.fill(me as u64);
        registered.fill(me as u64);
        match &*kind {
            "wire" => {
                let wire = CallOptions::new().wire(DataType::BF16);
                comm.with(wire).all_reduce(&mut floats, ReduceOp::Sum)
            }
            "many" => {
                let (one, other) = whole.split_at_mut(LEN / 3);
                comm.all_reduce_many(&mut [one, other], ReduceOp::Sum)
            }
            "by" => comm.all_reduce_by(&mut whole, FoldOrder::Ranks, |a, b| a + b),
            "scatter" => comm.all_to_all_in_place(&mut whole[..LEN / n as usize * n as usize]),
            _ => comm.all_reduce(&mut registered, ReduceOp::Sum),
        }
    });
    let mut rest = comm.shrink(LONG).unwrap();
    rest.barrier().unwrap();
    assert!(floats.iter().all(|&it| it == me as f32), "{kind}");
    assert!(whole.iter().chain(&*registered).all(|&it| it == me as u64), "{kind}");
}

#[test]
fn what_fails_is_as_it_was_however_it_travels() {
    for kind in ["wire", "many", "by", "scatter", "registered"] {
        for transport in ["shm", "tcp", "shm"] {
            let settings = |_| vec![(KIND, kind.to_owned())];
            let mut world =
                World::start("faults::uniform::keeps_its_input", 3, transport, settings);
            world.is_at_work();
            std::thread::sleep(Duration::from_micros(harness::share::random_range(0..20_000)));
            let victim = world.0.remove(1);
            victim.kill();
            for rank in world.0 {
                let (well, said) = rank.end();
                assert!(well, "{kind} by {transport}: {said}");
            }
        }
    }
}

#[test]
fn threads_need_no_agreement() {
    let refused = Communicator::builder().uniform(true).local(2).unwrap_err();
    assert!(refused.to_string().contains("uniform"), "{refused}");
    // Their calls may still be put back.
    let comms = Communicator::builder().retry_safe(true).local(2).unwrap();
    let mut left = comms.into_iter();
    let (mut one, other) = (left.next().unwrap(), left.next());
    drop(other);
    let mut buf = [7_u32; 5];
    one.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert_eq!(buf, [7; 5]);
}
