//! Strangers one by one: each is refused, and the ranks meet all the same.

use std::fs::Permissions;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::channel;

use ringreduce::bootstrap::{Server, Store};
use ringreduce::config::StoreAddr;

use super::world::SEAT;
use super::*;

/// Runs a world of three with a secret; `strangers` has the address of its store, and of its doors
/// once they are there, while the last rank is missing.
fn beside(strangers: impl FnOnce(SocketAddr) + Send) {
    let store = free_port();
    thread::scope(|scope| {
        let start = |me| scope.spawn(move || meet(&rank(me, 3, store, Some(SECRET))).unwrap());
        let mut ranks: Vec<_> = [0, 1].map(start).into();
        strangers(store);
        ranks.push(start(2));
        let meetings: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(meetings.iter().all(|meeting| meeting.job == meetings[0].job));
        let links = meetings.into_iter().map(|it| scope.spawn(move || all_links(it)));
        links.collect::<Vec<_>>().into_iter().for_each(|links| links.join().unwrap());
    });
}

/// A connection to whom listens there, as soon as somebody does.
fn knock(address: SocketAddr) -> TcpStream {
    let until = Instant::now() + LONG;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LONG)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::yield_now();
    }
}

/// What comes back until the connection is closed, which must happen.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    heard
}

#[test]
fn ranks_of_another_secret_or_job_are_told() {
    let _others = with_others();
    beside(|store| {
        let other_job = Config { job: Some("other".into()), ..rank(2, 3, store, Some(SECRET)) };
        let impostors = [
            (rank(2, 3, store, Some([1; 32])), "does not have this job's secret"),
            (rank(2, 3, store, None), "job secret where the other end has none"),
            (other_job, "belongs to another job"),
        ];
        for (impostor, why) in impostors {
            let error = meet(&impostor).unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    });
    // The same of a store without a secret.
    let store = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(|| meet(&rank(0, 2, store, None)).unwrap());
        let error = meet(&rank(1, 2, store, Some(SECRET))).unwrap_err().to_string();
        assert!(error.contains("has a job secret where"), "{error}");
        meet(&rank(1, 2, store, None)).unwrap();
        first.join().unwrap();
    });
}

#[test]
fn whatever_else_is_said_is_hung_up_on() {
    let alone = alone();
    let flipped = |at: usize| {
        let mut words = OFFER.encode();
        words[at] ^= 0x40;
        words.to_vec()
    };
    // Each must be hung up on without a word.
    let noise = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xa5; 300],
        // A frame of the store, with and without an absurd length, before any handshake.
        [&b"RRST\x01\x00\x02\x00"[..], &[0xff; 16]].concat(),
        b"RRST\x01\x00\x01\x00\x00\x00\x00\x00".to_vec(),
        Words { version: 9, ..OFFER }.encode().to_vec(),
        Words { stage: 2, ..OFFER }.encode().to_vec(),
        Words { stage: 3, ..OFFER }.encode().to_vec(),
        Words { stage: 4, ..OFFER }.encode().to_vec(),
        Words { role: 1, ..OFFER }.encode().to_vec(),
        Words { role: 2, ..OFFER }.encode().to_vec(),
        Words { role: 0, ..OFFER }.encode().to_vec(),
        Words { secret: 2, ..OFFER }.encode().to_vec(),
        // Reserved bytes, and a tag where none belongs yet.
        flipped(19),
        flipped(40),
        flipped(63),
        flipped(96),
        // Cut short: silence after that is waited for, but not for long.
        OFFER.encode()[..127].to_vec(),
        Vec::new(),
    ];
    let before = alone.descriptors();
    beside(|store| {
        for words in &noise {
            let mut stream = knock(store);
            stream.write_all(words).unwrap();
            assert_eq!(until_closed(stream), [], "{words:x?}");
        }
        // An offer is answered; what then has the wrong tag, or is too long, is not.
        for count in [128, 1000] {
            let mut stream = knock(store);
            stream.write_all(&OFFER.encode()).unwrap();
            let mut answer = [0; 128];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!((answer[12], answer[18]), (2, 1));
            let mut forged = Words { stage: 3, filling: 0x77, ..OFFER }.encode().to_vec();
            forged.resize(count, 0);
            stream.write_all(&forged).unwrap();
            assert_eq!(until_closed(stream), []);
            // Its own answer, said back to it.
            let mut stream = knock(store);
            stream.write_all(&OFFER.encode()).unwrap();
            stream.read_exact(&mut answer).unwrap();
            answer[12] = 3;
            stream.write_all(&answer).unwrap();
            assert_eq!(until_closed(stream), []);
        }
    });
    assert_eq!(alone.descriptors(), before);
}

