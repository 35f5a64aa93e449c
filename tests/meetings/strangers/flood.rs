//! Ten thousand strangers at once, and strangers where descriptors are few.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::world::{Rank, SEAT};
use nix::sys::socket::{Shutdown, shutdown};
use ringreduce::bootstrap::Server;

use super::*;

const RANKS: usize = 8;
const STRANGERS: usize = 10_000;
/// How many connections a stranger keeps open without a word.
const HELD: usize = 300;

/// What strangers do, in turn.
#[derive(Clone, Copy)]
enum Trick {
    Close,
    Silence,
    Noise,
    /// One byte, and never a second one.
    Trickle,
    /// The right first message, then a wrong tag.
    Forge,
}

const TRICKS: [Trick; 5] =
    [Trick::Close, Trick::Silence, Trick::Noise, Trick::Trickle, Trick::Forge];

/// Strangers that knock at all `doors`, one after the other and without a pause.
#[derive(Default)]
struct Strangers {
    doors: Mutex<Vec<SocketAddr>>,
    came: AtomicUsize,
    stop: AtomicBool,
}

impl Strangers {
    fn knock(&self) {
        let mut held = VecDeque::new();
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let doors = self.doors.lock().unwrap().clone();
            let Some(door) = doors.get(turn % doors.len().max(1)) else {
                held.clear();
                thread::yield_now();
                continue;
            };
            let limit = Duration::from_millis(100);
            let Ok(stream) = TcpStream::connect_timeout(door, limit) else { continue };
            self.came.fetch_add(1, Ordering::Relaxed);
            if let Some(kept) = trick(TRICKS[turn % TRICKS.len()], stream) {
                held.push_back(kept);
            }
            if held.len() > HELD {
                held.pop_front();
            }
        }
    }

    /// Waits until so many more came.
    fn have_come(&self, count: usize) {
        let until = Instant::now() + LONG;
        let before = self.came.load(Ordering::Relaxed);
        loop {
            let came = self.came.load(Ordering::Relaxed) - before;
            if came >= count {
                return;
            }
            assert!(Instant::now() < until, "{came} came");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Plays a trick; gives the connection if it stays open.
fn trick(trick: Trick, mut stream: TcpStream) -> Option<TcpStream> {
    // The other end may have hung up, which is all right.
    let words: &[u8] = match trick {
        Trick::Close => return None,
        Trick::Silence => return Some(stream),
        Trick::Noise => &[0xa5; 200],
        Trick::Trickle => b"R",
        Trick::Forge => &OFFER.encode(),
    };
    stream.write_all(words).ok()?;
    if let Trick::Forge = trick {
        let forged = Words { stage: 3, filling: 0x77, ..OFFER }.encode();
        stream.write_all(&forged).ok()?;
    }
    Some(stream)
}

/// What a bootstrap took.
struct Took {
    /// From the start of the last rank until all have met.
    met: Duration,
    /// To open all links then.
    linked: Duration,
    /// Descriptors that rank 0 had at most.
    descriptors: usize,
    /// KiB that it had, before links were opened.
    resident: usize,
    /// Until the strangers had come: to the store, and then to the ranks.
    crowded: [Duration; 2],
}

/// A bootstrap with strangers at every door, many before and more meanwhile; or, if there is an
/// `elsewhere`, with as many of them there.
fn bootstrap(strangers: &Strangers, elsewhere: Option<SocketAddr>) -> Took {
    let store = free_port();
    let crowd = |doors: Vec<SocketAddr>, count| {
        *strangers.doors.lock().unwrap() = elsewhere.map_or(doors, |elsewhere| vec![elsewhere]);
        let began = Instant::now();
        strangers.have_come(count);
        began.elapsed()
    };
    let mut ranks: Vec<_> = (0..RANKS - 1).map(|me| Rank::start(me, RANKS, store, "")).collect();
    let first = crowd(vec![store], STRANGERS);
    let mut most = ranks[0].descriptors();
    let began = Instant::now();
    ranks.push(Rank::start(RANKS - 1, RANKS, store, ""));
    let doors = ranks.iter_mut().map(Rank::door).collect();
    let met = began.elapsed();
    // As many as the system keeps for those who have not begun to accept.
    let crowded = [first, crowd(doors, RANKS * 900)];
    most = most.max(ranks[0].descriptors());
    let resident = ranks[0].resident();
    let began = Instant::now();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
    strangers.doors.lock().unwrap().clear();
    Took { met, linked: began.elapsed(), descriptors: most, resident, crowded }
}

/// Ends the threads of a flood, also where the test has failed.
struct End<'a> {
    strangers: &'a Strangers,
    sink: &'a TcpListener,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.strangers.stop.store(true, Ordering::Relaxed);
        // A thread in accept(2) gets an error.
        let _ = shutdown(self.sink.as_raw_fd(), Shutdown::Both);
    }
}

/// Strangers that knock elsewhere take as much of the machine. Ranks that have to send them away
/// may take a few times as long as without them, with the time that the strangers took to come, and
/// the time that some handshakes may last, for other programs may begin to use the machine only
/// now; a rank that waits for each stranger takes hours.
const SLOWER: u32 = 5;
const ONE_HANDSHAKE: Duration = Duration::from_secs(2);
const SOME: u32 = 15;

