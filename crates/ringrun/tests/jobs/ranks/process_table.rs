//! The launcher's process table: other ranks read in it how a rank ended. The end is in their
//! errors, and is certain, so that few survivors may go on.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, ReduceOp, Result};

use crate::harness::{Ended, PROMPT, Process, all_end, until};
use crate::job::Job;

/// The rank that ends.
const VICTIM: usize = 1;
/// The rank that stays.
const LAST: usize = 2;
const DEADLINE: Duration = Duration::from_secs(30);

/// One rank ends between two calls, in this way; the others call once ringrun has reaped it.
pub(crate) fn goes(how: &str) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut pid = [std::process::id()];
    comm.broadcast(&mut pid, VICTIM)?;
    // The rank ends when the others have received this.
    for other in (0..comm.size()).filter(|&other| other != VICTIM) {
        match comm.rank() {
            VICTIM => comm.recv(&mut [0_u8], other)?,
            rank if rank == other => comm.send(&[0_u8], VICTIM)?,
            _ => {}
        }
    }
    if comm.rank() == VICTIM {
        match how {
            "killed" => raise(Signal::SIGKILL).unwrap(),
            "exit" => std::process::exit(3),
            _ => panic!("as it was told"),
        }
    }
    let process = format!("/proc/{}", pid[0]);
    until("ringrun reaps it", || !std::fs::exists(&process).unwrap());
    let error = comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap_err();
    let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
    assert_eq!(peer.rank, VICTIM);
    println!("{error}");
    Ok(())
}

/// All ranks but one end, `after` milliseconds apart; the last one calls and shrinks until it is
/// alone.
pub(crate) fn dwindles(after: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let me = comm.rank();
    comm.barrier()?;
    // No rank ends while the last one is still in the barrier.
    match me {
        LAST => (0..comm.size()).filter(|&it| it != LAST).try_for_each(|it| comm.send(&[0_u8], it)),
        _ => comm.recv(&mut [0_u8], LAST),
    }?;
    if me != LAST {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis((after * (1 + me)) as u64));
            raise(Signal::SIGKILL)
        });
    }
    while comm.size() > 1 {
        let mut ones = [1_u64];
        match comm.all_reduce(&mut ones, ReduceOp::Sum) {
            Ok(()) => assert_eq!(ones, [comm.size() as u64]),
            Err(_) => comm = comm.shrink(DEADLINE)?,
        }
    }
    assert_eq!(me, LAST, "a wrong rank stayed");
    Ok(())
}

/// Runs ranks that ringrun does not restart.
fn ran(size: usize, transport: &str, body: &str) -> Ended {
    let job = Job::new();
    let mut command = job.launch(&format!("--elastic 1:{size} --max-restarts 0"), body);
    command.env("RINGREDUCE_TRANSPORT", transport);
    let ended = all_end(vec![Process::start(command)], PROMPT + DEADLINE).remove(0);
    job.left_nothing();
    ended
}

#[test]
fn the_end_of_a_rank_is_in_the_errors_of_others() {
    for transport in ["shm", "tcp"] {
        for (how, wording) in [
            ("killed", "killed by SIGKILL"),
            ("exit", "exit with status 3"),
            ("panic", "exit with status 101"),
        ] {
            let ended = ran(3, transport, &format!("goes {how}"));
            let saw = format!("; its launcher saw it {wording}");
            let errors = ended.out.lines().filter(|line| line.contains(&saw)).count();
            assert_eq!((ended.code, errors), (0, 2), "{transport} {how}: {ended:?}");
        }
    }
}

#[test]
fn the_last_of_four_ranks_goes_on_over_tcp() {
    for after in [0, 1, 5, 20, 50, 200] {
        let ended = ran(4, "tcp", &format!("dwindles {after}"));
        assert_eq!(ended.code, 0, "after {after} ms: {ended:?}");
        assert!(ended.out.contains("right"), "after {after} ms: {ended:?}");
    }
}