/// Passes on what goes between a client and `store`; gives what the client said.
fn relay(listener: &TcpListener, store: SocketAddr) -> Vec<u8> {
    let (client, _) = listener.accept().unwrap();
    let server = knock(store);
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from.read(&mut piece) {
            said.extend(&piece[..count]);
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _gone = to.shutdown(std::net::Shutdown::Both);
        said
    };
    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let back = thread::spawn(move || pass(from, to));
    let said = pass(client, server);
    back.join().unwrap();
    said
}

#[test]
fn what_a_rank_said_once_opens_nothing() {
    let _others = with_others();
    let (store, listener) = (free_port(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let by = listener.local_addr().unwrap();
    let (record, recorded) = channel();
    thread::scope(|scope| {
        let world = |me: usize, size, store| {
            scope.spawn(move || meet(&rank(me, size, store, Some(SECRET))).unwrap())
        };
        // One world is overheard...
        let ranks = [world(0, 2, store), world(1, 2, by)];
        record.send(relay(&listener, store)).unwrap();
        ranks.into_iter().for_each(|rank| drop(rank.join().unwrap()));
        // ... and all that its rank 1 said is said again to another one with the same secret.
        let said = recorded.recv().unwrap();
        assert_eq!((&said[..7], said[12], said[128 + 12]), (&b"RRHELLO"[..], 1, 3));
        assert!(!said.windows(32).any(|bytes| bytes == SECRET));
        let first = world(0, 2, store);
        let mut stream = knock(store);
        stream.write_all(&said).unwrap();
        let heard = until_closed(stream);
        assert!(heard.len() <= 128, "it was let in: {} bytes", heard.len());
        let second = world(1, 2, store);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// Not a test of its own: another user at a store whose name it knows.
pub(crate) fn another_user() {
    let Ok(name) = std::env::var(SEAT) else { return };
    // It does not take the store for one of its own.
    let address = StoreAddr::Unix(name.clone());
    let error = Store::connect(&address, Instant::now() + LONG).unwrap_err().to_string();
    assert!(error.contains("it belongs to user 0, not to 12345"), "{error}");
    // If it did not care, the store would.
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let _gone = stream.write_all(&Words { secret: 0, ..OFFER }.encode());
    assert!(!matches!(stream.read(&mut [0; 128]), Ok(1..)));
    eprintln!("right");
}

#[test]
fn another_user_is_hung_up_on() {
    if !nix::unistd::geteuid().is_root() {
        let test = "strangers::refused::another_user_is_hung_up_on";
        return harness::skip(test, "only root can be another user");
    }
    let _alone = alone();
    let name = format!("ringreduce-test-user-{}", std::process::id());
    let server = Server::new().unwrap();
    server.listen_unix(&name).unwrap();
    // A copy that everybody may run.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(harness::program(), &program).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.arg("strangers::refused::another_user");
    command.env(SEAT, &name).uid(12345).gid(12345).current_dir("/");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.lines().any(|line| line == "right"), "{output:?}");
    // Its own user comes in.
    Store::connect(&StoreAddr::Unix(name), Instant::now() + LONG).unwrap();
}
