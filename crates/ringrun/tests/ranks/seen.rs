//! What ringrun sees of the end of a rank, the others know by its roll: it is in their errors, and
//! lets few survivors go on where nothing else makes an end certain.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, ReduceOp, Result};

use crate::harness::{AS_RANK, BODY, Ended, Job, PROMPT, Process, RINGRUN, all_end, myself, until};

/// The one that goes.
const VICTIM: usize = 1;
/// The one that stays.
const LAST: usize = 2;
const DEADLINE: Duration = Duration::from_secs(30);

/// One rank goes between two calls, in this way; the others call when ringrun has seen it.
pub(crate) fn goes(way: &str) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut pid = [std::process::id()];
    comm.broadcast(&mut pid, VICTIM)?;
    // Who goes does so when the others have this.
    for other in (0..comm.size()).filter(|&other| other != VICTIM) {
        match comm.rank() {
            VICTIM => comm.recv(&mut [0_u8], other)?,
            rank if rank == other => comm.send(&[0_u8], VICTIM)?,
            _ => {}
        }
    }
    if comm.rank() == VICTIM {
        match way {
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

/// All go but one, about so many milliseconds later; it calls, and shrinks, until it is alone.
pub(crate) fn dwindles(after: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let me = comm.rank();
    comm.barrier()?;
    // Nobody goes while the one that stays is still in that.
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
    assert_eq!(me, LAST, "it is not the one that stays");
    Ok(())
}

/// Ranks that ringrun does not start again.
fn ran(size: usize, transport: &str, body: &str) -> Ended {
    let job = Job::new();
    let mut command = job.command(RINGRUN);
    command.args(["--elastic", &format!("1:{size}"), "--max-restarts", "0", &myself()]);
    command.args(AS_RANK).env(BODY, body).env("RINGREDUCE_TRANSPORT", transport);
    let ended = all_end(vec![Process::start(command)], PROMPT + DEADLINE).remove(0);
    job.left_nothing();
    ended
}

#[test]
fn what_it_saw_is_in_the_errors() {
    for transport in ["shm", "tcp"] {
        let ways = [("killed", "killed by SIGKILL"), ("exit", "exit with status 3")];
        for (way, how) in ways.into_iter().chain([("panic", "exit with status 101")]) {
            let ended = ran(3, transport, &format!("goes {way}"));
            let saw = format!("; its launcher saw it {how}");
            let told = ended.out.lines().filter(|line| line.contains(&saw)).count();
            assert_eq!((ended.code, told), (0, 2), "{transport} {way}: {ended:?}");
        }
    }
}

#[test]
fn one_of_four_goes_on_where_only_ringrun_is_certain() {
    for after in [0, 1, 5, 20, 50, 200] {
        let ended = ran(4, "tcp", &format!("dwindles {after}"));
        assert_eq!(ended.code, 0, "after {after} ms: {ended:?}");
        assert!(ended.out.contains("right"), "after {after} ms: {ended:?}");
    }
}
