//! Signals to ringrun, and a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SigSet, Signal};

use crate::harness::{
    Ran, ringbench, send, start_blocking, start_script, start_under, state, until,
};

#[test]
fn these_four_end_the_job() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut running = start_script("-n 3", "sleep 1000 & echo up; wait");
        running.await_lines("up", 3);
        running.signal(signal);
        let ran = running.finish();
        assert_eq!(ran.code, 128 + signal as i32);
        assert_eq!(ran.err, format!("ringrun: {} came, so the job was ended\n", signal.as_str()));
    }
}

/// Who waits for another rank at the launcher's store waits for a launcher that pauses, too.
#[test]
fn a_launcher_that_pauses_while_ranks_meet_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let bench = ringbench();
    let body = format!(
        "echo $RINGREDUCE_RANK $$; [ $RINGREDUCE_RANK = 1 ] && read go < {}
         exec {bench} all_reduce -b 8 -e 8 -n 1",
        gate.display()
    );
    let mut running = start_script("-n 2", &body);
    let lines = [running.line(), running.line()];
    let first = lines.iter().find_map(|line| line.strip_prefix("0 ")).unwrap().parse().unwrap();
    let is_bench = |pid: u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "ringbench\n") && state(pid) == Some('S')
    };
    until("rank 0 waits", || is_bench(first));
    running.signal(Signal::SIGSTOP);
    // So long does the pause last: an answer that takes longer was an error once.
    std::thread::sleep(Duration::from_secs(3));
    running.signal(Signal::SIGCONT);
    std::fs::write(&gate, "go\n").unwrap();
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn the_ranks_get_term_and_time_to_finish() {
    let body = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 1000 & wait; done";
    let mut running = start_script("-n 2", body);
    running.await_lines("up", 2);
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    assert_eq!(ran.code, 130);
    assert_eq!(ran.sorted(), ["saved", "saved", "up", "up"]);
}

#[test]
fn the_second_one_kills_at_once() {
    let body = "trap 'echo no' TERM; echo up; while :; do sleep 1000 & wait; done";
    let mut running = start_script("-n 2", body);
    running.await_lines("up", 2);
    running.signal(Signal::SIGINT);
    running.await_lines("no", 2);
    let again = Instant::now();
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    assert!(again.elapsed() < Duration::from_secs(5));
    assert_eq!(ran.code, 130);
    assert!(ran.err.contains("2 ranks did not end after SIGTERM"), "{}", ran.err);
}

#[test]
fn others_are_passed_on() {
    // While ringrun is stopped it prints nothing, so the stop is told by a file.
    let told = tempfile::tempdir().unwrap();
    let told = told.path();
    let body = format!(
        "for s in USR1 USR2 ALRM ABRT CONT; do trap \"echo $s\" $s; done
        trap ': > {}/'$RINGREDUCE_RANK TSTP
        trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait; done",
        told.display()
    );
    let mut running = start_script("-n 2", &body);
    running.await_lines("up", 2);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGABRT] {
        running.signal(signal);
        running.await_lines(&signal.as_str()[3..], 2);
    }
    running.signal(Signal::SIGTSTP);
    until("ringrun stops", || state(running.pid()) == Some('T'));
    until("both ranks are told", || ["0", "1"].iter().all(|rank| told.join(rank).exists()));
    running.signal(Signal::SIGCONT);
    running.await_lines("CONT", 2);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().code, 143);
}

/// A line each for the blocked and the ignored signals of a rank, then "up", and a long sleep. Of
/// the masks the lower 28 bits: the C library has signals 32 and 33 for itself.
const SAYS_SIGNALS: &str = "grep -E '^Sig(Blk|Ign):' /proc/self/status | grep -o '.......$'; \
                            echo up; exec sleep 1000";

/// Ranks that ran [`SAYS_SIGNALS`] ignore the signals of this mask, and block none.
fn ranks_ignore(ran: &Ran, mask: &str) {
    let lines = ran.sorted();
    let expected = [["0000000"; 2], [mask; 2], ["up"; 2]].concat();
    assert_eq!(lines, expected);
}

#[test]
fn what_the_starter_ignores_or_blocks_ends_the_job_all_the_same() {
    let deaf = "trap '' INT QUIT TERM CHLD PIPE USR1 USR2 TSTP TTOU ALRM; exec \"$@\" 9>&1";
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT] {
        let words = ["-n", "2", "sh", "-c", SAYS_SIGNALS];
        let mut running = start_blocking(SigSet::all(), deaf, &words, Stdio::null());
        running.await_lines("up", 2);
        running.signal(signal);
        let ran = running.finish();
        assert_eq!(ran.code, 128 + signal as i32);
        assert_eq!(ran.err, format!("ringrun: {} came, so the job was ended\n", signal.as_str()));
        ranks_ignore(&ran, "0000000");
    }
}

#[test]
fn under_nohup_ringrun_and_its_ranks_ignore_sighup_alone() {
    let words = ["-n", "2", "sh", "-c", SAYS_SIGNALS];
    let nohup = "trap '' HUP INT; exec \"$@\" 9>&1";
    let mut running = start_under(nohup, &words, Stdio::null());
    running.await_lines("up", 2);
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGTERM);
    let ran = running.finish();
    assert_eq!(ran.code, 143);
    ranks_ignore(&ran, "0000001");
}

/// A terminal: our end and the other.
fn terminal() -> (File, File) {
    let ours = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname_r(&ours).unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    (File::from(std::os::fd::OwnedFd::from(ours)), theirs)
}

/// Makes the standard input the controlling terminal of ringrun.
const ON_TERMINAL: &str = "exec setsid -c -w \"$@\" 9>&1";

#[test]
fn a_terminal_is_read_for_rank_0_until_its_end() {
    let (mut keys, screen) = terminal();
    let words = ["-n", "2", "--tag-output", "cat"];
    let mut running = start_under(ON_TERMINAL, &words, Stdio::from(screen));
    keys.write_all(b"hello\n").unwrap();
    assert_eq!(running.line(), "[1,0]<stdout>:hello");
    keys.write_all(b"\x04").unwrap();
    assert_eq!(running.finish().code, 0);
    drop(keys);
}

#[test]
fn ctrl_c_on_a_terminal_ends_the_job() {
    let (mut keys, screen) = terminal();
    let words = ["-n", "2", "sh", "-c", "echo up; sleep 1000; true"];
    let mut running = start_under(ON_TERMINAL, &words, Stdio::from(screen));
    running.await_lines("up", 2);
    keys.write_all(b"\x03").unwrap();
    let ran = running.finish();
    assert_eq!(ran.code, 130);
    assert!(ran.err.contains("SIGINT came"), "{}", ran.err);
    let mut echo = [0; 16];
    assert!(keys.read(&mut echo).is_ok_and(|length| echo[..length].starts_with(b"^C")));
}

#[test]
fn a_rank_that_closes_its_input_disturbs_nobody() {
    let (mut keys, screen) = terminal();
    let body = "exec <&-; trap 'exit 0' USR1; echo $PPID; while :; do sleep 1000 & wait; done";
    let words = ["-n", "1", "sh", "-c", body];
    let mut running = start_under(ON_TERMINAL, &words, Stdio::from(screen));
    let launcher = running.line().parse().unwrap();
    keys.write_all(b"one\ntwo\n").unwrap();
    send(launcher, Signal::SIGUSR1);
    assert_eq!(running.finish().code, 0);
}
