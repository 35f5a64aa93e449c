//! `--elastic`: who is started again, how often, and how such a job ends. Scripts stand for
//! programs here; examples/train has real ones, which let each other in.

use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::harness::{Ran, script, send, start_script, start_under};

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
    // The first rank waits until the other one was started for the third time.
    let body = "if [ $RINGREDUCE_RANK = 1 ]; then echo >> $TMP/starts; exit 4; fi; \
                until [ $(wc -l < $TMP/starts) = 3 ] 2> /dev/null; do sleep 0.05; done";
    let folder = tempfile::tempdir().unwrap();
    let set = format!("--elastic 1:2 --max-restarts 2 -x TMP={}", folder.path().display());
    let ran = elastic(&set, body);
    assert_eq!((ran.code, began(&ran, "1-0"), began(&ran, "1-1")), (0, 1, 2), "{}", ran.err);
    assert!(ran.err.contains("is started again (2 of 2 times)"), "{}", ran.err);
}

#[test]
fn newcomers_end_when_nobody_is_left_to_let_them_in() {
    let body = format!(
        "{SAYS} [ -n \"$RINGREDUCE_JOIN\" ] && exec sleep 1000; \
         case $RINGREDUCE_RANK in 0) read line;; *) exec sleep 1000;; esac; true"
    );
    let words = ["--elastic", "1:3", "sh", "-c", &body];
    let mut running = start_under("exec \"$@\" 9>&1", &words, Stdio::piped());
    let mut pids = [0; 3];
    for _ in 0..3 {
        let line = running.line();
        let (who, pid) = line.split_once(' ').unwrap();
        pids[usize::from(who.as_bytes()[0] - b'0')] = pid.parse().unwrap();
    }
    for rank in [1, 2] {
        send(pids[rank], Signal::SIGKILL);
        assert!(running.line().starts_with(&format!("{rank}-1 ")));
    }
    // The only one that is left reads the end of the input.
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
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
