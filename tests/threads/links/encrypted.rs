//! Encrypted links over TCP: an attacker between the two ends reads no payload, and can do no more
//! than end the link.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use ringreduce::partition::SlotShape;
use ringreduce::transport::aead::{AeadKeys, OpeningKey, SealingKey, TAG};
use ringreduce::transport::{Fault, MismatchField, Rx, Tx, tcp};

use super::Ends;
use super::tcp::{opened, receiver, sender, streams};
use super::transfer::{frame, give, is_lost, land, payload, take, until, wait_rx};

const HEAD: usize = 64 + TAG;
const SHAPE: SlotShape = SlotShape { bytes: 32 << 10, capacity: 6 };

/// The keys of a link over `count` streams.
fn keys(count: usize) -> (Vec<SealingKey>, Vec<OpeningKey>) {
    let key = |stream| {
        let seals = |keys: [u8; 2]| AeadKeys::new(&[keys[0]; 32], &[keys[1]; 32]).unwrap();
        let (here, there) = (2 * stream as u8, 2 * stream as u8 + 1);
        (seals([here, there]).sealer, seals([there, here]).opener)
    };
    (0..count).map(key).unzip()
}

pub(super) fn link(shape: SlotShape, sockets: usize) -> Ends {
    let (to, from) = streams(Ipv4Addr::LOCALHOST.into(), sockets);
    let (sealers, openers) = keys(sockets);
    opened(sender(to, sealers, shape).unwrap(), receiver(from, openers, shape).unwrap())
}

