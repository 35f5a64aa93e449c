//! Worlds that meet, over every store and transport, in threads and processes.

use super::*;

/// The local addresses at which this process listens over TCP.
fn listening(_alone: &Alone) -> Vec<String> {
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
fn worlds_of_every_size_meet() {
    let _others = with_others();
    for size in [1, 2, 3, 8] {
        for store in [unix_store(), tcp_store()] {
            let meetings = world(same_world(size, &store, |_| ()), |c| meet(&c).unwrap());
            for (rank, meeting) in meetings.iter().enumerate() {
                assert_eq!((meeting.rank, meeting.size()), (rank, size));
                assert_eq!((meeting.local_rank(), meeting.local_size()), (rank, size));
                let all: Vec<u32> = (0..size as u32).collect();
                assert_eq!(meeting.ring_order().concat(), all);
                assert_eq!(meeting.job, meetings[0].job);
                assert_eq!(meeting.peers, meetings[0].peers);
                assert!(meeting.peers.iter().all(|p| p.tcp.is_none()));
                assert!(meeting.peers.iter().all(|p| p.pid == std::process::id()));
            }
            let links = world_of(meetings, ring_both_ways);
            let shm = |link: &(PairKey, LinkKind)| link.1 == LinkKind::Shm;
            assert!(links.iter().flatten().all(shm));
        }
    }
}

#[test]
fn tcp_where_it_is_asked_for_and_nowhere_else() {
    let alone = alone();
    let before = listening(&alone);
    let meetings = world(same_world(3, &unix_store(), |_| ()), |c| meet(&c).unwrap());
    assert_eq!(listening(&alone), before, "one host needs no TCP listener");
    drop(meetings);
    for size in [2, 3, 8] {
        let forced = |config: &mut Config| {
            config.transport = Transport::Tcp;
            config.tcp_sockets = 3;
        };
        let meetings = world(same_world(size, &tcp_store(), forced), |c| meet(&c).unwrap());
        let loopback = |m: &Meeting| m.peers.iter().all(|p| p.tcp.unwrap().ip().is_loopback());
        assert!(meetings.iter().all(loopback), "one host stays on loopback");
        assert_eq!(listening(&alone).len(), before.len() + size, "one listener for each rank");
        let links = world_of(meetings, ring_both_ways);
        assert!(links.iter().flatten().all(|link| link.1 == LinkKind::Tcp));
    }
    assert_eq!(listening(&alone), before, "no listener outlives its meeting");
}

#[test]
fn nothing_stays_open() {
    let alone = alone();
    let before = alone.descriptors();
    for store in [unix_store(), tcp_store()] {
        for transport in [Transport::Auto, Transport::Tcp] {
            for _again in 0..2 {
                let configs = same_world(3, &store, |c| c.transport = transport);
                world_of(world(configs, |c| meet(&c).unwrap()), ring_both_ways);
            }
        }
        let mut lonely = config(0, 2, &store);
        lonely.timeout = Duration::from_millis(50);
        meet(&lonely).unwrap_err();
    }
    assert_eq!(alone.descriptors(), before);
}

/// Not a test of its own: what a process of the next test does.
pub(crate) fn a_rank_of_its_own() {
    let config = Config::from_env().unwrap();
    for _ in 0..3 {
        let meeting = meet(&config).unwrap();
        assert!(meeting.peers.iter().filter(|p| p.pid == std::process::id()).count() == 1);
        assert_eq!(ring_both_ways(meeting).len(), 4);
    }
}

#[test]
fn processes_with_inherited_sockets() {
    let _alone = alone();
    let server = Server::new().unwrap();
    let me = harness::program();
    let spawn = |rank: usize| {
        let (theirs, ours) = UnixStream::pair().unwrap();
        server.adopt(ours).unwrap();
        nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
            .unwrap();
        let mut command = Command::new("sh");
        // Two programs in a row, as a script would have them.
        command.args(["-c", "\"$0\" \"$@\" && exec \"$0\" \"$@\""]).arg(&me);
        command.arg("rendezvous::meeting::a_rank_of_its_own");
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
fn one_meeting_after_the_other_at_one_place() {
    let _alone = alone();
    for store in [unix_store(), tcp_store()] {
        // Nobody waits for the others in between, so the next meeting begins while rank 0 still
        // looks after the last one.
        let jobs = world(same_world(4, &store, |_| ()), |config| {
            let job = |_| meet(&config).map(|meeting| meeting.job);
            (0..20).map(job).collect::<Result<Vec<_>, _>>().unwrap()
        });
        assert!(jobs.iter().all(|job| *job == jobs[0]), "{jobs:?}");
    }
}
