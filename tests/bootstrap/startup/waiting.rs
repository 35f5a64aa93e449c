//! Ranks that wait: each says for whom, at which address and by which interface, before five
//! seconds have passed. Ranks that leave meanwhile, and ranks that take their places.

use harness::hosts::{Host, Hosts};
use harness::processes::Process;

use super::*;

/// Until when a waiting rank must have said what it waits for; the promise is five seconds.
pub(super) const FIRST_NOTICE: Duration = Duration::from_secs(20);

/// A process of these tests: a rank as the environment says, which waits until all have met.
pub(crate) fn rank() {
    match Config::from_env().and_then(|config| rendezvous_and_release(&config)) {
        Ok(meeting) => eprintln!("met {}", meeting.size()),
        Err(error) => eprintln!("failed: {error}"),
    }
}

/// A process of these tests: a rank that opens links to the other one of two after a line of input.
pub(crate) fn linked_rank() {
    let mut meeting =
        Config::from_env().and_then(|config| rendezvous_and_release(&config)).unwrap();
    eprintln!("met");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let opened = meeting.connect(&[1 - meeting.rank]);
    eprintln!("failed: {}", opened.unwrap_err());
}

fn command(rank: usize, size: usize, store: &str) -> Command {
    let mut command = harness::process("startup::waiting::rank");
    command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", size.to_string());
    command.env("RINGREDUCE_STORE", store).env("RINGREDUCE_TIMEOUT", "60");
    command
}

fn start(rank: usize, size: usize, store: &str) -> Process {
    Process::start(command(rank, size, store))
}

/// The first warning of a process that waits.
fn notice(process: &mut Process) -> String {
    let until = std::time::Instant::now() + FIRST_NOTICE;
    assert!(process.says_by("ringreduce: warning: rank ", until), "{:#?}", process.lines);
    process.lines.last().unwrap().clone()
}

/// Waits until `rank` has come to the store.
pub(super) fn has_come(store: &StoreAddr, rank: usize) {
    let mut observer = Store::connect(store, deadline()).unwrap();
    assert!(observer.get(&format!("record/{rank}"), deadline()).unwrap().is_some());
}

