//! Ten thousand foreign connections at a time, and foreign connections where descriptors are
//! scarce.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::rank_process::{ARGUMENT, Rank};
use nix::sys::socket::{Shutdown, shutdown};
use ringreduce::bootstrap::Server;

use super::*;

const RANKS: usize = 8;
const CONNECTIONS: usize = 10_000;
/// Silent connections that the attacker keeps open.
const HELD: usize = 300;

/// The attacks of foreign connections, in turn.
#[derive(Clone, Copy)]
enum Attack {
    Close,
    Silence,
    Noise,
    /// One byte, and then silence.
    Trickle,
    /// A correct first message, then a wrong tag.
    Forge,
}

const ATTACKS: [Attack; 5] =
    [Attack::Close, Attack::Silence, Attack::Noise, Attack::Trickle, Attack::Forge];

/// Connects to all `listeners` in turn, without a pause.
#[derive(Default)]
struct Attacker {
    listeners: Mutex<Vec<SocketAddr>>,
    connections: AtomicUsize,
    stop: AtomicBool,
}

impl Attacker {
    fn run(&self) {
        let mut held = VecDeque::new();
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let listeners = self.listeners.lock().unwrap().clone();
            let Some(listener) = listeners.get(turn % listeners.len().max(1)) else {
                held.clear();
                thread::yield_now();
                continue;
            };
            let limit = Duration::from_millis(100);
            let Ok(stream) = TcpStream::connect_timeout(listener, limit) else { continue };
            self.connections.fetch_add(1, Ordering::Relaxed);
            if let Some(open) = attack(ATTACKS[turn % ATTACKS.len()], stream) {
                held.push_back(open);
            }
            if held.len() > HELD {
                held.pop_front();
            }
        }
    }

    /// Waits for `count` more connections.
    fn wait_for(&self, count: usize) {
        let until = Instant::now() + LONG;
        let before = self.connections.load(Ordering::Relaxed);
        loop {
            let more = self.connections.load(Ordering::Relaxed) - before;
            if more >= count {
                return;
            }
            assert!(Instant::now() < until, "{more} connections");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Attacks by a connection; gives the connection if it stays open.
fn attack(attack: Attack, mut stream: TcpStream) -> Option<TcpStream> {
    // The other end may close the connection at any time.
    let bytes: &[u8] = match attack {
        Attack::Close => return None,
        Attack::Silence => return Some(stream),
        Attack::Noise => &[0xa5; 200],
        Attack::Trickle => b"R",
        Attack::Forge => &OFFER.encode(),
    };
    stream.write_all(bytes).ok()?;
    if let Attack::Forge = attack {
        let forged = HandshakeMessage { stage: 3, fill: 0x77, ..OFFER }.encode();
        stream.write_all(&forged).ok()?;
    }
    Some(stream)
}

struct Cost {
    /// The time from the start of the last rank until all are connected to the store.
    met: Duration,
    /// The time to open all links after that.
    linked: Duration,
    /// The most descriptors of rank 0.
    descriptors: usize,
    /// KiB of rank 0 before it opens links.
    resident: usize,
    /// The time that the foreign connections took: to the store, and then to the ranks.
    crowded: [Duration; 2],
}

/// A bootstrap while the attacker connects to every listener; if there is an `elsewhere`, the
/// attacker connects to that address instead.
fn bootstrap(attacker: &Attacker, elsewhere: Option<SocketAddr>) -> Cost {
    let store = free_port();
    let crowd = |listeners: Vec<SocketAddr>, count| {
        *attacker.listeners.lock().unwrap() =
            elsewhere.map_or(listeners, |elsewhere| vec![elsewhere]);
        let began = Instant::now();
        attacker.wait_for(count);
        began.elapsed()
    };
    let mut ranks: Vec<_> = (0..RANKS - 1).map(|me| Rank::start(me, RANKS, store, "")).collect();
    let first = crowd(vec![store], CONNECTIONS);
    let mut most = ranks[0].descriptors();
    let began = Instant::now();
    ranks.push(Rank::start(RANKS - 1, RANKS, store, ""));
    let listeners = ranks.iter_mut().map(Rank::listener).collect();
    let met = began.elapsed();
    // As many connections as the system queues for listeners that do not accept yet.
    let crowded = [first, crowd(listeners, RANKS * 900)];
    most = most.max(ranks[0].descriptors());
    let resident = ranks[0].resident();
    let began = Instant::now();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
    attacker.listeners.lock().unwrap().clear();
    Cost { met, linked: began.elapsed(), descriptors: most, resident, crowded }
}

/// Ends the threads of the attack, also where the test fails.
struct End<'a> {
    attacker: &'a Attacker,
    sink: &'a TcpListener,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.attacker.stop.store(true, Ordering::Relaxed);
        // A thread in accept(2) gets an error.
        let _ = shutdown(self.sink.as_raw_fd(), Shutdown::Both);
    }
}

