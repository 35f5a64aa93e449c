//! `--elastic`: who is started again, how often, and how such a job ends. Scripts stand for
//! programs here, or ranks that only meet; those of examples/train let each other in.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use nix::unistd::pause;
use ringreduce::Communicator;

use crate::harness::{Ran, script, send, start_script, start_under, state, until};

/// A rank says so, and whether it comes later.
const SAYS: &str = "echo $RINGREDUCE_RANK-${RINGREDUCE_JOIN:-0} $$; ";

fn elastic(options: &str, body: &str) -> Ran {
    script(options, &format!("{SAYS}{body}"))
}

/// How often each rank began, as a newcomer or not.
fn began(ran: &Ran, who: &str) -> usize {
    ran.text().lines().filter(|line| line.starts_with(who)).count()
}

#[test]
fn where_too_few_are_left_the_job_ends_as_ever() {
    let ran = elastic("--elastic 2:2", "[ $RINGREDUCE_RANK = 1 ] && exit 3; exec sleep 1000");
    assert_eq!((ran.code, began(&ran, "1-1")), (3, 0), "{}", ran.err);
    assert!(ran.err.contains("rank 1 ") && ran.err.contains("failed first"), "{}", ran.err);
}

#[test]
fn who_always_crashes_is_given_up() {
    let body = "[ $RINGREDUCE_RANK = 1 ] && exit 4; exec sleep 1000";
    let ran = elastic("--elastic 1:2 --max-restarts 2", body);
    assert_eq!((ran.code, began(&ran, "1-0"), began(&ran, "1-1")), (4, 3, 0), "{}", ran.err);
    assert!(ran.err.contains("is started again (2 of 2 times)"), "{}", ran.err);
    assert!(ran.err.contains("before all ranks had met"), "{}", ran.err);
}

/// Is this process a rank, which a test has started?
fn is_rank() -> bool {
    std::env::var_os("RINGREDUCE_RANK").is_some()
}

/// A rank that meets the others, says so, and waits for what it reads.
fn rank() {
    let comm = Communicator::from_env().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(5);
    });
    println!("\nmet {} {}", comm.rank(), std::process::id());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// How a script goes on as [`rank`].
fn as_rank() -> String {
    let me = std::env::current_exe().unwrap();
    format!(
        "exec {} --exact elastic::newcomers_end_when_nobody_is_left_to_let_them_in --nocapture",
        me.display()
    )
}

