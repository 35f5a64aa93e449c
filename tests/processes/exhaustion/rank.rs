//! What the ranks of these tests do: they set a limit for themselves before or after they meet,
//! make calls, a group and shared memory, and say how it ended.

use std::fs::{self, File};
use std::io;
use std::mem::forget;
use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, alarm, geteuid, setuid};
use ringreduce::{Communicator, ReduceOp, Result};

use harness::processes::this_seat;

/// What is limited, and to what.
pub(super) const SETTING: &str = "TEST_EXHAUSTION_SETTING";
/// 1: what goes between ranks is encrypted.
pub(super) const ENCRYPTS: &str = "TEST_EXHAUSTION_ENCRYPTS";
/// What a rank says in the end: this, and "well" or its error.
pub(super) const ENDED: &str = "ended: ";
/// Who hangs is ended by a signal after so many seconds.
pub(super) const LONG: u32 = 100;
/// Nobody.
const NOBODY: u32 = 65_534;

/// The limits that the words of a trial stand for, relative to what is in use.
fn limit(what: &str, value: u64) {
    let (resource, used) = match what {
        "descriptors" => (Resource::RLIMIT_NOFILE, 0),
        "more-descriptors" => (Resource::RLIMIT_NOFILE, descriptors()),
        "memory" => (Resource::RLIMIT_AS, mapped()),
        "threads" => (Resource::RLIMIT_NPROC, 0),
        "locked" => (Resource::RLIMIT_MEMLOCK, 0),
        "file" => (Resource::RLIMIT_FSIZE, 0),
        _ => panic!("{what}"),
    };
    let (_, hard) = getrlimit(resource).unwrap();
    // A rank that meets others raises the soft limit of these.
    let hard = if what == "descriptors" { used + value } else { hard };
    setrlimit(resource, used + value, hard).unwrap();
}

/// No limit but the hard one.
fn lift(what: &str) {
    let resource = match what {
        "more-descriptors" => Resource::RLIMIT_NOFILE,
        "memory" => Resource::RLIMIT_AS,
        "threads" => Resource::RLIMIT_NPROC,
        _ => panic!("{what}"),
    };
    let (_, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, hard, hard).unwrap();
}

/// How many are open, all below that number from here on.
fn descriptors() -> u64 {
    let number = |entry: io::Result<fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap()
    };
    let most = fs::read_dir("/proc/self/fd").unwrap().map(number).max().unwrap();
    loop {
        let one = File::open("/dev/null").unwrap();
        if one.as_raw_fd() >= most {
            return one.as_raw_fd() as u64;
        }
        // It takes its place until this process ends.
        forget(one);
    }
}

fn mapped() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Calls of several lengths, whose results are looked at.
fn work(comm: &mut Communicator) -> Result<()> {
    for len in [1, 5_000, 300_000] {
        let mut buf = vec![1_u32; len];
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it as usize == comm.size()));
    }
    comm.barrier()
}

fn group(comm: &mut Communicator) -> Result<()> {
    work(&mut comm.duplicate()?)
}

fn shared(comm: &mut Communicator) -> Result<()> {
    let mut memory = comm.alloc::<u32>(500_000)?;
    memory.fill(1);
    comm.all_reduce(&mut memory, ReduceOp::Sum)?;
    assert!(memory.iter().all(|&it| it as usize == comm.size()));
    Ok(())
}

fn started(comm: &mut Communicator) -> Result<()> {
    let sum = comm.nonblocking().all_reduce(vec![1_u32; 1000], ReduceOp::Sum).wait()?;
    assert!(sum.iter().all(|&it| it as usize == comm.size()));
    Ok(())
}

/// The one thing in which the limit holds; before and after it the communicator works.
fn later(
    comm: &mut Communicator,
    (what, value): (&str, u64),
    (task, everybody): (fn(&mut Communicator) -> Result<()>, bool),
) -> Result<()> {
    work(comm)?;
    let limited = !what.starts_with("not-");
    if limited {
        limit(what, value);
    }
    let done = task(comm);
    if limited {
        lift(what);
    }
    match done {
        // What fails at all is over for all: they go on.
        Err(_) if everybody => work(comm).and(done),
        done => done,
    }
}

fn lives(what: &str, value: u64) -> Result<()> {
    let Some((builder, _, _)) = this_seat() else { panic!("no seat") };
    let encrypts = std::env::var(ENCRYPTS).is_ok_and(|it| it == "1");
    let builder = if encrypts { builder.secret(&[7; 32]).encrypt(true) } else { builder };
    let (stage, name) = what.split_once(':').unwrap_or(("start", what));
    let limited = !stage.starts_with("not-");
    if name == "threads" && geteuid().is_root() {
        // Root has no such limit; and ranks are of one user.
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    match stage.trim_start_matches("not-") {
        "start" => {
            if limited {
                limit(name, value);
            }
            work(&mut builder.build()?)
        }
        stage => {
            let task: (fn(&mut Communicator) -> Result<()>, _) = match stage {
                "group" => (group, true),
                "shared" => (shared, true),
                "started" => (started, false),
                _ => panic!("{stage}"),
            };
            let name = if limited { name.to_owned() } else { format!("not-{name}") };
            later(&mut builder.build()?, (&name, value), task)
        }
    }
}

/// Not a test of its own: a rank.
pub(crate) fn rank() {
    let Ok(setting) = std::env::var(SETTING) else { return };
    alarm::set(LONG);
    let (what, value) = setting.split_once(' ').unwrap();
    match lives(what, value.parse().unwrap()) {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}
