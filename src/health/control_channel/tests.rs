//! Connections between two ranks of one process. May touch: control, notice, std.

use super::*;
use crate::error::Stall;
use crate::error::cause::Difference;
use std::net::{TcpListener, TcpStream};

fn pair() -> [Controls; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let mut both = [0, 1].map(|me| Controls::new(me, 3, Duration::from_secs(5)));
    let key = |byte| [byte; 32];
    let seals = [Seals::new(&key(1), &key(2)), Seals::new(&key(2), &key(1))];
    let [ones, others] = seals;
    both[0].add(1, (one.into(), ones)).unwrap();
    both[1].add(0, (other.into(), others)).unwrap();
    both
}

fn lost(rank: usize) -> String {
    format!("{:?}", Fault::GaveUp(Box::new(Blame::lost(rank))))
}

fn soon(controls: &mut Controls) -> (usize, String) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some((rank, fault)) = controls.lost(|_| false) {
            return (rank, format!("{fault:?}"));
        }
        assert!(Instant::now() < until, "nothing is heard");
        std::thread::yield_now();
    }
}

#[test]
fn the_first_cause_is_told_though_its_teller_leaves() {
    let [mut one, mut other] = pair();
    one.give_up(Blame::lost(2), true);
    one.give_up(Blame::lost(1), true);
    drop(one);
    assert_eq!(soon(&mut other), (0, lost(2)));
}

#[test]
fn nothing_is_lost_on_who_does_not_listen() {
    let [mut one, mut other] = pair();
    for call in 1..=50_000 {
        one.wait_in((call, Duration::MAX), 0, None, |_| 0);
    }
    one.give_up(Blame::lost(2), true);
    // It goes on its way whenever this rank looks.
    let until = Instant::now() + Duration::from_secs(20);
    while other.told().is_none() {
        assert!(one.lost(|_| false).is_none() && Instant::now() < until);
        other.read();
    }
    assert_eq!(other.peers[0].as_ref().unwrap().waits.call, 50_000);
    assert_eq!(soon(&mut other), (0, lost(2)));
}

#[test]
fn who_ends_without_a_word_has_died_and_who_takes_leave_has_not() {
    let [one, mut other] = pair();
    // As the kernel does it.
    one.peers[1].as_ref().unwrap().stream.shutdown(Shutdown::Both).unwrap();
    assert!(soon(&mut other).1.contains("process"), "{other:?}");
    let [one, mut other] = pair();
    drop(one);
    while other.peers[0].as_ref().unwrap().ended.is_none() {
        assert!(other.lost(|_| false).is_none());
    }
    std::thread::sleep(LAST_WORDS * 2);
    assert!(other.lost(|_| false).is_none());
}

#[test]
fn who_is_told_to_differ_is_so_only_from_a_rank_that_there_is() {
    for (culprit, is_known) in [(0, true), (2, true), (1, false), (3, false), (1 << 20, false)] {
        let [mut one, mut other] = pair();
        let difference = Difference { with: 1, field: "memory", ours: 1, theirs: 0 };
        one.give_up(Blame { culprit, why: Why::Differs(difference) }, true);
        drop(one);
        while other.peers[0].as_ref().unwrap().ended.is_none() {
            other.read();
        }
        let found = other.differs(Some(3), |_| None).map(|(rank, _)| rank);
        assert_eq!(found, is_known.then_some(culprit));
    }
}

#[test]
fn every_byte_of_a_frame_is_looked_at() {
    let words = (3, Box::new(std::array::from_fn(|at| at as u8)));
    let difference = Difference { with: 3, field: "fingerprint", ours: 5, theirs: 6 };
    let differs = Blame { culprit: 2, why: Why::Differs(difference) };
    let gave_up = |blame, first_hand| Notice::GaveUp(Failure { blame, first_hand });
    let waits = Waits { call: 9, print: 8, sent: 7, toward: 6 };
    for notice in [
        gave_up(Blame::lost(7), true),
        gave_up(Blame::aborted(0), true),
        gave_up(Blame::stalled(4, Stall::Paused { entered: 8 }, AGAIN), true),
        gave_up(Blame::stalled(4, Stall::Silent { waited: 8 }, AGAIN), false),
        gave_up(Blame::stalled(4, Stall::NeverEntered { entered: 8 }, AGAIN), false),
        gave_up(differs, false),
        Notice::Goodbye { because: None, has_spoken: false },
        Notice::Goodbye { because: Some(differs), has_spoken: true },
        Notice::Waits(waits),
        Notice::Says(words),
    ] {
        let frame = notice.encode();
        assert_eq!(Notice::decode(&frame), Some(notice.clone()));
        for at in 0..FRAME {
            let mut other = frame;
            other[at] ^= 0x40;
            assert_ne!(Notice::decode(&other), Some(notice.clone()), "byte {at}");
        }
    }
}

#[test]
fn who_is_seen_to_end_is_lost_though_its_connection_stands_but_not_if_it_took_leave() {
    let [one, mut other] = pair();
    let until = Instant::now() + Duration::from_secs(10);
    assert!(other.lost(|rank| rank == 0).is_none(), "what it said last may still come");
    while other.lost(|_| false).is_none() {
        assert!(Instant::now() < until, "it is not lost");
    }
    drop(one);
    let [one, mut other] = pair();
    drop(one);
    assert!(other.lost(|rank| rank == 0).is_none());
    std::thread::sleep(LAST_WORDS * 2);
    assert!(other.lost(|_| false).is_none(), "it took leave");
}
