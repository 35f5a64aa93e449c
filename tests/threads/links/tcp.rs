//! Links over TCP: bytes arrive in pieces of any length, and from foreign programs.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringreduce::partition::SlotShape;
use ringreduce::transport::aead::{OpeningKey, SealingKey};
use ringreduce::transport::tcp::{self, Connected};
use ringreduce::transport::{Fault, MismatchField, Rx, Tx};
use socket2::SockRef;

use super::Ends;
use super::transfer::{SMALL, frame, give, is_lost, land, payload, take, wait_rx, wait_tx};

pub(super) fn streams(address: IpAddr, count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let pair = |_| {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        (stream, listener.accept().unwrap().0)
    };
    (0..count).map(pair).unzip()
}

pub(super) fn sender(
    streams: Vec<TcpStream>,
    keys: Vec<SealingKey>,
    shape: SlotShape,
) -> ringreduce::Result<tcp::Tx> {
    let (opener, count) = Connected::over(streams, keys);
    tcp::Tx::new(opener, count, shape)
}

pub(super) fn receiver(
    streams: Vec<TcpStream>,
    keys: Vec<OpeningKey>,
    shape: SlotShape,
) -> ringreduce::Result<tcp::Rx> {
    let (opener, count) = Connected::over(streams, keys);
    tcp::Rx::new(opener, count, shape)
}

fn ends(to: Vec<TcpStream>, from: Vec<TcpStream>, shape: SlotShape) -> Ends {
    opened(sender(to, vec![], shape).unwrap(), receiver(from, vec![], shape).unwrap())
}

/// Both ends, with open streams.
pub(super) fn opened(mut tx: tcp::Tx, mut rx: tcp::Rx) -> Ends {
    tx.make_room(0).unwrap();
    rx.check_alive().unwrap();
    (Box::new(tx), Box::new(rx))
}

pub(super) fn link(shape: SlotShape, sockets: usize) -> Ends {
    let (to, from) = streams(Ipv4Addr::LOCALHOST.into(), sockets);
    ends(to, from, shape)
}

/// Relays one to seven bytes at a time.
fn trickle(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 7];
    for turn in 0.. {
        match from.read(&mut bytes[..1 + turn % 7]) {
            Ok(count @ 1..) => to.write_all(&bytes[..count]).unwrap(),
            _ => return,
        }
    }
}

#[test]
fn bytes_may_arrive_in_pieces_of_any_length() {
    let shape = SlotShape { bytes: 4096, capacity: 3 };
    let (to, relay_in) = streams(Ipv4Addr::LOCALHOST.into(), 2);
    let (relay_out, from) = streams(Ipv4Addr::LOCALHOST.into(), 2);
    let relay = relay_in.into_iter().zip(relay_out);
    let relays: Vec<_> = relay.map(|(i, o)| thread::spawn(move || trickle(i, o))).collect();
    let (mut tx, mut rx) = ends(to, from, shape);
    for (slot, len) in (0..60).zip([1, 64, 4095, 0, 4096, 17].into_iter().cycle()) {
        wait_tx(&mut *tx).unwrap();
        give(&mut *tx, &frame(len, slot), &payload(len, slot)).unwrap();
        wait_rx(&mut *rx, &frame(len, slot), Some(&mut *tx)).unwrap();
        assert_eq!(take(&mut *rx, len), payload(len, slot));
    }
    drop((tx, rx));
    for relay in relays {
        relay.join().unwrap();
    }
}

