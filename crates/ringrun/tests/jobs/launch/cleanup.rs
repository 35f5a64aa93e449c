//! No process of a job survives the death of ringrun, or the end of the last rank.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{AS_IS, RINGRUN, Running, script, send, start_script, start_under, until};

/// All processes are gone within this, also where CPUs are few. A survivor would sleep far longer.
const CLEANUP_TIME: Duration = Duration::from_secs(20);

/// A rank with children that ignore signals or leave its session; each prints "up".
pub(crate) const FAMILY: &str = "
    trap '' TERM INT HUP
    sh -c 'echo up; sleep 1000; true' &
    setsid sh -c 'echo up; sleep 1000; true' &
    (setsid sh -c 'trap \"\" TERM HUP; echo up; while :; do sleep 1000; done' &)
    echo up; wait; sleep 1000";

#[test]
fn sigkill_of_ringrun_leaves_no_rank_and_no_grandchild() {
    let mut running = start_script("-n 3", FAMILY);
    running.await_lines("up", 12);
    running.signal(Signal::SIGKILL);
    running.all_gone_within(CLEANUP_TIME);
    assert_eq!(running.finish().code, -9);
}

#[test]
fn sigkill_of_ringrun_spares_no_group_whose_leader_has_ended() {
    // Rank 0 exits with 0 and leaves a child without the job's variable, while rank 1 still runs.
    let body = "[ $RINGREDUCE_RANK = 0 ] || { echo up; exec sleep 1000; }
        env -u RINGRUN_JOB sh -c 'echo up; exec sleep 1000' & exit 0";
    let mut running = start_script("-n 2", body);
    running.await_lines("up", 2);
    running.signal(Signal::SIGKILL);
    running.all_gone_within(CLEANUP_TIME);
    running.finish();
}

/// This remote shell says nothing, and would run on.
#[test]
fn a_remote_shell_that_waits_for_its_host_ends_with_the_job() {
    let words = ["-H", "elsewhere.invalid:1", "--rsh", "tail -f /dev/null", "true"];
    let mut running = start_under(AS_IS, &words, Stdio::null());
    let is_shell =
        |pid: &u32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|it| it == b"tail\n");
    until("the remote shell runs", || running.processes().iter().any(is_shell));
    running.signal(Signal::SIGTERM);
    running.all_gone_within(CLEANUP_TIME);
    assert_eq!(running.finish().code, 143);
}

#[test]
fn a_job_within_a_job_ends_with_the_outer_one() {
    let inner = format!("exec {} --nested -n 2 sh -c 'echo up; sleep 1000; true'", RINGRUN);
    let mut running = start_script("-n 2", &inner);
    running.await_lines("up", 4);
    running.signal(Signal::SIGKILL);
    running.all_gone_within(CLEANUP_TIME);
    running.finish();
}

#[test]
fn ctrl_c_takes_the_grandchildren_too() {
    let mut running = start_script("-n 2", FAMILY);
    running.await_lines("up", 8);
    running.signal(Signal::SIGINT);
    running.signal(Signal::SIGINT);
    let again = Instant::now();
    // Two signals at once may be merged into one, so that more are sent.
    until("ringrun ends", || {
        running.signal(Signal::SIGTERM);
        running.processes().is_empty()
    });
    assert!(again.elapsed() < Duration::from_secs(5));
    assert_eq!(running.finish().code, 130);
}

#[test]
fn processes_that_outlive_the_last_rank_are_killed() {
    let body = "setsid sleep 1000 & sleep 1000 & exit 0";
    let ran = script("-n 2", body);
    assert_eq!(ran.code, 0);
    assert_eq!(ran.err, "ringrun: killed 4 process(es) that outlived their rank\n");
    assert_eq!(script("-n 2 -q", body).err, "");
}

/// The process of the job's watcher, once it has its name.
fn watcher(running: &Running) -> u32 {
    let parent = format!(" {} ", running.pid());
    let find = || {
        fs::read_dir("/proc").unwrap().find_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            (stat.contains("(ring-watch)") && stat.contains(&parent)).then_some(pid)
        })
    };
    until("the watcher has its name", || find().is_some());
    find().unwrap()
}

#[test]
fn the_loss_of_the_watcher_is_reported_and_the_ranks_still_die_with_ringrun() {
    let mut running = start_script("-n 2", "echo up; exec sleep 1000");
    running.await_lines("up", 2);
    let watcher = watcher(&running);
    let command = fs::read_to_string(format!("/proc/{watcher}/cmdline")).unwrap();
    assert!(!command.contains("ringrun"), "{command:?}");
    send(watcher, Signal::SIGTERM);
    send(watcher, Signal::SIGKILL);
    running.error_line("the watcher process was killed");
    running.signal(Signal::SIGKILL);
    running.all_gone_within(CLEANUP_TIME);
    running.finish();
}