#[test]
fn ten_thousand_strangers_stop_nobody() {
    let process = alone();
    let before = process.descriptors();
    let sink = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = sink.local_addr().unwrap();
    let strangers = Strangers::default();
    let [alone, took] = thread::scope(|scope| {
        let _end = End { strangers: &strangers, sink: &sink };
        scope.spawn(|| strangers.knock());
        scope.spawn(|| while sink.accept().is_ok() {});
        // The first time the program has to be read.
        bootstrap(&strangers, Some(elsewhere));
        [Some(elsewhere), None].map(|elsewhere| bootstrap(&strangers, elsewhere))
    });
    drop(sink);
    let said = format!(
        "{RANKS} ranks with strangers: met in {:.0?} (alone {:.0?}), linked in {:.0?} (alone \
         {:.0?}); rank 0 had {} descriptors at most and {} KiB (alone {}); they come in {:.0?}",
        took.met,
        alone.met,
        took.linked,
        alone.linked,
        took.descriptors,
        took.resident,
        alone.resident,
        alone.crowded
    );
    let _ = writeln!(std::io::stderr(), "{said}");
    assert!(took.descriptors < 150 && took.resident < alone.resident + (16 << 10), "{said}");
    let pairs = [(took.met, alone.met), (took.linked, alone.linked)];
    for ((took, met), came) in pairs.into_iter().zip(alone.crowded) {
        assert!(took <= SLOWER * (met + came) + SOME * ONE_HANDSHAKE, "{said}");
    }
    assert_eq!(process.descriptors(), before);
}

#[test]
fn strangers_do_not_take_the_last_descriptors() {
    let _alone = alone();
    let store = free_port();
    // Fewer than the callers that rank 0 would hear at a time.
    let few = |me| Rank::start(me, 3, store, "ulimit -n 40;");
    let mut ranks = vec![few(0), few(1)];
    let mut held = Vec::new();
    crowd(&mut held, store);
    ranks.push(few(2));
    for door in ranks.iter_mut().map(Rank::door).collect::<Vec<_>>() {
        crowd(&mut held, door);
    }
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
}

/// Many systems have a soft limit that is lower than the hard one, for the sake of select(2).
#[test]
fn a_low_soft_limit_is_raised() {
    let _others = with_others();
    let store = free_port();
    // Fewer than the sockets of a rank.
    let few = |me| Rank::start(me, RANKS, store, "ulimit -Sn 24;");
    let mut ranks: Vec<_> = (0..RANKS).map(few).collect();
    let _doors: Vec<_> = ranks.iter_mut().map(Rank::door).collect();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(Rank::ends_well);
}

/// Not a test of its own: a store in a process that has no descriptor left, and then has.
pub(crate) fn a_full_process() {
    if std::env::var(SEAT).is_err() {
        return;
    }
    let server = Server::new().unwrap();
    eprintln!("door {}", server.listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let word = || std::io::stdin().read_line(&mut String::new()).unwrap();
    word();
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    eprintln!("full {}", all.len());
    word();
    drop(all);
    eprintln!("right");
    word();
}

#[test]
fn a_store_without_descriptors_goes_on() {
    let _alone = alone();
    let mut process = Rank::body("strangers::flood::a_full_process", "", "ulimit -n 64;");
    let door = process.door();
    let ask = || {
        let mut stream = TcpStream::connect(door).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&Words { secret: 0, ..OFFER }.encode()).unwrap();
        let answered = stream.read_exact(&mut [0; 128]);
        (stream, answered.is_ok())
    };
    let (waiting, answered) = ask();
    assert!(answered);
    process.go_on();
    process.says("full ");
    // The first one takes the place of who is there, the next one that of the first.
    assert!(ask().1 && ask().1);
    assert!(!matches!((&waiting).read(&mut [0]), Ok(1..)));
    process.go_on();
    process.says("right");
    assert!(ask().1);
}

/// A connection to `door` from a host with this address.
fn from(host: [u8; 4], door: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
    socket.connect(&door.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

#[test]
fn one_host_does_not_crowd_out_another() {
    let _alone = alone();
    let server = Server::new().unwrap();
    let door = server.listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let offer = Words { secret: 0, ..OFFER }.encode();
    // One that is slow to speak, and then three times as many as there is room for.
    let begun = Instant::now();
    let mut slow = from([127, 0, 0, 1], door);
    let mut others: Vec<_> = (0..200).map(|_| from([127, 0, 0, 2], door)).collect();
    // The last ones come in when the first have gone.
    let came = others.last_mut().unwrap();
    came.write_all(&offer).unwrap();
    came.read_exact(&mut [0; 128]).unwrap();
    assert!(!matches!(others[0].read(&mut [0]), Ok(1..)));
    let heard = slow.write_all(&offer).is_ok() && slow.read_exact(&mut [0; 128]).is_ok();
    // On a machine that is busy with other things it may be too late by itself.
    let took = begun.elapsed();
    assert!(heard || took >= ONE_HANDSHAKE, "sent away after {took:.1?}");
}

/// Two hundred more who say nothing.
fn crowd(held: &mut Vec<TcpStream>, door: SocketAddr) {
    let until = Instant::now() + LONG;
    for _ in 0..200 {
        loop {
            assert!(Instant::now() < until, "{} strangers", held.len());
            if let Ok(stream) = TcpStream::connect(door) {
                held.push(stream);
                break;
            }
        }
    }
}
