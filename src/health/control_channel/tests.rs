//! Control channels between two ranks of one process.

use super::*;
use crate::error::Stall;
use crate::error::cause::{CallMismatch, FailureReason};
use std::net::{TcpListener, TcpStream};

/// The system ends a connection whose other end reads nothing for this long, as on a busy machine.
const UNREACHABLE: Duration = Duration::from_secs(60);

fn pair() -> [ControlChannels; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let mut both = [0, 1].map(|me| ControlChannels::new(me, 3, UNREACHABLE));
    let key = |byte| [byte; 32];
    let keys = [AeadKeys::new(&key(1), &key(2)), AeadKeys::new(&key(2), &key(1))];
    let [ones, others] = keys;
    both[0].add(1, (one.into(), ones)).unwrap();
    both[1].add(0, (other.into(), others)).unwrap();
    both
}

fn lost(rank: usize) -> String {
    format!("{:?}", Fault::GaveUp(Box::new(FailureCause::lost(rank))))
}

/// The lost peer, once the channel has it.
fn wait_for_loss(controls: &mut ControlChannels) -> (usize, String) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some((rank, fault)) = controls.lost_peer(|_| false) {
            return (rank, format!("{fault:?}"));
        }
        assert!(Instant::now() < until, "no loss is reported");
        std::thread::yield_now();
    }
}

#[test]
fn the_first_cause_arrives_though_its_sender_leaves() {
    let [mut one, mut other] = pair();
    one.announce_failure(FailureCause::lost(2), true);
    one.announce_failure(FailureCause::lost(1), true);
    drop(one);
    assert_eq!(wait_for_loss(&mut other), (0, lost(2)));
}

#[test]
fn no_message_is_lost_on_a_peer_that_does_not_read() {
    let [mut one, mut other] = pair();
    for call in 1..=50_000 {
        one.send_heartbeats((call, 0), None, None);
    }
    one.announce_failure(FailureCause::lost(2), true);
    // Unsent bytes go out whenever the sender looks at its channels.
    let until = Instant::now() + Duration::from_secs(20);
    while other.reported_failure().is_none() {
        assert!(one.lost_peer(|_| false).is_none() && Instant::now() < until);
        other.receive();
    }
    assert_eq!(other.peers[&0].heartbeat.call, 50_000);
    assert_eq!(wait_for_loss(&mut other), (0, lost(2)));
}

#[test]
fn an_end_without_goodbye_is_a_death_and_one_with_it_is_not() {
    let [one, mut other] = pair();
    // The kernel does this to the sockets of a dead process.
    one.peers[&1].stream.shutdown(Shutdown::Both).unwrap();
    assert!(wait_for_loss(&mut other).1.contains("process"), "{other:?}");
    let [one, mut other] = pair();
    drop(one);
    while other.peers[&0].ended.is_none() {
        assert!(other.lost_peer(|_| false).is_none());
    }
    std::thread::sleep(LAST_MESSAGE_DELAY * 2);
    assert!(other.lost_peer(|_| false).is_none());
}

#[test]
fn a_reported_mismatch_counts_only_from_ranks_of_the_communicator() {
    for (culprit, is_known) in [(0, true), (2, true), (1, false), (3, false), (1 << 20, false)] {
        let [mut one, mut other] = pair();
        let difference =
            CallMismatch { with: 1, field: MismatchField::Captured, ours: 1, theirs: 0 };
        one.announce_failure(
            FailureCause { culprit, reason: FailureReason::Differs(difference) },
            true,
        );
        drop(one);
        while other.peers[&0].ended.is_none() {
            other.receive();
        }
        let found = other.mismatched_peer(Some(3), |_| None).map(|(rank, _)| rank);
        assert_eq!(found, is_known.then_some(culprit));
    }
}

#[test]
fn every_byte_of_a_frame_counts() {
    let bytes = (3, Box::new(std::array::from_fn(|at| at as u8)));
    let difference =
        CallMismatch { with: 3, field: MismatchField::Fingerprint, ours: 5, theirs: 6 };
    let mismatched = FailureCause { culprit: 2, reason: FailureReason::Differs(difference) };
    let failed = |cause, first_hand| ControlMessage::Failed(Failure { cause, first_hand });
    let heartbeat = Heartbeat { call: 9, fingerprint: 8, waits_for: 6, stalled: 3 };
    for message in [
        failed(FailureCause::lost(7), true),
        failed(FailureCause::aborted(0), true),
        failed(
            FailureCause::stalled(4, Stall::Paused { entered: 8 }, Duration::from_secs(1)),
            true,
        ),
        failed(
            FailureCause::stalled(4, Stall::Silent { waited: 8 }, Duration::from_secs(1)),
            false,
        ),
        failed(
            FailureCause::stalled(4, Stall::NeverEntered { entered: 8 }, Duration::from_secs(1)),
            false,
        ),
        failed(mismatched, false),
        ControlMessage::Goodbye { cause: None, sent_recovery: false },
        ControlMessage::Goodbye { cause: Some(mismatched), sent_recovery: true },
        ControlMessage::Heartbeat(heartbeat),
        ControlMessage::Recovery(bytes),
    ] {
        let frame = message.encode();
        assert_eq!(ControlMessage::decode(&frame), Ok(message.clone()));
        for at in 0..FRAME_BYTES {
            let mut other = frame;
            other[at] ^= 0x40;
            assert_ne!(ControlMessage::decode(&other), Ok(message.clone()), "byte {at}");
        }
    }
}

#[test]
fn a_process_seen_to_end_is_lost_though_its_channel_is_open_unless_it_said_goodbye() {
    let [one, mut other] = pair();
    let until = Instant::now() + Duration::from_secs(10);
    assert!(other.lost_peer(|rank| rank == 0).is_none(), "its last message may still arrive");
    while other.lost_peer(|_| false).is_none() {
        assert!(Instant::now() < until, "the loss is not reported");
    }
    drop(one);
    let [one, mut other] = pair();
    drop(one);
    assert!(other.lost_peer(|rank| rank == 0).is_none());
    std::thread::sleep(LAST_MESSAGE_DELAY * 2);
    assert!(other.lost_peer(|_| false).is_none(), "it said goodbye");
}

#[test]
fn a_rank_that_others_see_stalled_is_known_without_a_channel_to_it() {
    let [mut one, mut other] = pair();
    let until = Instant::now() + Duration::from_secs(10);
    // A report of the asking rank itself, and of a rank that does not exist, say nothing.
    for (stalled, known) in [(Some(0), None), (Some(9), None), (Some(2), Some(2)), (None, None)] {
        other.send_heartbeats((4 + stalled.unwrap_or(3) as u64, 0), None, stalled);
        while one.peers[&1].heartbeat.call != 4 + stalled.unwrap_or(3) as u64 {
            one.receive();
            assert!(Instant::now() < until, "no heartbeat comes");
        }
        assert_eq!(one.reported_stalled_peer(Duration::from_secs(60)), known, "{stalled:?}");
    }
}
