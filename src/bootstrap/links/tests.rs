//! The streams of links between two ranks of one process, each with a port of its own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::arrivals::LinkConnection;
use super::port::LinkPort;
use super::port_peer::{PortPeer, StreamSettings};
use super::streams::{CallReceiver, CallSender, FarRank, message_ends};
use crate::bootstrap::auth::handshake::NONCE_LEN;
use crate::bootstrap::auth::hello::{HELLO_LEN, Hello, LinkStream};
use crate::bootstrap::auth::keys::LinkSecret;
use crate::bootstrap::socket::listen_tcp;
use crate::error::Peer;
use crate::health::control_channel::ControlChannels;
use crate::health::control_channel::tests::pair as control_channels;
use crate::memory::Src;
use crate::partition::SlotShape;
use crate::sync::Instant;
use crate::transport::aead::TAG;
use crate::transport::tcp::{self, AcceptStreams, DialStreams, StreamCount};
use crate::transport::{Bell, Doorbell, Fault, Frame, LinkContent, Rx, Tx};

pub(super) const LONG: Duration = Duration::from_secs(60);
const STREAM: LinkStream =
    LinkStream { communicator: 7, dialler: 0, acceptor: 1, content: LinkContent::Calls, index: 0 };

/// Calls `look` until it gives something.
pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// The ports of ranks 0 and 1, and the address of the second one.
pub(super) fn ports(encrypt: bool) -> ([Arc<LinkPort>; 2], SocketAddr) {
    ports_behind(&[], encrypt)
}

/// As [`ports`], of ranks that know each other by these addresses too, which come first.
fn ports_behind(others: &[SocketAddr], encrypt: bool) -> ([Arc<LinkPort>; 2], SocketAddr) {
    let listeners = [(); 2].map(|()| listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap());
    let address = |at: usize| listeners[at].local_addr().unwrap().as_socket().unwrap();
    let addresses = [address(0), address(1)];
    let mut me = 0;
    let ports = listeners.map(|listener| {
        let to_try = [others, &addresses[1 - me..][..1]].concat();
        let name = Peer { rank: 1 - me, host: "there".into(), pid: 2 };
        let peer = PortPeer::new(name, to_try, (LinkSecret::of_test(3), false));
        let peers = BTreeMap::from([(1 - me as u32, peer)]);
        let (streams, congestion, peer_timeout, recorder) = (1, None, LONG, None);
        let settings = StreamSettings { encrypt, streams, congestion, peer_timeout, recorder };
        let bell = Arc::new(Bell::new().unwrap());
        let port = LinkPort::new(me, vec![listener], bell, (peers, None), settings).unwrap();
        me += 1;
        Arc::new(port)
    });
    (ports, addresses[1])
}

/// The stream once it has come.
fn taken(port: &LinkPort, stream: LinkStream) -> LinkConnection {
    until("the stream has not come", || port.take(stream).unwrap())
}

#[test]
fn a_stream_comes_by_its_name_with_the_keys_of_its_hello() {
    for encrypt in [false, true] {
        let ([one, other], _) = ports(encrypt);
        assert!(other.take(STREAM).unwrap().is_none());
        let (mut ours, hello) = one.dial(STREAM, false).unwrap();
        until("it does not connect", || (&*ours.stream).write(&hello).ok().filter(|&n| n > 0));
        let mut theirs = taken(&other, STREAM);
        assert!(other.take(STREAM).unwrap().is_none(), "it came once");
        assert_eq!((ours.sealer.is_some(), theirs.opener.is_some()), (encrypt, encrypt));
        if encrypt {
            let mut piece = [7; 9 + TAG];
            ours.sealer.as_mut().unwrap().seal(&mut piece).unwrap();
            theirs.opener.as_mut().unwrap().open(&mut piece).unwrap();
            assert_eq!(piece[..9], [7; 9]);
        }
    }
}

/// Peers that have dialled may refuse what comes to the address that they came from.
#[test]
fn streams_go_to_the_address_that_answers() {
    let closed = {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.local_addr().unwrap().as_socket().unwrap()
    };
    let ([one, other], address) = ports_behind(&[closed], false);
    let connected_to = |stream: LinkStream| {
        let (ours, hello) = one.dial(stream, false).unwrap();
        until("it does not connect", || (&*ours.stream).write(&hello).ok().filter(|&n| n > 0));
        drop(taken(&other, stream));
        ours.stream.peer_addr().unwrap()
    };
    assert_eq!(connected_to(STREAM), address);
    // The next stream does not try the other one again.
    let _now_open = listen_tcp(closed).unwrap();
    assert_eq!(connected_to(LinkStream { index: 1, ..STREAM }), address);
}

