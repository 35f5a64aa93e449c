//! Full disks: traces and flight records end there, and the job goes on; and a small /dev/shm,
//! which the library does not need.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use ringreduce::ReduceOp;

use harness::processes::{World, this_rank};

/// Tells a rank the folder to mount a small file system at.
const FOLDER: &str = "TEST_EXHAUSTION_FOLDER";
/// The prefix of a rank's line if it is not permitted to mount.
const CANNOT: &str = "cannot mount: ";
const WELL: &str = "all calls went well";

/// Mounts a file system of `size`, which this thread alone sees.
fn mount(size: &str, folder: &str) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| errno.to_string())?;
    let run = |words: &[&str]| {
        let done = Command::new("mount").args(words).output().map_err(|e| e.to_string())?;
        let errors = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        if done.status.success() { Ok(()) } else { Err(errors) }
    };
    run(&["--make-rprivate", "/"])?;
    run(&["-t", "tmpfs", "-o", &format!("size={size}"), "none", folder])
}

/// A process: one rank with a small file system.
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
        // The lost rank writes files, too.
        drop(comm);
    } else {
        comm.barrier().unwrap_err();
    }
    if folder != "/dev/shm" {
        let full = fs::write(Path::new(&folder).join("more"), vec![1; 1 << 20]);
        assert!(full.is_err());
        for file in fs::read_dir(&folder).unwrap() {
            check_json(&file.unwrap().path());
        }
    }
    eprintln!("{WELL}");
}

/// A trace is complete JSON, also if the disk had space for its beginning alone.
fn check_json(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    if file.extension().is_some_and(|it| it == "json") {
        let last = text.trim_end_matches("\n]\n").lines().last().unwrap();
        assert!(text.ends_with("}\n]\n") && text.starts_with("[\n{"), "{text}");
        assert!(last.starts_with('{') && last.matches('{').count() == last.matches('}').count());
    }
}

fn run_with_small_disk(name: &str, folder: &str) {
    let settings = |_| {
        let folders = ["RINGREDUCE_TRACE", "RINGREDUCE_RECORD_DIR"].map(|it| (it, folder.into()));
        let written = folders.into_iter().filter(|_| folder != "/dev/shm");
        [(FOLDER, folder.to_owned())].into_iter().chain(written).collect()
    };
    let world = World::start("limits::disks::rank", 2, "shm", settings);
    let ends = world.ends();
    if let Some(why) = ends.iter().find_map(|(_, lines)| lines.split_once(CANNOT)) {
        let why = why.1.lines().next().unwrap();
        let test = format!("limits::disks::{name}");
        return harness::skip(&test, &format!("nothing can be mounted here: {why}"));
    }
    for (rank, (well, lines)) in ends.iter().enumerate() {
        assert!(*well && lines.contains(WELL), "rank {rank}: {lines}");
    }
}

#[test]
fn a_full_disk_does_not_stop_a_job() {
    let folder = tempfile::tempdir().unwrap();
    run_with_small_disk("a_full_disk_does_not_stop_a_job", folder.path().to_str().unwrap());
}

#[test]
fn a_small_dev_shm_is_enough() {
    run_with_small_disk("a_small_dev_shm_is_enough", "/dev/shm");
}
