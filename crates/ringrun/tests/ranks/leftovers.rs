//! What ranks hold while they run and after: descriptors, sockets, memory, files. (That no process
//! outlives its job every test here looks for itself.)

use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::{
    AS_RANK, BODY, Ended, Job, PATIENCE, PROMPT, Process, RINGRUN, all_end, kill_all, myself,
};
use crate::report::Report;
use crate::system;
use ::harness::skip;

#[test]
fn a_communicator_that_is_dropped_gives_every_descriptor_back() {
    for transport in ["shm", "tcp"] {
        let job = Job::new();
        let mut command = job.command(RINGRUN);
        command.args(["-n", "3", &myself()]).args(AS_RANK);
        command.env(BODY, "again 5").env("RINGREDUCE_TRANSPORT", transport);
        let mut worlds = job.world(3, transport, "again 5");
        worlds.push(Process::start(command));
        for ended in all_end(worlds, PATIENCE) {
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(ended.out.contains("right\n"), "{ended:?}");
        }
        job.left_nothing();
    }
}

#[test]
fn once_the_ring_runs_nobody_listens() {
    // Each pair has a link both ways, and on shared memory each rank lines and a page that all see;
    // over TCP it has but its own, and to each other rank a connection beside.
    for (transport, tcp, memory) in [("shm", 0, 4 + 3 + 3), ("tcp", 4 + 2, 1)] {
        let job = Job::new();
        let mut ranks = job.world(3, transport, "calls 1000 1000000000");
        for rank in &mut ranks {
            rank.line("up");
        }
        for rank in &ranks {
            let sockets = system::sockets(rank.pid());
            assert_eq!(sockets, system::Sockets { listening: 0, tcp }, "{transport}");
            assert_eq!(system::shared_pieces(rank.pid()), memory, "{transport}");
        }
        kill_all(ranks);
        job.left_nothing();
    }
}

/// With a /dev/shm of 1 MiB and a /tmp of its own, both empty, runs `"$@"`; then tells what is in
/// them. The programs are found under /mnt, for they may lie under /tmp.
const CONFINED: &str = r#"
    mount -t tmpfs -o size=1m none /dev/shm && mount --bind "$1" /mnt &&
    mount -t tmpfs none /tmp || exit 77
    cd / && shift && TMPDIR=/tmp "$@" && code=0 || code=$?
    echo "left:" $(find /dev/shm /tmp -mindepth 1)
    exit $code"#;

/// Starts ringrun and this program, confined; where that is not permitted, says so and gives none.
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
    // target/debug/ringrun and target/debug/deps/this
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
    let test = "a_small_shared_memory_mount_is_enough";
    // 16 MiB for each of four ranks.
    let Some(running) = confined(&job, test, "calls 4194304 3") else { return };
    let ended = all_end(vec![running], PATIENCE).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.lines().filter(|line| *line == "right").count(), 4, "{ended:?}");
    left_no_file(&ended);
    job.left_nothing();
}

#[test]
fn the_killed_leave_no_file() {
    let job = Job::new();
    let test = "the_killed_leave_no_file";
    let Some(mut running) = confined(&job, test, "calls 100000 1000000000") else { return };
    let up: Vec<_> = (0..4).map(|_| running.line("up ")).collect();
    let pids = up.iter().filter_map(|line| line.trim().rsplit(' ').next()?.parse().ok());
    for pid in pids.map(nix::unistd::Pid::from_raw) {
        // The first one's death may already have ended the others.
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    }
    let ended = all_end(vec![running], PROMPT).remove(0);
    assert!([1, 137].contains(&ended.code), "{ended:?}");
    left_no_file(&ended);
    job.left_nothing();
}

/// The report's own parts, so that no test here passes on words it did not understand.
#[test]
fn reports_are_read_as_they_are_written() {
    let line = "rank 1 (host a.b) in all_reduce #57, step 2: lost rank 0 (host c, pid 7): why\n";
    let report = Report::of(&Ended { code: 1, out: String::new(), err: line.into() });
    assert_eq!((report.rank, report.host.as_str(), report.call.as_str()), (1, "a.b", "all_reduce"));
    assert_eq!((report.sequence, report.step, report.peer), (57, 2, 0));
    assert_eq!((report.peer_host.as_str(), report.peer_pid), ("c", 7));
    assert_eq!(report.what, "lost rank 0 (host c, pid 7): why");
}