#[test]
fn garbage_is_an_error() {
    let garbage: [&[u8]; 4] = [&[0xff; 64], &[0; 4096], b"GET / HTTP/1.1\r\n\r\n", &[]];
    for bytes in garbage {
        let (to, from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
        let mut rx = receiver(from, vec![], SMALL).unwrap();
        (&to[0]).write_all(bytes).unwrap();
        drop(to);
        match wait_rx(&mut rx, &frame(128, 0), None).unwrap_err() {
            Fault::Mismatch { field: MismatchField::Magic, .. } => assert!(bytes.len() >= 64),
            fault => assert!(is_lost(fault) && bytes.len() < 64),
        }
    }
}

/// The system tells how a connection has ended once: the next reader finds it closed.
#[test]
fn a_look_at_the_next_header_keeps_how_the_connection_ended() {
    let (to, from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
    let own = from[0].try_clone().unwrap();
    let mut rx = receiver(from, vec![], SMALL).unwrap();
    rx.check_alive().unwrap();
    // A socket that does not linger resets its connection.
    SockRef::from(&to[0]).set_linger(Some(Duration::ZERO)).unwrap();
    drop(to);
    let mut ended = [PollFd::new(own.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ended, PollTimeout::NONE), Ok(1));
    assert!(rx.peek_header().is_none());
    for _ in 0..2 {
        let Err(Fault::Lost(how)) = rx.check_alive() else { panic!() };
        assert!(how.contains("reset"), "{how}");
    }
}

#[test]
fn a_link_works_over_ipv6() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return harness::skip("links::tcp::a_link_works_over_ipv6", "this host has no ::1");
    }
    let (to, from) = streams(Ipv6Addr::LOCALHOST.into(), 2);
    let (mut tx, mut rx) = ends(to, from, SMALL);
    give(&mut *tx, &frame(128, 0), &payload(128, 0)).unwrap();
    wait_rx(&mut *rx, &frame(128, 0), None).unwrap();
    assert_eq!(take(&mut *rx, 128), payload(128, 0));
}

#[test]
fn a_link_needs_a_socket_and_slots_of_whole_cache_lines() {
    assert!(sender(Vec::new(), vec![], SMALL).is_err(), "a link without a socket");
    let odd = SlotShape { bytes: 100, capacity: 4 };
    assert!(receiver(streams(Ipv4Addr::LOCALHOST.into(), 1).1, vec![], odd).is_err());
}

/// The network flips one bit of a payload, which the checksum of TCP may miss.
#[test]
fn the_checksum_detects_a_flipped_bit() {
    const HEADER: usize = 64;
    let shape = SlotShape { bytes: 64 << 10, capacity: 3 };
    // A payload is read into the slot, or straight to its destination.
    for (len, lands) in [(1, false), (100, false), (4096, true), (40_000, true), (40_000, false)] {
        for checks in [true, false] {
            let (to, mut relay_in) = streams(Ipv4Addr::LOCALHOST.into(), 1);
            let (mut relay_out, from) = streams(Ipv4Addr::LOCALHOST.into(), 1);
            let mut tx = sender(to, vec![], shape).unwrap().with_checksums(checks);
            let mut rx = receiver(from, vec![], shape).unwrap().with_checksums(checks);
            give(&mut tx, &frame(len, 0), &payload(len, 0)).unwrap();
            let mut bytes = vec![0; HEADER + len];
            let sent = thread::scope(|scope| {
                let read = scope.spawn(|| relay_in[0].read_exact(&mut bytes));
                while let Ok(false) = tx.flush() {
                    thread::yield_now();
                }
                read.join().unwrap()
            });
            sent.unwrap();
            let bit = harness::share::random_range(0..8 * len);
            bytes[HEADER + bit / 8] ^= 1 << (bit % 8);
            relay_out[0].write_all(&bytes).unwrap();
            let mut out = vec![0; len];
            let landed = match lands {
                true => land(&mut rx, &frame(len, 0), &mut out),
                false => wait_rx(&mut rx, &frame(len, 0), None),
            };
            match (checks, landed) {
                (true, Err(Fault::Corrupt { slot: 0, sent, found })) => assert_ne!(sent, found),
                (false, Ok(())) => {}
                (_, landed) => panic!("bit {bit} of {len}: {landed:?}"),
            }
        }
    }
}
