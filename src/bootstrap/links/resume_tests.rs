//! Links and control channels whose connections are reset while bytes are under way, between two
//! ranks of one process.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::streams::{CallReceiver, CallSender, FarRank};
use super::tests::{LONG, ports, until};
use super::ways::Way;
use crate::health::control_channel::ControlChannels;
use crate::health::control_channel::tests::pair as control_channels;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use crate::sync::Instant;
use crate::transport::aead::SealingKey;
use crate::transport::tcp::{
    self, DialStreams, OpenedStream, Redial, StreamCount, keep_up_streams, reset,
};
use crate::transport::{Fault, Frame, Rx, Tx};

const SHAPE: SlotShape = SlotShape { bytes: 64 << 10, capacity: 4 };

/// The sockets that the sender of a link has made.
#[derive(Clone, Debug, Default)]
struct Sockets(Arc<Mutex<Vec<TcpStream>>>);

impl Sockets {
    fn note(&self, stream: &TcpStream) {
        self.0.lock().unwrap().push(stream.try_clone().unwrap());
    }

    /// Resets all that are open; the number of connections so far.
    fn reset(&self) -> usize {
        let sockets = self.0.lock().unwrap();
        sockets.iter().for_each(reset);
        sockets.len()
    }

    /// Closes all that are open at this end.
    fn close(&self) {
        for socket in &*self.0.lock().unwrap() {
            // One that has ended needs no end.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// A dialler whose sockets are noted.
struct Noting<T>(T, Sockets);

impl DialStreams for Noting<CallSender> {
    fn dial(&mut self, index: usize) -> Result<OpenedStream<SealingKey>, Fault> {
        let Self(sender, sockets) = self;
        let mut opened = sender.dial(index)?;
        sockets.note(&opened.stream);
        let way = opened.way.take().unwrap();
        opened.way = Some(Box::new(Noting(way, sockets.clone())));
        Ok(opened)
    }

    fn check_receiver(&mut self) -> Result<(), Fault> {
        self.0.check_receiver()
    }
}

impl std::fmt::Debug for Noting<Box<dyn Redial>> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Redial for Noting<Box<dyn Redial>> {
    fn connect(&mut self, attempt: u32) -> io::Result<TcpStream> {
        let stream = self.0.connect(attempt)?;
        self.1.note(&stream);
        Ok(stream)
    }

    fn hello(&self, generation: u32, received: u64) -> Vec<u8> {
        self.0.hello(generation, received)
    }

    fn received_by_peer(&self, hello: &[u8], answer: &[u8; tcp::ANSWER_LEN]) -> Option<u64> {
        self.0.received_by_peer(hello, answer)
    }

    fn is_refusal_final(&self, refusals: u32) -> bool {
        self.0.is_refusal_final(refusals)
    }

    fn is_peer_there(&self) -> bool {
        self.0.is_peer_there()
    }

    fn patience(&self) -> Duration {
        self.0.patience()
    }

    fn note_resumed(&self, after: Duration) {
        self.0.note_resumed(after);
    }
}

/// A link between two ranks of different hosts, and the sockets of its sender.
fn link(
    encrypt: bool,
    streams: usize,
    controls: &[ControlChannels; 2],
) -> (tcp::Tx, tcp::Rx, Sockets) {
    let (ports, _) = ports(encrypt);
    let far = |me: usize| {
        let channels = Arc::new(controls[me].channels().clone());
        FarRank::new(&ports[me], &channels, 1 - me).unwrap().on_another_host(true)
    };
    let count = StreamCount { streams, is_sealed: encrypt };
    let sockets = Sockets::default();
    let dialler = Noting(CallSender(far(0)), sockets.clone());
    let tx = tcp::Tx::new(Box::new(dialler), count, SHAPE).unwrap();
    let rx = tcp::Rx::new(Box::new(CallReceiver::new(far(1), streams)), count, SHAPE).unwrap();
    (tx, rx, sockets)
}

/// The frame and the payload of a slot.
fn slot(number: u64) -> (Frame, Vec<u8>) {
    let len = [64, 20 << 10, SHAPE.bytes, 1, 4096][(number % 5) as usize];
    let payload = (0..len).map(|at| (at as u64 * 7 + number * 13) as u8).collect();
    (Frame { len: len as u32, sequence: number, fingerprint: 5 }, payload)
}

fn send(tx: &mut tcp::Tx, number: u64) {
    until("no slot is free", || {
        tx.check_alive().unwrap();
        tx.ready().unwrap().then_some(())
    });
    let (frame, payload) = slot(number);
    tx.send_from(&frame, Src::from(&payload[..])).unwrap();
}

fn receive(rx: &mut tcp::Rx, number: u64) {
    let (frame, payload) = slot(number);
    let mut out = vec![0; payload.len()];
    until("no slot has come", || {
        rx.check_alive().unwrap();
        rx.recv_into(&frame, Dst::from(&mut out[..])).unwrap().then_some(())
    });
    rx.release();
    assert!(out == payload, "slot {number} has other bytes");
}

/// Connections end before the first byte, in the middle of slots, and while a stream is made anew.
#[test]
fn no_byte_is_lost_or_doubled_however_often_connections_end() {
    const SLOTS: u64 = 400;
    for (encrypt, streams) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let controls = control_channels();
        let (mut tx, mut rx, sockets) = link(encrypt, streams, &controls);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..SLOTS).for_each(|number| receive(&mut rx, number)));
            for number in 0..SLOTS {
                send(&mut tx, number);
                match number % 23 {
                    0 | 1 => _ = sockets.reset(),
                    11 | 12 => sockets.close(),
                    _ => {}
                }
            }
            until("bytes are left", || {
                tx.check_alive().unwrap();
                (tx.flush().unwrap() && tx.is_delivered()).then_some(())
            });
        });
        assert!(sockets.reset() > 2 * streams, "{encrypt} {streams}: no connection was made anew");
    }
}

