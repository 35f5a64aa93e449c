//! One rank of a trial: it makes calls until one fails or the trial is over.
#![allow(unsafe_code, reason = "forks")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use nix::unistd::{ForkResult, alarm, close, fork, pause};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Communicator, Error, Monitor, ReduceOp, Result, Stall, Transport};

use super::calls;
use super::trial::{Fault, Links, Trial};
use harness::resources::Resources;

/// Tells a process the trial's seed, whether there are two hosts, its rank and the store.
pub(crate) const ARGUMENT: &str = "TEST_STORM_ARGUMENT";
pub(crate) const AT_WORK: &str = "at work";
/// The prefix of a line with the time of the fault.
pub(crate) const FAULT_AT: &str = "fault at ";
/// The prefix of a line with the time and the kind of an error and the pids that it names.
pub(crate) const FAILED: &str = "failed at ";
pub(crate) const ALL_RIGHT: &str = "all right";
pub(crate) const CLEAN: &str = "left nothing";
/// Calls between two checks for the end of the trial.
const CHECK_INTERVAL: usize = 8;

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// The kind of an error, and the pids that it names.
fn kind(error: &Error) -> (&'static str, Vec<u32>) {
    match error {
        Error::PeerLost { peer, .. } => ("lost", vec![peer.pid]),
        Error::Stalled { peer, state: Stall::Paused { .. }, .. } => ("paused", vec![peer.pid]),
        Error::Stalled { peer, .. } => ("absent", vec![peer.pid]),
        Error::Timeout { peer, .. } => ("late", vec![peer.pid]),
        Error::Mismatch { ranks, .. } => ("mismatch", ranks.iter().map(|it| it.pid).collect()),
        Error::Aborted { by, .. } => ("aborted", vec![by.pid]),
        Error::MissingRanks { .. } => ("missing", vec![]),
        Error::Handshake { .. } => ("handshake", vec![]),
        Error::Broken { .. } => ("broken", vec![]),
        _ => ("other", vec![]),
    }
}

/// True if the trial has closed the standard input of this rank.
fn is_over() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

fn work(comm: &mut Communicator, trial: &Trial, mismatch: &AtomicBool) -> Result<()> {
    let mut random = SmallRng::seed_from_u64(trial.seed);
    let mut call = 0;
    loop {
        call += 1;
        // A message may cross a collective, so no rank could tell that it does not come.
        if mismatch.load(Ordering::Relaxed) && !calls::is_message_next(&random) {
            eprintln!("{FAULT_AT}{}", now());
            comm.all_reduce(&mut [1_u16; 7], ReduceOp::Prod)?;
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

/// Causes the faults that a victim causes itself.
fn inject(handle: &Monitor, trial: &Trial, mismatch: &AtomicBool) {
    let (fault, after) = (trial.fault, trial.after);
    let mut random = SmallRng::seed_from_u64(trial.seed + 1);
    std::thread::sleep(after);
    match fault {
        Fault::Mismatch => return mismatch.store(true, Ordering::Relaxed),
        Fault::Abort | Fault::Exit | Fault::Close => eprintln!("{FAULT_AT}{}", now()),
        _ => return,
    }
    match fault {
        Fault::Abort => handle.abort(),
        Fault::Exit => std::process::exit(0),
        _ => close_one(&mut random),
    }
}

/// Forks an idle child, which outlives its parent; an alarm ends it.
fn fork_child() {
    // SAFETY: the child makes system calls alone.
    if matches!(unsafe { fork() }.unwrap(), ForkResult::Child) {
        // The test waits for the end of the rank's error output.
        let _ = close(2);
        alarm::set(30);
        loop {
            pause();
        }
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    let Ok(argument) = std::env::var(ARGUMENT) else { return };
    let [seed, hosts, rank, store] = argument.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{argument}");
    };
    let trial = Trial::new(seed.parse().unwrap(), hosts == "true");
    let me: usize = rank.parse().unwrap();
    let before = Resources::now();
    let transport = match trial.links {
        Links::Shm => Transport::Shm,
        Links::Tcp => Transport::Tcp,
        Links::Mixed => Transport::Auto,
    };
    let builder = Communicator::builder().rank(me).size(trial.n).store(store);
    let builder = if trial.secret { builder.secret(&[7; 32]) } else { builder };
    let builder = builder.encrypt(trial.encrypt).transport(transport);
    let mut comm = builder.build().unwrap();
    comm.barrier().unwrap();
    comm.set_timeout(trial.timeout);
    if trial.fault == Fault::KillParent && trial.victims.contains(&me) {
        fork_child();
    }
    eprintln!("{AT_WORK}");
    let mismatch = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        if trial.victims.contains(&me) {
            let handle = comm.monitor();
            let (trial, mismatch) = (&trial, &mismatch);
            scope.spawn(move || inject(&handle, trial, mismatch));
        }
        work(&mut comm, &trial, &mismatch)
    });
    match result {
        Ok(()) => eprintln!("{ALL_RIGHT}"),
        Err(error) => {
            let (kind, pids) = kind(&error);
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            eprintln!("{FAILED}{} {kind} {} {error}", now(), pids.join(","));
        }
    }
    drop(comm);
    match before.restored() {
        Ok(()) => eprintln!("{CLEAN}"),
        Err(what) => eprintln!("left {what}"),
    }
}
