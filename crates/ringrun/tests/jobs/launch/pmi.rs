//! PMI-1, by which programs of the MPICH family start: ranks that speak it, well and badly, our own
//! ranks that meet by it, and MPICH itself where it is installed.

use std::env;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::Command;

use ::harness::skip;
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{MsgFlags, recv, send};
use ringreduce::Result;
use tempfile::TempDir;

use crate::harness::{
    AS_IS, AS_RANK, BODY, Ended, Running, myself, run_changed, run_under, script, start_under,
};

/// A rank's end of its PMI socket.
struct Pmi {
    socket: RawFd,
    received: Vec<u8>,
}

impl Pmi {
    fn inherited() -> Self {
        Self { socket: env::var("PMI_FD").unwrap().parse().unwrap(), received: vec![] }
    }

    fn send(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match send(self.socket, bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(_) => return false,
            }
        }
        true
    }

    /// The next answer; none if the launcher has closed the socket.
    fn answer(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line = self.received.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            let mut bytes = [0; 65536];
            match recv(self.socket, &mut bytes, MsgFlags::empty()) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            }
        }
    }

    fn ask(&mut self, request: &str) -> String {
        assert!(self.send(format!("cmd={request}\n").as_bytes()), "{request}");
        self.answer().unwrap_or_else(|| "closed".into())
    }
}

const PASSED: &str = "cmd=barrier_out rc=0";
const REFUSED: &str = "cmd=barrier_out rc=-1 msg=another_rank_has_ended";

/// The body of ranks that speak PMI.
pub(crate) fn speaks(what: &str) -> Result<()> {
    let number = |name| env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, size) = (number("PMI_RANK"), number("PMI_SIZE"));
    let mut pmi = Pmi::inherited();
    match (what, rank) {
        ("exchange", _) => exchange(&mut pmi, rank, size),
        ("garbage", 1) => {
            assert!(pmi.send(b"GET / HTTP/1.1\r\ncmd=abort exitcode=9\n"));
            assert_eq!(pmi.answer(), None);
        }
        ("long", 1) => {
            // The launcher closes the socket in the midst of it.
            pmi.send(&vec![b'x'; 1 << 20]);
            assert_eq!(pmi.answer(), None);
        }
        ("flood", 1) => flood(&mut pmi),
        ("deaf", 1) => {
            // No answer is read, so ringrun stops reading requests.
            let sent = (0..1_000_000).take_while(|_| {
                send(pmi.socket, b"cmd=get_maxes\n", MsgFlags::MSG_DONTWAIT).is_ok()
            });
            println!("sent {}", sent.count());
            std::process::exit(0);
        }
        ("mapping", _) => println!("{rank}: {}", pmi.ask("get key=PMI_process_mapping")),
        ("leaves", 1) => std::process::exit(0),
        ("aborts", 1) => {
            assert!(pmi.send(b"cmd=abort exitcode=7 message=abort\n"));
            nix::unistd::pause();
        }
        ("aborts_and_exits", 1) => {
            assert!(pmi.send(b"cmd=abort exitcode=7 message=abort\n"));
            std::process::exit(0);
        }
        ("dies", 1) => {
            assert!(pmi.send(b"cmd=barrier_in\n"));
            raise(Signal::SIGKILL).unwrap();
        }
        ("hangs", 1) | ("dies", 0) => {
            println!("up");
            nix::unistd::pause();
        }
        ("hangs", _) => {
            println!("up");
            println!("{rank}: {}", pmi.ask("barrier_in"));
        }
        _ => println!("{rank}: {}", pmi.ask("barrier_in")),
    }
    Ok(())
}