/// The sender waits in another communicator, perhaps for a rank that waits for the receiver.
#[test]
fn lost_bytes_leave_while_their_sender_waits_elsewhere() {
    // More bytes than the receiver's system takes before somebody reads them.
    const SLOTS: u64 = 10;
    for encrypt in [false, true] {
        let controls = control_channels();
        let (mut tx, mut rx, sockets) = link(encrypt, 1, &controls);
        (0..SLOTS).for_each(|number| send(&mut tx, number));
        until("bytes are left", || tx.flush().unwrap().then_some(()));
        assert_eq!(sockets.reset(), 1);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| (0..SLOTS).for_each(|number| receive(&mut rx, number)));
            until("the receiver has not got the slots", || {
                keep_up_streams();
                receiver.is_finished().then_some(())
            });
        });
        assert!(sockets.reset() > 1, "no byte was lost");
    }
}

/// The receiver has all bytes, and its peer may be long in another call.
#[test]
fn a_flush_waits_for_no_answer_once_the_system_has_taken_all_bytes() {
    let controls = control_channels();
    let (mut tx, mut rx, sockets) = link(false, 1, &controls);
    send(&mut tx, 0);
    receive(&mut rx, 0);
    sockets.reset();
    assert!(tx.flush().unwrap());
    // The next slot breaks the link, and comes once the receiver looks.
    send(&mut tx, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| receive(&mut rx, 1));
        until("bytes are left", || tx.flush().unwrap().then_some(()));
    });
}

/// The last call of the receiver has ended, and that of the sender must end too.
#[test]
fn a_flush_needs_no_answer_of_a_rank_that_has_got_all_and_left() {
    let controls = control_channels();
    let (mut tx, mut rx, sockets) = link(false, 1, &controls);
    send(&mut tx, 0);
    receive(&mut rx, 0);
    sockets.reset();
    until("the break is not noticed", || {
        tx.check_alive().unwrap();
        (!tx.is_delivered()).then_some(())
    });
    let [_sender, receiver] = controls;
    drop((rx, receiver));
    until("the goodbye has not come", || tx.check_alive().err());
    assert!(tx.flush().unwrap() && tx.is_delivered());
}

