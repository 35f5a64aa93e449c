//! The ranks of these tests: they set themselves a limit before or after they connect, make calls,
//! a duplicate and shared memory, and report their result.

use std::fs::{self, File};
use std::io;
use std::mem::forget;
use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, alarm, geteuid, setuid};
use ringreduce::{Communicator, ReduceOp, Result};

use harness::processes::this_builder;

/// Tells a rank the stage and the resource, and the limit.
pub(super) const SETTING: &str = "TEST_EXHAUSTION_SETTING";
/// Tells a rank by 1 that it encrypts.
pub(super) const ENCRYPTS: &str = "TEST_EXHAUSTION_ENCRYPTS";
/// The prefix of a rank's last line, before "well" or its error.
pub(super) const ENDED: &str = "ended: ";
/// Seconds after which a signal ends a rank that hangs.
pub(super) const LONG: u32 = 100;
/// The user id of nobody.
const NOBODY: u32 = 65_534;

/// Sets the limit of a resource, relative to its use where the name says so.
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
    // A rank that connects raises its soft limit of descriptors to the hard one.
    let hard = if what == "descriptors" { used + value } else { hard };
    setrlimit(resource, used + value, hard).unwrap();
}

/// Raises the soft limit to the hard one.
fn raise(what: &str) {
    let resource = match what {
        "more-descriptors" => Resource::RLIMIT_NOFILE,
        "memory" => Resource::RLIMIT_AS,
        "threads" => Resource::RLIMIT_NPROC,
        _ => panic!("{what}"),
    };
    let (_, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, hard, hard).unwrap();
}

/// The number of descriptors, which from now on leaves no lower number free.
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
        // The descriptor stays open until this process ends.
        forget(one);
    }
}

fn mapped() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Makes calls of several lengths and checks their results.
fn work(comm: &mut Communicator) -> Result<()> {
    for len in [1, 5_000, 300_000] {
        let mut buf = vec![1_u32; len];
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it as usize == comm.size()));
    }
    comm.barrier()?;
    // The first barrier may open a link, and end well at a rank though another one fails in it. The
    // second one opens none, and ends at that rank with the failure.
    comm.barrier()
}

fn group(comm: &mut Communicator, _: &mut Vec<u32>) -> Result<()> {
    work(&mut comm.duplicate()?)
}

/// A rank that has no memory to register passes its own, and the call is made all the same.
#[allow(clippy::ptr_arg, reason = "a task")]
fn shared(comm: &mut Communicator, own: &mut Vec<u32>) -> Result<()> {
    let mut memory = comm.alloc::<u32>(500_000);
    let buf = memory.as_mut().map_or(&mut own[..], |memory| &mut memory[..]);
    buf.fill(1);
    comm.all_reduce(buf, ReduceOp::Sum)?;
    assert!(buf.iter().all(|&it| it as usize == comm.size()));
    memory.map(drop)
}

/// The pages of `own` are those of before if they can't be registered.
fn registered(comm: &mut Communicator, own: &mut Vec<u32>) -> Result<()> {
    own.fill(1);
    let done = comm.register(own).map(|mut guard| comm.all_reduce(&mut guard, ReduceOp::Sum));
    let failed = match done {
        Ok(done) => done.map(|()| None)?,
        Err(error) => {
            assert!(own.iter().all(|&it| it == 1));
            comm.all_reduce(own, ReduceOp::Sum).map(|()| Some(error))?
        }
    };
    assert!(own.iter().all(|&it| it as usize == comm.size()));
    failed.map_or(Ok(()), Err)
}

fn started(comm: &mut Communicator, _: &mut Vec<u32>) -> Result<()> {
    let sum = comm.nonblocking().all_reduce(vec![1_u32; 1000], ReduceOp::Sum).wait()?;
    assert!(sum.iter().all(|&it| it as usize == comm.size()));
    Ok(())
}

/// A call of a rank; it may use this memory, which exists before the limit.
type Task = fn(&mut Communicator, &mut Vec<u32>) -> Result<()>;

/// Runs the one task in which the limit holds; before and after it the communicator works.
fn limited_task(
    comm: &mut Communicator,
    (what, value): (&str, u64),
    (task, stays_usable): (Task, bool),
) -> Result<()> {
    work(comm)?;
    let mut own = vec![1_u32; 500_000];
    let limited = !what.starts_with("not-");
    if limited {
        limit(what, value);
    }
    let done = task(comm, &mut own);
    if limited {
        raise(what);
    }
    if stays_usable { work(comm).and(done) } else { done }
}

fn run(what: &str, value: u64) -> Result<()> {
    let Some((builder, _, _)) = this_builder() else { panic!("no seat") };
    let encrypts = std::env::var(ENCRYPTS).is_ok_and(|it| it == "1");
    let builder = if encrypts { builder.secret(&[7; 32]).encrypt(true) } else { builder };
    let (stage, name) = what.split_once(':').unwrap_or(("start", what));
    let limited = !stage.starts_with("not-");
    if name == "threads" && geteuid().is_root() {
        // Root has no such limit, and all ranks must be processes of one user.
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
            let task: (Task, _) = match stage {
                "group" => (group, true),
                "shared" => (shared, true),
                "registered" => (registered, true),
                "started" => (started, false),
                _ => panic!("{stage}"),
            };
            let name = if limited { name.to_owned() } else { format!("not-{name}") };
            limited_task(&mut builder.build()?, (&name, value), task)
        }
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    let Ok(setting) = std::env::var(SETTING) else { return };
    alarm::set(LONG);
    let (what, value) = setting.split_once(' ').unwrap();
    match run(what, value.parse().unwrap()) {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}
