//! Connections that are rejected one at a time, while the ranks of the job still connect.

use std::fs::Permissions;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ringreduce::bootstrap::{self, Server, Store};
use ringreduce::config::StoreAddr;

use super::rank_process::ARGUMENT;
use super::relay::Relay;
use super::*;

/// Starts a world of three with a secret; `attack` gets the address of its store while the last
/// rank is missing.
fn beside(attack: impl FnOnce(SocketAddr) + Send) {
    let store = free_port();
    thread::scope(|scope| {
        let start = |me| {
            scope.spawn(move || rendezvous_and_release(&rank(me, 3, store, Some(SECRET))).unwrap())
        };
        let mut ranks: Vec<_> = [0, 1].map(start).into();
        attack(store);
        ranks.push(start(2));
        let meetings: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(meetings.iter().all(|meeting| meeting.job == meetings[0].job));
        in_threads(meetings, connect_all);
    });
}

/// A connection to `address`, as soon as there is a listener.
fn connect(address: SocketAddr) -> TcpStream {
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

/// Reads until the other end closes the connection.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    received
}

#[test]
fn a_rank_of_another_secret_or_job_is_told_the_reason() {
    let _concurrent = concurrent();
    beside(|store| {
        let other_job = Config { job: Some("other".into()), ..rank(2, 3, store, Some(SECRET)) };
        let impostors = [
            (
                rank(2, 3, store, Some([1; 32])),
                "does not have this job's secret; RINGREDUCE_SECRET_FILE",
            ),
            (
                rank(2, 3, store, None),
                "it has a job secret and this rank has none; RINGREDUCE_SECRET",
            ),
            (other_job, "belongs to another job"),
        ];
        for (impostor, why) in impostors {
            let error = rendezvous_and_release(&impostor).unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    });
    // A store without a secret rejects a rank that has one.
    let store = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(|| rendezvous_and_release(&rank(0, 2, store, None)).unwrap());
        let error =
            rendezvous_and_release(&rank(1, 2, store, Some(SECRET))).unwrap_err().to_string();
        assert!(error.contains("it has no job secret and this rank has one; RINGRED"), "{error}");
        rendezvous_and_release(&rank(1, 2, store, None)).unwrap();
        first.join().unwrap();
    });
}

pub(crate) fn rejects_messages() {
    let flipped = |at: usize| {
        let mut words = OFFER.encode();
        words[at] ^= 0x40;
        words.to_vec()
    };
    // The store must close each of these connections without an answer.
    let noise = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xa5; 300],
        // A frame of the store, with and without an absurd length, before any handshake.
        [&b"RRST\x01\x00\x02\x00"[..], &[0xff; 16]].concat(),
        b"RRST\x01\x00\x01\x00\x00\x00\x00\x00".to_vec(),
        HandshakeMessage { version: 9, ..OFFER }.encode().to_vec(),
        HandshakeMessage { stage: 2, ..OFFER }.encode().to_vec(),
        HandshakeMessage { stage: 3, ..OFFER }.encode().to_vec(),
        HandshakeMessage { stage: 4, ..OFFER }.encode().to_vec(),
        HandshakeMessage { role: 1, ..OFFER }.encode().to_vec(),
        HandshakeMessage { role: 2, ..OFFER }.encode().to_vec(),
        HandshakeMessage { role: 0, ..OFFER }.encode().to_vec(),
        HandshakeMessage { secret: 2, ..OFFER }.encode().to_vec(),
        // Reserved bytes, and a tag where none belongs yet.
        flipped(36),
        flipped(40),
        flipped(63),
        flipped(96),
        // Incomplete messages: the store waits for the rest, but not for long.
        OFFER.encode()[..127].to_vec(),
        Vec::new(),
    ];
    let before = descriptors();
    beside(|store| {
        for words in &noise {
            let mut stream = connect(store);
            stream.write_all(words).unwrap();
            assert_eq!(until_closed(stream), [], "{words:x?}");
        }
        // An offer is answered; a confirmation with a wrong tag, or one that is too long, is not.
        for count in [128, 1000] {
            let mut stream = connect(store);
            stream.write_all(&OFFER.encode()).unwrap();
            let mut answer = [0; 128];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!((answer[12], answer[14]), (2, 1));
            let mut forged = HandshakeMessage { stage: 3, fill: 0x77, ..OFFER }.encode().to_vec();
            forged.resize(count, 0);
            stream.write_all(&forged).unwrap();
            assert_eq!(until_closed(stream), []);
            // The store's own answer is sent back to the store.
            let mut stream = connect(store);
            stream.write_all(&OFFER.encode()).unwrap();
            stream.read_exact(&mut answer).unwrap();
            answer[12] = 3;
            stream.write_all(&answer).unwrap();
            assert_eq!(until_closed(stream), []);
        }
    });
    assert_eq!(descriptors(), before);
}

