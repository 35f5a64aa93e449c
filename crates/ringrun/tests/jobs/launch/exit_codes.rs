//! The exit code of a job, and the rank that the last message names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::{AS_IS, run, run_under, script, send, start_script, until};
use crate::procfs::state;

#[test]
fn the_first_failure_is_named_and_gives_the_code() {
    let ran = script("-n 3", "[ $RINGREDUCE_RANK = 1 ] && exit 43; exec sleep 1000");
    assert_eq!(ran.code, 43);
    assert!(ran.err.starts_with("ringrun: rank 1 (pid "), "{}", ran.err);
    assert!(ran.err.contains("failed first: sh exited with status 43"), "{}", ran.err);
    assert!(ran.err.contains("2 ranks still ran and had to end"), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

#[test]
fn a_signal_gives_128_and_its_number_and_is_named() {
    for (number, code, name) in [(11, 139, "SIGSEGV"), (9, 137, "SIGKILL"), (37, 165, "SIGRTMIN+3")]
    {
        let ran =
            script("-n 2", &format!("[ $RINGREDUCE_RANK = 0 ] && kill -{number} $$; sleep 1000"));
        assert_eq!(ran.code, code, "{}", ran.err);
        let expected = format!("sh was killed by {name} (signal {number})");
        assert!(ran.err.contains(&expected), "{}", ran.err);
    }
}

#[test]
fn the_rank_that_died_first_is_named_though_another_has_a_lower_number() {
    // Two ranks die while ringrun is stopped, the higher one first.
    let mut running = start_script("-n 4", "echo $RINGREDUCE_RANK $$; exec sleep 1000");
    let pids = running.pids::<4>("");
    running.signal(Signal::SIGSTOP);
    until("ringrun stops", || state(running.pid()) == Some('T'));
    for rank in [3, 1] {
        send(pids[rank], Signal::SIGKILL);
        until("a rank dies", || state(pids[rank]) == Some('Z'));
    }
    running.signal(Signal::SIGCONT);
    let ran = running.finish();
    assert_eq!(ran.code, 137);
    assert!(ran.err.starts_with(&format!("ringrun: rank 3 (pid {}", pids[3])), "{}", ran.err);
    assert!(ran.err.contains("perhaps memory ran out"), "{}", ran.err);
}

/// The limit leaves time for rank 1 to end, also where CPUs are few.
#[test]
fn the_time_limit_ends_the_job_and_names_the_ranks_that_still_ran() {
    let ran = script("-n 4 --timeout 3.5", "[ $RINGREDUCE_RANK = 1 ] && exit 0; exec sleep 1000");
    assert_eq!(ran.code, 124);
    let expected = "ringrun: the time limit of 3.5 s was reached; still running: ranks 0,2-3\n";
    assert_eq!(ran.err, expected);
}

#[test]
fn a_program_that_is_not_there_is_127_and_named() {
    for (program, said) in
        [("no-such-program", "no-such-program (PATH is "), ("/no/file", "/no/file")]
    {
        let ran = run(&["-n", "2", program]);
        assert_eq!(ran.code, 127);
        assert!(ran.err.contains(&format!("program not found: {said}")), "{}", ran.err);
    }
}

/// Writes a file with these permissions, and gives its path.
fn program(folder: &TempDir, name: &str, text: &str, mode: u32) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_program_that_cannot_run_is_126_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name, text, mode| program(&folder, name, text, mode);
    for (path, why) in [
        (
            file("plain", "exit 0", 0o644),
            "would make it so; a Python script? then say: ringrun ... python3 SCRIPT",
        ),
        (file("script.py", "pass", 0o644), "python3 SCRIPT"),
        (file("lost", "#!/no/such/interpreter\n", 0o755), "the interpreter in its #! line"),
        (folder.path().to_str().unwrap().to_owned(), "it is a directory"),
    ] {
        let ran = run(&["-n", "2", &path]);
        assert_eq!(ran.code, 126, "{}", ran.err);
        assert!(ran.err.contains(&path) && ran.err.contains(why), "{}", ran.err);
    }
}

#[test]
fn a_program_in_the_directory_but_not_in_path_gets_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    program(&folder, "mine", "#!/bin/sh\necho here\n", 0o755);
    let wdir = folder.path().to_str().unwrap();
    let ran = run(&["-n", "1", "--wdir", wdir, "mine"]);
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("say ./mine"), "{}", ran.err);
    assert_eq!(run(&["-n", "1", "--wdir", wdir, "./mine"]).out, "here\n");
}

#[test]
fn a_launch_that_fails_half_way_leaves_nothing() {
    // Files of no bytes are too small for the memory of the ranks' records.
    let limited = format!("ulimit -f 0; {AS_IS}");
    let ran = run_under(&limited, &["-n", "2", "sleep", "1000"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("ringrun: cannot "), "{}", ran.err);
    assert!(ran.err.contains("`ulimit -f`"), "{}", ran.err);
    let ran = run(&["-n", "99999999999", "true"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("-n 99999999999: at most "), "{}", ran.err);
}
