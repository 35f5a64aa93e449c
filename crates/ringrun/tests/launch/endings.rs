//! How a job ends: the exit code, and who is blamed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{run, script, send, start, start_script, state, until};

#[test]
fn all_well_is_silent() {
    let ran = script("-n 3", "exit 0");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

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
fn victims_of_our_own_term_are_not_blamed() {
    let body = "trap 'exit 7' TERM; [ $RINGREDUCE_RANK = 2 ] && exit 5; sleep 1000 & wait";
    let ran = script("-n 4", body);
    assert_eq!(ran.code, 5);
    assert!(ran.err.starts_with("ringrun: rank 2 "), "{}", ran.err);
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
fn who_died_first_counts_not_who_is_seen_first() {
    // While ringrun is stopped two ranks die, the higher one first.
    let mut running = start_script("-n 4", "echo $RINGREDUCE_RANK $$; exec sleep 1000");
    let mut pids = [0; 4];
    for _ in 0..4 {
        let line = running.line();
        let (rank, pid) = line.split_once(' ').unwrap();
        pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
    }
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

#[test]
fn who_ignores_term_is_killed_after_five_seconds() {
    let body = "trap '' TERM; echo $RINGREDUCE_RANK $$; sleep 1000; sleep 1000";
    let mut running = start_script("-n 2", body);
    let lines = [running.line(), running.line()];
    let victim = lines.iter().find_map(|line| line.strip_prefix("1 ")).unwrap();
    let started = Instant::now();
    send(victim.parse().unwrap(), Signal::SIGSEGV);
    let ran = running.finish();
    assert_eq!(ran.code, 139);
    assert!(started.elapsed() >= Duration::from_secs(5));
    let expected = "1 rank did not end after SIGTERM and had to be killed";
    assert!(ran.err.contains(expected), "{}", ran.err);
}

/// By then rank 1 has ended, also where CPUs are few.
#[test]
fn the_time_limit_ends_the_job_and_names_who_still_ran() {
    let ran = script("-n 4 --timeout 3.5", "[ $RINGREDUCE_RANK = 1 ] && exit 0; exec sleep 1000");
    assert_eq!(ran.code, 124);
    let expected = "ringrun: the time limit of 3.5 s was reached; still running: ranks 0,2-3\n";
    assert_eq!(ran.err, expected);
}

#[test]
fn a_job_that_is_done_in_time_is_not_touched_by_the_limit() {
    assert_eq!(script("-n 2 --timeout 1000", "exit 0").code, 0);
}

#[test]
fn a_program_that_is_not_there_is_127_and_named() {
    let ran = run(&["-n", "2", "no-such-program-here"]);
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("program not found: no-such-program-here (PATH is "), "{}", ran.err);
    let ran = run(&["-n", "2", "/no/such/file"]);
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("program not found: /no/such/file"), "{}", ran.err);
}

#[test]
fn a_program_that_cannot_run_is_126_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (path, why) in [
        (file("plain", "exit 0", 0o644), "it is not executable"),
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
fn a_hint_tells_of_a_program_in_this_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine");
    fs::write(&path, "#!/bin/sh\necho here\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let wdir = folder.path().to_str().unwrap();
    let ran = run(&["-n", "1", "--wdir", wdir, "mine"]);
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("say ./mine"), "{}", ran.err);
    assert_eq!(run(&["-n", "1", "--wdir", wdir, "./mine"]).text(), "here\n");
}

#[test]
fn a_launch_that_fails_half_way_leaves_nothing() {
    // The shell that runs ringrun allows so few descriptors that not all ranks can start.
    let limited = "ulimit -n 40; exec \"$@\" 9>&1";
    let words = ["-n", "12", "sleep", "1000"];
    let ran = crate::harness::start_under(limited, &words, std::process::Stdio::null()).finish();
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("ringrun: cannot start rank "), "{}", ran.err);
    assert!(ran.err.contains("`ulimit -n`"), "{}", ran.err);
    let limited = "ulimit -f 0; exec \"$@\" 9>&1";
    let words = ["-n", "2", "sleep", "1000"];
    let ran = crate::harness::start_under(limited, &words, std::process::Stdio::null()).finish();
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("`ulimit -f`"), "{}", ran.err);
    let ran = run(&["-n", "99999999999", "true"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("-n 99999999999: at most "), "{}", ran.err);
}

#[test]
fn a_rank_killed_from_outside_is_named() {
    let mut running = start(&["-n", "1", "sh", "-c", "echo $$; exec sleep 1000"]);
    let pid: u32 = running.line().parse().unwrap();
    send(pid, Signal::SIGTERM);
    let ran = running.finish();
    assert_eq!(ran.code, 143);
    assert!(ran.err.contains(&format!("rank 0 (pid {pid}, host ")), "{}", ran.err);
}
