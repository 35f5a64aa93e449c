//! One suite of the contracts of `Rx` and `Tx` for every kind of link. A new kind is one line in
//! `every_link!` below, and a function that makes a pair of ends.

pub(crate) mod encrypted;
pub(crate) mod laws;
pub(crate) mod tcp;
pub(crate) mod transfer;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ringreduce::partition::SlotShape;
use ringreduce::transport::shm::{self, FifoShape};
use ringreduce::transport::{Frame, LinkPeer, Rx, Tx, loopback};

type Ends = (Box<dyn Tx>, Box<dyn Rx>);
type Make = fn(SlotShape) -> Ends;

/// A link between processes with both ends in this one, which still passes the memory's descriptor.
fn between_processes(shape: SlotShape) -> Ends {
    let (here, there) = UnixStream::pair().unwrap();
    let [here, there] = [here, there].map(|stream| Arc::new(stream.into()));
    let fifo = || [FifoShape(shape, None)];
    let [tx] = shm::senders(fifo(), LinkPeer { liveness: &here, name: "a peer" }).unwrap();
    let deadline = ringreduce::bootstrap::Instant::now() + transfer::DEADLINE;
    let [rx] =
        shm::receivers(fifo(), LinkPeer { liveness: &there, name: "itself" }, deadline).unwrap();
    (tx, rx)
}

/// The contracts, for each kind of link.
macro_rules! every_link {
    ($($kind:ident: $make:expr;)*) => { $(mod $kind {
        every_law!($make; payloads_of_every_size_arrive,
            payloads_come_from_and_go_to_any_memory,
            a_payload_that_is_half_there_can_be_taken_over,
            a_peeked_header_shows_the_call_and_takes_nothing,
            slots_arrive_in_order_past_any_wrap,
            commit_never_waits_for_the_peer, a_full_link_turns_ready_again,
            a_full_link_wakes_its_sender_and_outlives_it,
            an_unexpected_frame_is_refused, a_sender_that_leaves_is_read_to_the_end,
            a_receiver_that_leaves_ends_a_wait,
            check_alive_finds_a_peer_that_left,
            park_ends_with_its_limit_data_or_an_outgoing_link, two_threads_play_ping_pong);
    })* };
}
macro_rules! every_law {
    ($make:expr; $($law:ident),*) => { $(#[test] fn $law() { super::laws::$law($make); })* };
}

every_link! {
    between_processes: super::between_processes;
    between_threads: |shape| ringreduce::transport::loopback::pair(shape).unwrap();
    tcp_over_one_socket: |shape| super::tcp::link(shape, 1);
    tcp_over_three_sockets: |shape| super::tcp::link(shape, 3);
    tcp_sealed_over_one_socket: |shape| super::encrypted::link(shape, 1);
    tcp_sealed_over_three_sockets: |shape| super::encrypted::link(shape, 3);
}

#[test]
fn memory_that_does_not_fit_the_address_space_is_refused() {
    for (bytes, capacity) in [(1 << 60, 16), (usize::MAX - 63, 1), (64, 1 << 62)] {
        assert!(loopback::pair(SlotShape { bytes, capacity }).is_err(), "{bytes} x {capacity}");
    }
}

#[test]
#[should_panic(expected = "commit without ready")]
fn no_more_slots_are_committed_than_there_are() {
    let (mut tx, _rx) = loopback::pair(SlotShape { bytes: 64, capacity: 2 }).unwrap();
    let frame = Frame { len: 0, sequence: 0, fingerprint: 0 };
    (0..3).for_each(|_| tx.commit(&frame).unwrap());
}

#[test]
#[should_panic(expected = "release without ready")]
fn no_slot_is_released_that_has_not_come() {
    let (_tx, mut rx) = loopback::pair(SlotShape { bytes: 64, capacity: 2 }).unwrap();
    rx.release();
}
