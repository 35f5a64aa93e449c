//! What strangers find of a job: no way in over the network if it is on one host, and no secret in
//! what its ranks start.

use std::fs;
use std::io::Write;

use nix::sys::stat::Mode;

use crate::harness::{AS_RANK, BODY, Job, Process, RINGRUN, kill_all, myself, until};
use crate::system::{self, Kind};

/// A rank waits in the middle of the meeting until somebody opens the pipe.
const HELD_BACK: &str = "if [ $RINGREDUCE_RANK = 1 ]; then read go < \"$0\"; fi; exec \"$@\"";

#[test]
fn one_host_has_no_way_in_over_tcp() {
    let job = Job::new();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut command = job.command(RINGRUN);
    command.args(["-n", "3", "sh", "-c", HELD_BACK]).arg(&pipe).arg(myself()).args(AS_RANK);
    command.env(BODY, "calls 1000 1000000000").env_remove("RINGREDUCE_TRANSPORT");
    let mut running = Process::start(command);
    let have = |kind| -> usize {
        let sockets = job.processes().into_iter().flat_map(system::kinds_of_sockets);
        sockets.filter(|&found| found == kind).count()
    };
    let ways_in = || have(Kind::TcpListener) + have(Kind::Tcp);
    // Two ranks are in their meeting: each listens at a socket that has no address.
    until("ranks 0 and 2 meet", || have(Kind::UnixListener) == 2);
    assert_eq!(ways_in(), 0);
    fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"go\n").unwrap();
    for _ in 0..3 {
        running.line("up");
        assert_eq!(ways_in(), 0);
    }
    assert_eq!(have(Kind::UnixListener), 0);
    kill_all(vec![running]);
    until("all are gone", || job.processes().is_empty());
    job.left_nothing();
}

#[test]
fn what_a_rank_starts_does_not_inherit_the_secret() {
    let job = Job::new();
    let mut command = job.command(RINGRUN);
    command.args(["-n", "2", &myself()]).args(AS_RANK).env(BODY, "starts");
    let ended = Process::start(command).end(std::time::Instant::now() + crate::harness::PATIENCE);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.lines().filter(|line| *line == "child has none").count(), 2, "{ended:?}");
    job.left_nothing();
}
