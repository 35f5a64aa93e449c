//! All ranks of a job are stopped for longer than the timeout, as by Ctrl-Z or by a batch system,
//! and go on. A single one that is stopped is reported by its peers.

use std::time::Duration;

use harness::hosts::Hosts;
use harness::processes::{Process, World, this_builder};
use nix::sys::signal::Signal;
use ringreduce::{Communicator, ReduceOp, Result};

use super::variable;

/// Tells a rank how it waits.
const WAITS: &str = "TEST_SUSPENDED_WAITS";
/// Longer than ranks need to meet on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(3_500);
/// The ways to wait: for a rank that comes late to a call or does not send its message, in calls
/// one after the other, while ranks meet.
const WAYS: [&str; 4] = ["call", "message", "calls", "meeting"];

/// A process: one rank.
pub(crate) fn rank() {
    let Some((builder, size, _)) = this_builder() else { return };
    let waits = variable::<String>(WAITS);
    let is_late = std::env::var("TEST_RANK").unwrap().starts_with("0 ");
    if waits == "meeting" {
        Process::works();
        if is_late {
            wait_for_test();
        }
    }
    let mut comm = builder.timeout(TIMEOUT).build().unwrap();
    comm.barrier().unwrap();
    if waits != "meeting" {
        Process::works();
        if is_late && waits != "calls" {
            wait_for_test();
        }
    }
    match &*waits {
        "message" => ring(&mut comm),
        "calls" => until_all_are_told(&mut comm),
        _ => comm.all_reduce(&mut [1_u32; 5], ReduceOp::Sum),
    }
    .unwrap();
    assert_eq!(comm.size(), size);
}

fn wait_for_test() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Each rank receives from the one before and then sends to the next; rank 0 sends first.
fn ring(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank(), comm.size());
    if me == 0 {
        comm.send(&[1_u32], 1)?;
    }
    comm.recv(&mut [0_u32], (me + n - 1) % n)?;
    if me > 0 { comm.send(&[1_u32], (me + 1) % n) } else { Ok(()) }
}

/// Makes calls without a pause until the test has told rank 0.
fn until_all_are_told(comm: &mut Communicator) -> Result<()> {
    let told = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tell = std::sync::Arc::clone(&told);
    if comm.rank() == 0 {
        std::thread::spawn(move || {
            wait_for_test();
            tell.store(1, std::sync::atomic::Ordering::Relaxed);
        });
    }
    let mut buf = vec![0_u32; 3_000];
    while buf[0] == 0 {
        buf[0] = told.load(std::sync::atomic::Ordering::Relaxed);
        comm.all_reduce(&mut buf, ReduceOp::Max)?;
    }
    Ok(())
}

#[test]
fn a_job_that_was_suspended_for_longer_than_its_timeout_goes_on() {
    let body = "faults::suspended::rank";
    let (hosts, mut worlds) = (Hosts::new(), Vec::new());
    if let Err(why) = &hosts {
        let test = "a_job_that_was_suspended_for_longer_than_its_timeout_goes_on";
        harness::skip(&format!("faults::suspended::{test}"), why);
    }
    for (number, waits) in (0..).zip(WAYS) {
        let settings = |_| vec![(WAITS, waits.to_owned())];
        for (links, transport) in (number..).zip(["shm", "tcp", "two hosts"]) {
            if !harness::share::has(links, 3) {
                continue;
            }
            let world = match &hosts {
                _ if transport != "two hosts" => World::start(body, 3, transport, settings),
                Ok(hosts) => World::on((hosts, 2), body, 3, "tcp", settings),
                Err(_) => continue,
            };
            worlds.push((format!("{waits} by {transport}"), world));
        }
    }
    worlds.iter_mut().for_each(|(_, world)| world.is_at_work());
    // Most ranks that wait sleep by then.
    std::thread::sleep(TIMEOUT / 30);
    let signal = |signal| {
        worlds.iter().flat_map(|(_, world)| &world.0).for_each(|rank| rank.signal(signal));
    };
    signal(Signal::SIGSTOP);
    std::thread::sleep(PAUSE);
    signal(Signal::SIGCONT);
    for (_, world) in &mut worlds {
        world.0[0].write_stdin(b"go on\n");
    }
    for (context, world) in worlds {
        world.succeeds(&context);
    }
}