#[test]
fn only_a_hello_with_the_secret_of_both_is_kept() {
    let ([_one, other], address) = ports(false);
    let secret = LinkSecret::of_test(3);
    let hello = |stream: LinkStream| Hello::first(stream, [1; NONCE_LEN]).encode(&secret);
    let right = hello(STREAM);
    let mut changed = right;
    changed[70] ^= 1;
    let (from_other, to_other) =
        (LinkStream { dialler: 2, ..STREAM }, LinkStream { acceptor: 2, ..STREAM });
    let wrong = [
        (STREAM, Hello::first(STREAM, [1; NONCE_LEN]).encode(&LinkSecret::of_test(4)).to_vec()),
        (from_other, hello(from_other).to_vec()),
        (to_other, hello(to_other).to_vec()),
        (STREAM, changed.to_vec()),
        (STREAM, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (STREAM, right[..HELLO_LEN - 1].to_vec()),
    ];
    let mut connections = Vec::new();
    for (stream, bytes) in wrong {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(&bytes).unwrap();
        connections.push(connection);
        assert!(other.take(stream).unwrap().is_none(), "{stream:?}");
    }
    // A hello may come in two parts.
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(&right[..40]).unwrap();
    assert!(other.take(STREAM).unwrap().is_none());
    slow.write_all(&right[40..]).unwrap();
    let _kept = taken(&other, STREAM);
}

/// A rank may dial before the other one has made the communicator; a repeated hello is not kept.
#[test]
fn a_stream_is_kept_until_its_link_takes_it_and_no_second_one() {
    let ([one, other], _) = ports(false);
    let another = LinkStream { communicator: 8, ..STREAM };
    let mut dialled = Vec::new();
    for stream in [STREAM, STREAM, another] {
        let (ours, hello) = one.dial(stream, false).unwrap();
        until("it does not connect", || (&*ours.stream).write(&hello).ok().filter(|&n| n > 0));
        dialled.push(ours);
    }
    drop(taken(&other, another));
    // The three came in this order, so that the second one was rejected by now.
    let mut end = [0];
    until("it is open", || matches!(dialled[1].stream.peek(&mut end), Ok(0)).then_some(()));
    assert!(other.take(STREAM).unwrap().is_some());
    assert!(other.take(STREAM).unwrap().is_none());
}

/// The bytes that the system has acknowledged on the first connection are nowhere else any more.
#[test]
fn the_first_connection_of_a_stream_is_taken_before_those_that_follow_it() {
    let ([_one, other], address) = ports(false);
    let connect = |generation: u32| {
        let hello = Hello { generation, ..Hello::first(STREAM, [1; NONCE_LEN]) };
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(&hello.encode(&LinkSecret::of_test(3))).unwrap();
        connection.write_all(&[generation as u8; 9]).unwrap();
        // Takes the connection in, in the name of another link.
        assert!(other.take(LinkStream { communicator: 8, ..STREAM }).unwrap().is_none());
        connection
    };
    let connections = [0, 1, 2, 1, 0].map(connect);
    let read = |link: LinkConnection| {
        let mut bytes = [9; 9];
        until("no bytes", || (&*link.stream).read_exact(&mut bytes).ok());
        bytes
    };
    assert_eq!(read(taken(&other, STREAM)), [0; 9]);
    let newer = |after| other.take_newer(STREAM, Some(after)).unwrap();
    let (newest, hello) = newer(0).unwrap().into_newer().unwrap();
    assert_eq!((newest.generation, hello.generation), (2, 2));
    assert!(newer(2).is_none() && newer(0).is_none() && other.take(STREAM).unwrap().is_none());
    drop(connections);
}

#[test]
fn connections_without_a_hello_keep_no_stream_out() {
    let ([one, other], address) = ports(false);
    let crowd: Vec<_> = (0..600).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (ours, hello) = one.dial(STREAM, false).unwrap();
    until("it does not connect", || (&*ours.stream).write(&hello).ok().filter(|&n| n > 0));
    drop(taken(&other, STREAM));
    drop(crowd);
}

#[test]
fn whoever_takes_in_a_stream_of_another_link_rings_for_it() {
    let ([one, other], _) = ports(false);
    let doorbell: Doorbell = other.doorbell();
    doorbell.sleep(&[], &[], Duration::ZERO);
    let (ours, hello) = one.dial(STREAM, false).unwrap();
    until("it does not connect", || (&*ours.stream).write(&hello).ok().filter(|&n| n > 0));
    let another = LinkStream { communicator: 8, ..STREAM };
    until("nobody rang", || {
        assert!(other.take(another).unwrap().is_none());
        doorbell.sleep(&[], &[], Duration::ZERO).then_some(())
    });
    assert!(other.take(STREAM).unwrap().is_some());
}

/// Two ranks, and how each reaches the other.
fn far_ranks() -> ([ControlChannels; 2], [FarRank; 2]) {
    let controls = control_channels();
    let (ports, _) = ports(false);
    let far = [0, 1].map(|me: usize| {
        FarRank::new(&ports[me], &Arc::new(controls[me].channels().clone()), 1 - me).unwrap()
    });
    (controls, far)
}

/// The fault that ends the wait for a stream.
fn departure(acceptor: &mut dyn AcceptStreams) -> String {
    until("the wait goes on", || match acceptor.check_sender() {
        Err(Fault::Lost(how)) => Some(how),
        Err(other) => panic!("{other:?}"),
        Ok(()) => None,
    })
}

#[test]
fn a_rank_that_leaves_without_sending_ends_the_wait_and_one_that_has_sent_does_not() {
    let ([sender, receiver], [_, from]) = far_ranks();
    let mut receiving = CallReceiver::new(from, 1);
    assert!(receiving.check_sender().is_ok());
    drop(sender);
    assert!(departure(&mut receiving).contains("closed its communicator"));
    drop(receiver);

    let ([sender, receiver], [to, from]) = far_ranks();
    let mut sending = CallSender(to);
    let mut receiving = CallReceiver::new(from, 1);
    let opened = sending.dial(0).unwrap();
    drop(sender);
    until("no goodbye", || {
        receiver.receive();
        receiver.end_of(0).1
    });
    assert!(receiving.check_sender().is_ok(), "what it has sent is under way");
    until("it does not connect", || (&*opened.stream).write(&opened.hello).ok().filter(|&n| n > 0));
    until("the stream has not come", || receiving.accept(0).unwrap());
}

/// A link of messages between two ranks, in both directions.
fn message_links() -> ([ControlChannels; 2], [(tcp::Tx, tcp::Rx); 2]) {
    let (controls, far) = far_ranks();
    let count = StreamCount { streams: 1, is_sealed: false };
    let shape = SlotShape { bytes: 4096, capacity: 4 };
    let links = far.map(|far| {
        let (sender, receiver) = message_ends(far);
        let tx = tcp::Tx::new(Box::new(sender), count, shape).unwrap();
        (tx, tcp::Rx::new(Box::new(receiver), count, shape).unwrap())
    });
    (controls, links)
}

fn send(tx: &mut tcp::Tx, call: u64) {
    assert!(tx.ready().unwrap());
    let frame = Frame { len: 4, sequence: call, fingerprint: 1 };
    tx.send_from(&frame, Src::from(&[5_u8, 6, 7, 8][..])).unwrap();
}

fn receive(rx: &mut tcp::Rx, call: u64) {
    let frame = Frame { len: 4, sequence: call, fingerprint: 1 };
    until("no slot has come", || rx.ready(&frame).unwrap().then_some(()));
    rx.release();
}

/// The descriptors of streams that the two ranks of this process poll.
fn streams(rx: &tcp::Rx) -> Vec<i32> {
    let mut fds = Vec::new();
    rx.incoming(&mut fds);
    fds
}

#[test]
fn an_answer_goes_back_on_the_stream_of_the_message() {
    let (_controls, [mut one, mut other]) = message_links();
    send(&mut one.0, 1);
    receive(&mut other.1, 1);
    send(&mut other.0, 1);
    receive(&mut one.1, 1);
    // The first dialler reads from the stream that it has dialled, and no other is open.
    assert_eq!(streams(&one.1).len(), 1);
    for call in 2..5 {
        send(&mut one.0, call);
        receive(&mut other.1, call);
        send(&mut other.0, call);
        receive(&mut one.1, call);
    }
}

#[test]
fn two_ranks_that_send_at_once_each_use_their_own_stream() {
    let (_controls, [mut one, mut other]) = message_links();
    for call in 1..5 {
        send(&mut one.0, call);
        send(&mut other.0, call);
        receive(&mut one.1, call);
        receive(&mut other.1, call);
    }
}

/// A connection that no slot follows would hold a place of the receiver's for nothing.
#[test]
fn each_stream_of_a_link_is_dialled_with_its_first_slot() {
    let (_controls, [to, from]) = far_ranks();
    let count = StreamCount { streams: 3, is_sealed: false };
    let shape = SlotShape { bytes: 4096, capacity: 4 };
    let mut tx = tcp::Tx::new(Box::new(CallSender(to)), count, shape).unwrap();
    let mut acceptor = CallReceiver::new(from, 3);
    for call in 0..3 {
        send(&mut tx, call as u64);
        let _stream = until("the stream has not come", || acceptor.accept(call).unwrap());
        for later in call + 1..3 {
            assert!(acceptor.accept(later).unwrap().is_none(), "slot {call}: stream {later}");
        }
    }
}

#[test]
fn a_stream_of_messages_that_the_receiver_drops_ends_the_wait_for_an_answer() {
    let (_controls, [mut one, other]) = message_links();
    send(&mut one.0, 1);
    assert!(one.1.check_alive().is_ok());
    // The port goes with its last link, and the connections that nobody has accepted with it.
    drop(other);
    let how = until("the wait goes on", || match one.1.check_alive() {
        Err(Fault::Lost(how)) => Some(how),
        Err(other) => panic!("{other:?}"),
        Ok(()) => None,
    });
    assert!(!how.is_empty());
    assert_eq!(streams(&one.1).len(), 1, "no sleep ends by a stream that has ended");
}
