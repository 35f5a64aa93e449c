//! Ranks on several hosts, by a remote shell that stays on this host: the numbers of the ranks.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::tf_config::{PRINT, host_and_port, workers_of};
use crate::harness::{AS_IS, Ended, run_under, start_under};

/// A remote shell that runs its command here.
fn remote_shell(folder: &TempDir) -> PathBuf {
    remote_shell_of(folder, "shift\nexec sh -c \"$*\"")
}

/// A remote shell that is this script.
fn remote_shell_of(folder: &TempDir, script: &str) -> PathBuf {
    let path = folder.path().join("rsh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

/// The end of a job whose ranks say rank, size, local rank, local size and number of the host.
fn numbers(folder: &TempDir, environment: &str, options: &str) -> Ended {
    let shell = remote_shell(folder).display().to_string();
    let body = "echo $RINGREDUCE_RANK/$RINGREDUCE_SIZE \
         $RINGREDUCE_LOCAL_RANK/$RINGREDUCE_LOCAL_SIZE $GROUP_RANK";
    let words = ["--rsh", &shell].into_iter().chain(options.split_whitespace());
    let words: Vec<_> = words.chain(["sh", "-c", body]).collect();
    let mut ran = run_under(&format!("{environment} {AS_IS}"), &words);
    // As they are here.
    ran.err = ran.err.lines().filter(|line| !line.contains(ONE_MACHINE)).collect();
    ran
}

/// The warning of hosts that are one machine.
const ONE_MACHINE: &str = " are one machine, ";

#[test]
fn a_host_with_two_names_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let shell = remote_shell(&folder).display().to_string();
    let run = |hosts: &str, options: &[&str]| {
        let words = [options, &["-H", hosts, "--rsh", &shell, "true"]].concat();
        let ran = run_under(AS_IS, &words);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.err
    };
    for (hosts, names) in [
        ("a.invalid,b.invalid:2,c.invalid", "hosts a.invalid and b.invalid"),
        ("a.invalid,localhost", "hosts a.invalid and localhost"),
    ] {
        let said = run(hosts, &[]);
        assert!(said.starts_with(&format!("ringrun: {names}{ONE_MACHINE}")), "{said}");
        assert!(said.ends_with("name it once, with the slots of both\n"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(run("a.invalid:2", &[]), "");
    assert_eq!(run("a.invalid,b.invalid", &["--quiet"]), "");
}

#[test]
fn ranks_have_their_numbers_on_every_host() {
    let folder = tempfile::tempdir().unwrap();
    for (options, expected) in [
        ("-H a.invalid:2,b.invalid:1", "0/3 0/2 0, 1/3 1/2 0, 2/3 0/1 1"),
        ("-H a.invalid:2,localhost:2 --map-by node -n 3", "0/3 0/2 0, 1/3 0/1 1, 2/3 1/2 0"),
        ("-H n[1-2].invalid -N 2", "0/4 0/2 0, 1/4 1/2 0, 2/4 0/2 1, 3/4 1/2 1"),
        ("-H a.invalid,b.invalid -n 3 --oversubscribe", "0/3 0/2 0, 1/3 1/2 0, 2/3 0/1 1"),
        ("-H a.invalid:1,b.invalid:3 -n 1", "0/1 0/1 0"),
        ("-H a.invalid -n 2", "0/2 0/2 0, 1/2 1/2 0"),
    ] {
        let ran = numbers(&folder, "", options);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{options}");
        assert_eq!(ran.sorted().join(", "), expected, "{options}");
    }
}

#[test]
fn an_agent_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo Welcome; echo ringrun-agent 1 0.0.1 x86_64; exec cat > /dev/null";
    let shell = remote_shell_of(&folder, script).display().to_string();
    let ran = run_under(AS_IS, &["-H", "a.invalid:1", "--rsh", &shell, "true"]);
    assert!(ran.code == 1 && ran.out.is_empty(), "{ran:?}");
    for part in [
        "cannot start ranks on host a.invalid: rsh started \"ringrun-agent 1 0.0.1 x86_64\", and",
        ": install the same ringrun",
    ] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
}

#[test]
fn hosts_of_slurm_are_those_of_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let slurm = "export SLURM_JOB_NODELIST=n[1-2].invalid SLURM_TASKS_PER_NODE=2,1;";
    let ran = numbers(&folder, slurm, "");
    assert_eq!(ran.err, "");
    assert_eq!(ran.sorted().join(", "), "0/3 0/2 0, 1/3 1/2 0, 2/3 0/1 1");
    let ran = numbers(&folder, slurm, "-H localhost -n 1");
    assert_eq!(ran.sorted().join(", "), "0/1 0/1 0");
}

#[test]
fn hosts_on_which_no_printed_command_runs_are_named() {
    let insecure = format!("export RINGREDUCE_INSECURE=1; {AS_IS}");
    let words = ["--launcher", "manual", "-H", "localhost,a.invalid,b.invalid", "true"];
    let mut running = start_under(&insecure, &words, Stdio::null());
    running.error_line("  on b.invalid:\n");
    let line = running.error_line("--agent");
    assert!(
        line.starts_with("    env -u RINGREDUCE_SECRET_FILE RINGREDUCE_INSECURE=1 '/"),
        "{line}"
    );
    assert!(line.ends_with(" 2\n"), "{line}");
    running.error_line("waiting for the ringrun of a.invalid, b.invalid\n");
    running.signal(Signal::SIGINT);
    let ended = running.finish();
    assert!(ended.code == 130 && ended.out.is_empty(), "{ended:?}");
    let late = run_under(&insecure, &[&["--timeout", "1"], &words[..]].concat());
    let named = "before these hosts were ready (--timeout): a.invalid, b.invalid\n";
    assert!(late.code == 124 && late.err.ends_with(named), "{late:?}");
    let wrong = run_under(&insecure, &["--agent", "a.invalid:1", "h1"]);
    let expected = "expected ADDRESS:PORT and a host's number";
    assert!(wrong.code == 2 && wrong.err.contains(expected), "{wrong:?}");
}

#[test]
fn workers_of_tensorflow_are_at_the_names_of_their_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let shell = remote_shell(&folder).display().to_string();
    let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for (hosts, expected) in [
        ("user@a.invalid:2,localhost:1", ["a.invalid", "a.invalid", &here]),
        ("localhost:1,[fd77::1]:2", [&here, "[fd77::1]", "[fd77::1]"]),
        ("a.invalid:3", ["a.invalid"; 3]),
    ] {
        let words = ["-H", hosts, "--rsh", &shell, "sh", "-c", PRINT];
        let ran = run_under(&format!("unset TF_CONFIG; {AS_IS}"), &words);
        let workers = workers_of(&ran);
        let names: Vec<_> = workers.iter().map(|worker| host_and_port(worker).0).collect();
        assert_eq!((ran.code, names), (0, expected.to_vec()), "{ran:?}");
    }
}
