//! Explicit cases that random runs seldom come to: limits, numbers that are used again, requests
//! that have ended, and peers that break the protocol.

use ringreduce::element::DataType;
use ringreduce::matching::{
    Delivery, Endpoint, Envelope, Expected, Limits, MAX_PENDING, Outcome, Packet, RequestId, Start,
    Status,
};

const LIMITS: Limits = Limits { eager: 8, slot: 8, credit: 4 * 72 };
const SHORT: Envelope = Envelope { tag: 0, dtype: DataType::F32, bytes: 8 };
const LONG: Envelope = Envelope { tag: 0, dtype: DataType::F32, bytes: 24 };

type Rank = Endpoint<u32, u32, u32>;

fn rank(me: u32) -> Rank {
    Endpoint::new(me, 3, LIMITS)
}

fn from(source: u32) -> Expected {
    Expected { source: Some(source), tag: None }
}

fn send(rank: &mut Rank, to: u32, envelope: Envelope) -> RequestId {
    rank.send(to, envelope, 7).unwrap().0
}

fn post(rank: &mut Rank, source: u32, envelope: Envelope) -> RequestId {
    let form = (envelope.dtype, envelope.bytes);
    let (id, start) = rank.receive(from(source), form, 5).unwrap();
    assert_eq!(start, Start::Waits);
    id
}

fn next(rank: &mut Rank, to: u32) -> Packet {
    let packet = rank.next_packet(to).unwrap().packet;
    rank.sent(to);
    packet
}

/// Announces a long message from rank 1 to a receive of rank 0; gives the sender, the receiver, the
/// receiver's request and its answer.
fn met() -> (Rank, Rank, RequestId, Packet) {
    let (mut receiver, mut sender) = (rank(0), rank(1));
    send(&mut sender, 0, LONG);
    let receive = post(&mut receiver, 1, LONG);
    let announcement = next(&mut sender, 0);
    assert_eq!(receiver.arrived(1, announcement), Ok(Delivery::Nowhere));
    let answer = next(&mut receiver, 1);
    (sender, receiver, receive, answer)
}

#[test]
fn requests_are_limited_and_their_numbers_are_used_again() {
    let mut rank = rank(0);
    let sends: Vec<_> = (0..MAX_PENDING).map(|_| send(&mut rank, 1, LONG)).collect();
    assert_eq!(rank.send(1, LONG, 7), None);
    let receives: Vec<_> = (0..MAX_PENDING).map(|_| post(&mut rank, 1, LONG)).collect();
    assert_eq!(rank.receive(from(1), (LONG.dtype, LONG.bytes), 5), None);
    sends.iter().for_each(|send| rank.withdraw_send(*send));
    receives.iter().for_each(|receive| rank.withdraw_receive(*receive));
    assert!(!rank.is_busy() && rank.next_packet(1).is_none());
    // The numbers of requests that ended mean nothing, though their places are used again.
    let (again, receive) = (send(&mut rank, 1, LONG), post(&mut rank, 1, LONG));
    assert!(!sends.contains(&again) && !receives.contains(&receive));
    sends.iter().for_each(|send| rank.withdraw_send(*send));
    receives.iter().for_each(|receive| rank.withdraw_receive(*receive));
    assert_eq!(next(&mut rank, 1), Packet::RequestToSend { send: again, envelope: LONG });
}

#[test]
fn what_has_ended_stays_so_when_the_peer_is_lost() {
    let (mut sender, mut receiver) = (rank(1), rank(0));
    let sent = send(&mut sender, 0, SHORT);
    let received = post(&mut receiver, 1, SHORT);
    assert_eq!(receiver.arrived(1, next(&mut sender, 0)), Ok(Delivery::To(5, 0)));
    sender.lose(0);
    receiver.lose(1);
    let done = |source| Some(Outcome::Done(Status { source, envelope: SHORT }));
    assert_eq!(sender.take_send(sent), done(0));
    assert_eq!(receiver.take_receive(received), done(1));
    assert_eq!((sender.take_send(sent), receiver.take_receive(received)), (None, None));
}

