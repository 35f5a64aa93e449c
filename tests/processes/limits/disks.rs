//! A full disk: traces and flight records end there, and the job goes on.

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

/// Mounts a small file system, which this thread alone sees.
fn mount(folder: &str) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| errno.to_string())?;
    let run = |words: &[&str]| {
        let done = Command::new("mount").args(words).output().map_err(|e| e.to_string())?;
        let errors = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        if done.status.success() { Ok(()) } else { Err(errors) }
    };
    run(&["--make-rprivate", "/"])?;
    run(&["-t", "tmpfs", "-o", "size=64k", "none", folder])
}

/// A process: one rank with a small file system.
pub(crate) fn rank() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    if let Err(why) = mount(&folder) {
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
    let full = fs::write(Path::new(&folder).join("more"), vec![1; 1 << 20]);
    assert!(full.is_err());
    for file in fs::read_dir(&folder).unwrap() {
        check_json(&file.unwrap().path());
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

#[test]
fn a_full_disk_does_not_stop_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let settings = |_| {
        [FOLDER, "RINGREDUCE_TRACE", "RINGREDUCE_RECORD_DIR"].map(|it| (it, path.into())).into()
    };
    let world = World::start("limits::disks::rank", 2, "shm", settings);
    let ends = world.ends();
    if let Some(why) = ends.iter().find_map(|(_, lines)| lines.split_once(CANNOT)) {
        let why = why.1.lines().next().unwrap();
        let test = "limits::disks::a_full_disk_does_not_stop_a_job";
        return harness::skip(test, &format!("nothing can be mounted here: {why}"));
    }
    for (rank, (well, lines)) in ends.iter().enumerate() {
        assert!(*well && lines.contains(WELL), "rank {rank}: {lines}");
    }
}
