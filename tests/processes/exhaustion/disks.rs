//! Disks that are full: what a rank writes down of its calls ends there, and the job goes on; and a
//! small /dev/shm, which nothing needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use ringreduce::ReduceOp;

use harness::processes::{World, this_rank};

/// Where what is mounted there.
const FOLDER: &str = "TEST_EXHAUSTION_FOLDER";
/// What a rank says when it could not mount anything.
const CANNOT: &str = "cannot mount: ";
const WELL: &str = "all calls went well";

/// A file system of so many bytes, which this thread alone sees.
fn mount(size: &str, folder: &str) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| errno.to_string())?;
    let run = |words: &[&str]| {
        let done = Command::new("mount").args(words).output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        if done.status.success() { Ok(()) } else { Err(said) }
    };
    run(&["--make-rprivate", "/"])?;
    run(&["-t", "tmpfs", "-o", &format!("size={size}"), "none", folder])
}

/// Not a test of its own: a rank that has a small file system in this folder.
pub(crate) fn rank() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let size = if folder == "/dev/shm" { "1m" } else { "64k" };
    if let Err(why) = mount(size, &folder) {
        return eprintln!("{CANNOT}{why}");
    }
    let Some(mut comm) = this_rank() else { return };
    for round in 0..400 {
        let mut buf = vec![1_u32; 1 << (round % 18)];
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        assert!(buf.iter().all(|&it| it as usize == comm.size()));
    }
    let lost = comm.rank() == 0;
    if lost {
        // One whose calls are written down, too.
        drop(comm);
    } else {
        comm.barrier().unwrap_err();
    }
    if folder != "/dev/shm" {
        let full = fs::write(Path::new(&folder).join("more"), vec![1; 1 << 20]);
        assert!(full.is_err());
        for file in fs::read_dir(&folder).unwrap() {
            whole(&file.unwrap().path());
        }
    }
    eprintln!("{WELL}");
}

/// A trace is whole JSON, however little of it there was room for.
fn whole(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    if file.extension().is_some_and(|it| it == "json") {
        let last = text.trim_end_matches("\n]\n").lines().last().unwrap();
        assert!(text.ends_with("}\n]\n") && text.starts_with("[\n{"), "{text}");
        assert!(last.starts_with('{') && last.matches('{').count() == last.matches('}').count());
    }
}

fn in_little_room(name: &str, folder: &str) {
    let settings = |_| {
        let folders = ["RINGREDUCE_TRACE", "RINGREDUCE_RECORD_DIR"].map(|it| (it, folder.into()));
        let written = folders.into_iter().filter(|_| folder != "/dev/shm");
        [(FOLDER, folder.to_owned())].into_iter().chain(written).collect()
    };
    let world = World::start("exhaustion::disks::rank", 2, "shm", settings);
    let ends: Vec<_> = world.0.into_iter().map(harness::processes::Process::end).collect();
    if let Some(why) = ends.iter().find_map(|(_, said)| said.split_once(CANNOT)) {
        let why = why.1.lines().next().unwrap();
        let test = format!("exhaustion::disks::{name}");
        return harness::skip(&test, &format!("nothing can be mounted here: {why}"));
    }
    for (rank, (well, said)) in ends.iter().enumerate() {
        assert!(*well && said.contains(WELL), "rank {rank}: {said}");
    }
}

#[test]
fn full_disks_stop_no_job() {
    let folder = tempfile::tempdir().unwrap();
    in_little_room("full_disks_stop_no_job", folder.path().to_str().unwrap());
}

#[test]
fn little_named_shared_memory_is_enough() {
    in_little_room("little_named_shared_memory_is_enough", "/dev/shm");
}