/// Each rank learns the texts of all others.
fn exchange(pmi: &mut Pmi, rank: usize, size: usize) {
    assert!(pmi.ask("init pmi_version=1 pmi_subversion=1").contains("rc=0 pmi_version=1"));
    let name = pmi.ask("get_my_kvsname");
    let name = name.split_once("kvsname=").unwrap().1;
    assert!(pmi.ask(&format!("put kvsname={name} key=k{rank} value=v{rank}")).contains(" rc=0"));
    assert_eq!(pmi.ask("barrier_in"), PASSED);
    for other in 0..size {
        let value = pmi.ask(&format!("get kvsname={name} key=k{other}"));
        assert_eq!(value, format!("cmd=get_result rc=0 msg=success value=v{other}"));
    }
    assert!(pmi.ask("get_node_attr").starts_with("cmd=error rc=-1"));
    assert_eq!(pmi.ask("finalize"), "cmd=finalize_ack rc=0");
}

/// A hundred thousand keys, most of which are refused.
fn flood(pmi: &mut Pmi) {
    let mut stored = 0;
    for part in 0..100 {
        let puts = (0..1000).map(|key| format!("cmd=put key={part}-{key} value={key}\n"));
        assert!(pmi.send(puts.collect::<String>().as_bytes()));
        for _ in 0..1000 {
            stored += usize::from(pmi.answer().unwrap().contains(" rc=0"));
        }
    }
    assert!((1000..20_000).contains(&stored), "{stored}");
    println!("1: {}", pmi.ask("barrier_in"));
}

/// Starts ranks that do [`speaks`].
fn start(ranks: &str, what: &str) -> Running {
    let me = myself();
    let body = format!("{BODY}=pmi {what}");
    let words = [&["-n", ranks, "-x", &body, me.as_str()], &AS_RANK[..]].concat();
    start_under(AS_IS, &words, std::process::Stdio::null())
}

fn speak(ranks: &str, what: &str) -> Ended {
    start(ranks, what).finish()
}

/// The lines of ranks that say what came of their barrier.
fn barriers(ran: &Ended) -> Vec<String> {
    ran.sorted().into_iter().filter(|line| line.contains("barrier_out")).collect()
}

#[test]
fn each_rank_has_the_variables_and_the_socket_of_pmi() {
    let body = "echo $PMI_RANK $PMI_SIZE $MPI_LOCALRANKID $MPI_LOCALNRANKS \
                $(readlink /proc/$$/fd/$PMI_FD | tr -d 0-9) $PMI_PORT $PMI_ID $PMI_SPAWNED";
    let outer = "PMI_RANK=0 PMI_SIZE=1 PMI_FD=77 PMI_PORT=a:1 PMI_ID=0 PMI_SPAWNED=1 \
                 exec \"$@\" 9>&1";
    let ran = run_under(outer, &["-n", "3", "sh", "-c", body]);
    let expected: Vec<_> = (0..3).map(|rank| format!("{rank} 3 {rank} 3 socket:[]")).collect();
    assert_eq!(ran.sorted(), expected, "{ran:?}");
    let ran = run_under(AS_IS, &["-n", "1", "-x", "PMI_FD=3", "true"]);
    assert!(ran.code == 2 && ran.err.contains("PMI_FD can't be set"), "{ran:?}");
}

#[test]
fn ranks_learn_what_the_others_have_put() {
    let ran = speak("5", "exchange");
    assert_eq!((ran.code, ran.out.matches("right").count()), (0, 5), "{ran:?}");
}

#[test]
fn a_rank_that_speaks_no_pmi_loses_its_socket_and_is_named() {
    for what in ["garbage", "long"] {
        let ran = speak("3", what);
        assert_eq!(ran.code, 0, "{what}: {ran:?}");
        assert_eq!(barriers(&ran), [format!("0: {REFUSED}"), format!("2: {REFUSED}")], "{ran:?}");
        let named = |line: &str| line.contains("rank 1 (pid") && line.contains("no PMI-1");
        assert_eq!(ran.err.lines().filter(|line| named(line)).count(), 1, "{what}: {ran:?}");
    }
}

