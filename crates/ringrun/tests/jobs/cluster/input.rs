//! The standard input of ringrun, which a rank 0 on another host has through it.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use super::{Running, cluster, ringrun, start};
use crate::harness::Process;
use crate::job::Job;
use crate::launch::signals::terminal;

/// A background job of a shell gets nothing of a terminal, and is not stopped, until it is brought
/// to the foreground.
#[test]
fn a_background_job_leaves_the_terminal_alone() {
    let Some(cluster) = cluster("input::a_background_job_leaves_the_terminal_alone", 2) else {
        return;
    };
    let (mut keys, screen) = terminal();
    let (job, script) = (Job::new(), "until test -e /run/read; do echo up; sleep 0.1; done; cat");
    let ringrun = ringrun(&job, "h1:1", &["sh", "-c", script]);
    let shell = "\"$@\" & until test -e /run/fg; do sleep 0.1; done; fg %1";
    let mut command = job.command("setsid");
    command.args(["-c", "-w", "bash", "--norc", "-ic", shell, "bash"]).arg(ringrun.get_program());
    command.args(ringrun.get_args()).env_remove("RINGREDUCE_INSECURE");
    let process = Process::start_on(&cluster.hosts[0], &command, screen.into());
    let mut running = Running { process, job, cluster: &cluster };
    running.await_lines("up", 1);
    keys.write_all(b"typed\n").unwrap();
    running.await_lines("up", 20);
    cluster.hosts[0].does("touch /run/fg").unwrap();
    cluster.hosts[1].does("touch /run/read").unwrap();
    running.await_lines("typed", 1);
    keys.write_all(b"\x04").unwrap();
    assert_eq!(running.finish().code, 0);
}

#[test]
fn input_reaches_rank_0_on_another_host() {
    let Some(cluster) = cluster("input::input_reaches_rank_0_on_another_host", 2) else { return };
    let words = ["sh", "-c", "cat; echo end $RINGREDUCE_RANK $(hostname)"];
    let mut running = start(&cluster, "h1:1,h0:1", &words, Stdio::piped());
    // The other rank has nothing to read.
    running.await_lines("end 1 h0", 1);
    for line in ["one", "two"] {
        writeln!(running.stdin.as_mut().unwrap(), "{line}").unwrap();
        running.await_lines(line, 1);
    }
    running.stdin = None;
    running.await_lines("end 0 h1", 1);
    assert_eq!(running.finish().code, 0);

    let many: Vec<u8> =
        (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let sum = |bytes: &[u8]| {
        bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_mul(31) + u32::from(byte) % 7)
    };
    let words = ["sh", "-c", "[ $RINGREDUCE_RANK = 1 ] || cat > /run/input"];
    let mut running = start(&cluster, "h1:1,h0:1", &words, Stdio::piped());
    running.stdin.take().unwrap().write_all(&many).unwrap();
    assert_eq!(running.finish().code, 0);
    let found = fs::read(cluster.hosts[1].path("/run/input")).unwrap();
    assert!((found.len(), sum(&found)) == (many.len(), sum(&many)), "{} bytes", found.len());
}
