//! Signals to ringrun, and a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SigSet, Signal};

use crate::harness::{
    Ended, fifo, ringbench, send, start_blocking, start_script, start_under, until,
};
use crate::procfs::state;

/// A rank that waits at the launcher's store for another rank also waits for a stopped launcher.
#[test]
fn a_launcher_that_pauses_while_ranks_meet_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    fifo(&gate);
    let bench = ringbench();
    let body = format!(
        "echo $RINGREDUCE_RANK $$; [ $RINGREDUCE_RANK = 1 ] && read go < {}
         exec {bench} all_reduce -b 8 -e 8 -n 1",
        gate.display()
    );
    let mut running = start_script("-n 2", &body);
    let first = running.pids::<2>("")[0];
    let is_bench = |pid: u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "ringbench\n") && state(pid) == Some('S')
    };
    until("rank 0 waits", || is_bench(first));
    running.signal(Signal::SIGSTOP);
    // An answer of the store that took longer than this was once an error.
    std::thread::sleep(Duration::from_secs(3));
    running.signal(Signal::SIGCONT);
    std::fs::write(&gate, "go\n").unwrap();
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_second_signal_kills_at_once() {
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
    assert!(ran.err.contains("ranks 0-1 had not ended "), "{}", ran.err);
}

#[test]
fn other_signals_are_passed_on() {
    // A stopped ringrun prints nothing, so that ranks report the stop by a file.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let body = format!(
        "for s in USR1 USR2 ALRM ABRT CONT; do trap \"echo $s\" $s; done
        trap ': > {}/'$RINGREDUCE_RANK TSTP
        trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait; done",
        folder.display()
    );
    let mut running = start_script("-n 2", &body);
    running.await_lines("up", 2);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGABRT] {
        running.signal(signal);
        running.await_lines(&signal.as_str()[3..], 2);
    }
    running.signal(Signal::SIGTSTP);
    until("ringrun stops", || state(running.pid()) == Some('T'));
    until("both ranks have the signal", || {
        ["0", "1"].iter().all(|rank| folder.join(rank).exists())
    });
    running.signal(Signal::SIGCONT);
    running.await_lines("CONT", 2);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().code, 143);
}

/// Prints the masks of blocked and of ignored signals, then "up", and sleeps. Of the masks it
/// prints the lower 28 bits, since the C library uses signals 32 and 33 itself.
const PRINT_SIGNALS: &str = "grep -E '^Sig(Blk|Ign):' /proc/self/status | grep -o '.......$'; \
                            echo up; exec sleep 1000";

/// Checks that ranks that ran [`PRINT_SIGNALS`] ignore the signals of this mask and block none.
fn ranks_ignore(ran: &Ended, mask: &str) {
    let lines = ran.sorted();
    let expected = [["0000000"; 2], [mask; 2], ["up"; 2]].concat();
    assert_eq!(lines, expected);
}

#[test]
fn signals_that_the_starter_ignores_or_blocks_still_end_the_job() {
    let ignoring = "trap '' INT QUIT TERM CHLD PIPE USR1 USR2 TSTP TTOU ALRM; exec \"$@\" 9>&1";
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let words = ["-n", "2", "sh", "-c", PRINT_SIGNALS];
        let mut running = start_blocking(SigSet::all(), ignoring, &words, Stdio::null());
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
    let words = ["-n", "2", "sh", "-c", PRINT_SIGNALS];
    let nohup = "trap '' HUP INT; exec \"$@\" 9>&1";
    let mut running = start_under(nohup, &words, Stdio::null());
    running.await_lines("up", 2);
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGTERM);
    let ran = running.finish();
    assert_eq!(ran.code, 143);
    ranks_ignore(&ran, "0000001");
}

/// A terminal: the end of its keyboard and screen, and the end of programs.
pub(crate) fn terminal() -> (File, File) {
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
fn a_rank_that_closes_its_input_does_not_disturb_the_job() {
    let (mut keys, screen) = terminal();
    let body = "exec <&-; trap 'exit 0' USR1; echo $PPID; while :; do sleep 1000 & wait; done";
    let words = ["-n", "1", "sh", "-c", body];
    let mut running = start_under(ON_TERMINAL, &words, Stdio::from(screen));
    let launcher = running.line().parse().unwrap();
    keys.write_all(b"one\ntwo\n").unwrap();
    send(launcher, Signal::SIGUSR1);
    assert_eq!(running.finish().code, 0);
}

#[test]
fn what_rank_0_does_not_read_from_a_terminal_stays_there() {
    let (mut keys, screen) = terminal();
    let next = "setsid -c -w sh -c '\"$@\"; read line; echo \"left $line\"' sh \"$@\" 9>&1";
    let words = ["-n", "2", "sh", "-c", "echo up; read x < $0; true"];
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    fifo(&gate);
    let words = [&words[..], &[gate.to_str().unwrap()]].concat();
    let mut running = start_under(next, &words, Stdio::from(screen));
    running.await_lines("up", 2);
    keys.write_all(b"typed\n").unwrap();
    // Each opened write end serves one reader or both.
    until("the job ends", || {
        let _ = File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&gate);
        running.processes().len() <= 1
    });
    running.await_lines("left typed", 1);
    running.finish();
}