#[test]
fn newcomers_end_when_nobody_is_left_to_let_them_in() {
    if is_rank() {
        return rank();
    }
    let others = "[ $RINGREDUCE_RANK = 0 ] || exec < $TMP/never; ";
    let late = "[ -n \"$RINGREDUCE_JOIN\" ] && echo late $RINGREDUCE_RANK; ";
    let folder = tempfile::tempdir().unwrap();
    let never = folder.path().join("never");
    nix::unistd::mkfifo(&never, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _writes = std::fs::File::options().read(true).write(true).open(&never).unwrap();
    let tmp = format!("TMP={}", folder.path().display());
    let body = [late, others, &as_rank()].concat();
    let words = ["--elastic", "1:3", "-x", &tmp, "sh", "-c", &body];
    let mut running = start_under("exec \"$@\" 9>&1", &words, Stdio::piped());
    let mut pids = [0; 3];
    for _ in 0..3 {
        let [rank, pid] = running.line_with("met ");
        pids[rank as usize] = pid;
    }
    for rank in [1, 2] {
        send(pids[rank], Signal::SIGKILL);
        assert_eq!(running.line_with("late "), [rank as u32]);
    }
    // The only one that is left reads the end of the input.
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn who_ends_before_the_others_know_of_it_begins_again_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let set = format!("--elastic 1:3 -x TMP={}", folder.path().display());
    let dies = "[ $RINGREDUCE_RANK = 1 ] && mkdir $TMP/once && kill -9 $$; ";
    let ran = elastic(&set, &[dies, &as_rank()].concat());
    assert_eq!((ran.code, began(&ran, "1-0"), began(&ran, "met ")), (0, 2, 3), "{}", ran.err);
}

#[test]
fn who_ends_while_they_meet_is_waited_for_by_nobody() {
    let body = "[ $RINGREDUCE_RANK = 2 ] && exec sleep 1000; \
                [ $RINGREDUCE_RANK = 1 ] && export RINGREDUCE_TIMEOUT=0.3; ";
    let ran = elastic("--elastic 1:3", &[body, &as_rank()].concat());
    assert_eq!((ran.code, began(&ran, "1-")), (5, 1), "{}", ran.err);
    assert!(ran.err.contains("before all ranks had met"), "{}", ran.err);
    assert!(ran.err.contains("rank 1 ") && ran.err.contains("failed first"), "{}", ran.err);
}

/// It needs no start: it has ended well, as far as its launcher can tell.
#[test]
fn who_ends_well_before_they_meet_is_missed_at_once() {
    for (options, missing) in [("-n 3", 1), ("-n 3", 0), ("--elastic 1:3", 1)] {
        let ends = format!("[ $RINGREDUCE_RANK = {missing} ] && exit 0; ");
        let ran = script(options, &[&ends, &as_rank()[..]].concat());
        assert_eq!(ran.code, 5, "{}", ran.err);
        let said = format!("1 of 3 ranks had not started: [{missing}]");
        assert!(ran.err.contains(&said), "{}", ran.err);
    }
}

/// Rank 1 stops so many times, in as many lives, and the others go on without it; until it is back,
/// if they wait for it.
fn stops() {
    let of = |name| std::env::var(name).unwrap();
    let seat = of("RINGREDUCE_RANK");
    let (times, waits) = (of("TIMES").parse().unwrap(), of("WAITS") == "1");
    let mut comm = Communicator::from_env().unwrap();
    comm.barrier().unwrap();
    if seat == "1" {
        let life = |number| std::fs::create_dir(format!("{}/{number}", of("TMP")));
        if (0..times).any(|number| life(number).is_ok()) {
            raise(Signal::SIGSTOP).unwrap();
            pause();
        }
    }
    for _ in (0..times).filter(|_| seat != "1") {
        comm.set_timeout(Duration::from_secs(1));
        comm.barrier().unwrap_err();
        comm = comm.evict(Duration::from_secs(4)).unwrap();
        comm.set_timeout(Duration::from_secs(60));
        while waits && comm.size() < 3 {
            let larger = comm.grow(Duration::from_secs(60)).unwrap();
            comm = larger.unwrap_or(comm);
        }
        comm.barrier().unwrap();
    }
    println!("\nended {} of {}", comm.rank(), comm.size());
}

/// Else it would be waited for in the end, or never come back.
#[test]
fn who_is_left_behind_is_ended() {
    if is_rank() {
        return stops();
    }
    let me = std::env::current_exe().unwrap();
    let stops =
        format!("exec {} --exact elastic::who_is_left_behind_is_ended --nocapture", me.display());
    for (times, waits, ended) in [(1, 0, 2), (2, 1, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let set = format!("-x TMP={} -x TIMES={times} -x WAITS={waits}", folder.path().display());
        let ran = elastic(&format!("--elastic 2:3 {set}"), &stops);
        let text = ran.text();
        let mut ends = text.lines().filter(|line| line.starts_with("ended "));
        let right = ends.all(|line| line.ends_with(&format!(" of {ended}")));
        assert!(ran.code == 0 && right && began(&ran, "ended ") == ended, "{text} {}", ran.err);
        let behind = ran.err.matches(" was left behind by the others").count();
        assert_eq!(behind, times, "{}", ran.err);
    }
}

/// It would be waited for by nobody but ringrun, for ever.
#[test]
fn where_only_one_that_is_stopped_is_left_the_job_ends() {
    let folder = tempfile::tempdir().unwrap();
    let never = folder.path().join("never");
    nix::unistd::mkfifo(&never, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _writes = std::fs::File::options().read(true).write(true).open(&never).unwrap();
    let body = format!("exec < {}; {}", never.display(), as_rank());
    let mut running = start_script("--elastic 1:2 --max-restarts 0", &body);
    let mut pids = [0; 2];
    for _ in 0..2 {
        let [rank, pid] = running.line_with("met ");
        pids[rank as usize] = pid;
    }
    send(pids[0], Signal::SIGSTOP);
    until("rank 0 stops", || state(pids[0]) == Some('T'));
    send(pids[1], Signal::SIGKILL);
    let ran = running.finish();
    assert_eq!(ran.code, 137, "{}", ran.err);
    assert!(ran.err.contains("rank 1 (pid ") && ran.err.contains("failed first"), "{}", ran.err);
}

#[test]
fn ctrl_c_starts_nobody_again() {
    let mut running = start_script("--elastic 1:2", &format!("{SAYS} exec sleep 1000"));
    (0..2).for_each(|_| _ = running.line());
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert_eq!(ran.text().lines().count(), 2, "{}", ran.text());
}