#[test]
fn endless_keys_neither_fill_the_memory_nor_stop_the_others() {
    let ran = speak("3", "flood");
    let passed: Vec<_> = (0..3).map(|rank| format!("{rank}: {PASSED}")).collect();
    assert_eq!((ran.code, barriers(&ran)), (0, passed), "{ran:?}");
}

#[test]
fn a_rank_that_reads_no_answers_is_not_read_either() {
    let ran = speak("2", "deaf");
    let sent = ran.out.lines().find_map(|line| line.strip_prefix("sent ")?.parse::<u32>().ok());
    assert!(ran.code == 0 && sent.is_some_and(|sent| sent < 1_000_000), "{ran:?}");
    assert_eq!(barriers(&ran), [format!("0: {REFUSED}")], "{ran:?}");
}

#[test]
fn a_rank_that_ends_well_before_a_barrier_leaves_no_other_waiting() {
    let ran = speak("4", "leaves");
    let refused: Vec<_> = [0, 2, 3].iter().map(|rank| format!("{rank}: {REFUSED}")).collect();
    assert_eq!((ran.code, barriers(&ran)), (0, refused), "{ran:?}");
    assert_eq!(ran.err.matches("rank 1 left the MPI world").count(), 1, "{ran:?}");
}

#[test]
fn an_abort_ends_the_job_with_its_code_and_names_the_rank() {
    for what in ["aborts", "aborts_and_exits"] {
        let ran = speak("3", what);
        assert_eq!(ran.code, 7, "{what}: {ran:?}");
        assert!(ran.err.starts_with("ringrun: rank 1 (pid "), "{what}: {ran:?}");
        assert!(ran.err.contains("aborted the job with exit code 7"), "{what}: {ran:?}");
        // The others wait in a barrier, which is not refused: that would make them fail, too.
        assert!(ran.err.contains(" still ran and had to end"), "{what}: {ran:?}");
    }
}

#[test]
fn a_rank_that_is_killed_is_the_cause_and_no_barrier() {
    let ran = speak("3", "dies");
    assert_eq!(ran.code, 137, "{ran:?}");
    assert!(ran.err.starts_with("ringrun: rank 1 (pid "), "{ran:?}");
    let passed = barriers(&ran).iter().any(|line| line.contains(PASSED));
    assert!(!ran.err.contains("left the MPI world") && !passed, "{ran:?}");
}

#[test]
fn ctrl_c_ends_ranks_that_wait_in_a_barrier() {
    let mut running = start("3", "hangs");
    running.await_lines("up", 3);
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    assert_eq!((ran.code, barriers(&ran)), (130, vec![]), "{ran:?}");
}

/// Runs four ranks of ours, which a shell starts with changes to their environment.
fn our_ranks(change: &str) -> Ended {
    let me = myself();
    let shell = format!("exec env {change} \"$@\"");
    let words = [&["-n", "4", "sh", "-c", &shell, "sh", me.as_str()], &AS_RANK[..]].concat();
    run_changed(&words, |command| {
        command.env(BODY, "moves 1000");
    })
}

#[test]
fn our_own_ranks_meet_by_pmi_where_they_have_nothing_else() {
    let ours = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "STORE"];
    let ours = ours.map(|name| format!("-u RINGREDUCE_{name}")).join(" ");
    let without = format!("{ours} -u RANK -u WORLD_SIZE");
    // With these variables, the ranks would meet at a socket of this host.
    let no_locals = format!("{without} -u MPI_LOCALRANKID -u MPI_LOCALNRANKS");
    for change in ["RINGREDUCE_STORE=pmi:$PMI_FD", &without, &no_locals] {
        let ran = our_ranks(change);
        let right = ran.out.matches("right\n").count();
        assert_eq!((ran.code, right), (0, 4), "{change}: {ran:?}");
    }
}

#[test]
fn our_own_ranks_do_not_look_at_pmi_where_ringrun_starts_them() {
    let ran = our_ranks("PMI_FD=999 PMI_RANK=9 PMI_SIZE=10");
    assert_eq!((ran.code, ran.out.matches("right\n").count()), (0, 4), "{ran:?}");
}