/// A read in between goes on, and Ctrl-C still means the whole job.
#[test]
fn a_terminal_is_lent_for_each_read_and_ctrl_c_ends_all_ranks() {
    let (mut keys, screen) = terminal();
    let body = "trap 'echo told; exit 1' TERM; trap 'echo wrong' INT
        [ $RINGREDUCE_RANK = 0 ] && { read a; echo \"got $a\"; read b; echo \"got $b\"; }
        echo up; while :; do sleep 0.1; done";
    let mut running = start_under(ON_TERMINAL, &["-n", "2", "sh", "-c", body], Stdio::from(screen));
    for line in ["one", "two"] {
        keys.write_all(format!("{line}\n").as_bytes()).unwrap();
        running.await_lines(&format!("got {line}"), 1);
    }
    // The other rank's line may have come before.
    running.await_lines("up", 1);
    std::thread::sleep(Duration::from_millis(500));
    keys.write_all(b"\x03").unwrap();
    let ran = running.finish();
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(ran.out.matches("told").count() == 2 && !ran.out.contains("wrong"), "{ran:?}");
}

/// A rank that gets a time to save its work, and says when it has.
const SAVES: &str =
    "trap 'sleep 6; echo saved; exit 0' TERM; echo up; while :; do sleep 1000 & wait; done";

/// The program of the second rank's kind is the child of a shell that SIGTERM ends at once.
#[test]
fn ranks_that_save_their_work_on_sigterm_have_time_for_it() {
    let behind = format!("sh -c {SAVES:?}; true");
    for body in [SAVES, &behind] {
        let mut running = start_script("-n 2", body);
        running.await_lines("up", 2);
        running.signal(Signal::SIGTERM);
        running.error_line("did not end yet: killed in 2");
        let ran = running.finish();
        assert_eq!(ran.code, 143);
        assert_eq!(ran.out.matches("saved\n").count(), 2, "{ran:?}");
    }
}

#[test]
fn the_new_size_of_a_terminal_is_passed_on() {
    let body =
        "trap 'echo size' WINCH; trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait; done";
    let mut running = start_script("-n 2", body);
    running.await_lines("up", 2);
    running.signal(Signal::SIGWINCH);
    running.await_lines("size", 2);
    running.signal(Signal::SIGTERM);
    running.finish();
}

/// The limits of the jobs are shorter than the stop and longer than all else.
#[test]
fn the_time_for_which_a_job_was_stopped_does_not_count_in_its_limits() {
    const STOP: Duration = Duration::from_secs(7);
    let folder = tempfile::tempdir().unwrap();
    let gates = ["limit", "grace"].map(|name| folder.path().join(name));
    gates.iter().for_each(|gate| fifo(gate));
    let [limit, grace] = gates.each_ref().map(|gate| format!("read x < {}", gate.display()));
    let mut limited = start_script("-n 1 --timeout 6", &format!("echo up; {limit}; true"));
    let ends =
        format!("trap 'echo told; {grace}; exit 0' TERM; echo up; while :; do sleep 0.1; done");
    let mut ended = start_script("-n 1 --kill-after 6", &ends);
    limited.await_lines("up", 1);
    ended.await_lines("up", 1);
    ended.signal(Signal::SIGTERM);
    ended.await_lines("told", 1);
    for job in [&limited, &ended] {
        job.signal(Signal::SIGSTOP);
        until("ringrun stops", || state(job.pid()) == Some('T'));
    }
    std::thread::sleep(STOP);
    for (job, gate) in [&mut limited, &mut ended].into_iter().zip(&gates) {
        job.signal(Signal::SIGCONT);
        // Once ringrun has answered twice, it has looked at its clock.
        for _ in 0..2 {
            job.signal(Signal::SIGUSR1);
            job.error_line("rank 0 ");
        }
        let open = || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(gate);
        open().expect("rank 0 still waits").write_all(b"go\n").unwrap();
    }
    let [limited, ended] = [limited.finish(), ended.finish()];
    assert_eq!((limited.code, limited.err.as_str()), (0, ""), "{limited:?}");
    assert!(ended.code == 143 && !ended.err.contains("killed"), "{ended:?}");
}
