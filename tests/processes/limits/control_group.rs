//! A control group with little memory, as of a container or a batch system: a request for more
//! memory is an error, and peers name a rank that the kernel kills there. These tests create
//! control groups below the one of this process, where that is permitted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ringreduce::{Error, ReduceOp, Result};

use super::rank::{ENDED, LONG};
use harness::processes::{World, this_builder};

/// Tell a rank its task, and the control group that it joins first.
const TASK: &str = "TEST_EXHAUSTION_TASK";
const GROUP: &str = "TEST_EXHAUSTION_GROUP";
/// The rank in the control group.
const LIMITED: usize = 1;
const LIMIT: usize = 64 << 20;
const MORE: usize = 2 * LIMIT;

/// A control group of either version; the drop removes it.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: usize) -> std::result::Result<Self, String> {
        let (folder, [most, swap]) = own().ok_or("no control group of this process is visible")?;
        // A control group that has just become empty may still exist.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringreduce-{}-{number}-{name}", std::process::id());
        let group = Self(folder.join(name));
        let context = |e: std::io::Error| format!("{}: {e}", group.0.display());
        fs::create_dir(&group.0).map_err(context)?;
        fs::write(group.0.join(most), limit.to_string()).map_err(context)?;
        // The file does not exist on a system without swap.
        let _ = fs::write(group.0.join(swap), "0");
        Ok(group)
    }
}

/// The control group of this process, and the names of its files for memory and swap in version 1
/// or 2.
fn own() -> Option<(PathBuf, [&'static str; 2])> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = |words: &str| groups.lines().find_map(|line| Some(line.split_once(words)?.1));
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

fn run(task: &str) -> Result<()> {
    let Some((builder, size, _)) = this_builder() else { panic!("no rank") };
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

/// A process: one rank.
pub(crate) fn rank() {
    let Ok(task) = std::env::var(TASK) else { return };
    nix::unistd::alarm::set(LONG);
    if let Ok(group) = std::env::var(GROUP) {
        fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    match run(&task) {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(Error::PeerLost { peer, .. }) => eprintln!("{ENDED}lost rank {}", peer.rank),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}

/// The ends of all ranks, with `limit` bytes of memory for one; none if that is not permitted.
fn in_a_group(task: &str, limit: usize) -> Option<Vec<(bool, String)>> {
    let group = Group::new(task, limit).inspect_err(|why| {
        let test = format!("limits::control_group::{task}");
        harness::skip(&test, &format!("no control group can be made: {why}"));
    });
    let group = group.ok()?;
    let settings = |rank| {
        let path = (rank == LIMITED).then(|| (GROUP, group.0.to_str().unwrap().to_owned()));
        let timeout = ("RINGREDUCE_TIMEOUT", "20".to_owned());
        path.into_iter().chain([(TASK, task.to_owned()), timeout]).collect()
    };
    let world = World::start("limits::control_group::rank", super::N, "shm", settings);
    let ends = world.ends();
    eprintln!("{task}, {limit} bytes: {ends:?}");
    Some(ends)
}

/// True if all ranks succeed. Else the limited rank must name the control group or be killed by the
/// kernel, and the others must report `words`: "well" if they notice nothing.
fn all_succeed(ends: &[(bool, String)], words: &str) -> bool {
    let says = |rank: usize, wanted: &str| {
        let (well, lines) = &ends[rank];
        *well && lines.lines().any(|line| line.starts_with(ENDED) && line.contains(wanted))
    };
    if (0..ends.len()).all(|rank| says(rank, "well")) {
        return true;
    }
    for (rank, (_, lines)) in ends.iter().enumerate() {
        let is_named = match rank == LIMITED {
            true => says(rank, "control group") || lines.starts_with("signal: 9"),
            false => says(rank, words),
        };
        assert!(is_named, "rank {rank}: {ends:?}");
    }
    false
}

/// The limits also end the start-up.
#[test]
fn a_rank_in_a_control_group_with_little_memory_names_it_or_is_named() {
    for mib in [2, 3, 4, 5, 6, 8, 12] {
        let Some(ends) = in_a_group("nothing", mib << 20) else { return };
        all_succeed(&ends, "rank 1");
    }
    let ends = in_a_group("nothing", LIMIT);
    assert!(ends.is_some_and(|ends| all_succeed(&ends, "")));
}

#[test]
fn shared_memory_that_exceeds_the_control_group_is_an_error() {
    if let Some(ends) = in_a_group("shared", LIMIT) {
        assert!(!all_succeed(&ends, "well") && ends[LIMITED].0, "{ends:?}");
    }
}

#[test]
fn a_rank_that_the_kernel_kills_for_lack_of_memory_is_named() {
    if let Some(ends) = in_a_group("own", LIMIT) {
        assert!(!all_succeed(&ends, "lost rank 1") && !ends[LIMITED].0, "{ends:?}");
    }
}