#[test]
fn any_other_message_closes_the_connection() {
    in_own_process("security::rejected::rejects_messages");
}

#[test]
fn recorded_messages_of_a_rank_open_no_other_connection() {
    let _concurrent = concurrent();
    let store = free_port();
    let relay = Relay::to(store, |_, _, bytes| bytes);
    let ranks = [(0, store), (1, relay.address)];
    in_threads(ranks, |(me, store)| {
        rendezvous_and_release(&rank(me, 2, store, Some(SECRET))).map(drop).unwrap()
    });
    // The bytes that rank 1 sent are sent again to another world with the same secret.
    let sent = relay.recorded(true);
    assert_eq!((&sent[..7], sent[12], sent[128 + 12]), (&b"RRHELLO"[..], 1, 3));
    assert!(!sent.windows(32).any(|bytes| bytes == SECRET));
    thread::scope(|scope| {
        let start = |me| {
            scope.spawn(move || rendezvous_and_release(&rank(me, 2, store, Some(SECRET))).unwrap())
        };
        let first = start(0);
        let mut stream = connect(store);
        stream.write_all(&sent).unwrap();
        let answer = until_closed(stream);
        assert!(answer.len() <= 128, "the store accepted it: {} bytes", answer.len());
        let second = start(1);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// A process of the next test: another user connects to a store whose name is known.
pub(crate) fn another_user() {
    let Ok(name) = std::env::var(ARGUMENT) else { return };
    // The client refuses a store of another user.
    let address = StoreAddr::Unix(name.clone());
    let error = Store::connect(&address, bootstrap::Instant::now() + LONG).unwrap_err().to_string();
    assert!(error.contains("it belongs to user 0, not to 12345; set RINGREDUCE_STORE"), "{error}");
    // The store rejects a client of another user.
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let _gone = stream.write_all(&HandshakeMessage { secret: 0, ..OFFER }.encode());
    assert!(!matches!(stream.read(&mut [0; 128]), Ok(1..)));
    eprintln!("right");
}

#[test]
fn a_connection_of_another_user_is_closed() {
    if !nix::unistd::geteuid().is_root() {
        let test = "security::rejected::a_connection_of_another_user_is_closed";
        return harness::skip(test, "only root can be another user");
    }
    let _exclusive = exclusive();
    let name = format!("ringreduce-test-user-{}", std::process::id());
    let server = Server::new().unwrap();
    server.listen_unix(&name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = of_another_user(folder.path(), "security::rejected::another_user", &name);
    let output = command.output().unwrap();
    let lines = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && lines.lines().any(|line| line == "right"), "{output:?}");
    // The store's own user may connect.
    Store::connect(&StoreAddr::Unix(name), bootstrap::Instant::now() + LONG).unwrap();
}

/// A process of user 12345 that executes `body`, by a copy of the program that every user may run.
fn of_another_user(folder: &Path, body: &str, argument: &str) -> Command {
    let program = folder.join("program");
    std::fs::copy(harness::program(), &program).unwrap();
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.arg(body).env(ARGUMENT, argument).uid(12345).gid(12345).current_dir("/");
    command
}

/// A process of the next test: another user takes a name, until its input ends.
pub(crate) fn name_holder() {
    let Ok(name) = std::env::var(ARGUMENT) else { return };
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    eprintln!("holds it");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_name_that_another_user_holds_is_an_error_that_names_the_user() {
    if !nix::unistd::geteuid().is_root() {
        let test =
            "security::rejected::a_name_that_another_user_holds_is_an_error_that_names_the_user";
        return harness::skip(test, "only root can be another user");
    }
    let _exclusive = exclusive();
    let name = format!("ringreduce-test-held-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let mut command = of_another_user(folder.path(), "security::rejected::name_holder", &name);
    command.stdin(std::process::Stdio::piped());
    let mut holder = harness::processes::Process::start(command);
    holder.says("holds it").unwrap();
    let began = Instant::now();
    for (me, holder) in [(0, "user 12345 does"), (1, "it belongs to user 12345, not to 0")] {
        let store = Some(StoreAddr::Unix(name.clone()));
        let config = Config { rank: me, size: 2, store, timeout: LONG, ..Config::default() };
        let error = rendezvous_and_release(&config).unwrap_err().to_string();
        assert!(error.contains(holder) && error.contains("RINGREDUCE_STORE=unix:@NAME"), "{error}");
    }
    assert!(began.elapsed() < LONG / 2, "the ranks waited for the holder");
    holder.write_stdin(b"\n");
}
