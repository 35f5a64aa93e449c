//! Jobs as shells, containers and batch systems start them: prompts, output that nobody reads,
//! processes beside the job, programs behind shells, checkpoints at the end, torchrun's variables.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::{RINGRUN, run_under, script, send, start_script};

/// Reads until the text has `wanted`.
fn read_until(from: &mut impl Read, wanted: &str) -> String {
    let mut text = vec![];
    let mut byte = [0];
    while !String::from_utf8_lossy(&text).contains(wanted) {
        assert_eq!(from.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn an_unfinished_line_is_seen_while_its_rank_waits() {
    let body = "printf 'name? '; read name; echo \"hello $name\"; printf '10%%\\r20%%\\r'; read x";
    let mut job = Command::new(RINGRUN)
        .args(["-n", "2", "sh", "-c", &format!("[ $RINGREDUCE_RANK = 1 ] && exit; {body}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (job.stdin.take().unwrap(), job.stdout.take().unwrap());
    read_until(&mut screen, "name? ");
    std::io::Write::write_all(&mut keys, b"you\n").unwrap();
    read_until(&mut screen, "hello you\n10%\r20%\r");
    drop(keys);
    job.wait().unwrap();
}

#[test]
fn input_that_rank_0_does_not_read_stays_for_the_next_program() {
    let shell = "printf 'one\\n' | { \"$@\"; read line; echo \"left: $line\"; } 9>&1";
    let ran = run_under(shell, &["-n", "2", "true"]);
    assert_eq!(ran.out, "left: one\n", "{}", ran.err);
}

/// Waits for the end of a child, which must come within `limit`. (/proc shows a zombie already
/// when its first thread has ended and others have not.)
fn ends_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `ringrun ... 2>log | less`: the failure is reported though the output is not read to its end.
#[test]
fn a_failure_is_reported_past_output_that_nobody_reads() {
    let (unread, write) = std::io::pipe().unwrap();
    let mut job = Command::new(RINGRUN)
        .args(["-n", "2", "sh", "-c", "yes | head -c 1000000 & sleep 0.1; exit 3"])
        .stdin(Stdio::null())
        .stdout(write)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut errors = job.stderr.take().unwrap();
    read_until(&mut errors, "exited with status 3");
    assert_eq!(job.try_wait().unwrap(), None, "the output was lost");
    drop(unread);
    assert_eq!(job.wait().unwrap().code(), Some(3));
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("failed first"), "{rest}");
}

/// `ringrun ... | less`: one pipe has both outputs, and its reader does not read.
#[test]
fn output_that_nobody_reads_holds_no_end_up() {
    let (mut unread, write) = std::io::pipe().unwrap();
    let mut job = Command::new(RINGRUN)
        .args(["-n", "2", "sh", "-c", "echo up; exec yes"])
        .stdin(Stdio::null())
        .stdout(write.try_clone().unwrap())
        .stderr(write)
        .process_group(0)
        .spawn()
        .unwrap();
    read_until(&mut unread, "up\n");
    send(job.id(), Signal::SIGTERM);
    let code = ends_within(&mut job, Duration::from_secs(60));
    let _ = job.kill();
    assert_eq!(code, Some(143), "the job had to be killed");
}

/// The shell of a container's entry point starts a process beside the job and becomes ringrun.
#[test]
fn a_process_that_ringrun_did_not_start_outlives_the_job() {
    let shell = "sleep 1000 >/dev/null 2>&1 9>&- & echo $!; exec \"$@\"";
    let words = ["-c", shell, "sh", RINGRUN, "-n", "2", "sh", "-c", "sleep 1000 & echo up"];
    let output = Command::new("sh").args(words).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let sidecar: u32 = text.lines().next().unwrap().parse().unwrap();
    let lives = std::path::Path::new(&format!("/proc/{sidecar}")).exists();
    send(sidecar, Signal::SIGKILL);
    assert!(lives && output.status.success(), "{text} {:?}", output.stderr);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("killed 2 process(es) that outlived their rank"), "{said}");
}

/// Batch systems send SIGUSR1 before the end of the time, for a checkpoint.
#[test]
fn sigusr1_reaches_a_program_behind_a_shell() {
    let program = "trap 'echo saved; exit 0' USR1; echo up; while :; do sleep 0.1; done";
    let body = format!("sh -c \"{program}\"; echo after");
    let mut running = start_script("-n 2", &body);
    running.await_lines("up", 2);
    running.signal(Signal::SIGUSR1);
    running.await_lines("saved", 2);
    let ran = running.finish();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.out.matches("after").count(), 2, "{}", ran.out);
}

#[test]
fn ranks_have_the_grace_that_the_user_gives() {
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    for (option, code) in [("--kill-after 0.2", 143), ("--kill-after=0", 143)] {
        let mut running = start_script(&format!("-n 2 {option}"), stubborn);
        running.await_lines("up", 2);
        running.signal(Signal::SIGTERM);
        let ran = running.finish();
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains("ranks 0-1 did not end within"), "{}", ran.err);
    }
    let saves = "trap 'sleep 6; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = start_script("-n 1", saves);
    running.await_lines("up", 1);
    running.signal(Signal::SIGTERM);
    let ran = running.finish();
    assert!(ran.out.contains("saved"), "{ran:?}");
    for wrong in ["-1", "nan", "x", ""] {
        let ran = script(&format!("-n 1 --kill-after={wrong}"), "true");
        assert!(ran.code == 2 && ran.err.contains("--kill-after"), "{wrong}: {ran:?}");
    }
}

#[test]
fn programs_of_torchrun_find_their_variables() {
    let body = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
                $MASTER_PORT $OMP_NUM_THREADS";
    let shell = "unset MASTER_ADDR MASTER_PORT OMP_NUM_THREADS; exec \"$@\" 9>&1";
    let words = |ranks| ["-n", ranks, "sh", "-c", body];
    let lines = run_under(shell, &words("64")).sorted();
    let rests: Vec<_> = lines.iter().map(|line| line.split_once("127.0.0.1").unwrap().1).collect();
    assert!(rests.iter().all(|rest| rest == &rests[0]), "{lines:?}");
    let [port, threads] = rests[0].split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{lines:?}")
    };
    assert!(port.parse::<u16>().unwrap() > 0 && threads == "1", "{lines:?}");
    assert!(lines.contains(&format!("63 64 63 64 0 127.0.0.1{}", rests[0])), "{lines:?}");
    let given = "MASTER_ADDR=a MASTER_PORT=7 OMP_NUM_THREADS=5 exec \"$@\" 9>&1";
    let own = run_under(given, &words("1")).out;
    assert_eq!(own, "0 1 0 1 0 a 7 5\n");
    let options = ["-n", "1", "-x", "OMP_NUM_THREADS=9", "sh", "-c", "echo $OMP_NUM_THREADS"];
    assert_eq!(run_under(shell, &options).out, "9\n");
}

#[test]
fn a_variable_of_torchrun_that_is_given_leaves_the_others_to_ringrun() {
    let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus = (0..CpuSet::count()).filter(|&cpu| cpus.is_set(cpu).unwrap()).count().to_string();
    for (given, host, port) in [
        ("", "127.0.0.1", None),
        ("MASTER_ADDR=a", "a", None),
        ("MASTER_PORT=7", "127.0.0.1", Some("7")),
    ] {
        let unset = "unset MASTER_ADDR MASTER_PORT OMP_NUM_THREADS";
        let shell = format!("{unset}; {given} exec \"$@\" 9>&1");
        let body = "echo $MASTER_ADDR $OMP_NUM_THREADS $MASTER_PORT";
        let line = run_under(&shell, &["-n", "1", "sh", "-c", body]).out;
        let rest = line.trim_end().strip_prefix(&format!("{host} {cpus} ")).unwrap_or(&line);
        assert!(rest.parse::<u16>().is_ok_and(|port| port > 0), "{given}: {line}");
        assert!(port.is_none_or(|port| port == rest), "{given}: {line}");
    }
}

#[test]
fn a_job_that_descriptors_do_not_hold_is_refused_before_it_starts() {
    let limited = "ulimit -n 60; exec \"$@\" 9>&1";
    let ran = run_under(limited, &["-n", "5", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = run_under(limited, &["-n", "6", "true"]);
    assert!(ran.code == 2 && ran.err.contains("at most 5 ranks fit"), "{}", ran.err);
    let ran = run_under("ulimit -n 16; exec \"$@\" 9>&1", &["-n", "2", "true"]);
    assert!(ran.code == 2 && ran.err.contains("-n 2: no rank fits"), "{}", ran.err);
    assert!(ran.err.contains("(ulimit -Hn); raise it\n"), "{}", ran.err);
    let folder = tempfile::tempdir().unwrap();
    let files = ["--output-filename", folder.path().to_str().unwrap()];
    for (ranks, code) in [("4", 0), ("5", 2)] {
        let words = [&["-n", ranks], &files[..], &["true"]].concat();
        let ran = run_under(limited, &words);
        assert_eq!(ran.code, code, "{}", ran.err);
    }
}

/// Each task of another launcher would start a whole job.
#[test]
fn a_job_in_each_of_several_ranks_is_refused_unless_wanted() {
    for outer in [
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1",
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
        "PMI_RANK=1 PMI_SIZE=2",
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=7",
        "RINGREDUCE_RANK=1 RINGREDUCE_SIZE=2",
        "RANK=1 WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=3",
    ] {
        let shell = format!("{outer} exec \"$@\" 9>&1");
        let ran = run_under(&shell, &["-n", "2", "echo", "up"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{outer}");
        let first = outer.split(' ').next().unwrap();
        assert!(ran.err.contains(first) && ran.err.contains("--nested"), "{}", ran.err);
        let body = "echo $RANK $WORLD_SIZE; [ $MASTER_PORT != 7 ]";
        let ran = run_under(&shell, &["--nested", "-n", "2", "sh", "-c", body]);
        assert_eq!((ran.code, ran.sorted()), (0, vec!["0 2".into(), "1 2".into()]), "{ran:?}");
    }
    for alone in ["SLURM_PROCID=0 SLURM_NTASKS=4", "PMI_RANK=0 PMI_SIZE=1", "RANK=0"] {
        let ran = run_under(&format!("{alone} exec \"$@\" 9>&1"), &["-n", "1", "true"]);
        assert_eq!(ran.code, 0, "{alone}: {}", ran.err);
    }
}

/// The copies of the output go to a folder where another user has put links.
#[test]
fn output_files_are_not_written_through_links_of_other_users() {
    use std::os::unix::fs::{lchown, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (logs, target) = (folder.path().join("logs"), folder.path().join("target"));
    std::fs::create_dir_all(logs.join("rank.0")).unwrap();
    std::fs::write(&target, "mine").unwrap();
    let link = logs.join("rank.0/stdout");
    symlink(&target, &link).unwrap();
    if lchown(&link, Some(65534), None).and(lchown(logs.join("rank.0"), Some(65534), None)).is_err()
    {
        let test = "output_files_are_not_written_through_links_of_other_users";
        return ::harness::skip(test, "only root can make files of another user");
    }
    let run = |logs: &std::path::Path| {
        run_under(
            "exec \"$@\" 9>&1",
            &["-n", "1", "--output-filename", logs.to_str().unwrap(), "echo", "x"],
        )
    };
    let ran = run(&logs);
    assert!(ran.code == 1 && ran.err.contains("link of another user"), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    symlink(folder.path(), other.join("rank.0")).unwrap();
    lchown(other.join("rank.0"), Some(65534), None).unwrap();
    let ran = run(&other);
    assert!(ran.code == 1 && ran.err.contains("link of another user"), "{}", ran.err);
    assert!(!folder.path().join("stdout").exists());
}
