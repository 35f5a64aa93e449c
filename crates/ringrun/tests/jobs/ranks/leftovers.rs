//! Descriptors, sockets, memory and files of ranks, while they run and after. (Every test checks
//! that no process outlives its job.)

use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::{
    AS_RANK, BODY, Ended, PATIENCE, PROMPT, Process, RINGRUN, all_end, all_up, kill_all, myself,
    send,
};
use crate::job::Job;
use crate::procfs;
use ::harness::skip;

#[test]
fn ranks_that_have_met_listen_for_links_over_tcp_alone() {
    // In shared memory all ranks map the host's region and each rank's page and status entry, and a
    // rank has one stream to each other. Over TCP a rank maps its own page and entry alone, has a
    // control connection to each other rank, and one for each link that a call has used.
    let [shm, own] = [4 + 1 + 2 * 3, 2];
    for (transport, tcp, unix, memory) in [("shm", 0..=0, 2, shm), ("tcp", 3..=2 + 4, 0, own)] {
        let job = Job::new();
        let mut ranks = job.world(3, transport, "calls 1000 1000000000");
        all_up(&mut ranks);
        for rank in &ranks {
            let sockets = procfs::sockets(rank.pid());
            let listening = usize::from(transport == "tcp");
            assert_eq!((sockets.listening, sockets.unix), (listening, unix), "{transport}");
            assert!(tcp.contains(&sockets.tcp), "{transport}: {sockets:?}");
            assert_eq!(procfs::shared_pieces(rank.pid()), memory, "{transport}");
        }
        kill_all(ranks);
        job.left_nothing();
    }
}

/// Runs `"$@"` with a /dev/shm of 1 MiB and a /tmp of its own, and then lists the files in them.
/// The programs, which may lie under /tmp, are found under /mnt.
const CONFINED: &str = r#"
    mount -t tmpfs -o size=1m none /dev/shm && mount --bind "$1" /mnt &&
    mount -t tmpfs none /tmp || exit 77
    cd / && shift && TMPDIR=/tmp "$@" && code=0 || code=$?
    echo "left:" $(find /dev/shm /tmp -mindepth 1)
    exit $code"#;

/// Starts ringrun and this program in such mounts. None where mounts are not permitted.
fn confined(job: &Job, test: &str, body: &str) -> Option<Process> {
    let inside = |script: &str| {
        let mut command = job.command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command
    };
    let may = inside("mount -t tmpfs none /mnt").output();
    if !may.as_ref().is_ok_and(|output| output.status.success()) {
        skip(test, &format!("mounts are not permitted here: {may:?}"));
        return None;
    }
    let me = std::path::PathBuf::from(myself());
    // The programs are target/debug/ringrun and target/debug/deps/NAME.
    let folder = std::path::Path::new(RINGRUN).parent().unwrap();
    let me = std::path::Path::new("/mnt").join(me.strip_prefix(folder).unwrap());
    let mut command: Command = inside(CONFINED);
    command.arg(folder).args(["/mnt/ringrun", "-n", "4"]).arg(me).args(AS_RANK);
    command.env(BODY, body).env("RINGREDUCE_TRANSPORT", "shm");
    Some(Process::start(command))
}

fn left_no_file(ended: &Ended) {
    assert!(ended.out.lines().any(|line| line == "left:"), "{ended:?}");
}

#[test]
fn a_small_shared_memory_mount_is_enough() {
    let job = Job::new();
    let test = "ranks::leftovers::a_small_shared_memory_mount_is_enough";
    // 16 MiB for each of four ranks.
    let Some(running) = confined(&job, test, "calls 4194304 3") else { return };
    let ended = all_end(vec![running], PATIENCE).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.lines().filter(|line| *line == "right").count(), 4, "{ended:?}");
    left_no_file(&ended);
    job.left_nothing();
}

#[test]
fn killed_ranks_leave_no_file() {
    let job = Job::new();
    let test = "ranks::leftovers::killed_ranks_leave_no_file";
    let Some(mut running) = confined(&job, test, "calls 100000 1000000000") else { return };
    running.pids::<4>("up ").into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
    let ended = all_end(vec![running], PROMPT).remove(0);
    assert!([1, 137].contains(&ended.code), "{ended:?}");
    left_no_file(&ended);
    job.left_nothing();
}
