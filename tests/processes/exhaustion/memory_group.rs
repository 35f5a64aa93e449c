//! A control group that has little memory, as a container or a batch system gives one: what asks
//! for more than it has is a typed error, and of whom the kernel ends there the others are told.
//! Such groups are made within this process's own, where that is permitted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ringreduce::{Error, ReduceOp, Result};

use super::rank::{ENDED, LONG};
use harness::processes::{Process, World, this_seat};

/// Which task a rank has, and which group it goes to first.
const TASK: &str = "TEST_EXHAUSTION_TASK";
const GROUP: &str = "TEST_EXHAUSTION_GROUP";
/// Who is in the group.
const WHO: usize = 1;
const LIMIT: usize = 64 << 20;
const MORE: usize = 2 * LIMIT;

/// A control group of this test, of either version, as long as this is there.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: usize) -> std::result::Result<Self, String> {
        let (folder, [most, swap]) = own().ok_or("this process is in none that is to be seen")?;
        // A group that has only just been emptied may be there still.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringreduce-{}-{number}-{name}", std::process::id());
        let group = Self(folder.join(name));
        let why = |e: std::io::Error| format!("{}: {e}", group.0.display());
        fs::create_dir(&group.0).map_err(why)?;
        fs::write(group.0.join(most), limit.to_string()).map_err(why)?;
        // Where there is no swap there is no such file.
        let _ = fs::write(group.0.join(swap), "0");
        Ok(group)
    }
}

/// The group that this process is in, and its files for the most memory and swap, in which it is
/// one of version 1 or of 2.
fn own() -> Option<(PathBuf, [&'static str; 2])> {
    let said = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = |words: &str| said.lines().find_map(|line| Some(line.split_once(words)?.1));
    let old = path(":memory:").map(|path| ("/sys/fs/cgroup/memory", path, V1));
    let (root, path, files) = old.or(path("0::").map(|path| ("/sys/fs/cgroup", path, V2)))?;
    Some((Path::new(root).join(path.trim_start_matches('/')), files))
}

const V1: [&str; 2] = ["memory.limit_in_bytes", "memory.swappiness"];
const V2: [&str; 2] = ["memory.max", "memory.swap.max"];

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn does(task: &str) -> Result<()> {
    let Some((builder, size, _)) = this_seat() else { panic!("no seat") };
    let mut comm = builder.build()?;
    let mut all = |mut buf: Vec<u8>| {
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| usize::from(it) == size));
        Ok(())
    };
    all(vec![1; 1000])?;
    match task {
        "shared" => comm.alloc::<u8>(MORE).map(drop),
        "own" => all(vec![1; MORE]),
        _ => Ok(()),
    }
}

/// Not a test of its own: a rank.
pub(crate) fn rank() {
    let Ok(task) = std::env::var(TASK) else { return };
    nix::unistd::alarm::set(LONG);
    if let Ok(group) = std::env::var(GROUP) {
        fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    match does(&task) {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(Error::PeerLost { peer, .. }) => eprintln!("{ENDED}lost rank {}", peer.rank),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}

/// How the ranks ended, if there can be such a group: one that may have so much memory.
fn in_a_group(task: &str, limit: usize) -> Option<Vec<(bool, String)>> {
    let group = Group::new(task, limit).inspect_err(|why| {
        let test = format!("exhaustion::memory_group::{task}");
        harness::skip(&test, &format!("no control group can be made: {why}"));
    });
    let group = group.ok()?;
    let settings = |rank| {
        let path = (rank == WHO).then(|| (GROUP, group.0.to_str().unwrap().to_owned()));
        let timeout = ("RINGREDUCE_TIMEOUT", "20".to_owned());
        path.into_iter().chain([(TASK, task.to_owned()), timeout]).collect()
    };
    let world = World::start("exhaustion::memory_group::rank", super::N, "shm", settings);
    let ends = world.0.into_iter().map(Process::end).collect();
    eprintln!("{task}, {limit} bytes: {ends:?}");
    Some(ends)
}

/// Did all end well? Else who is in the group names it, or the kernel has ended it, and the others
/// name that rank with these words.
fn is_told(ends: &[(bool, String)], words: &str) -> bool {
    let says = |rank: usize, wanted: &str| {
        let (well, said) = &ends[rank];
        *well && said.lines().any(|line| line.starts_with(ENDED) && line.contains(wanted))
    };
    if (0..ends.len()).all(|rank| says(rank, "well")) {
        return true;
    }
    for (rank, (_, said)) in ends.iter().enumerate() {
        let told = match rank == WHO {
            true => says(rank, "control group") || said.starts_with("signal: 9"),
            false => says(rank, words),
        };
        assert!(told, "rank {rank}: {ends:?}");
    }
    false
}

/// While a communicator is made, too.
#[test]
fn who_is_in_a_group_with_little_memory_says_so_or_is_named() {
    for mib in [2, 3, 4, 5, 6, 8, 12] {
        let Some(ends) = in_a_group("nothing", mib << 20) else { return };
        is_told(&ends, "rank 1");
    }
    let ends = in_a_group("nothing", LIMIT);
    assert!(ends.is_some_and(|ends| is_told(&ends, "")));
}

#[test]
fn shared_memory_that_does_not_fit_the_group_is_an_error() {
    if let Some(ends) = in_a_group("shared", LIMIT) {
        assert!(!is_told(&ends, "rank 1") && ends[WHO].0, "{ends:?}");
    }
}

#[test]
fn whom_the_kernel_ends_for_want_of_memory_is_named() {
    if let Some(ends) = in_a_group("own", LIMIT) {
        assert!(!is_told(&ends, "lost rank 1") && !ends[WHO].0, "{ends:?}");
    }
}
