//! Control connections that break, between ranks 0 and 1 of one process, on ways that lead nowhere.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use nix::errno::Errno;

use super::tests::pair;
use super::{ControlChannels, ControlWay, NewerControl};
use crate::error::cause::FailureCause;
use crate::error::{Error, Limit};
use crate::health::control_message::{ControlMessage, RECOVERY_BYTES};
use crate::sync::Instant;
use crate::transport::Fault;
use crate::transport::aead::AeadKeys;
use crate::transport::tcp::{ANSWER_LEN, Redial, reset};

const LONG: Duration = Duration::from_secs(60);

/// A way on which no connection comes about, for this reason, and for so long.
#[derive(Debug)]
struct Nowhere(Errno, Duration);

impl Redial for Nowhere {
    fn connect(&mut self, _attempt: u32) -> io::Result<TcpStream> {
        Err(self.0.into())
    }

    fn hello(&self, _generation: u32, _received: u64) -> Vec<u8> {
        Vec::new()
    }

    fn received_by_peer(&self, _hello: &[u8], _answer: &[u8; ANSWER_LEN]) -> Option<u64> {
        None
    }

    fn is_refusal_final(&self, _refusals: u32) -> bool {
        true
    }

    fn is_peer_there(&self) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        self.1
    }

    fn note_resumed(&self, _after: Duration) {}
}

impl ControlWay for Nowhere {
    fn accept(&mut self, _generation: u32) -> Option<NewerControl> {
        None
    }

    fn answer(&self, _hello: &[u8], _received: u64) -> [u8; ANSWER_LEN] {
        [0; ANSWER_LEN]
    }

    fn keys(&self) -> Option<AeadKeys> {
        None
    }

    fn dials_first(&self) -> bool {
        true
    }
}

/// A pair whose first rank has such a way, and whose connection may be out of reach for so long.
fn pair_without_a_way(reason: Errno, patience: Duration) -> [ControlChannels; 2] {
    let [one, other] = pair();
    one.channels.set_way(1, Box::new(Nowhere(reason, patience)));
    one.channels.lock().connection_mut(1).unwrap().unreachable_after = patience;
    [one, other]
}

/// The fault by which rank 0 gives up rank 1.
fn fault_of(one: &ControlChannels) -> Fault {
    let until = Instant::now() + LONG;
    loop {
        if let Some((rank, fault)) = one.lost_peer(|_| false) {
            assert_eq!(rank, 1);
            return fault;
        }
        assert!(Instant::now() < until, "the wait goes on");
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_lacks_a_descriptor_for_another_connection_blames_itself() {
    for (reason, is_own) in [(Errno::EMFILE, true), (Errno::ETIMEDOUT, false)] {
        let [one, _other] = pair_without_a_way(reason, Duration::from_millis(100));
        reset(&one.channels.stream(1).unwrap());
        match fault_of(&one) {
            Fault::NoMemory(error) if is_own => assert!(
                matches!(*error, Error::Exhausted { limit: Limit::Descriptors, .. }),
                "{error}"
            ),
            Fault::Lost(how) if !is_own => assert!(how.contains("unreachable"), "{how}"),
            fault => panic!("{reason}: {fault:?}"),
        }
        // A rank that waits would look every few milliseconds for one that is being made anew.
        assert!(!one.channels.lock().any_broken(), "{reason}: made anew after its end");
    }
}

fn kept(one: &ControlChannels) -> usize {
    let mut connections = one.channels.lock();
    connections.connection_mut(1).unwrap().kept_frames()
}

#[test]
fn what_waits_for_a_peer_is_bounded_and_the_loss_of_more_is_told() {
    let [mut one, _other] = pair_without_a_way(Errno::ETIMEDOUT, LONG);
    reset(&one.channels.stream(1).unwrap());
    one.receive();
    (0..5000).for_each(|call| one.send_heartbeats((call, 0), None, None));
    assert_eq!(kept(&one), super::resume::MANY_KEPT);
    assert!(one.broken_connection().is_none());
    let mut sent = kept(&one);
    while one.broken_connection().is_none() {
        sent += 1;
        assert!(sent < 5000, "the bound was passed");
        one.send_recovery(1, (7, Box::new([1; RECOVERY_BYTES])));
    }
    assert_eq!(sent, super::resume::MAX_KEPT + 1);
    let Fault::Lost(how) = fault_of(&one) else { panic!("another fault") };
    assert!(how.contains("none of the last 2048 control messages"), "{how}");
    (0..5000).for_each(|_| one.send_recovery(1, (7, Box::new([1; RECOVERY_BYTES]))));
    assert_eq!(kept(&one), 0);
}

/// Others are under way all the time, so the peer never has acknowledged all of them at once.
#[test]
fn frames_that_were_acknowledged_are_not_kept() {
    let [mut one, other] = pair_without_a_way(Errno::ETIMEDOUT, LONG);
    let mut most = 0;
    for _ in 0..20_000 {
        one.send_recovery(1, (7, Box::new([1; RECOVERY_BYTES])));
        other.receive_recovery();
        most = most.max(kept(&one));
    }
    assert!(most < super::resume::MANY_KEPT && one.broken_connection().is_none(), "{most}");
}

/// Ranks that have failed still agree with each other on who goes on.
#[test]
fn the_connection_to_a_rank_that_has_failed_is_made_anew_too() {
    let [one, mut other] = pair_without_a_way(Errno::ETIMEDOUT, LONG);
    other.announce_failure(FailureCause::aborted(1), true, None);
    let until = Instant::now() + LONG;
    while one.failures().is_empty() {
        assert!(Instant::now() < until, "no failure");
        one.receive();
    }
    reset(&one.channels.stream(1).unwrap());
    while !one.channels.lock().any_broken() {
        assert!(Instant::now() < until && !one.end_of(1).0, "the connection has ended");
        one.receive();
    }
}

/// A peer that has left needs no goodbye, and nothing answers where its connection broke.
#[test]
fn a_rank_that_closes_waits_only_for_peers_that_have_not_left() {
    for has_left in [true, false] {
        let [one, other] = pair_without_a_way(Errno::ETIMEDOUT, LONG);
        if has_left {
            let goodbye = ControlMessage::Goodbye { cause: None, sent_recovery: false };
            other.channels.broadcast(&goodbye);
            let until = Instant::now() + LONG;
            while one.end_of(1).1.is_none() {
                assert!(Instant::now() < until, "no goodbye");
                one.receive();
            }
        }
        reset(&one.channels.stream(1).unwrap());
        let began = Instant::now();
        drop(one);
        let waited = began.elapsed();
        assert_eq!(waited < Duration::from_secs(1), has_left, "{waited:?}");
    }
}
