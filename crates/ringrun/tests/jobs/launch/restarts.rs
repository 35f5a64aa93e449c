//! `--elastic`: the ranks that are restarted, how often, and the end of such a job. Ranks are
//! scripts here, or only meet; the ranks of crates/ringtrain also admit others.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::{
    AS_IS, AS_RANK, BODY, Ended, fifo, myself, script, send, start_script, start_under, until,
};
use crate::procfs::state;

/// Prints the rank, and 1 if it joins a running job.
const PRINT_RANK: &str = "echo $RINGREDUCE_RANK-${RINGREDUCE_JOIN:-0} $$; ";

fn elastic(options: &str, body: &str) -> Ended {
    script(options, &format!("{PRINT_RANK}{body}"))
}

/// The number of lines that begin so.
fn lines(ran: &Ended, start: &str) -> usize {
    ran.out.lines().filter(|line| line.starts_with(start)).count()
}

#[test]
fn a_rank_that_always_crashes_is_given_up() {
    let body = "[ $RINGREDUCE_RANK = 1 ] && exit 4; exec sleep 1000";
    let ran = elastic("--elastic 1:2 --max-restarts 2", body);
    assert_eq!((ran.code, lines(&ran, "1-0"), lines(&ran, "1-1")), (4, 3, 0), "{}", ran.err);
    assert!(ran.err.contains("is started again (2 of 2 times)"), "{}", ran.err);
    assert!(ran.err.contains("before all ranks had met"), "{}", ran.err);
}

#[test]
fn a_job_without_ranks_ends_and_says_why_none_is_started_again() {
    for (options, why) in [
        ("--elastic 1:1 --max-restarts 2", "no rank is left that another one could come back to"),
        ("--elastic 2:2 --max-restarts 2", "fewer than 2 ranks are left (--elastic 2:2)"),
    ] {
        let ran = elastic(options, "exit 3");
        assert_eq!(ran.code, 3, "{options}: {}", ran.err);
        let ends = format!("{why}, so the job ends and no rank is started again");
        assert!(ran.err.contains(&ends), "{options}: {}", ran.err);
    }
}

#[test]
fn ranks_know_whether_lost_ones_are_started_again() {
    for (options, expected) in [
        ("--elastic 1:1", "join 0"),
        ("--elastic 1:1 --max-restarts 0", "join -"),
        ("-n 1", "join -"),
    ] {
        let ran = script(options, "echo join ${RINGREDUCE_JOIN:--}");
        assert_eq!((ran.code, lines(&ran, expected)), (0, 1), "{options}: {}{}", ran.out, ran.err);
    }
}

/// A named pipe to which no process writes, with its open end.
fn silent_pipe(folder: &TempDir) -> (PathBuf, File) {
    let path = folder.path().join("never");
    fifo(&path);
    let open = File::options().read(true).write(true).open(&path).unwrap();
    (path, open)
}

/// How a script goes on as a rank with this body.
fn as_rank(body: &str) -> String {
    format!("{BODY}='{body}' exec {} {}", myself(), AS_RANK.join(" "))
}

#[test]
fn joining_ranks_end_when_no_member_is_left_to_admit_them() {
    let folder = tempfile::tempdir().unwrap();
    let (never, _writes) = silent_pipe(&folder);
    let others = format!("[ $RINGREDUCE_RANK = 0 ] || exec < {}; ", never.display());
    let late = "[ \"$RINGREDUCE_JOIN\" = 1 ] && echo late $RINGREDUCE_RANK; ";
    let body = [late, &others, &as_rank("meets")].concat();
    let words = ["--elastic", "1:3", "sh", "-c", &body];
    let mut running = start_under(AS_IS, &words, Stdio::piped());
    let pids = running.pids::<3>("met ");
    for rank in [1, 2] {
        send(pids[rank], Signal::SIGKILL);
        assert_eq!(running.numbers("late "), [rank as u32]);
    }
    // The only member that is left reads the end of its input.
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_rank_that_ends_before_it_meets_the_others_starts_again_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let set = format!("--elastic 1:3 -x TMP={}", folder.path().display());
    let dies = "[ $RINGREDUCE_RANK = 1 ] && mkdir $TMP/once && kill -9 $$; ";
    let ran = elastic(&set, &[dies, &as_rank("meets")].concat());
    assert_eq!((ran.code, lines(&ran, "1-0"), lines(&ran, "met ")), (0, 2, 3), "{}", ran.err);
}

/// The launcher does not restart the rank, which has ended well as far as it can tell.
#[test]
fn a_rank_that_exits_with_0_before_ranks_meet_is_an_error_at_once() {
    for (options, missing) in [("-n 3", 1), ("-n 3", 0), ("--elastic 1:3", 1)] {
        let ends = format!("[ $RINGREDUCE_RANK = {missing} ] && exit 0; ");
        let ran = script(options, &[&ends, &as_rank("meets")[..]].concat());
        assert_eq!(ran.code, 5, "{}", ran.err);
        let said = format!("1 of 3 ranks had not started: [{missing}]");
        let why = "ended with status 0: each rank of a job must make the communicator";
        assert!(ran.err.contains(&said) && ran.err.contains(why), "{}", ran.err);
        assert!(!ran.err.contains("raise RINGREDUCE_TIMEOUT"), "{}", ran.err);
    }
}