/// An attacker that connects elsewhere uses as much of the machine. Ranks under attack may take a
/// few times as long as ranks beside such an attacker, plus some handshakes, since other programs
/// may begin to use the machine meanwhile; ranks that waited for each connection would take hours.
const MOST_SLOWDOWN: u32 = 5;
const ONE_HANDSHAKE: Duration = Duration::from_secs(2);
const SPARE_HANDSHAKES: u32 = 15;

pub(crate) fn is_attacked() {
    let before = descriptors();
    let sink = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = sink.local_addr().unwrap();
    let attacker = Attacker::default();
    let [alone, took] = thread::scope(|scope| {
        let _end = End { attacker: &attacker, sink: &sink };
        scope.spawn(|| attacker.run());
        scope.spawn(|| while sink.accept().is_ok() {});
        // The first bootstrap also reads the program from the disk.
        bootstrap(&attacker, Some(elsewhere));
        [Some(elsewhere), None].map(|elsewhere| bootstrap(&attacker, elsewhere))
    });
    drop(sink);
    let text = format!(
        "{RANKS} ranks under attack: met in {:.0?} (alone {:.0?}), linked in {:.0?} (alone \
         {:.0?}); rank 0 had {} descriptors at most and {} KiB (alone {}); the attack takes {:.0?}",
        took.met,
        alone.met,
        took.linked,
        alone.linked,
        took.descriptors,
        took.resident,
        alone.resident,
        alone.crowded
    );
    let _ = writeln!(std::io::stderr(), "{text}");
    assert!(took.descriptors < 150 && took.resident < alone.resident + (16 << 10), "{text}");
    let pairs = [(took.met, alone.met), (took.linked, alone.linked)];
    for ((took, met), crowded) in pairs.into_iter().zip(alone.crowded) {
        assert!(
            took <= MOST_SLOWDOWN * (met + crowded) + SPARE_HANDSHAKES * ONE_HANDSHAKE,
            "{text}"
        );
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn ten_thousand_foreign_connections_do_not_stop_a_bootstrap() {
    // Other tests wait: the attack loads the machine.
    let _exclusive = exclusive();
    in_own_process("security::flood::is_attacked");
}

#[test]
fn foreign_connections_do_not_take_the_last_descriptors() {
    let _exclusive = exclusive();
    let store = free_port();
    // Fewer descriptors than connections that rank 0 would serve at a time.
    let few = |me| Rank::start(me, 3, store, "ulimit -n 40;");
    let mut ranks = vec![few(0), few(1)];
    let mut held = Vec::new();
    crowd(&mut held, store);
    ranks.push(few(2));
    for listener in ranks.iter_mut().map(Rank::listener).collect::<Vec<_>>() {
        crowd(&mut held, listener);
    }
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
}

/// Many systems have a soft limit below the hard one, for programs that call select(2).
#[test]
fn a_low_soft_limit_is_raised() {
    let _concurrent = concurrent();
    let store = free_port();
    // Fewer descriptors than sockets of a rank.
    let few = |me| Rank::start(me, RANKS, store, "ulimit -Sn 24;");
    let mut ranks: Vec<_> = (0..RANKS).map(few).collect();
    let _listeners: Vec<_> = ranks.iter_mut().map(Rank::listener).collect();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
}

/// A process: a store that has no descriptor left for a while.
pub(crate) fn a_full_process() {
    if std::env::var(ARGUMENT).is_err() {
        return;
    }
    let server = Server::new().unwrap();
    eprintln!("listens at {}", server.listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let wait = || std::io::stdin().read_line(&mut String::new()).unwrap();
    wait();
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    eprintln!("full {}", all.len());
    wait();
    drop(all);
    eprintln!("right");
    wait();
}

#[test]
fn a_store_without_descriptors_still_serves_new_clients() {
    let _exclusive = exclusive();
    let mut process = Rank::body("security::flood::a_full_process", "", "ulimit -n 64;");
    let address = process.listener();
    let ask = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&HandshakeMessage { secret: 0, ..OFFER }.encode()).unwrap();
        let answered = stream.read_exact(&mut [0; 128]);
        (stream, answered.is_ok())
    };
    let (waiting, answered) = ask();
    assert!(answered);
    process.go_on();
    process.says("full ");
    // Each new connection replaces the oldest one.
    assert!(ask().1 && ask().1);
    assert!(!matches!((&waiting).read(&mut [0]), Ok(1..)));
    process.go_on();
    process.says("right");
    assert!(ask().1);
}

/// Opens two hundred more silent connections.
fn crowd(held: &mut Vec<TcpStream>, address: SocketAddr) {
    let until = Instant::now() + LONG;
    for _ in 0..200 {
        loop {
            assert!(Instant::now() < until, "{} connections", held.len());
            if let Ok(stream) = TcpStream::connect(address) {
                held.push(stream);
                break;
            }
        }
    }
}