/// The bytes on the wire for slots of these lengths.
fn wire(lens: &[usize]) -> Vec<Vec<u8>> {
    let (to, mut from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
    let mut tx = sender(to, keys(1).0, SHAPE).unwrap();
    let read = |(slot, &len): (usize, &usize)| {
        give(&mut tx, &frame(len, slot as u64), &payload(len, slot as u64)).unwrap();
        let mut bytes = vec![0; HEAD + len + TAG];
        until("all is sent", || tx.flush().unwrap());
        from[0].read_exact(&mut bytes).unwrap();
        bytes
    };
    lens.iter().enumerate().map(read).collect()
}

/// A receiver, and the stream that it reads.
fn receiving_end() -> (tcp::Rx, TcpStream) {
    let (mut to, from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
    (receiver(from, keys(1).1, SHAPE).unwrap(), to.remove(0))
}

/// Receives slot number `slot` in one of four ways: with `peek_header` or without, into the link's
/// memory or the reader's.
fn receive(rx: &mut tcp::Rx, len: usize, slot: u64, way: usize) -> Result<(), Fault> {
    if way % 2 == 1 {
        rx.peek_header();
    }
    let mut out = vec![0x11; len];
    let expect = frame(len, slot);
    if way < 2 {
        wait_rx(rx, &expect, None)?;
        assert_eq!(take(rx, len), payload(len, slot), "a wrong result");
        return Ok(());
    }
    let landed = land(rx, &expect, &mut out);
    match &landed {
        Ok(()) => assert_eq!(out, payload(len, slot), "a wrong result"),
        // A forged payload that was decrypted on its way is wiped.
        Err(Fault::Forged { .. }) if out.iter().all(|&byte| byte == 0) => {}
        Err(_) => assert!(out.iter().all(|&byte| byte == 0x11), "bytes were written"),
    }
    rx.release();
    landed
}

/// The network delivers `bytes` for slots of these lengths: `right` slots are accepted, and the
/// next one is forged or lost.
fn check_delivery(lens: &[usize], bytes: &[u8], right: usize, is_forged: bool) {
    for way in 0..4 {
        let (mut rx, mut relay) = receiving_end();
        relay.write_all(bytes).unwrap();
        drop(relay);
        for (slot, &len) in lens.iter().enumerate().take(right) {
            receive(&mut rx, len, slot as u64, way).unwrap();
        }
        let fault = receive(&mut rx, lens[right], right as u64, way).unwrap_err();
        match is_forged {
            true => assert!(matches!(fault, Fault::Forged { slot } if slot == right as u64)),
            false => assert!(is_lost(fault)),
        }
    }
}

const LENS: [usize; 4] = [100, 20_000, 20_000, 0];

#[test]
fn no_part_of_a_slot_is_visible_on_the_wire() {
    for (slot, (bytes, len)) in wire(&LENS).iter().zip(LENS).enumerate() {
        let sent = payload(len, slot as u64);
        let shown = bytes.windows(8).any(|seen| sent.windows(8).any(|part| part == seen));
        assert!(!shown && !bytes.windows(4).any(|seen| seen == b"RING"));
    }
    // Equal slots differ on the wire each time.
    let slots = wire(&[8, 8]);
    assert_ne!(slots[0][..64], slots[1][..64]);
}

#[test]
fn a_changed_bit_is_detected() {
    let sent = wire(&LENS[..2]);
    let first = sent[0].len();
    for at in (0..60).flat_map(|_| [0..HEAD, HEAD..first, first..sent[1].len()]) {
        let mut bytes = sent.concat();
        let bit = harness::share::random_range(8 * at.start..8 * at.end);
        bytes[bit / 8] ^= 1 << (bit % 8);
        check_delivery(&LENS, &bytes, usize::from(bit / 8 >= first), true);
    }
}

#[test]
fn repeated_or_reordered_slots_are_refused() {
    let sent = wire(&LENS);
    let [first, second, third, last] = &sent[..] else { panic!() };
    for (order, right) in [
        (vec![first, first], 1),
        (vec![second], 0),
        (vec![first, third, second], 1),
        (vec![first, second, second], 2),
        (vec![first, second, last], 2),
        (vec![first, last], 1),
    ] {
        let bytes: Vec<u8> = order.into_iter().flatten().copied().collect();
        check_delivery(&LENS, &bytes, right, true);
    }
    // A header with the payload of another slot.
    let mixed = [&first[..], &second[..HEAD], &third[HEAD..]].concat();
    check_delivery(&LENS, &mixed, 1, true);
}

#[test]
fn a_truncated_slot_is_lost_and_a_forged_one_is_refused() {
    let sent = wire(&LENS);
    let [first, second, ..] = &sent[..] else { panic!() };
    for cut in [0, 1, 63, 64, HEAD - 1, HEAD, HEAD + 1, second.len() - TAG, second.len() - 1] {
        let bytes = [&first[..], &second[..cut]].concat();
        check_delivery(&LENS, &bytes, 1, false);
    }
    // One byte is missing in the middle.
    let bytes = [&first[..], &second[..HEAD], &second[HEAD + 1..], &first[..1]].concat();
    check_delivery(&LENS, &bytes, 1, true);
    // A sender without a key sends a slot in the clear.
    let (to, mut from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
    let mut tx = sender(to, vec![], SHAPE).unwrap();
    give(&mut tx, &frame(100, 0), &payload(100, 0)).unwrap();
    let mut clear = [0; 164];
    from[0].read_exact(&mut clear).unwrap();
    check_delivery(&LENS, &clear, 0, true);
    // A receiver without a key gets an encrypted slot.
    let (mut to, from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
    let mut rx = receiver(from, vec![], SHAPE).unwrap();
    to[0].write_all(first).unwrap();
    let fault = wait_rx(&mut rx, &frame(100, 0), None).unwrap_err();
    assert!(matches!(fault, Fault::Mismatch { field: MismatchField::Magic, .. }));
}

#[test]
fn each_stream_has_its_own_key() {
    // The streams of a link are exchanged.
    let (to, mut from) = streams(Ipv4Addr::LOCALHOST.into(), 2);
    from.swap(0, 1);
    let mut tx = sender(to, keys(2).0, SHAPE).unwrap();
    let mut rx = receiver(from, keys(2).1, SHAPE).unwrap();
    for slot in 0..2 {
        give(&mut tx, &frame(8, slot), &payload(8, slot)).unwrap();
    }
    let fault = wait_rx(&mut rx, &frame(8, 0), None).unwrap_err();
    assert!(matches!(fault, Fault::Forged { slot: 0 }));
}
