//! One rank of a trial: it makes calls until one fails, or until the trial says that it is over.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{AbortHandle, Communicator, Error, ReduceOp, Result, Stall, Transport};

use super::calls;
use super::trial::{Fault, Trial, Way};
use harness::left::Held;

/// Tells a rank its trial's seed, whether there are two hosts, its number and the store.
pub(crate) const SEAT: &str = "TEST_STORM_SEAT";
pub(crate) const AT_WORK: &str = "at work";
/// When what was to happen happened at this rank.
pub(crate) const FAULT_AT: &str = "fault at ";
/// When it had its error, the error's kind and the process that it names.
pub(crate) const TOLD: &str = "told at ";
pub(crate) const ALL_RIGHT: &str = "all right";
pub(crate) const CLEAN: &str = "left nothing";
/// Calls between two looks whether the trial is over.
const LOOKS: usize = 8;

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Its kind, and the processes that it names.
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

/// Has the trial closed what this rank reads?
fn is_over() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

fn work(comm: &mut Communicator, trial: &Trial, differs: &AtomicBool) -> Result<()> {
    let mut random = SmallRng::seed_from_u64(trial.seed);
    let mut call = 0;
    loop {
        call += 1;
        if differs.load(Ordering::Relaxed) {
            eprintln!("{FAULT_AT}{}", now());
            comm.all_reduce(&mut [1_u16; 7], ReduceOp::Prod)?;
        }
        calls::one(comm, &mut random, trial.most)?;
        if call % LOOKS == 0 {
            let mut over = [u8::from(comm.rank() == 0 && is_over())];
            comm.broadcast(&mut over, 0)?;
            if over == [1] {
                return Ok(());
            }
        }
    }
}

/// Ends one of this process's TCP connections.
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

/// What a victim does to itself.
fn sabotage(handle: &AbortHandle, trial: &Trial, differs: &AtomicBool) {
    let (fault, after) = (trial.fault, trial.after);
    let mut random = SmallRng::seed_from_u64(trial.seed + 1);
    std::thread::sleep(after);
    match fault {
        Fault::Mismatch => return differs.store(true, Ordering::Relaxed),
        Fault::Abort | Fault::Exit | Fault::Close => eprintln!("{FAULT_AT}{}", now()),
        _ => return,
    }
    match fault {
        Fault::Abort => handle.abort(),
        Fault::Exit => std::process::exit(0),
        _ => close_one(&mut random),
    }
}

/// Not a test of its own.
pub(crate) fn body() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let [seed, hosts, rank, store] = seat.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{seat}");
    };
    let trial = Trial::new(seed.parse().unwrap(), hosts == "true");
    let me: usize = rank.parse().unwrap();
    let before = Held::now();
    let transport = match trial.way {
        Way::Shm => Transport::Shm,
        Way::Tcp => Transport::Tcp,
        Way::Mixed => Transport::Auto,
    };
    let builder = Communicator::builder().rank(me).size(trial.n).store(store);
    let builder = if trial.secret { builder.secret(&[7; 32]) } else { builder };
    let builder = builder.encrypt(trial.encrypt).transport(transport);
    let mut comm = builder.build().unwrap();
    comm.barrier().unwrap();
    comm.set_timeout(trial.timeout);
    eprintln!("{AT_WORK}");
    let differs = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        if trial.victims.contains(&me) {
            let handle = comm.abort_handle();
            let (trial, differs) = (&trial, &differs);
            scope.spawn(move || sabotage(&handle, trial, differs));
        }
        work(&mut comm, &trial, &differs)
    });
    match result {
        Ok(()) => eprintln!("{ALL_RIGHT}"),
        Err(error) => {
            let (kind, pids) = kind(&error);
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            eprintln!("{TOLD}{} {kind} {} {error}", now(), pids.join(","));
        }
    }
    drop(comm);
    match before.again() {
        Ok(()) => eprintln!("{CLEAN}"),
        Err(what) => eprintln!("left {what}"),
    }
}