#[test]
fn a_waiting_rank_names_what_it_waits_for() {
    let _concurrent = concurrent();
    let (place, empty) = (free_port().to_string(), free_port().to_string());
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    let port = empty.rsplit_once(':').unwrap().1;
    let nowhere = format!("no-such-host.invalid:{port}");
    let own_name = format!("localhost:{port}");
    let mut unlimited = command(0, 2, &free_port().to_string());
    unlimited.env("RINGREDUCE_TIMEOUT", "none");
    // All live until the last one has told, since the others of a store end with rank 0.
    let mut waiting = [
        (
            start(0, 4, &place),
            vec!["rank 0 ", &*place, "interface lo", "2 of 4", "ranks 1, 3", "MEOUT limits"],
        ),
        (start(2, 4, &place), vec!["rank 2 ", &*place, "2 of 4", "ranks 1, 3"]),
        (Process::start(unlimited), vec!["rank 0 ", "1 of 2", "RINGREDUCE_TIMEOUT is none"]),
        (
            start(1, 2, &empty),
            vec!["rank 1 ", &*empty, "interface lo", "refused", "has it started"],
        ),
        (start(1, 2, &mute), vec!["rank 1 ", &*mute, "says nothing", "MTU"]),
        (start(1, 2, &nowhere), vec!["no-such-host.invalid", "/etc/hosts"]),
        (start(0, 2, &nowhere), vec!["rank 0 ", "no-such-host.invalid", "/etc/hosts"]),
        (start(1, 2, &own_name), vec!["localhost means this host itself", "RINGREDUCE_STORE"]),
    ];
    for (rank, parts) in &mut waiting {
        let text = notice(rank);
        for part in parts {
            assert!(text.contains(*part), "{part}: {text}");
        }
    }
    // A rank that can be none of theirs says why, and is as one that has not come.
    let text = start(9, 4, &place).succeeds("");
    let parts = ["failed: ", "rank=\"9\"", "below the world size, 4", "RINGREDUCE_RANK=9"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_rank_of_this_host_that_does_not_connect_is_named_with_its_process() {
    let _concurrent = concurrent();
    // The first rank tells the state of the second one, which opens no links.
    let start = |is_stopped: bool| {
        let store = unix_store().to_string();
        let mut ranks = [0, 1].map(|rank| {
            let mut command = harness::process("startup::waiting::linked_rank");
            command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", "2");
            command.env("RINGREDUCE_STORE", &store).env("RINGREDUCE_TIMEOUT", "12");
            command.stdin(std::process::Stdio::piped());
            Process::start(command)
        });
        for rank in &mut ranks {
            assert!(rank.says("met").is_some(), "{:#?}", rank.lines);
        }
        let [mut first, second] = ranks;
        if is_stopped {
            second.signal(nix::sys::signal::Signal::SIGSTOP);
        }
        first.write_stdin(b"\n");
        (first, second)
    };
    for (is_stopped, (mut first, second)) in [true, false].map(|it| (it, start(it))) {
        let pid = second.pid();
        let advice = match is_stopped {
            true => format!("pid {pid}) is stopped: kill -CONT {pid} resumes it"),
            false => format!("the process of rank 1 stopped (kill -CONT {pid}), busy, or"),
        };
        assert!(first.says("failed: ").is_some(), "{:#?}", first.lines);
        let about: Vec<_> = first.lines.iter().filter(|line| line.contains("rank 1")).collect();
        assert!(about.len() >= 2, "a notice and an error: {:#?}", first.lines);
        for line in about {
            assert!(line.contains(&advice) && !line.contains("IFNAME"), "{advice}: {line}");
        }
        second.kill();
    }
}

#[test]
fn a_rank_that_was_killed_may_be_replaced_while_others_are_late() {
    let _concurrent = concurrent();
    for store in [tcp_store(), unix_store()] {
        let address = store.to_string();
        let first = start(0, 3, &address);
        let killed = start(1, 3, &address);
        has_come(&store, 1);
        killed.kill();
        drop(killed);
        let others = [start(1, 3, &address), start(2, 3, &address)];
        for rank in others.into_iter().chain([first]) {
            let lines = rank.succeeds(&address);
            assert!(lines.contains("met 3"), "{lines}");
        }
    }
}

#[test]
fn the_end_of_rank_0_ends_the_start_of_those_that_have_reached_its_store() {
    let _concurrent = concurrent();
    for store in [tcp_store(), unix_store()] {
        let address = store.to_string();
        let killed = start(0, 3, &address);
        let second = start(1, 3, &address);
        (0..2).for_each(|rank| has_come(&store, rank));
        killed.kill();
        let began = std::time::Instant::now();
        let lines = second.succeeds("");
        let failure = lines.lines().find(|line| line.starts_with("failed: ")).unwrap();
        // The rank may not have read rank 0's record before.
        let parts = ["rank 0", "ended", "own output says why"];
        assert!(parts.iter().all(|part| failure.contains(part)), "{failure}");
        assert!(began.elapsed() < LONG / 2, "it waited for its timeout");
        drop(killed);
        // A rank that has not reached it waits for its next process.
        let last = start(2, 3, &address);
        for rank in [last, start(0, 3, &address), start(1, 3, &address)] {
            let lines = rank.succeeds(&address);
            assert!(lines.contains("met 3"), "{lines}");
        }
    }
}

#[test]
fn a_rank_that_ends_while_others_start_ends_their_start() {
    let _concurrent = concurrent();
    let store = tcp_store();
    let address = store.to_string();
    let killed = start(2, 4, &address);
    let others = [0, 1].map(|rank| start(rank, 4, &address));
    has_come(&store, 2);
    let pid = format!("pid {}", killed.pid());
    killed.kill();
    let began = std::time::Instant::now();
    for rank in others {
        let lines = rank.succeeds("");
        let failure = lines.lines().find(|line| line.starts_with("failed: ")).unwrap();
        let parts = ["rank 2 ", &pid, "its process ended", "RINGREDUCE_PEER_TIMEOUT"];
        assert!(parts.iter().all(|part| failure.contains(part)), "{failure}");
    }
    assert!(began.elapsed() < LONG / 2, "the others waited for their timeout");
}

#[test]
fn a_rank_that_is_refused_is_named_by_the_others() {
    let _concurrent = concurrent();
    let key = |byte: u8| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [byte; 32]).unwrap();
        file
    };
    let (right, wrong) = (key(1), key(2));
    for is_secret in [true, false] {
        let store = tcp_store().to_string();
        let with = |rank: usize, file: Option<&tempfile::NamedTempFile>| {
            let mut command = command(rank, 3, &store);
            command.env("RINGREDUCE_TIMEOUT", if is_secret { "8" } else { "20" });
            if let Some(file) = file {
                command.env("RINGREDUCE_SECRET_FILE", file.path());
            }
            Process::start(command)
        };
        let own = is_secret.then_some(&right);
        let mut others = [0, 1].map(|rank| with(rank, own));
        let refused = with(2, Some(&wrong)).succeeds("");
        assert!(refused.contains("failed: ") && refused.contains("secret"), "{refused}");
        for rank in &mut others {
            let text = match is_secret {
                // Whoever reaches the port could claim a rank, so the job goes on to wait.
                true => loop {
                    let text = notice(rank);
                    if text.contains("of 3 ranks") {
                        break text;
                    }
                },
                // Here the claim is as good as any other one.
                false => {
                    rank.says("failed: ");
                    rank.lines.last().unwrap().clone()
                }
            };
            if is_secret {
                rank.says("failed: ");
            }
            for text in [&text, rank.lines.last().unwrap()] {
                assert!(text.contains("rank 2 (from 127.") && text.contains("secret"), "{text}");
            }
        }
    }
}

/// A rank on a host with a hosts file of its own.
fn with_names(host: &Host, names: &std::path::Path, rank: usize, store: &str) -> Process {
    let mut command = command(rank, 2, store);
    command.env("RINGREDUCE_TRANSPORT", "tcp");
    Process::start(host.with_names(&command, names))
}

#[test]
fn ranks_meet_at_a_name_that_each_host_knows_differently() {
    let _concurrent = concurrent();
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => {
            return harness::skip(
                "startup::waiting::ranks_meet_at_a_name_that_each_host_knows_differently",
                &reason,
            );
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let others = file("others", "127.0.0.1 localhost\n10.77.0.1 first\n");
    for (case, own) in [
        ("the own name of Debian and Ubuntu", "127.0.1.1 first\n"),
        ("the address of a service", "10.77.0.77 first\n"),
        ("several addresses", "127.0.1.1 first\n10.77.0.1 first\n"),
        ("a name that comes late", "127.0.0.1 localhost\n"),
    ] {
        let own_file = file("own", own);
        let store = format!("first:{}", hosts.store().rsplit_once(':').unwrap().1);
        let ranks = [
            with_names(&hosts.0[0], &own_file, 0, &store),
            with_names(&hosts.0[1], &others, 1, &store),
        ];
        if !own.contains("first") {
            std::fs::write(&own_file, "10.77.0.1 first\n").unwrap();
        }
        for rank in ranks {
            let lines = rank.succeeds(case);
            assert!(lines.contains("met 2"), "{case}: {lines}");
        }
    }
}
