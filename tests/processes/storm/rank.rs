//! The ranks of a trial, a process or a thread each: they make calls until one fails or the trial
//! is over.
#![allow(unsafe_code, reason = "forks")]

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, alarm, close, fork, pause};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Communicator, Error, Monitor, Peer, Place, ReduceOp, Result, Stall, Transport};

use super::calls;
use super::trial::{Fault, Links, Trial};
use harness::barrier::Barrier;
use harness::ranks::in_threads;
use harness::resources::Resources;

/// Tells a process the trial's seed, whether there are two hosts, its rank and the store.
pub(crate) const ARGUMENT: &str = "TEST_STORM_ARGUMENT";
// Each line of a rank begins with its number and one of these.
pub(crate) const AT_WORK: &str = "at work";
/// The prefix of a line with the time of the fault.
pub(crate) const FAULT_AT: &str = "fault at ";
/// The prefix of a line with the time and the kind of an error and the ranks that it names.
pub(crate) const FAILED: &str = "failed at ";
pub(crate) const ALL_RIGHT: &str = "all right";
pub(crate) const CLEAN: &str = "left nothing";
/// Calls between two checks for the end of the trial.
const CHECK_INTERVAL: usize = 8;

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn say(rank: usize, what: impl Display) {
    eprintln!("{rank} {what}");
}

/// The kind of an error, where it happened, and the peers that it names.
fn kind(error: &Error) -> (&'static str, Option<&Place>, &[Peer]) {
    use std::slice::from_ref;
    match error {
        Error::PeerLost { at, peer, .. } => ("lost", Some(at), from_ref(peer)),
        Error::Stalled { at, peer, state: Stall::Paused { .. }, .. } => {
            ("paused", Some(at), from_ref(peer))
        }
        Error::Stalled { at, peer, .. } => ("absent", Some(at), from_ref(peer)),
        Error::Timeout { at, peer, .. } => ("late", Some(at), from_ref(peer)),
        Error::Mismatch { at, ranks, .. } => ("mismatch", Some(at), &ranks[..]),
        Error::Aborted { at, by, .. } => ("aborted", Some(at), from_ref(by)),
        Error::MissingRanks { .. } => ("missing", None, &[]),
        Error::Handshake { .. } => ("handshake", None, &[]),
        Error::Broken { .. } => ("broken", None, &[]),
        _ => ("other", None, &[]),
    }
}

/// Reports the error of a rank, with the ranks that it names as those of the whole world.
fn report(error: &Error, comm: &Communicator) {
    let (kind, at, peers) = kind(error);
    let is_in_group = at.is_some_and(|at| at.tag.as_deref() == Some(calls::IN_GROUP));
    let name = |peer: &Peer| {
        let me = comm.rank();
        let rank = if is_in_group { calls::world_rank(peer.rank, me) } else { peer.rank };
        let same = comm.peers().get(rank).is_some_and(|it| it.pid == peer.pid);
        if same { rank.to_string() } else { format!("another process than rank {rank}'s") }
    };
    let names: Vec<_> = peers.iter().map(name).collect();
    say(comm.rank(), format_args!("{FAILED}{} {kind} {} {error}", now(), names.join(",")));
}

/// True if the trial has closed the standard input of this rank.
fn is_over() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

/// Makes calls until one fails, the trial is over, or the thread that makes them has its fault.
fn work(comm: &mut Communicator, trial: &Trial, due: &OnceLock<Fault>) -> Result<()> {
    let mut random = SmallRng::seed_from_u64(trial.seed);
    let mut call = 0;
    loop {
        call += 1;
        match due.get() {
            // A message may cross a collective, so no rank could tell that it does not come.
            Some(Fault::Mismatch) if calls::is_message_next(&random) => (),
            Some(Fault::Mismatch) => {
                say(comm.rank(), format_args!("{FAULT_AT}{}", now()));
                comm.all_reduce(&mut [1_u16; 7], ReduceOp::Prod)?;
            }
            Some(fault) => {
                say(comm.rank(), format_args!("{FAULT_AT}{}", now()));
                if *fault == Fault::Panic {
                    // Without the message, whose backtrace takes longer than its detection.
                    std::panic::resume_unwind(Box::new(()));
                }
                return Ok(());
            }
            None => (),
        }
        calls::one(comm, &mut random, trial.most)?;
        if call % CHECK_INTERVAL == 0 {
            let mut over = [u8::from(comm.rank() == 0 && is_over())];
            comm.broadcast(&mut over, 0)?;
            if over == [1] {
                return Ok(());
            }
        }
    }
}

