//! An attacker between ranks and their store reads no byte after the handshake and cannot change
//! one unnoticed; and ranks that differ in their setting of encryption.

use ringreduce::{Communicator, ReduceOp};

use super::relay::{Change, Relay};
use super::*;

/// Bytes that each end sends in a handshake.
const HANDSHAKE: usize = 2 * 128;

/// Flips a bit of byte `AT` after the handshake, from the store.
fn flip<const AT: usize>(to_store: bool, begin: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(byte) = (HANDSHAKE + AT).checked_sub(begin).and_then(|at| bytes.get_mut(at))
        && !to_store
    {
        *byte ^= 4;
    }
    bytes
}

/// Flips a bit of byte `AT` after the handshake, to the store.
fn flip_to_store<const AT: usize>(to_store: bool, begin: usize, bytes: Vec<u8>) -> Vec<u8> {
    flip::<AT>(!to_store, begin, bytes)
}

/// Inserts a byte after the handshake, from the store.
fn insert(to_store: bool, begin: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(at) = HANDSHAKE.checked_sub(begin).filter(|&at| at < bytes.len() && !to_store) {
        bytes.insert(at, 0);
    }
    bytes
}

#[test]
fn messages_of_the_store_are_unreadable_on_their_way() {
    let _concurrent = concurrent();
    let store = free_port();
    let relay = Relay::to(store, |_, _, bytes| bytes);
    let between = relay.address;
    let address = |me| if me == 0 { store } else { between };
    let meetings = in_threads(0..3, |me| {
        rendezvous_and_release(&rank(me, 3, address(me), Some(SECRET))).unwrap()
    });
    let seen = [relay.recorded(false), relay.recorded(true)].concat();
    let shows = |text: &str| seen.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(shows("RRHELLO"), "{} bytes", seen.len());
    let host = meetings[0].peers[0].host.clone();
    for text in ["RRST", "record/", "table", "RINGREDUCE_", "127.0.0.1:", &host] {
        // A short text may occur by chance.
        assert!(text.len() < 4 || !shows(text), "{text}");
    }
}

#[test]
fn changed_bytes_are_detected_at_once() {
    let _concurrent = concurrent();
    let store = free_port();
    thread::scope(|scope| {
        let start = |me| {
            scope.spawn(move || rendezvous_and_release(&rank(me, 2, store, Some(SECRET))).unwrap())
        };
        let first = start(0);
        // The length, the content and the tag of the store's first message, and one byte more.
        let changes: [Change; 5] = [flip::<0>, flip::<3>, flip::<5>, flip::<30>, insert];
        for (number, change) in changes.into_iter().enumerate() {
            let relay = Relay::to(store, change);
            let between = relay.address;
            let error = rendezvous_and_release(&rank(1, 2, between, Some(SECRET))).unwrap_err();
            let named =
                matches!(&error, Error::Store { address, .. } if *address == between.to_string());
            let text = error.to_string();
            assert!(named && text.contains("changed on its way"), "{number}: {text}");
        }
        // For changed bytes to the store, the store closes the connection at each attempt.
        let changes: [Change; 3] = [flip_to_store::<0>, flip_to_store::<5>, flip_to_store::<30>];
        for change in changes {
            let relay = Relay::to(store, change);
            let between = relay.address;
            let timeout = Duration::from_millis(300);
            let config = Config { timeout, ..rank(1, 2, between, Some(SECRET)) };
            let error = rendezvous_and_release(&config).unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
        }
        start(1).join().unwrap();
        first.join().unwrap();
    });
}

#[test]
fn the_control_channel_is_always_sealed() {
    let _concurrent = concurrent();
    let store = free_port();
    for encrypt in [false, true] {
        in_threads(0..2, |me| {
            let config = Config { encrypt, ..rank(me, 2, store, Some(SECRET)) };
            let mut meeting = rendezvous_and_release(&config).unwrap();
            let connected = meeting.connect(&[1 - me]).unwrap();
            assert!(connected.len() == 1 && connected[0].is_sealed());
        });
    }
}

#[test]
fn ranks_that_differ_in_encryption_name_both() {
    let _concurrent = concurrent();
    let store = free_port();
    let config = |me| Config { encrypt: me == 1, ..rank(me, 2, store, Some(SECRET)) };
    let errors = in_threads(0..2, |me| rendezvous_and_release(&config(me)).unwrap_err());
    for error in errors {
        assert!(
            matches!(&error, Error::Config { name, .. } if name == "RINGREDUCE_ENCRYPT"),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("rank 0 (") && text.contains("rank 1 ("), "{text}");
    }
    // Without a secret there is nothing to encrypt with.
    let error =
        rendezvous_and_release(&Config { encrypt: true, ..rank(1, 2, store, None) }).unwrap_err();
    assert!(matches!(&error, Error::Config { name, .. } if name == "RINGREDUCE_ENCRYPT"));
    assert!(error.to_string().contains("RINGREDUCE_SECRET_FILE"), "{error}");
}

#[test]
fn collectives_over_encrypted_links_are_right() {
    let _concurrent = concurrent();
    let store = free_port().to_string();
    in_threads(0..3, |me| {
        let builder = Communicator::builder().rank(me).size(3).store(&store);
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
