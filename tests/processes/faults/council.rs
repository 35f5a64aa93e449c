//! What survivors are told who can't go on as they wish: of those who left, who do not come, who
//! are too few, and who were left behind.

use std::fs::File;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank, this_seat};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
/// Who calls by then calls at the same time, also where CPUs are few.
const SOON: Duration = Duration::from_secs(2);

/// Do they agree on something before?
const SPEAKS: &str = "TEST_COUNCIL_SPEAKS";
/// Whose calls end alike?
const UNIFORM: &str = "TEST_COUNCIL_UNIFORM";

fn member() -> Option<Communicator> {
    let (builder, ..) = this_seat()?;
    let uniform = std::env::var(UNIFORM).is_ok_and(|it| it == "1");
    Some(builder.uniform(uniform).build().unwrap())
}

pub(super) fn until_killed() -> ! {
    // A park may end by itself.
    loop {
        std::thread::park();
    }
}

/// Not a test of its own: all but the last rank leave, as they began or after they spoke.
pub(crate) fn last_of_all() {
    let Some(mut comm) = member() else { return };
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
    if std::env::var(SPEAKS).is_ok_and(|it| it == "1") {
        assert_eq!(comm.agree(7, LONG).unwrap(), 7);
    }
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
    if comm.rank() + 1 < comm.size() {
        return;
    }
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap_err();
    let mut alone = comm.shrink(LONG).unwrap();
    assert_eq!(alone.size(), 1);
    alone.barrier().unwrap();
}

/// Who took leave is known not to go on.
#[test]
fn who_is_left_by_all_goes_on_alone() {
    for transport in ["shm", "tcp"] {
        for (uniform, speaks) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
            for n in [2, 3] {
                let settings = |_| vec![(UNIFORM, uniform.to_owned()), (SPEAKS, speaks.to_owned())];
                let began = Instant::now();
                let world = World::start("faults::council::last_of_all", n, transport, settings);
                for rank in world.0 {
                    let (well, said) = rank.end();
                    assert!(well, "{transport} {n} {uniform} {speaks}: {said}");
                }
                // Not after what any of them would have waited for others.
                assert!(began.elapsed() < LONG / 2);
            }
        }
    }
}

/// 1: they shrink in vain before they evict.
const SHRINKS: &str = "TEST_COUNCIL_SHRINKS";

/// Not a test of its own: rank 2 is paused until the others have gone on without it.
pub(crate) fn left_behind() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    comm.set_timeout(SHORT);
    if comm.rank() == 2 {
        raise(Signal::SIGSTOP).unwrap();
        // What the others had said in the call that failed there may be all that it needs.
        while comm.barrier().is_ok() {}
        let late = comm.shrink(LONG).unwrap_err();
        assert!(matches!(late, Error::Evicted { .. }), "{late}");
        // And so it stays.
        let late = comm.agree(0, LONG).unwrap_err();
        assert!(matches!(late, Error::Evicted { .. }), "{late}");
        return;
    }
    comm.barrier().unwrap_err();
    if std::env::var(SHRINKS).unwrap() == "1" {
        let missing = comm.shrink(SOON).unwrap_err();
        let Error::NotAll { missing, .. } = missing else { panic!("{missing}") };
        assert_eq!(missing, [2]);
    }
    let mut two = comm.evict(SOON).unwrap();
    assert_eq!(two.size(), 2);
    two.set_timeout(LONG);
    two.barrier().unwrap();
    Process::works();
    // Rank 2 is told by who is there.
    until_killed();
}

#[test]
fn who_does_not_come_is_missed_then_left_behind_and_told_so() {
    for (transport, shrinks) in [("shm", "1"), ("tcp", "1"), ("shm", "0"), ("tcp", "0")] {
        let settings = |_| vec![(SHRINKS, shrinks.to_owned())];
        let mut world = World::start("faults::council::left_behind", 3, transport, settings);
        let (ones, paused) = world.0.split_at_mut(2);
        ones.iter_mut().for_each(Process::is_at_work);
        // On a busy machine it may come to that only now.
        paused[0].is_stopped();
        paused[0].signal(Signal::SIGCONT);
        let (well, said) = world.0.pop().unwrap().end();
        assert!(well, "{transport} {shrinks}: {said}");
    }
}

/// Not a test of its own: rank 3 is paused, and when the others go on without it, rank 2 has no
/// descriptors for that at first.
pub(crate) fn in_a_second_round() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    comm.set_timeout(SOON);
    if comm.rank() == 3 {
        raise(Signal::SIGSTOP).unwrap();
    }
    comm.barrier().unwrap_err();
    std::thread::scope(|scope| {
        if comm.rank() == 2 {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
            let all: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            scope.spawn(move || {
                // In the first round they have waited for rank 3 so long.
                std::thread::sleep(SOON + SHORT);
                drop(all);
            });
        }
        let mut three = comm.evict(SOON).unwrap();
        assert_eq!(three.size(), 3);
        three.set_timeout(LONG);
        three.barrier().unwrap();
    });
}

/// Nobody takes those for missing who were there a moment ago.
#[test]
fn who_can_not_connect_at_once_is_not_left_behind() {
    for transport in ["shm", "tcp"] {
        let mut world =
            World::start("faults::council::in_a_second_round", 4, transport, |_| Vec::new());
        let paused = world.0.pop().unwrap();
        for rank in world.0 {
            let (well, said) = rank.end();
            assert!(well, "{transport}: {said}");
        }
        drop(paused);
    }
}

/// Not a test of its own: rank 0 is killed, and over TCP nobody can tell that from being cut off.
pub(crate) fn too_few() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    Process::works();
    if comm.rank() == 0 {
        until_killed();
    }
    comm.barrier().unwrap_err();
    for _ in 0..2 {
        let began = Instant::now();
        let lost = comm.shrink(LONG).unwrap_err();
        assert!(matches!(&lost, Error::QuorumLost { live, .. } if *live == [1]), "{lost}");
        assert!(began.elapsed() < LONG / 2);
    }
}

#[test]
fn a_minority_is_told_so_and_need_not_wait() {
    let mut world = World::start("faults::council::too_few", 2, "tcp", |_| Vec::new());
    // Nobody is still in what comes before.
    world.is_at_work();
    world.0[0].kill();
    let survivor = world.0.pop().unwrap();
    let (well, said) = survivor.end();
    assert!(well, "{said}");
}

/// Not a test of its own: rank 0 waits for what rank 1 never says, until another thread aborts it.
pub(crate) fn aborted() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        until_killed();
    }
    let handle = comm.abort_handle();
    let aborts = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        handle.abort();
    });
    let error = comm.agree(1, LONG).unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    aborts.join().unwrap();
    Process::works();
}

#[test]
fn an_agreement_is_aborted_as_any_call_is() {
    let mut world = World::start("faults::council::aborted", 2, "shm", |_| Vec::new());
    let began = Instant::now();
    world.0[0].is_at_work();
    assert!(began.elapsed() < LONG / 2);
    drop(world.0.pop());
    let (well, said) = world.0.pop().unwrap().end();
    assert!(well, "{said}");
}
