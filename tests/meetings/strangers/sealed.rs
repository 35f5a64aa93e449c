//! Somebody between the ranks: reads nothing of what they say after the handshake, and can change
//! none of it unnoticed; and who is to encrypt, and who is not.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringreduce::bootstrap::Streams;
use ringreduce::transport::aead::Seals;
use ringreduce::{Communicator, ReduceOp};

use super::*;

/// What each end says in a handshake.
const SAID: usize = 2 * 128;

/// What a relay does to bytes from here on; the direction is true to the store.
type Meddle = fn(to_store: bool, begin: usize, Vec<u8>) -> Vec<u8>;

/// Between ranks and their store, until it is dropped.
struct Relay {
    address: SocketAddr,
    /// All that went over it.
    seen: Arc<Mutex<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn to(store: SocketAddr, meddle: Meddle) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (all, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = thread::spawn(move || serve(&listener, store, meddle, &all, &stopped));
        Self { address, seen, stop, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _called = TcpStream::connect(self.address);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(
    listener: &TcpListener,
    store: SocketAddr,
    meddle: Meddle,
    seen: &Mutex<Vec<u8>>,
    stop: &AtomicBool,
) {
    thread::scope(|scope| {
        for caller in listener.incoming().map_while(Result::ok) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let Ok(called) = TcpStream::connect(store) else { continue };
            let other = |stream: &TcpStream| stream.try_clone().unwrap();
            let ways = [(other(&caller), other(&called), true), (called, caller, false)];
            for (from, to, to_store) in ways {
                let look = move |begin, bytes: Vec<u8>| {
                    seen.lock().unwrap().extend(&bytes[..]);
                    meddle(to_store, begin, bytes)
                };
                scope.spawn(move || pass(&from, &to, look));
            }
        }
    });
}

/// Passes on all that comes, until the end of either.
fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut meddle: impl FnMut(usize, Vec<u8>) -> Vec<u8>,
) {
    let (mut bytes, mut begin) = ([0; 4096], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let piece = meddle(begin, bytes[..count].to_vec());
        begin += count;
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Flips a bit of this byte of those from the store.
fn flip<const AT: usize>(to_store: bool, begin: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(byte) = (SAID + AT).checked_sub(begin).and_then(|at| bytes.get_mut(at))
        && !to_store
    {
        *byte ^= 4;
    }
    bytes
}

/// The same of those to it.
fn flip_there<const AT: usize>(to_store: bool, begin: usize, bytes: Vec<u8>) -> Vec<u8> {
    flip::<AT>(!to_store, begin, bytes)
}

/// Puts in a byte after the handshake.
fn put_in(to_store: bool, begin: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(at) = SAID.checked_sub(begin).filter(|&at| at < bytes.len() && !to_store) {
        bytes.insert(at, 0);
    }
    bytes
}

#[test]
fn who_is_between_reads_nothing() {
    let _others = with_others();
    let store = free_port();
    let relay = Relay::to(store, |_, _, bytes| bytes);
    let between = relay.address;
    let meetings: Vec<_> = thread::scope(|scope| {
        let place = |me| if me == 0 { store } else { between };
        let start = |me| scope.spawn(move || meet(&rank(me, 3, place(me), Some(SECRET))).unwrap());
        let ranks = [0, 1, 2].map(start);
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let seen = relay.seen.lock().unwrap();
    let shows = |text: &str| seen.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(shows("RRHELLO"), "{} bytes", seen.len());
    let host = meetings[0].peers[0].host.clone();
    for text in ["RRST", "record/", "table", "RINGREDUCE_", "127.0.0.1:", &host] {
        // What is short may come about by chance.
        assert!(text.len() < 4 || !shows(text), "{text}");
    }
}

#[test]
fn what_is_changed_on_the_way_is_noticed_at_once() {
    let _others = with_others();
    let store = free_port();
    thread::scope(|scope| {
        let start = |me| scope.spawn(move || meet(&rank(me, 2, store, Some(SECRET))).unwrap());
        let first = start(0);
        // Of the store's first message: its length, what it says, its tag; and one byte more.
        let ways: [Meddle; 5] = [flip::<0>, flip::<3>, flip::<5>, flip::<30>, put_in];
        for (way, meddle) in ways.into_iter().enumerate() {
            let relay = Relay::to(store, meddle);
            let between = relay.address;
            let error = meet(&rank(1, 2, between, Some(SECRET))).unwrap_err();
            let named =
                matches!(&error, Error::Store { address, .. } if *address == between.to_string());
            let text = error.to_string();
            assert!(named && text.contains("changed on its way"), "{way}: {text}");
        }
        // The other way round the store hangs up, as often as it is tried.
        let ways: [Meddle; 3] = [flip_there::<0>, flip_there::<5>, flip_there::<30>];
        for meddle in ways {
            let relay = Relay::to(store, meddle);
            let between = relay.address;
            let timeout = Duration::from_millis(300);
            let config = Config { timeout, ..rank(1, 2, between, Some(SECRET)) };
            let error = meet(&config).unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
        }
        start(1).join().unwrap();
        first.join().unwrap();
    });
}

/// What is sealed of the links of two who meet.
fn sealed(encrypt: bool) {
    let store = free_port();
    thread::scope(|scope| {
        for me in 0..2 {
            let config = Config { encrypt, tcp_sockets: 2, ..rank(me, 2, store, Some(SECRET)) };
            scope.spawn(move || {
                let mut meeting = meet(&config).unwrap();
                let (out, back) =
                    (PairKey { from: me, to: 1 - me }, PairKey { from: 1 - me, to: me });
                let links = meeting.connect(&[out], &[back]).unwrap();
                for link in &links {
                    let Streams::Tcp(streams) = &link.streams else { panic!() };
                    let expected = if encrypt { streams.len() } else { 0 };
                    assert_eq!((streams.len(), link.seals.len()), (2, expected));
                    let sealed = |(_, seals): &(_, Option<Seals>)| seals.is_some();
                    assert!(link.control.as_ref().is_none_or(sealed));
                }
                assert_eq!(links.iter().filter(|link| link.control.is_some()).count(), 1);
            });
        }
    });
}

#[test]
fn control_is_always_sealed_and_data_where_it_is_asked_for() {
    let _others = with_others();
    sealed(false);
    sealed(true);
}

#[test]
fn who_encrypts_where_another_does_not_is_told_and_so_is_the_other() {
    let _others = with_others();
    let store = free_port();
    let errors = thread::scope(|scope| {
        let start = |me| {
            let config = Config { encrypt: me == 1, ..rank(me, 2, store, Some(SECRET)) };
            scope.spawn(move || meet(&config).unwrap_err())
        };
        [0, 1].map(start).map(|rank| rank.join().unwrap())
    });
    for error in errors {
        assert!(
            matches!(&error, Error::Config { name, .. } if name == "RINGREDUCE_ENCRYPT"),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("rank 0 (") && text.contains("rank 1 ("), "{text}");
    }
    // Without a secret there is nothing to encrypt with.
    let error = meet(&Config { encrypt: true, ..rank(1, 2, store, None) }).unwrap_err();
    assert!(matches!(&error, Error::Config { name, .. } if name == "RINGREDUCE_ENCRYPT"));
    assert!(error.to_string().contains("RINGREDUCE_SECRET_FILE"), "{error}");
}

#[test]
fn collectives_over_encrypted_links_are_right() {
    let _others = with_others();
    let store = free_port().to_string();
    thread::scope(|scope| {
        for me in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let builder = Communicator::builder().rank(me).size(3).store(store);
                let builder = builder.secret(&SECRET).transport(Transport::Tcp).encrypt(true);
                let mut all = builder.timeout(LONG).build().unwrap();
                let mut pair = all.split(Some(u32::from(me == 2)), 0).unwrap().unwrap();
                for count in [0, 1, 1000, 3_000_001] {
                    let mut numbers: Vec<u64> = (0..count).map(|at| at * (me as u64 + 1)).collect();
                    all.all_reduce(&mut numbers, ReduceOp::Sum).unwrap();
                    assert!(numbers.iter().zip(0..).all(|(&sum, at)| sum == 6 * at));
                    pair.all_reduce(&mut numbers, ReduceOp::Max).unwrap();
                    assert!(numbers.iter().zip(0..).all(|(&most, at)| most == 6 * at));
                }
            });
        }
    });
}