#[test]
fn a_kept_message_of_a_lost_rank_can_still_be_received() {
    let mut rank = rank(0);
    let status = Status { source: 1, envelope: SHORT };
    assert_eq!(rank.arrived(1, Packet::Eager(SHORT)), Ok(Delivery::Keep(status)));
    rank.keep(status, 3);
    rank.lose(1);
    let (_, start) = rank.receive(from(1), (SHORT.dtype, SHORT.bytes), 5).unwrap();
    assert_eq!(start, Start::Kept(3));
    let receive = post(&mut rank, 1, SHORT);
    assert_eq!(rank.take_receive(receive), Some(Outcome::Lost(Some(1))));
}

#[test]
fn a_lost_message_is_followed_by_no_other_of_its_tag() {
    let (mut receiver, mut sender) = (rank(0), rank(1));
    let other_tag = Envelope { tag: 1, ..SHORT };
    for envelope in [SHORT, LONG, SHORT, other_tag] {
        send(&mut sender, 0, envelope);
        let delivery = receiver.arrived(1, next(&mut sender, 0)).unwrap();
        if let Delivery::Keep(status) = delivery {
            receiver.keep(status, 3);
        }
    }
    receiver.lose(1);
    let with = |tag| Expected { source: Some(1), tag: Some(tag) };
    let mut start = |tag| receiver.receive(with(tag), (SHORT.dtype, SHORT.bytes), 5).unwrap();
    assert_eq!([start(0).1, start(1).1], [Start::Kept(3), Start::Kept(3)]);
    let after = [start(0).0, start(1).0];
    let ends = after.map(|receive| receiver.take_receive(receive));
    assert_eq!(ends, [Some(Outcome::Lost(Some(1))); 2]);
}

#[test]
fn a_receive_from_any_rank_expects_nothing_of_ranks_without_a_link() {
    let mut rank = rank(0);
    rank.unlink(2);
    let any = Expected { source: None, tag: None };
    let (receive, _) = rank.receive(any, (LONG.dtype, LONG.bytes), 5).unwrap();
    assert_eq!(rank.take_receive(receive), None);
    rank.lose(1);
    assert_eq!(rank.take_receive(receive), Some(Outcome::Lost(None)));
}

#[test]
fn packets_of_a_lost_rank_are_ignored() {
    let mut rank = rank(0);
    let any = Expected { source: None, tag: None };
    let (receive, _) = rank.receive(any, (LONG.dtype, LONG.bytes), 5).unwrap();
    let mut sender = self::rank(1);
    send(&mut sender, 0, LONG);
    rank.lose(1);
    assert_eq!(rank.arrived(1, next(&mut sender, 0)), Ok(Delivery::Nowhere));
    assert!(rank.next_packet(1).is_none());
    // The receive is still there for the rank that is left.
    assert_eq!(rank.take_receive(receive), None);
    rank.lose(2);
    assert_eq!(rank.take_receive(receive), Some(Outcome::Lost(None)));
}

#[test]
fn bytes_of_another_rank_do_not_move_a_transfer() {
    let (mut sender, mut receiver, receive, answer) = met();
    assert!(receiver.arrived(2, Packet::Data { receive, bytes: 8 }).is_err());
    sender.arrived(0, answer).unwrap();
    for at in [0, 8, 16] {
        assert_eq!(receiver.arrived(1, next(&mut sender, 0)), Ok(Delivery::To(5, at)));
    }
    let done = Outcome::Done(Status { source: 1, envelope: LONG });
    assert_eq!(receiver.take_receive(receive), Some(done));
}

#[test]
fn a_packet_has_no_more_bytes_than_its_slot_and_its_receive() {
    let (_, mut receiver, receive, _) = met();
    assert!(receiver.arrived(1, Packet::Data { receive, bytes: 9 }).is_err());
    // Nor more than the receive has left.
    for bytes in [7, 8, 8] {
        assert!(receiver.arrived(1, Packet::Data { receive, bytes }).is_ok());
    }
    assert!(receiver.arrived(1, Packet::Data { receive, bytes: 2 }).is_err());
    assert!(rank(0).arrived(1, Packet::Eager(Envelope { bytes: 9, ..SHORT })).is_err());
}

#[test]
fn credit_that_was_given_back_too_soon_does_not_grow() {
    let mut rank = rank(0);
    let waiting = send(&mut rank, 1, SHORT);
    assert_eq!(rank.arrived(1, Packet::Credit { bytes: 72 }), Ok(Delivery::Nowhere));
    rank.withdraw_send(waiting);
    assert!(rank.arrived(1, Packet::Credit { bytes: 1 }).is_err());
    assert!(rank.arrived(1, Packet::Credit { bytes: u64::MAX }).is_err());
}

