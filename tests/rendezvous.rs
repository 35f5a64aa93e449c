//! Ranks meet: over every kind of store, with strangers about, and with somebody missing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringreduce::config::{Config, StoreAddr};
use ringreduce::rendezvous::{
    Connection, LinkKind, Meeting, PairKey, Server, Store, Streams, meet, recv_fd, send_fd,
};
use ringreduce::{Error, Result, Transport};

/// Long enough for anything that should happen, on any machine.
const LONG: Duration = Duration::from_secs(60);

/// Tests count descriptors and ports of the whole process, so they take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn soon() -> Instant {
    Instant::now() + LONG
}

fn abstract_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("ringreduce-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn unix_store() -> StoreAddr {
    StoreAddr::Unix(abstract_name())
}

/// A port that is free now. (Nothing else on this machine is told of it.)
fn tcp_store() -> StoreAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    StoreAddr::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() }
}

fn config(rank: usize, size: usize, store: &StoreAddr) -> Config {
    let store = Some(store.clone());
    Config { rank, size, store, timeout: LONG, source: "test".into(), ..Config::default() }
}

/// Runs `rank` for each of the configurations, each in a thread; gives what they return.
fn world<T: Send>(configs: Vec<Config>, rank: impl Fn(Config) -> T + Sync) -> Vec<T> {
    let rank = &rank;
    thread::scope(|scope| {
        let start = |config| scope.spawn(move || rank(config));
        let threads: Vec<_> = configs.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn same_world(size: usize, store: &StoreAddr, change: impl Fn(&mut Config)) -> Vec<Config> {
    let make = |rank| {
        let mut config = config(rank, size, store);
        change(&mut config);
        config
    };
    (0..size).map(make).collect()
}

/// Opens the ring both ways round and sends each link's name through each of its streams.
fn ring_both_ways(mut meeting: Meeting) -> Vec<(PairKey, LinkKind)> {
    let (rank, size) = (meeting.rank, meeting.size());
    let next = (rank + 1) % size;
    let before = (rank + size - 1) % size;
    if size == 1 {
        return Vec::new();
    }
    let dial = [PairKey { from: rank, to: next }, PairKey { from: rank, to: before }];
    let accept = [PairKey { from: before, to: rank }, PairKey { from: next, to: rank }];
    let both = if size == 2 { 1 } else { 2 };
    let links = meeting.connect(&dial[..both], &accept[..both]).unwrap();
    let pairs: Vec<_> = links.iter().map(|link| link.pair).collect();
    assert_eq!(pairs, [&dial[..both], &accept[..both]].concat());
    let word = |pair: PairKey, index: usize| [pair.from as u8, pair.to as u8, index as u8];
    for sending in [true, false] {
        for Connection { pair, streams } in &links {
            if (pair.from == rank) != sending {
                continue;
            }
            let each = |index: usize, stream: &mut dyn Stream| {
                let mut bytes = word(*pair, index);
                match sending {
                    true => stream.write_all(&bytes).unwrap(),
                    false => stream.read_exact(&mut bytes).unwrap(),
                }
                assert_eq!(bytes, word(*pair, index));
            };
            match streams {
                Streams::Shm(stream) => each(0, &mut &*stream),
                Streams::Tcp(streams) => {
                    streams.iter().enumerate().for_each(|(i, mut stream)| each(i, &mut stream));
                }
            }
        }
    }
    links.iter().map(|link| (link.pair, meeting.link_kind(link.pair.from, link.pair.to))).collect()
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The local ports at which this network namespace listens over TCP.
fn listening() -> Vec<String> {
    let mut lines = Vec::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.extend(fields.filter(|f| f.get(3) == Some(&"0A")).map(|f| f[1].to_string()));
    }
    lines
}

#[test]
fn a_store_keeps_waits_and_refuses() {
    let _turn = turn();
    let name = abstract_name();
    let server = Server::new().unwrap();
    server.listen_unix(&name).unwrap();
    let any = |ip: std::net::IpAddr| SocketAddr::new(ip, 0);
    let v4 = server.listen_tcp(any(Ipv4Addr::LOCALHOST.into())).unwrap();
    let mut addresses = vec![StoreAddr::Unix(name), v4.to_string().parse().unwrap()];
    match server.listen_tcp(any(Ipv6Addr::LOCALHOST.into())) {
        Ok(v6) => addresses.push(v6.to_string().parse().unwrap()),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIP a store over IPv6: {error}");
        }
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut clients = vec![server.connect().unwrap(), Store::over(ours, "pair", soon()).unwrap()];
    clients.extend(addresses.iter().map(|address| Store::connect(address, soon()).unwrap()));
    let big = vec![7; 64 << 10];
    for index in 0..clients.len() {
        let key = format!("key {index}");
        assert_eq!(clients[index].get(&key, Instant::now()).unwrap(), None);
        assert_eq!(clients[index].set_new(&key, &big, soon()).unwrap(), None);
        for client in &mut clients {
            assert_eq!(client.set_new(&key, b"other", soon()).unwrap().as_deref(), Some(&*big));
            assert_eq!(client.get(&key, soon()).unwrap().as_deref(), Some(&*big));
        }
    }
    assert!(clients[0].set_new("large", &vec![0; (64 << 10) + 1], soon()).is_err());
    // One waits, another brings it.
    let mut waiting = clients.pop().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || waiting.get("late", soon()).unwrap());
        clients[0].set_new("late", b"!", soon()).unwrap();
        assert_eq!(waiter.join().unwrap().as_deref(), Some(&b"!"[..]));
    });
    drop(server);
    let error = clients[0].get("key 0", soon()).unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
}

