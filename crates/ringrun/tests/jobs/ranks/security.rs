//! Security of a job: no listening TCP socket on one host, no secret in processes that ranks start,
//! and no connection without the secret between hosts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::hosts::{start, with_hosts};
use crate::harness::{
    AS_RANK, BODY, PATIENCE, PROMPT, Process, RINGRUN, all_end, all_right, fifo, kill_all, myself,
    until,
};
use crate::job::Job;
use crate::procfs::{self, Kind};

/// Rank 1 does not start before a line comes through the pipe, so that the others wait for it.
const HELD_BACK: &str = "if [ $RINGREDUCE_RANK = 1 ]; then read go < \"$0\"; fi; exec \"$@\"";

#[test]
fn a_job_on_one_host_does_not_listen_on_tcp() {
    let job = Job::new();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    let mut command = job.command(RINGRUN);
    command.args(["-n", "3", "sh", "-c", HELD_BACK]).arg(&pipe).arg(myself()).args(AS_RANK);
    command.env(BODY, "calls 1000 1000000000").env_remove("RINGREDUCE_TRANSPORT");
    let mut running = Process::start(command);
    let count = |of: Vec<u32>, kind| -> usize {
        let sockets = of.into_iter().flat_map(procfs::kinds_of_sockets);
        sockets.filter(|&found| found == kind).count()
    };
    let launcher = running.pid();
    let have =
        |kind| count(job.processes().into_iter().filter(|&it| it != launcher).collect(), kind);
    let launcher_has = |kind| count(vec![launcher], kind);
    let tcp = [Kind::TcpListener, Kind::Tcp];
    let tcp_sockets = || tcp.iter().map(|&kind| have(kind) + launcher_has(kind)).sum::<usize>();
    // Two ranks have started: each listens at a Unix socket.
    until("ranks 0 and 2 meet", || have(Kind::UnixListener) == 2);
    // The launcher listens for `ringrun status`.
    assert_eq!(launcher_has(Kind::UnixListener), 1);
    assert_eq!(tcp_sockets(), 0);
    fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"go\n").unwrap();
    for _ in 0..3 {
        running.numbers::<2>("up ");
        assert_eq!(tcp_sockets(), 0);
    }
    assert_eq!(have(Kind::UnixListener), 0);
    kill_all(vec![running]);
    until("all are gone", || job.processes().is_empty());
    job.left_nothing();
}

#[test]
fn a_program_started_by_a_rank_does_not_inherit_the_secret() {
    let job = Job::new();
    let ended = all_right(vec![Process::start(job.launch("-n 2", "starts"))]).remove(0);
    assert_eq!(ended.out.lines().filter(|line| *line == "child has none").count(), 2, "{ended:?}");
    job.left_nothing();
}

/// Makes a file with a secret.
fn secret(folder: &Path, name: &str, byte: u8) -> PathBuf {
    let path = folder.join(name);
    let mut file = fs::OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(&[byte; 32]).unwrap();
    path
}

/// The commands in the error message make the job start.
#[test]
fn the_error_of_hosts_without_a_secret_has_commands_that_make_one() {
    const SECRET_FILE: &str = "RINGREDUCE_SECRET_FILE";
    let home = tempfile::tempdir().unwrap();
    with_hosts("the_error_of_hosts_without_a_secret_has_commands_that_make_one", |job, hosts| {
        let start_all = |variable: &str, value: &Path| {
            start(job, hosts, |command| {
                command.env(BODY, "groups 2").env("RINGREDUCE_INSECURE", "0").env(variable, value);
            })
        };
        let refused = all_end(start_all("HOME", home.path()), PATIENCE);
        for rank in &refused {
            assert_eq!(rank.code, 1, "{rank:?}");
            for part in [SECRET_FILE, "2 hosts (left, right)", "RINGREDUCE_INSECURE=1"] {
                assert!(rank.err.contains(part), "{part}: {rank:?}");
            }
        }
        let said = |start| refused[0].err.lines().find(|line| line.trim_start().starts_with(start));
        let script = format!(
            "{}; {}; echo \"${SECRET_FILE}\"",
            said("(").unwrap(),
            said("export ").unwrap()
        );
        let made = Command::new("sh").args(["-euc", &script]).env("HOME", home.path()).output();
        let file = String::from_utf8(made.unwrap().stdout).unwrap();
        for (variable, value) in
            [(SECRET_FILE, Path::new(file.trim())), ("RINGREDUCE_INSECURE", Path::new("1"))]
        {
            all_right(start_all(variable, value));
        }
    });
}

#[test]
fn a_host_with_another_secret_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [secret(folder.path(), "ours", 1), secret(folder.path(), "theirs", 2)];
    with_hosts("a_host_with_another_secret_is_refused", |job, hosts| {
        let rank = AtomicUsize::new(0);
        let ranks = start(job, hosts, |command| {
            let key = &keys[rank.fetch_add(1, Ordering::Relaxed) / 2];
            command.env(BODY, "groups 2").env("RINGREDUCE_SECRET_FILE", key);
            command.env("RINGREDUCE_TIMEOUT", "6");
        });
        let ended = all_end(ranks, PROMPT);
        assert!(ended.iter().all(|it| it.code == 1), "{ended:?}");
        for missing in &ended[..2] {
            assert!(missing.err.contains("had not started: [2, 3]"), "{ended:?}");
        }
        for refused in &ended[2..] {
            for part in ["does not have this job's secret", "RINGREDUCE_SECRET_FILE must name"] {
                assert!(refused.err.contains(part), "{ended:?}");
            }
        }
        let counted = ended[0].err.lines().filter(|line| line.contains(" rejected ")).count();
        assert!((1..=2).contains(&counted), "{ended:?}");
    });
}