/// Closes one of this process's TCP connections.
fn close_one(random: &mut SmallRng) {
    let is_tcp = |fd: &i32| {
        let address = getpeername::<SockaddrStorage>(*fd).ok();
        address.is_some_and(|it| it.as_sockaddr_in().is_some() || it.as_sockaddr_in6().is_some())
    };
    let sockets: Vec<i32> = (3..200).filter(is_tcp).collect();
    if !sockets.is_empty() {
        let _ = shutdown(sockets[random.random_range(0..sockets.len())], Shutdown::Both);
    }
}

/// Causes the faults that a victim causes itself. The thread that makes the calls has some of them,
/// between two calls.
fn inject(handle: &Monitor, me: usize, trial: &Trial, due: &OnceLock<Fault>) {
    let (fault, is_thread) = (trial.fault, trial.links == Links::Threads);
    let mut random = SmallRng::seed_from_u64(trial.seed + 1);
    std::thread::sleep(trial.after);
    let at = || say(me, format_args!("{FAULT_AT}{}", now()));
    match fault {
        Fault::Mismatch | Fault::Panic => _ = due.set(fault),
        Fault::Exit | Fault::Stop if is_thread => _ = due.set(fault),
        Fault::Exit => {
            at();
            std::process::exit(0);
        }
        Fault::Abort => {
            at();
            handle.abort();
        }
        Fault::Close => {
            at();
            close_one(&mut random);
        }
        _ => (),
    }
}

/// Forks an idle child, which outlives its parent; an alarm ends it.
fn fork_child() -> Pid {
    // SAFETY: the child makes system calls alone.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            // The test waits for the end of the rank's error output.
            let _ = close(2);
            alarm::set(30);
            loop {
                pause();
            }
        }
    }
}

/// One rank's part of a trial.
fn take_part(comm: &mut Communicator, trial: &Trial) {
    let (me, due) = (comm.rank(), OnceLock::new());
    say(me, AT_WORK);
    // No fault before all are at work: one that has come so far may end the barrier before it.
    if let Err(error) = comm.barrier() {
        return report(&error, comm);
    }
    let result = std::thread::scope(|scope| {
        if trial.victims.contains(&me) {
            let (monitor, due) = (comm.monitor(), &due);
            scope.spawn(move || inject(&monitor, me, trial, due));
        }
        work(comm, trial, &due)
    });
    match result {
        Ok(()) => say(me, ALL_RIGHT),
        Err(error) => report(&error, comm),
    }
}

/// The trial of this process, its rank and its store.
fn argument() -> Option<(Trial, usize, String)> {
    let argument = std::env::var(ARGUMENT).ok()?;
    let [seed, hosts, rank, store] = argument.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{argument}");
    };
    let trial = Trial::new(seed.parse().unwrap(), hosts == "true");
    Some((trial, rank.parse().unwrap(), store.to_owned()))
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some((trial, me, store)) = argument() else { return };
    let before = Resources::now();
    let transport = match trial.links {
        Links::Shm => Transport::Shm,
        Links::Tcp => Transport::Tcp,
        Links::Mixed | Links::Threads => Transport::Auto,
    };
    let builder = Communicator::builder().rank(me).size(trial.n).store(&store);
    let builder = if trial.secret { builder.secret(&[7; 32]) } else { builder };
    let builder = builder.encrypt(trial.encrypt).transport(transport);
    let mut comm = builder.build().unwrap();
    comm.barrier().unwrap();
    comm.set_timeout(trial.timeout);
    if trial.fault == Fault::KillParent && trial.victims.contains(&me) {
        fork_child();
    }
    take_part(&mut comm, &trial);
    drop(comm);
    say_what_is_left(&before, me..me + 1);
}

/// A process: all ranks, one thread each, and a child that inherits all of them.
pub(crate) fn threads() {
    let Some((trial, ..)) = argument() else { return };
    let before = Resources::now();
    let ranks = Communicator::builder().timeout(trial.timeout).local(trial.n).unwrap();
    let child = fork_child();
    // A rank that comes to no further call has its communicator until the others have ended.
    let ends = Barrier::new(if trial.fault == Fault::Stop { trial.n } else { 1 });
    in_threads(ranks, |mut comm| {
        let part = || take_part(&mut comm, &trial);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(part));
        ends.wait();
    });
    kill(child, Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    say_what_is_left(&before, 0..trial.n);
}

/// Reports for these ranks of the process what they have left in it.
fn say_what_is_left(before: &Resources, ranks: std::ops::Range<usize>) {
    let left = before.restored().map_or_else(|what| format!("left {what}"), |()| CLEAN.into());
    ranks.for_each(|rank| say(rank, &left));
}