#[test]
fn a_broken_link_to_a_rank_that_has_left_is_lost_at_once() {
    let [sender, receiver] = control_channels();
    let (mut tx, mut rx, sockets) = link(false, 1, &[sender, receiver]);
    send(&mut tx, 0);
    receive(&mut rx, 0);
    drop((rx, sockets.reset()));
    let began = Instant::now();
    let how = until("the link waits", || tx.check_alive().err());
    assert!(matches!(how, Fault::Lost(_)) && began.elapsed() < LONG / 2, "{how:?}");
}

/// Two ranks of different hosts with control channels that are made anew.
fn resuming_channels() -> [ControlChannels; 2] {
    let controls = control_channels();
    let (ports, _) = ports(true);
    for (me, controls) in controls.iter().enumerate() {
        let way = Way::of_control(&ports[me], 1 - me as u32).unwrap();
        controls.channels().set_way(1 - me, Box::new(way));
    }
    controls
}

/// The connection stands while one end gives it up, and the other one sends all the time.
#[test]
fn no_control_message_is_lost_with_a_connection_that_one_end_gives_up() {
    let controls = resuming_channels();
    let [one, mut other] = controls;
    const MESSAGES: u32 = 20_000;
    let taken = &AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                other.send_recovery(0, (number, Box::new([7; 296])));
                other.receive();
                if number % 50 == 0 {
                    std::thread::yield_now();
                }
                until("nobody takes messages", || {
                    assert!(other.broken_connection().is_none(), "{other:?}");
                    other.receive();
                    (number < taken.load(Ordering::Relaxed) + 1000).then_some(())
                });
            }
            until("no goodbye", || {
                other.receive();
                other.end_of(0).1
            });
        });
        let (mut expected, mut breaks) = (0, 0);
        until("messages are missing", || {
            for (_, (came, _)) in one.receive_recovery() {
                assert_eq!(came, expected);
                expected += 1;
                taken.store(expected, Ordering::Relaxed);
            }
            assert!(one.broken_connection().is_none(), "{one:?}");
            breaks += u32::from(one.channels().give_up_connection(1));
            (expected == MESSAGES).then_some(())
        });
        assert!(breaks > 5, "{breaks}");
        drop(one);
    });
}

/// Without the goodbye, the peer would take the rank for dead.
#[test]
fn a_goodbye_arrives_though_the_connection_is_broken() {
    let [one, other] = resuming_channels();
    reset(&one.channels().stream(1).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || drop(one));
        let sent_recovery = until("no goodbye", || {
            assert!(other.broken_connection().is_none());
            other.receive();
            other.end_of(0).1
        });
        assert!(!sent_recovery);
    });
}

/// The bound of the wait for a peer that does not look.
#[test]
fn a_rank_that_closes_waits_briefly_for_a_peer_that_is_busy() {
    let [one, other] = resuming_channels();
    reset(&one.channels().stream(1).unwrap());
    let began = Instant::now();
    drop(one);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < LONG / 2, "{waited:?}");
    drop(other);
}

#[test]
fn control_messages_come_once_and_in_order_however_often_the_connection_is_reset() {
    let mut controls = resuming_channels();
    let mut expected = [0_u32, 0];
    for number in 0..200 {
        for me in [0, 1] {
            controls[me].send_recovery(1 - me, (number, Box::new([7; 296])));
        }
        if number % 9 < 2 {
            let me = number as usize % 2;
            let stream = controls[me].channels().stream(1 - me).unwrap();
            // A reset from here drops what has come here; the other end reads what has come there.
            controls[me].receive();
            reset(&stream);
        }
        if number % 5 == 4 {
            until("messages are missing", || {
                for me in [0, 1] {
                    for (from, (came, _)) in controls[me].receive_recovery() {
                        assert_eq!((from, came), (1 - me, expected[me]));
                        expected[me] += 1;
                    }
                    assert!(controls[me].broken_connection().is_none());
                }
                (expected == [number + 1; 2]).then_some(())
            });
        }
    }
}