/// A rank's child inherits the socket, which stays open then.
#[test]
fn a_socket_that_a_child_keeps_holds_no_end_up() {
    let ran = script("-n 2", "sleep 0.3 & exit 0");
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// The folder of an MPICH, and what its programs have after their names: Debian's `mpicc` may be
/// that of Open MPI beside `mpicc.mpich`.
fn mpich() -> Option<(PathBuf, &'static str)> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let folder = env::split_paths(&folders).find(|it| it.join("mpichversion").is_file())?;
    let suffix =
        [".mpich", ""].into_iter().find(|it| folder.join(format!("mpicc{it}")).is_file())?;
    Some((folder, suffix))
}

/// A program of MPICH, built from mpich.c.
struct MpichProgram {
    folder: TempDir,
    mpiexec: PathBuf,
    /// The setting by which ranks find MPICH's library.
    library: String,
}

impl MpichProgram {
    /// `None`, and a word about it, where this machine has no MPICH.
    fn build(test: &str) -> Option<Self> {
        let Some((mpich, suffix)) = mpich() else {
            skip(test, "no MPICH (mpicc, mpichversion) is on PATH; pip has one: mpich");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("mpich.c");
        std::fs::write(&source, include_str!("mpich.c")).unwrap();
        let mut compiler = Command::new(mpich.join(format!("mpicc{suffix}")));
        compiler.arg(&source).arg("-o").arg(folder.path().join("mpich"));
        let built = compiler.output().unwrap();
        assert!(built.status.success(), "{built:?}");
        let mpiexec = mpich.join(format!("mpiexec{suffix}"));
        let library = format!("LD_LIBRARY_PATH={}", mpich.join("../lib").display());
        Some(Self { folder, mpiexec, library })
    }

    /// ringrun's words for so many ranks that do this.
    fn words(&self, ranks: &str, what: &str) -> Vec<String> {
        let words = ["-n", ranks, "-x", &self.library, &self.path(), what];
        words.map(str::to_owned).to_vec()
    }

    fn path(&self) -> String {
        self.folder.path().join("mpich").to_str().unwrap().to_owned()
    }
}

#[test]
fn programs_of_mpich_start_as_one_world() {
    let test = "launch::pmi::programs_of_mpich_start_as_one_world";
    let Some(program) = MpichProgram::build(test) else { return };
    let run =
        |words: &[String]| run_under(AS_IS, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let line = |of: usize, program: usize, sum: usize| {
        move |rank| format!("rank {rank} of {of}, {of} here, program {program}: {sum}")
    };
    let ran = run(&program.words("4", "sum"));
    let lines: Vec<_> = (0..4).map(line(4, 0, 6)).collect();
    assert_eq!((ran.code, ran.sorted()), (0, lines), "{ran:?}");
    let ran =
        run(&[program.words("1", "sum"), vec![":".into()], program.words("2", "sum")].concat());
    let lines: Vec<_> = (0..1).map(line(3, 0, 3)).chain((1..3).map(line(3, 1, 3))).collect();
    assert_eq!((ran.code, ran.sorted()), (0, lines), "{ran:?}");
    let ran = run(&program.words("4", "abort"));
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(ran.err.contains("aborted the job with exit code 7"), "{ran:?}");
    let ran = run(&program.words("4", "spawn"));
    assert_eq!((ran.code, ran.out.matches("refused").count()), (0, 4), "{ran:?}");
    let nested = format!("{} -n 2 {} sum", program.mpiexec.display(), program.path());
    let ran = run_under(AS_IS, &["-n", "1", "-x", &program.library, "sh", "-c", &nested]);
    let lines: Vec<_> = (0..2).map(line(2, 0, 1)).collect();
    assert_eq!((ran.code, ran.sorted()), (0, lines), "{ran:?}");
}
