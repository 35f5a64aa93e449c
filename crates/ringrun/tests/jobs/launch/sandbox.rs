//! System calls that old kernels do not have and that sandboxes refuse, a machine without /proc,
//! and one that may have no more processes: a job goes another way, or ends with an error that
//! names what is missing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use ::harness::{sandbox, skip};
use nix::errno::Errno;
use nix::libc::{self, c_long};

use crate::harness::{AS_RANK, BODY, Ended, RINGRUN, myself, run_changed, run_under};

/// Calls without which a job works.
const DISPENSABLE: [c_long; 7] = [
    libc::SYS_fallocate,
    libc::SYS_pidfd_open,
    libc::SYS_membarrier,
    libc::SYS_process_vm_readv,
    libc::SYS_madvise,
    libc::SYS_pwritev2,
    libc::SYS_sched_setaffinity,
];

/// Calls without which a job can't work: their names, and the words of the error before them.
const NEEDED: [(c_long, &str, &str); 9] = [
    (libc::SYS_signalfd4, "signalfd4", "ringrun: cannot catch signals: "),
    (libc::SYS_prctl, "prctl", "ringrun: cannot adopt orphans: "),
    (libc::SYS_memfd_create, "memfd_create", "ringrun: cannot draw the job's secret: "),
    (libc::SYS_prlimit64, "prlimit64", "ringrun: cannot raise a limit: "),
    (
        libc::SYS_sched_getaffinity,
        "sched_getaffinity",
        "ringrun: cannot ask for the allowed CPUs: ",
    ),
    (libc::SYS_epoll_create1, "epoll_create1", "ringrun: cannot make an epoll set: "),
    (libc::SYS_fallocate, "fallocate", " bytes of shared memory: "),
    (libc::SYS_set_robust_list, "set_robust_list", "the exit futex: "),
    (libc::SYS_eventfd2, "eventfd2", "making a doorbell: "),
];

/// Kernels without a call answer with the first of these, most sandboxes with the second.
const ANSWERS: [Errno; 2] = [Errno::ENOSYS, Errno::EPERM];

/// Runs a job of two ranks to all of whose processes the kernel refuses a call.
fn run_without(call: c_long, answer: Errno) -> Ended {
    run_body_without("moves 1000", call, answer)
}

fn run_body_without(body: &str, call: c_long, answer: Errno) -> Ended {
    let me = myself();
    let words = [&["-n", "2", me.as_str()], &AS_RANK[..]].concat();
    run_changed(&words, |command| {
        command.env(BODY, body).env("RINGREDUCE_TRANSPORT", "shm");
        // The ranks read each other's memory where that is permitted.
        command.env("RINGREDUCE_ALGO", "single_copy");
        sandbox::refuse(command, call, answer);
    })
}

#[test]
fn a_job_works_without_calls_that_it_can_do_without() {
    for call in DISPENSABLE {
        for answer in ANSWERS {
            let ran = run_without(call, answer);
            assert_eq!(ran.code, 0, "{call} {answer}: {ran:?}");
            assert_eq!(ran.out.matches("right\n").count(), 2, "{call} {answer}: {ran:?}");
        }
    }
}

#[test]
fn a_refused_call_that_a_job_needs_is_named() {
    for (call, name, words) in NEEDED {
        for answer in ANSWERS {
            // Memory that ranks register is allocated at once.
            let body = if name == "fallocate" { "alloc 1000 1" } else { "moves 1000" };
            let ran = run_body_without(body, call, answer);
            assert_eq!(ran.code, 1, "{name} {answer}: {ran:?}");
            let named = format!("the system call {name} is refused by a sandbox (seccomp)");
            let is_named = |line: &str| line.contains(words) && line.contains(&named);
            assert!(ran.err.lines().any(is_named), "{name} {answer}: {ran:?}");
        }
    }
}

/// Runs `"$@"` with an empty /proc.
const WITHOUT_PROC: &str =
    r#"unshare --mount sh -c 'mount -t tmpfs none /proc || exit 77; "$@"' sh "$@""#;

#[test]
fn a_job_without_proc_is_refused_and_told_to_mount_it() {
    let ran = run_under(WITHOUT_PROC, &["-n", "2", "true"]);
    if ran.code == 77 || !ran.err.contains("ringrun: ") {
        let test = "launch::sandbox::a_job_without_proc_is_refused_and_told_to_mount_it";
        return skip(test, &format!("mounts are not permitted here: {}", ran.err));
    }
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.starts_with("ringrun: cannot see the processes of a job: "), "{ran:?}");
    assert!(
        ran.err.ends_with("/proc is not mounted; mount it (mount -t proc proc /proc)\n"),
        "{ran:?}"
    );
}

/// The limit of processes, or memory, ends the start of the watcher, of ranks and of threads.
#[test]
fn a_fork_that_fails_names_the_limit() {
    for (answer, limit) in [(Errno::EAGAIN, "`ulimit -u`"), (Errno::ENOMEM, "`ulimit -v`")] {
        for call in [libc::SYS_clone, libc::SYS_clone3] {
            let ran = run_without(call, answer);
            assert_eq!(ran.code, 1, "{call} {answer}: {ran:?}");
            assert!(ran.err.starts_with("ringrun: cannot "), "{call} {answer}: {ran:?}");
            assert!(ran.err.contains(limit), "{call} {answer}: {ran:?}");
        }
    }
}

/// Root has no such limit, so the job is that of nobody, who can run a copy of ringrun.
#[test]
fn a_user_who_may_have_few_processes_is_told_the_limit() {
    let test = "launch::sandbox::a_user_who_may_have_few_processes_is_told_the_limit";
    if !nix::unistd::geteuid().is_root() {
        return skip(test, "another user needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("ringrun");
    // A file that this process writes may be open in the fork of another test, and then not run.
    assert!(Command::new("cp").arg(RINGRUN).arg(&copy).status().unwrap().success());
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut worked = vec![];
    for most in (1..=8).chain([1000]) {
        let nobody = format!(
            "shift
            exec prlimit --nproc={most} setpriv --reuid=65534 --clear-groups {} \"$@\" 9>&1",
            copy.display()
        );
        let ran = run_under(&nobody, &["-n", "2", "true"]);
        let is_named = ran.code == 1 && ran.err.contains("RLIMIT_NPROC");
        assert!(ran.code == 0 || is_named, "{most}: {ran:?}");
        worked.push(ran.code == 0);
    }
    assert!(!worked[0] && worked[worked.len() - 1], "{worked:?}");
}
