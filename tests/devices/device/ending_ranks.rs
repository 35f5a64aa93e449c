//! Device memory that a rank drops while the process of another one, which has it open, is ending.
//! The system closes what such a process had open one thing after the other, its sockets perhaps
//! first; so the process here shuts its sockets down, and is stopped.

use std::fs::{read_dir, read_link};
use std::os::fd::RawFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{Shutdown, shutdown};
use ringreduce::{Error, ReduceOp};

use super::super::standin::{self, DEVICES, on_standin};
use super::fixture::{Shared, attach_direct, until_freed};
use harness::processes::{Process, World, this_rank};

/// The rank that drops memory. Where ranks share a device, rank 0 alone opens others' memory.
const OWNER: usize = 1;
/// The line by which the owner says that it has dropped the memory.
const DROPPED: &str = "dropped";
/// The order to the owner: to drop its communicator while the other process is still there.
const LEAVE: &str = "leave";
/// The limit of a call that can't end.
const SHORT: Duration = Duration::from_millis(100);

/// Shuts all sockets of this process down.
fn hang_up() {
    let fds: Vec<_> = read_dir("/proc/self/fd").unwrap().map(Result::unwrap).collect();
    let is_socket = |target: std::path::PathBuf| target.to_string_lossy().starts_with("socket:");
    for fd in fds.iter().filter(|fd| read_link(fd.path()).is_ok_and(is_socket)) {
        let number: RawFd = fd.file_name().to_str().unwrap().parse().unwrap();
        // A socket that only listens can't be shut down, or that of a peer that has hung up.
        let _ = shutdown(number, Shutdown::Both);
    }
}

/// A rank of a world in which the process of the other one is ending.
pub(crate) fn beside_an_ending_rank() {
    let mut comm = this_rank().unwrap();
    let stream = attach_direct(&mut comm);
    let mut mine = Shared::<i32>::new(&comm, &stream, 100);
    comm.barrier().unwrap();
    if comm.rank() != OWNER {
        hang_up();
    }
    Process::works();
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).unwrap();
    assert_eq!(comm.rank(), OWNER);
    let error = comm.alloc_device::<i32>(&stream, 100).unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    // A communicator that a call on the host has broken stays so, whatever a direct call finds.
    comm.set_timeout(SHORT);
    comm.barrier().unwrap_err();
    let again = comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum);
    stream.synchronize().unwrap();
    let again = again.and_then(|()| comm.on_stream(&stream).check()).unwrap_err();
    assert!(matches!(again, Error::Broken { .. }), "{again}");
    drop(mine);
    // The stopped process closes neither of the two.
    assert_eq!(comm.dropped_device_memory(), 2);
    eprintln!("{DROPPED}");
    if told.trim() == LEAVE {
        // The end of the communicator frees no memory that is still open.
        drop(comm);
    } else {
        std::io::stdin().read_line(&mut told).unwrap();
        until_freed(&comm);
    }
}

/// The owner drops memory, and its communicator if it `leaves`, and then the other process ends.
fn ending(leaves: bool) {
    let body = standin::name_of(module_path!(), "beside_an_ending_rank");
    let mut world = World::start(&body, 2, "shm", |_| Vec::new());
    world.is_at_work();
    world.0[1 - OWNER].signal(Signal::SIGSTOP);
    world.0[1 - OWNER].is_stopped();
    world.0[OWNER].write_stdin(format!("{}\n", if leaves { LEAVE } else { "stay" }).as_bytes());
    world.0[OWNER].says(DROPPED);
    let end = |owner: &mut Process| {
        let ended = owner.ends();
        assert!(ended.success(), "{ended}: {:#?}", owner.lines);
    };
    if leaves {
        end(&mut world.0[OWNER]);
    }
    world.0[1 - OWNER].kill();
    if !leaves {
        world.0[OWNER].write_stdin(b"\n");
        end(&mut world.0[OWNER]);
    }
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    pub(crate) fn leaves() {
        super::ending(true);
    }

    pub(crate) fn stays() {
        super::ending(false);
    }
}

on_standin! {
    (beside_an_ending_rank)

    memory_is_freed_after_the_process_that_has_it_open_has_ended:
        leaves [],
        stays [],
        stays [DEVICES = "2"];
}