/// The launcher would wait for the rank at the end, or the rank would never come back.
#[test]
fn an_evicted_rank_is_ended_and_restarted() {
    if !::harness::share::makes_test(3) {
        return;
    }
    for (times, waits, ended) in [(1, 0, 2), (2, 1, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let body = as_rank(&format!("is_evicted {times} {waits} {}", folder.path().display()));
        let ran = elastic("--elastic 2:3", &body);
        let mut ends = ran.out.lines().filter(|line| line.starts_with("ended "));
        let right = ends.all(|line| line.ends_with(&format!(" of {ended}")));
        assert!(
            ran.code == 0 && right && lines(&ran, "ended ") == ended,
            "{} {}",
            ran.out,
            ran.err
        );
        let behind = ran.err.matches(" was left behind by the others").count();
        assert_eq!(behind, times, "{}", ran.err);
    }
}

/// A world of 34 ranks has no links between all pairs, and its survivors connect.
#[test]
fn a_rank_of_more_than_32_comes_back() {
    let ran = elastic("--elastic 1:34", &as_rank("comes_back 3 3"));
    let ended = ran.out.lines().filter(|line| line.ends_with(" of 34 with 561")).count();
    assert_eq!((ran.code, ended), (0, 34), "{} {}", ran.out, ran.err);
}

/// No rank waits for the stopped one, but ringrun would, for ever.
#[test]
fn a_job_of_which_only_a_stopped_rank_is_left_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (never, _writes) = silent_pipe(&folder);
    let body = format!("exec < {}; {}", never.display(), as_rank("meets"));
    let mut running = start_script("--elastic 1:2 --max-restarts 0", &body);
    let pids = running.pids::<2>("met ");
    send(pids[0], Signal::SIGSTOP);
    until("rank 0 stops", || state(pids[0]) == Some('T'));
    send(pids[1], Signal::SIGKILL);
    let ran = running.finish();
    assert_eq!(ran.code, 137, "{}", ran.err);
    assert!(ran.err.contains("rank 1 (pid ") && ran.err.contains("failed first"), "{}", ran.err);
}

/// The last rank that could continue the stopped one exits with status 0 after the loss of another.
#[test]
fn a_job_ends_whose_last_running_rank_ends_well_beside_a_stopped_one() {
    let folder = tempfile::tempdir().unwrap();
    let (never, writes) = silent_pipe(&folder);
    let body = format!("exec < {}; {}", never.display(), as_rank("meets"));
    let mut running = start_script("--elastic 1:3 --max-restarts 0", &body);
    let pids = running.pids::<3>("met ");
    send(pids[0], Signal::SIGSTOP);
    until("rank 0 stops", || state(pids[0]) == Some('T'));
    send(pids[2], Signal::SIGKILL);
    until("ringrun has seen the end of rank 2", || state(pids[2]).is_none());
    drop(writes);
    let ran = running.finish();
    assert_eq!(ran.code, 137, "{}", ran.err);
    assert!(ran.err.contains("all ranks that are left are stopped"), "{}", ran.err);
    assert!(ran.err.contains("rank 2 (pid ") && ran.err.contains("failed first"), "{}", ran.err);
}

/// The others need not wait for a stopped rank, as workers of parameter servers do not.
#[test]
fn a_rank_that_is_stopped_when_all_others_have_ended_well_is_ended() {
    let body = "[ $RINGREDUCE_RANK = 1 ] && kill -STOP $$; true";
    for (options, code) in [("-n 3", 137), ("--elastic 1:3", 0)] {
        let ran = script(options, body);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains("rank 1 (pid "), "{}", ran.err);
        assert!(ran.err.contains("is stopped by a signal, and no other rank runs"), "{}", ran.err);
        let words = "it was stopped by a signal while all other ranks had ended";
        assert_eq!(ran.err.contains(words), code != 0, "{}", ran.err);
    }
}

/// As a program ends to which the user has sent a signal, and to no other rank.
#[test]
fn a_rank_that_was_told_to_end_is_not_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let (never, writes) = silent_pipe(&folder);
    let meets = as_rank("meets").replace("exec ", "");
    let told = format!("[ $RINGREDUCE_RANK = 1 ] && {{ {meets}; echo told $$; exit 130; }}; ");
    let waits = format!("exec < {}; ", never.display());
    let body = [PRINT_RANK, &told, &waits, &as_rank("meets")].concat();
    let mut running = start_script("--elastic 1:2", &body);
    let [told] = running.numbers("told ");
    until("ringrun has seen the end of rank 1", || state(told).is_none());
    drop(writes);
    let ran = running.finish();
    assert_eq!((ran.code, lines(&ran, "1-")), (0, 1), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("exited with status 130, as after a signal"), "{}", ran.err);
}

#[test]
fn ctrl_c_restarts_no_rank() {
    let mut running = start_script("--elastic 1:2", &format!("{PRINT_RANK} exec sleep 1000"));
    (0..2).for_each(|_| _ = running.line());
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
}
