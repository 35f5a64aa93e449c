//! Ranks that meet by PMI-1, which this process speaks in the place of a launcher.
#![allow(unsafe_code, reason = "forks")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use harness::process::Process;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use ringreduce::{Communicator, ReduceOp};

/// How a launcher answers the requests of one rank.
type Answers = Box<dyn FnMut(&str) -> Option<String> + Send>;

/// Starts a rank whose standard input is the launcher's socket.
fn start(
    (rank, size): (usize, usize),
    secret: Option<u8>,
    timeout: &str,
    mut answers: Answers,
) -> Process {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = harness::process("startup::pmi::rank");
    for (name, value) in [("RANK", rank), ("SIZE", size)] {
        command.env(format!("RINGREDUCE_{name}"), value.to_string());
    }
    command.env("RINGREDUCE_STORE", "pmi:0").env("RINGREDUCE_TIMEOUT", timeout);
    command.env("RINGREDUCE_TRANSPORT", "tcp").env("RUST_BACKTRACE", "0");
    if let Some(secret) = secret {
        command.env(SECRET, secret.to_string());
    }
    command.stdin(OwnedFd::from(theirs));
    thread::spawn(move || {
        let mut requests = BufReader::new(ours.try_clone().unwrap()).lines();
        while let Some(Ok(request)) = requests.next() {
            let Some(answer) = answers(&request) else { return };
            if (&ours).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    Process::start(command)
}

/// The field of a request.
fn field<'a>(request: &'a str, name: &str) -> &'a str {
    let fields = request.split(' ').filter_map(|field| field.split_once('='));
    fields.into_iter().find(|(is, _)| *is == name).unwrap().1
}

/// Tells a rank the secret that its program gives.
const SECRET: &str = "TEST_PMI_SECRET";

/// Forks a child, which exits with all that the C library does then.
fn fork_a_child() {
    // SAFETY: the child only exits; what is called then takes no lock without trying.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

/// A rank: two worlds, one after the other, and a child.
pub(crate) fn rank() {
    let secret: Option<u8> = std::env::var(SECRET).ok().map(|secret| secret.parse().unwrap());
    for _ in 0..2 {
        let build = || match secret {
            Some(secret) => Communicator::builder().secret(&[secret; 32]).build(),
            None => Communicator::from_env(),
        };
        let done = build().and_then(|mut comm| {
            let mut sum = [comm.rank() as u32 + 1];
            comm.all_reduce(&mut sum, ReduceOp::Sum)?;
            Ok((sum[0], comm.size() as u32))
        });
        match done {
            Ok((sum, size)) => assert_eq!(sum, size * (size + 1) / 2),
            Err(error) => {
                eprintln!("failed: {error}");
                if let Err(again) = Communicator::from_env() {
                    eprintln!("again: {again}");
                }
                return;
            }
        }
    }
    fork_a_child();
    eprintln!("met twice");
}

/// A launcher that serves the ranks of a world well.
struct Launcher {
    values: Mutex<BTreeMap<String, String>>,
    barrier: Barrier,
    /// The requests of ranks that leave.
    ended: AtomicUsize,
}

impl Launcher {
    fn new(size: usize) -> Arc<Self> {
        let values = Mutex::default();
        Arc::new(Self { values, barrier: Barrier::new(size), ended: AtomicUsize::new(0) })
    }

    fn answer(&self, request: &str) -> String {
        let values = || self.values.lock().unwrap();
        match field(request, "cmd") {
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1\n".into(),
            "put" => {
                assert_eq!(field(request, "kvsname"), "kvs_1");
                let [key, value] = ["key", "value"].map(|name| field(request, name).to_owned());
                assert!(key.len() < 64 && value.len() < 512, "{request}");
                assert!(values().insert(key, value).is_none(), "{request}");
                "cmd=put_result rc=0 msg=success\n".into()
            }
            "barrier_in" => {
                self.barrier.wait();
                "cmd=barrier_out rc=0\n".into()
            }
            "finalize" => {
                self.ended.fetch_add(1, Ordering::Relaxed);
                "cmd=finalize_ack\n".into()
            }
            "get" => match values().get(field(request, "key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
                None => "cmd=get_result rc=-1 msg=key_not_found\n".into(),
            },
            _ => panic!("{request}"),
        }
    }
}

/// Starts ranks of a world, by a launcher that serves them well; their lines.
fn world(size: usize, timeout: &str, secret: impl Fn(usize) -> Option<u8>) -> Vec<String> {
    let launcher = Launcher::new(size);
    let launch = |rank| {
        let launcher = Arc::clone(&launcher);
        let answers = move |request: &str| Some(launcher.answer(request));
        start((rank, size), secret(rank), timeout, Box::new(answers))
    };
    let ranks: Vec<_> = (0..size).map(launch).collect();
    let lines: Vec<_> = ranks.into_iter().map(|rank| rank.succeeds("PMI")).collect();
    // Each has said once that it leaves, but for those whose meeting has failed; no child has.
    let met = lines.iter().filter(|lines| lines.contains("met twice")).count();
    let ended = launcher.ended.load(Ordering::Relaxed);
    assert!((met..=size).contains(&ended), "{ended} of {lines:?}");
    lines
}

/// A launcher takes a socket that is closed before it has answered for a failure.
#[test]
fn a_rank_that_leaves_waits_for_the_launchers_answer_for_some_seconds() {
    // Rank 0 is answered late, and rank 1 never.
    let (late, limit) = (Duration::from_secs(1), Duration::from_secs(5));
    let launcher = Launcher::new(2);
    let leaves = [(); 2].map(|()| Arc::new(Mutex::new(None)));
    let launch = |rank: usize| {
        let (launcher, leaves) = (Arc::clone(&launcher), Arc::clone(&leaves[rank]));
        let answers = move |request: &str| {
            let answer = launcher.answer(request);
            if field(request, "cmd") != "finalize" {
                return Some(answer);
            }
            *leaves.lock().unwrap() = Some(Instant::now());
            thread::sleep(late);
            Some(if rank == 0 { answer } else { String::new() })
        };
        start((rank, 2), None, "60", Box::new(answers))
    };
    let ranks = [0, 1].map(launch);
    let ends = ranks.map(|rank| {
        assert!(rank.succeeds("PMI").contains("met twice"));
        Instant::now()
    });
    let waited = [0, 1].map(|rank| ends[rank] - leaves[rank].lock().unwrap().unwrap());
    assert!(waited[0] >= late && waited[0] < limit, "{waited:?}");
    assert!(waited[1] >= limit - late && waited[1] < 4 * limit, "{waited:?}");
}

#[test]
fn worlds_meet_one_after_the_other_by_the_launchers_pmi() {
    for lines in world(3, "60", |_| None) {
        assert!(lines.contains("met twice"), "{lines}");
    }
}

/// The launcher has passed rank 0's secret to whoever read it, so it alone is not enough.
#[test]
fn ranks_whose_programs_give_secrets_need_these_too() {
    for lines in world(2, "60", |_| Some(7)) {
        assert!(lines.contains("met twice"), "{lines}");
    }
    let lines = world(2, "2", |rank| Some(rank as u8));
    assert!(lines.iter().all(|lines| !lines.contains("met twice")), "{lines:?}");
}

#[test]
fn a_launcher_that_answers_wrongly_is_named_with_what_it_said() {
    let long = format!("cmd={}", "x".repeat(10_000));
    let cases = [
        (Some("cmd=my_kvsname rc=-1 msg=busy\n"), "get_my_kvsname with \"cmd=my_kvsname rc=-1"),
        (Some("cmd=my_kvsname\n"), "answers get_my_kvsname with"),
        (Some("cmd=barrier_out kvsname=k\n"), "answers get_my_kvsname with"),
        (Some("\u{1b}[31m\n"), "answers get_my_kvsname with"),
        (Some(&*long), "answers get_my_kvsname with"),
        (Some("cmd=my_kvsname kvsname=k"), "no answer to get_my_kvsname within 1"),
        (None, "the launcher has ended"),
    ];
    for (answer, reason) in cases {
        let answer = answer.map(str::to_owned);
        let rank = start((1, 2), None, "1", Box::new(move |_| answer.clone()));
        let lines = rank.succeeds(reason);
        assert!(lines.contains("store at pmi:0") && lines.contains(reason), "{reason}: {lines}");
        assert!(lines.contains("again: store at pmi:0: an earlier meeting"), "{lines}");
    }
}

#[test]
fn a_rank_that_does_not_come_to_the_launchers_barrier_ends_the_wait() {
    let waits = |request: &str| match field(request, "cmd") {
        "get_my_kvsname" => Some("cmd=my_kvsname kvsname=k\n".into()),
        "barrier_in" => Some(String::new()),
        _ => panic!("{request}"),
    };
    let lines = start((1, 2), None, "1", Box::new(waits)).succeeds("a barrier");
    assert!(lines.contains("within 1.0s; another rank has not come"), "{lines}");
    let of_other_version = |request: &str| {
        Some(match field(request, "cmd") {
            "get_my_kvsname" => "cmd=my_kvsname kvsname=k\n".into(),
            "barrier_in" => "cmd=barrier_out rc=0\n".into(),
            _ => "cmd=get_result rc=0 value=0123\n".into(),
        })
    };
    let lines = start((1, 2), None, "1", Box::new(of_other_version)).succeeds("a value");
    assert!(lines.contains("another version of ringreduce"), "{lines}");
}