#[test]
fn worlds_of_every_size_meet() {
    let _turn = turn();
    for size in [1, 2, 3, 8] {
        for store in [unix_store(), tcp_store()] {
            let meetings = world(same_world(size, &store, |_| ()), |c| meet(&c).unwrap());
            for (rank, meeting) in meetings.iter().enumerate() {
                assert_eq!((meeting.rank, meeting.size()), (rank, size));
                assert_eq!((meeting.local_rank(), meeting.local_size()), (rank, size));
                assert_eq!(meeting.ring_order(), (0..size).collect::<Vec<_>>());
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

fn world_of<T: Send>(meetings: Vec<Meeting>, run: impl Fn(Meeting) -> T + Sync) -> Vec<T> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> =
            meetings.into_iter().map(|meeting| scope.spawn(move || run(meeting))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn tcp_where_it_is_asked_for_and_nowhere_else() {
    let _turn = turn();
    let before = listening();
    let meetings = world(same_world(3, &unix_store(), |_| ()), |c| meet(&c).unwrap());
    assert_eq!(listening(), before, "one host needs no TCP listener");
    drop(meetings);
    for size in [2, 3, 8] {
        let forced = |config: &mut Config| {
            config.transport = Transport::Tcp;
            config.tcp_sockets = 3;
        };
        let meetings = world(same_world(size, &tcp_store(), forced), |c| meet(&c).unwrap());
        let loopback = |m: &Meeting| m.peers.iter().all(|p| p.tcp.unwrap().ip().is_loopback());
        assert!(meetings.iter().all(loopback), "one host stays on loopback");
        let links = world_of(meetings, ring_both_ways);
        assert!(links.iter().flatten().all(|link| link.1 == LinkKind::Tcp));
    }
    assert_eq!(listening(), before, "no listener outlives its meeting");
}

#[test]
fn who_is_missing_is_named_by_all() {
    let _turn = turn();
    let store = unix_store();
    let mut configs = same_world(5, &store, |_| ());
    configs.iter_mut().for_each(|c| c.timeout = Duration::from_millis(400));
    let present = configs.into_iter().filter(|c| [0, 2, 4].contains(&c.rank)).collect();
    for (error, reporter) in world(present, |c| (meet(&c).unwrap_err(), c.rank)) {
        let Error::MissingRanks { rank, missing, size, .. } = &error else { panic!("{error}") };
        assert_eq!((*rank, *size, missing.as_slice()), (reporter, 5, &[1, 3][..]), "{error}");
    }
    // Rank 0 is where the others meet: without it there is no store.
    let mut alone = config(1, 2, &tcp_store());
    alone.timeout = Duration::from_millis(200);
    let error = meet(&alone).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:") && error.contains("ank 0 listens there"), "{error}");
}

#[test]
fn a_missing_rank_0_is_named_where_the_launcher_keeps_the_store() {
    let _turn = turn();
    let server = Server::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut config = config(1, 2, &StoreAddr::Fd(ours.as_raw_fd()));
    config.timeout = Duration::from_millis(200);
    match meet(&config).unwrap_err() {
        Error::MissingRanks { rank: 1, missing, size: 2, .. } => assert_eq!(missing, [0]),
        error => panic!("{error}"),
    }
}

#[test]
fn one_rank_twice() {
    let _turn = turn();
    let store = unix_store();
    // Without rank 2 nobody passes before the clash.
    let configs = [0, 1, 1].map(|rank| config(rank, 3, &store)).to_vec();
    for error in world(configs, |c| meet(&c).unwrap_err()) {
        let Error::DuplicateRank { rank: 1, first, second } = &error else { panic!("{error}") };
        let pid = format!("pid {}", std::process::id());
        assert!(first.contains(&pid) && second.contains(&pid), "{error}");
    }
    // Two of rank 0: the second can't listen, and says who does.
    for store in [unix_store(), tcp_store()] {
        let (told, results) = channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (told, store) = (told.clone(), &store);
                scope.spawn(move || told.send(meet(&config(0, 2, store)).map(drop)).unwrap());
            }
            let clash = results.recv().unwrap();
            assert!(matches!(clash, Err(Error::DuplicateRank { rank: 0, .. })), "{clash:?}");
            meet(&config(1, 2, &store)).unwrap();
            results.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn ranks_that_disagree() {
    let _turn = turn();
    let change: [fn(&mut Config); 4] =
        [|c| c.size = 4, |c| c.size = 2, |c| c.transport = Transport::Tcp, |c| c.tcp_sockets = 2];
    for change in change {
        let mut configs = same_world(3, &unix_store(), |_| ());
        change(&mut configs[1]);
        for error in world(configs, |c| meet(&c).unwrap_err()) {
            let Error::Config { name, .. } = &error else { panic!("{error}") };
            let text = error.to_string();
            assert!(text.contains("rank 1 ") && text.contains("rank 0 "), "{name}: {text}");
        }
    }
}

#[test]
fn stores_that_are_none() {
    let _turn = turn();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: StoreAddr = listener.local_addr().unwrap().to_string().parse().unwrap();
    let mut rank = config(1, 2, &address);
    rank.timeout = Duration::from_millis(100);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("silent"), "{error}");
    // One that speaks something else.
    rank.timeout = LONG;
    thread::scope(|scope| {
        scope.spawn(|| {
            // The silent one's connection came first.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let error = meet(&rank).unwrap_err().to_string();
        assert!(error.contains("does not speak ringreduce's protocol"), "{error}");
    });
    // The port is another program's.
    rank.rank = 0;
    rank.timeout = Duration::from_millis(100);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("another port"), "{error}");
    // The address is another host's (this one is for documentation only).
    let error = meet(&config(0, 2, &"192.0.2.1:7000".parse().unwrap())).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1") && error.contains("no address of this host"), "{error}");
    // The descriptor is closed, or no socket.
    for fd in [987, std::fs::File::open("/dev/null").unwrap().as_raw_fd()] {
        let error = meet(&config(0, 2, &StoreAddr::Fd(fd))).unwrap_err();
        assert!(matches!(&error, Error::Store { address, .. } if *address == format!("fd:{fd}")));
    }
}

/// Keeps knocking at `address` with things that no rank says, until `stop`.
fn strangers(address: SocketAddr, stop: &AtomicBool) -> usize {
    let valid_start = b"RRST\x01\x00\x01\x00\x00\x00\x00\x00";
    let hostile_length = [&b"RRST\x01\x00\x02\x00"[..], &[0xff; 16]].concat();
    let words: [&[u8]; 6] =
        [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", &[0xa5; 300], valid_start, &hostile_length];
    let mut silent = Vec::new();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = stream.write_all(words[count % words.len()]);
        count += 1;
        if count % 2 == 0 && silent.len() < 100 {
            silent.push(stream);
        }
    }
    count
}

#[test]
fn strangers_stop_nobody() {
    let _turn = turn();
    let store = tcp_store();
    let StoreAddr::Tcp { port, .. } = store else { unreachable!() };
    let forced = |config: &mut Config| config.transport = Transport::Tcp;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stop = &stop;
        scope.spawn(move || strangers(address, stop));
        let meetings = world(same_world(4, &store, forced), |c| meet(&c).unwrap());
        let doors: Vec<_> = meetings[0].peers.iter().map(|p| p.tcp.unwrap()).collect();
        let knocking: Vec<_> =
            doors.into_iter().map(|door| scope.spawn(move || strangers(door, stop))).collect();
        world_of(meetings, ring_both_ways);
        stop.store(true, Ordering::Relaxed);
        drop(knocking);
    });
}

#[test]
fn each_connection_counts_its_meetings() {
    let _turn = turn();
    let server = Server::new().unwrap();
    let mut ours = Vec::new();
    for _ in 0..2 {
        let (mine, theirs) = UnixStream::pair().unwrap();
        server.adopt(theirs).unwrap();
        ours.push(mine);
    }
    // Each connection has meetings of its own number; values of an older one are out of sight.
    let mut one = Store::over(ours[0].try_clone().unwrap(), "one", soon()).unwrap();
    let mut two = Store::over(ours[1].try_clone().unwrap(), "two", soon()).unwrap();
    one.set_new("key", b"1", soon()).unwrap();
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut one = Store::over(ours[0].try_clone().unwrap(), "one", soon()).unwrap();
    assert_eq!(one.set_new("key", b"2", soon()).unwrap(), None);
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut two = Store::over(ours[1].try_clone().unwrap(), "two", soon()).unwrap();
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn nothing_stays_open() {
    let _turn = turn();
    let before = descriptors();
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
    assert_eq!(descriptors(), before);
}

#[test]
fn a_descriptor_changes_hands_once() {
    let _turn = turn();
    let before = descriptors();
    {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut left, right) = UnixStream::pair().unwrap();
        send_fd(&here, OwnedFd::from(right)).unwrap();
        let right = recv_fd(&there, soon()).unwrap();
        let flags = nix::fcntl::fcntl(right.as_fd(), nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        left.write_all(b"x").unwrap();
        UnixStream::from(right).read_exact(&mut [0]).unwrap();
        let late = recv_fd(&there, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        // None, and two, are both wrong.
        (&here).write_all(b"x").unwrap();
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        let fds = [left.as_raw_fd(), left.as_raw_fd()];
        let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
        let byte = [std::io::IoSlice::new(b"x")];
        let flags = nix::sys::socket::MsgFlags::empty();
        nix::sys::socket::sendmsg::<()>(here.as_raw_fd(), &byte, &rights, flags, None).unwrap();
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn a_peer_that_is_gone_is_named() {
    let _turn = turn();
    let quick = |c: &mut Config| c.timeout = Duration::from_secs(2);
    let mut meetings = world(same_world(2, &unix_store(), quick), |c| meet(&c).unwrap());
    drop(meetings.pop());
    let pair = PairKey { from: 0, to: 1 };
    let error = meetings[0].connect(&[pair], &[]).unwrap_err().to_string();
    assert!(error.contains("rank 1 ") && error.contains("refuses"), "{error}");
    let error = meetings[0].connect(&[], &[PairKey { from: 1, to: 0 }]).unwrap_err().to_string();
    assert!(error.contains("rank 1 ") && error.contains("did not connect"), "{error}");
    let error = meetings[0].connect(&[PairKey { from: 1, to: 1 }], &[]).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
}

#[test]
fn an_abstract_name_that_is_taken() {
    let _turn = turn();
    let name = abstract_name();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _squatter = UnixListener::bind_addr(&address).unwrap();
    let mut rank = config(0, 2, &StoreAddr::Unix(name.clone()));
    rank.timeout = Duration::from_millis(100);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&name), "{error}");
}

/// Not a test of its own: what a process of the next test does.
#[test]
#[ignore = "run by processes_with_inherited_sockets"]
fn a_rank_of_its_own() {
    let config = Config::from_env().unwrap();
    for _ in 0..3 {
        let meeting = meet(&config).unwrap();
        assert!(meeting.peers.iter().filter(|p| p.pid == std::process::id()).count() == 1);
        assert_eq!(ring_both_ways(meeting).len(), 4);
    }
}

#[test]
fn processes_with_inherited_sockets() {
    let _turn = turn();
    let server = Server::new().unwrap();
    let me = std::env::current_exe().unwrap();
    let spawn = |rank: usize| {
        let (theirs, ours) = UnixStream::pair().unwrap();
        server.adopt(ours).unwrap();
        nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
            .unwrap();
        let mut command = Command::new("sh");
        // Two programs in a row, as a script would have them.
        command.args(["-c", "\"$0\" \"$@\" && exec \"$0\" \"$@\""]).arg(&me);
        command.args(["--exact", "a_rank_of_its_own", "--ignored"]);
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
