//! Worlds that find each other, over every store and transport, in threads and processes.

use super::*;

/// The local TCP addresses that this process listens at.
fn listening() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: Vec<_> = open.flat_map(|entry| std::fs::read_link(entry.path())).collect();
    let mut addresses = Vec::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for fields in text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
            let mine = |inode: &&str| open.contains(&format!("socket:[{inode}]").into());
            if fields.get(3) == Some(&"0A") && fields.get(9).is_some_and(mine) {
                addresses.push(fields[1].to_string());
            }
        }
    }
    addresses
}

#[test]
fn ranks_of_worlds_of_every_size_connect() {
    let _concurrent = concurrent();
    for size in [1, 2, 3, 8] {
        for store in [unix_store(), tcp_store()] {
            let meetings =
                in_threads(configs(size, &store, |_| ()), |c| rendezvous_and_release(&c).unwrap());
            for (rank, meeting) in meetings.iter().enumerate() {
                assert_eq!((meeting.rank, meeting.size()), (rank, size));
                assert_eq!((meeting.local_rank(), meeting.local_size()), (rank, size));
                let all: Vec<u32> = (0..size as u32).collect();
                assert_eq!(meeting.ring_order().concat(), all);
                assert_eq!(meeting.job, meetings[0].job);
                assert_eq!(meeting.peers, meetings[0].peers);
                assert!(meeting.peers.iter().all(|p| p.tcp.first().is_none()));
                assert!(meeting.peers.iter().all(|p| p.pid == std::process::id()));
            }
            let links = in_threads(meetings, ring_both_ways);
            let shm = |link: &(usize, LinkKind)| link.1 == LinkKind::Shm;
            assert!(links.iter().flatten().all(shm));
        }
    }
}

pub(crate) fn listens() {
    let before = listening();
    let meetings =
        in_threads(configs(3, &unix_store(), |_| ()), |c| rendezvous_and_release(&c).unwrap());
    assert_eq!(listening(), before, "one host needs no TCP listener");
    drop(meetings);
    for size in [2, 3, 8] {
        let forced = |config: &mut Config| config.transport = Transport::Tcp;
        let meetings = in_threads(configs(size, &tcp_store(), forced), |c| {
            rendezvous_and_release(&c).unwrap()
        });
        let loopback =
            |m: &Bootstrap| m.peers.iter().all(|p| p.tcp.first().unwrap().ip().is_loopback());
        assert!(meetings.iter().all(loopback), "one host stays on loopback");
        assert_eq!(listening().len(), before.len() + size, "one listener for each rank");
        let links = in_threads(meetings, ring_both_ways);
        assert!(links.iter().flatten().all(|link| link.1 == LinkKind::Tcp));
    }
    assert_eq!(listening(), before, "no listener outlives its meeting");
}

#[test]
fn tcp_listeners_exist_only_where_tcp_is_chosen_and_only_during_the_start_up() {
    in_own_process("startup::worlds::listens");
}

pub(crate) fn connects_and_closes() {
    let before = descriptors();
    for store in [unix_store(), tcp_store()] {
        for transport in [Transport::Auto, Transport::Tcp] {
            for _again in 0..2 {
                let configs = configs(3, &store, |c| c.transport = transport);
                in_threads(
                    in_threads(configs, |c| rendezvous_and_release(&c).unwrap()),
                    ring_both_ways,
                );
            }
        }
        let mut incomplete = config(0, 2, &store);
        incomplete.timeout = Duration::from_millis(50);
        rendezvous_and_release(&incomplete).unwrap_err();
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn no_descriptor_stays_open() {
    in_own_process("startup::worlds::connects_and_closes");
}

/// A process of the next test: one rank, which connects to the job three times.
pub(crate) fn rank() {
    let config = Config::from_env().unwrap();
    for _ in 0..3 {
        let meeting = rendezvous_and_release(&config).unwrap();
        assert!(meeting.peers.iter().filter(|p| p.pid == std::process::id()).count() == 1);
        assert_eq!(ring_both_ways(meeting).len(), 2);
    }
}

#[test]
fn processes_connect_over_inherited_sockets() {
    let _exclusive = exclusive();
    let server = Server::new().unwrap();
    let me = harness::program();
    let spawn = |rank: usize| {
        let (theirs, ours) = UnixStream::pair().unwrap();
        server.adopt(ours).unwrap();
        nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
            .unwrap();
        let mut command = Command::new("sh");
        // The shell runs two programs in a row, as a script may.
        command.args(["-c", "\"$0\" \"$@\" && exec \"$0\" \"$@\""]).arg(&me);
        command.arg("startup::worlds::rank");
        command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", "3");
        command.env("RINGREDUCE_STORE", format!("fd:{}", theirs.as_raw_fd()));
        command.env("RINGREDUCE_TIMEOUT", "60");
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(spawn).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn worlds_may_use_one_store_address_one_after_the_other() {
    let _exclusive = exclusive();
    for store in [unix_store(), tcp_store()] {
        // No rank waits for the others in between, so the next start-up begins while rank 0 still
        // serves the last one.
        let jobs = in_threads(configs(4, &store, |_| ()), |config| {
            let job = |_| rendezvous_and_release(&config).map(|meeting| meeting.job);
            (0..20).map(job).collect::<Result<Vec<_>, _>>().unwrap()
        });
        assert!(jobs.iter().all(|job| *job == jobs[0]), "{jobs:?}");
    }
}
