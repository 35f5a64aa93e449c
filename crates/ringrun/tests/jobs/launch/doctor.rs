//! `ringrun doctor`: each thing that is wrong is a problem with a remedy, and exit status 1.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use ::harness::sandbox;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;

use crate::harness::{Ended, run, run_changed, run_under, start_script};

/// The lines of problems and, after each, that of its remedy.
fn problems(ran: &Ended) -> Vec<[&str; 2]> {
    let lines: Vec<_> = ran.out.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0].starts_with("PROBLEM"));
    pairs.map(|pair| [pair[0], pair[1].trim()]).collect()
}

/// Checks that there is this one problem, with a remedy.
fn has_problem(ran: &Ended, name: &str, found: &str, remedy: &str) {
    assert_eq!((ran.code, ran.err.as_str()), (1, ""), "{}", ran.out);
    let all = problems(ran);
    let [[problem, advice]] = all[..] else { panic!("one problem: {}", ran.out) };
    let problem = problem.trim_start_matches("PROBLEM").trim_start();
    assert!(problem.starts_with(name) && problem.contains(found), "{problem}");
    assert!(advice.starts_with("> ") && advice.contains(remedy), "{advice}");
    assert!(ran.out.lines().last().is_some_and(|line| line.starts_with("# 1 problem")));
}

fn doctor(change: impl FnOnce(&mut Command)) -> Ended {
    run_changed(&["doctor"], change)
}

/// On a machine where jobs run, as those of these tests do.
#[test]
fn where_jobs_run_there_is_no_problem() {
    let home = tempfile::tempdir().unwrap();
    let ran = doctor(|command| _ = command.env("HOME", home.path()));
    assert_eq!((ran.code, ran.err.as_str(), problems(&ran)), (0, "", vec![]), "{}", ran.out);
    for name in ["version", "CPUs", "open files", "memory", "interfaces", "secret", "CUDA"] {
        assert!(ran.out.contains(&format!("  {name} ")), "{name}: {}", ran.out);
    }
    let made: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert!(made.is_empty(), "{made:?}");
}

#[test]
fn low_limits_are_problems() {
    let under = |limit: &str| run_under(&format!("{limit}; exec \"$@\" 9>&1"), &["doctor"]);
    has_problem(&under("ulimit -n 36"), "open files", "36, the hard limit", "ulimit -Hn");
    has_problem(&under("ulimit -v 900000"), "address space", "878.9 MiB", "ulimit -v");
    // A soft limit alone is raised by ranks.
    assert_eq!(under("ulimit -Sn 64").code, 0);
}

/// The standard output is a pipe, which this limit does not hold for.
#[test]
fn a_limit_of_file_size_ends_nothing() {
    let ran = run_under("ulimit -f 1; exec \"$@\" 9>&1", &["doctor"]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""), "{}", ran.out);
    let all = problems(&ran);
    let names = ["shared memory", "file size"];
    assert!(
        names.iter().all(|name| all.iter().any(|problem| problem[0].contains(name))),
        "{all:?}"
    );
}

#[test]
fn wrong_variables_are_problems() {
    let ran = doctor(|command| _ = command.env("RINGREDUCE_FOO", "1"));
    has_problem(&ran, "variables", "RINGREDUCE_FOO is no variable", "Correct the name");
    let ran = doctor(|command| _ = command.env("RINGREDUCE_TIMEOUT", "soon"));
    has_problem(&ran, "variables", "RINGREDUCE_TIMEOUT=\"soon\"", "Correct the value");
    let ran = doctor(|command| _ = command.env("RINGREDUCE_IFNAME", "nosuch9"));
    has_problem(&ran, "interfaces", "nosuch9", "RINGREDUCE_IFNAME");
    let ran = doctor(|command| _ = command.env("RINGREDUCE_CACHE", "/proc/version/a"));
    assert!(ran.code == 0 && ran.out.contains("note     speeds"), "{}", ran.out);
}

#[test]
fn a_secret_that_others_may_read_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, [7; 32]).unwrap();
    let with_mode = |mode| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        doctor(|command| _ = command.env("RINGREDUCE_SECRET_FILE", &file))
    };
    has_problem(&with_mode(0o644), "secret", "mode 644", "chmod 600");
    let ran = with_mode(0o600);
    assert_eq!(ran.code, 0, "{}", ran.out);
}

#[test]
fn a_call_that_jobs_need_is_a_problem_if_it_is_refused() {
    let without = |call, name: &str| {
        let ran = doctor(|command| sandbox::refuse(command, call, Errno::EPERM));
        (ran.out.lines().find(|line| line.contains(name)).unwrap().to_owned(), ran.code)
    };
    let (line, code) = without(libc::SYS_memfd_create, "shared memory");
    assert!(code == 1 && line.starts_with("PROBLEM"), "{line}");
    for (call, name) in
        [(libc::SYS_process_vm_readv, "peer memory"), (libc::SYS_pidfd_open, "ends of ranks")]
    {
        let (line, code) = without(call, name);
        assert!(code == 0 && line.starts_with("note"), "{line}");
    }
}

#[test]
fn json_goes_to_a_file_or_in_place_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doctor.json");
    let ran = run(&["doctor", "--json", file.to_str().unwrap()]);
    assert!(ran.out.contains("open files"), "{}", ran.out);
    let written = fs::read_to_string(file).unwrap();
    let printed = run(&["doctor", "--json", "-"]).out;
    for text in [written, printed] {
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let checks = json["checks"].as_array().unwrap();
        let open = checks.iter().find(|check| check["name"] == "open files").unwrap();
        assert_eq!((&open["state"], &open["remedy"]), (&"ok".into(), &serde_json::Value::Null));
    }
    let ran = run(&["doctor", "--json", "/nowhere/a.json"]);
    assert!(ran.code == 1 && ran.err.contains("/nowhere/a.json"), "{}", ran.err);
}

#[test]
fn a_job_that_runs_here_is_named() {
    let mut running = start_script("-n 1", "echo up; exec sleep 1000");
    running.await_lines("up", 1);
    let ran = run(&["doctor"]);
    let line = ran.out.lines().find(|line| line.starts_with("note     jobs")).unwrap();
    assert!(line.contains(&running.pid().to_string()), "{line}");
    running.signal(Signal::SIGTERM);
    running.finish();
}