#[test]
fn a_rank_keeps_no_more_than_its_limits() {
    let mut rank = rank(0);
    let status = Status { source: 1, envelope: SHORT };
    for _ in 0..4 {
        assert_eq!(rank.arrived(1, Packet::Eager(SHORT)), Ok(Delivery::Keep(status)));
        rank.keep(status, 3);
    }
    assert!(rank.arrived(1, Packet::Eager(SHORT)).is_err());
    let mut other = self::rank(2);
    let announcement = (send(&mut other, 0, LONG), next(&mut other, 0)).1;
    for _ in 0..MAX_PENDING {
        assert_eq!(rank.arrived(2, announcement), Ok(Delivery::Nowhere));
    }
    assert!(rank.arrived(2, announcement).is_err());
}

#[test]
fn a_number_that_is_used_again_has_the_place_of_its_new_receive() {
    let mut rank = rank(0);
    let withdrawn = post(&mut rank, 1, SHORT);
    let first = post(&mut rank, 1, SHORT);
    rank.withdraw_receive(withdrawn);
    let again = loop {
        let again = post(&mut rank, 1, SHORT);
        if again == withdrawn {
            break again;
        }
        rank.withdraw_receive(again);
    };
    assert_eq!(rank.arrived(1, Packet::Eager(SHORT)), Ok(Delivery::To(5, 0)));
    assert_eq!(rank.take_receive(again), None);
    assert!(rank.take_receive(first).is_some());
}

#[test]
fn a_receive_that_has_ended_meets_no_message() {
    let mut rank = rank(0);
    let any = Expected { source: None, tag: None };
    let (receive, _) = rank.receive(any, (SHORT.dtype, SHORT.bytes), 5).unwrap();
    rank.lose(1);
    rank.lose(2);
    let (sent, met) = rank.send(0, SHORT, 7).unwrap();
    assert_eq!((met, rank.take_send(sent)), (None, None));
    assert_eq!(rank.take_receive(receive), Some(Outcome::Lost(None)));
}

#[test]
fn an_answer_that_no_send_waits_for_changes_nothing() {
    let (mut sender, _, _, clear) = met();
    let Packet::ClearToSend { send: first, receive } = clear else { unreachable!() };
    assert_eq!(sender.arrived(0, clear), Ok(Delivery::Nowhere));
    let answers = |send| {
        let refusal = Packet::Refusal { send, dtype: DataType::U8, bytes: 1 };
        [Packet::ClearToSend { send, receive }, refusal]
    };
    for _ in 0..3 {
        next(&mut sender, 0);
        for answer in answers(first) {
            assert_eq!(sender.arrived(0, answer), Ok(Delivery::Nowhere));
        }
    }
    assert!(sender.next_packet(0).is_none());
    let done = Outcome::Done(Status { source: 0, envelope: LONG });
    assert_eq!(sender.take_send(first), Some(done));
    let waiting = send(&mut sender, 0, SHORT);
    for answer in answers(waiting) {
        assert_eq!(sender.arrived(0, answer), Ok(Delivery::Nowhere));
    }
    assert_eq!(next(&mut sender, 0), Packet::Eager(SHORT));
}

#[test]
fn long_messages_take_turns() {
    let (mut sender, mut receiver) = (rank(1), rank(0));
    let expected = [LONG, Envelope { tag: 1, ..LONG }].map(|envelope| {
        send(&mut sender, 0, envelope);
        let receive = post(&mut receiver, 1, envelope);
        receiver.arrived(1, next(&mut sender, 0)).unwrap();
        sender.arrived(0, next(&mut receiver, 1)).unwrap();
        Packet::Data { receive, bytes: 8 }
    });
    for _ in 0..3 {
        assert_eq!([(); 2].map(|()| next(&mut sender, 0)), expected);
    }
}

#[test]
fn a_withdrawn_receive_ends_with_its_sender() {
    let (_, mut receiver, receive, _) = met();
    receiver.withdraw_receive(receive);
    assert!(receiver.is_busy(), "its bytes may still come");
    receiver.lose(1);
    assert!(!receiver.is_busy());
}
