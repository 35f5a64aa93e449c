//! The contracts that every kind of link keeps.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use ringreduce::memory::{Dst, Src};
use ringreduce::partition::SlotShape;
use ringreduce::transport::{Fault, Frame, MismatchField, PeekedHeader, Tx};

use super::Make;
use super::transfer::{
    DEADLINE, SMALL, TICK, frame, give, is_lost, payload, take, until, wait_rx, wait_tx,
};

pub(super) fn payloads_of_every_size_arrive(make: Make) {
    for bytes in [64, 4096, 1 << 18] {
        let (mut tx, mut rx) = make(SlotShape { bytes, capacity: 3 });
        let sizes = [0, 1, 31, 32, 33, 63, 64, 65, bytes - 1, bytes];
        for (slot, len) in (0..).zip(sizes.into_iter().filter(|&len| len <= bytes)) {
            let (frame, sent) = (frame(len, slot), payload(len, slot));
            wait_tx(&mut *tx).unwrap();
            give(&mut *tx, &frame, &sent).unwrap();
            wait_rx(&mut *rx, &frame, Some(&mut *tx)).unwrap();
            assert!(rx.ready(&frame).unwrap(), "ready stays true until the release");
            assert_eq!(take(&mut *rx, len), sent, "{len} of {bytes} bytes");
        }
    }
}

/// `send_from` has read the whole payload when it returns; `recv_into` writes to the given memory
/// alone, and only if the frame is the expected one.
pub(super) fn payloads_come_from_and_go_to_any_memory(make: Make) {
    for bytes in [64, 1 << 14, 1 << 15, 1 << 22] {
        let shape = SlotShape { bytes, capacity: 4 };
        let (mut tx, mut rx) = make(shape);
        let sizes = [0, 1, 63, bytes / 2 + 1, bytes];
        let mut sent = 0;
        let mut taken = 0;
        while taken < 2 * sizes.len() {
            let len = |slot: usize| sizes[slot % sizes.len()];
            while sent < 2 * sizes.len() && tx.ready().unwrap() {
                let mut mine = payload(len(sent), sent as u64);
                let view = Src::from(mine.as_slice());
                tx.send_from(&frame(len(sent), sent as u64), view).unwrap();
                mine.fill(0xaa);
                sent += 1;
            }
            let (expect, mut out) = (frame(len(taken), taken as u64), vec![0; len(taken)]);
            until("a payload has landed", || {
                tx.flush().unwrap();
                rx.recv_into(&expect, Dst::from(out.as_mut_slice())).unwrap()
            });
            rx.release();
            assert_eq!(out, payload(len(taken), taken as u64), "{} of {bytes} bytes", len(taken));
            taken += 1;
        }
        let len = bytes - 1;
        wait_tx(&mut *tx).unwrap();
        tx.send_from(&frame(len, 99), Src::from(payload(len, 99).as_slice())).unwrap();
        let mut out = vec![0; len];
        let mut fault = None;
        until("the wrong frame is seen", || {
            tx.flush().unwrap();
            fault = rx.recv_into(&frame(len, 98), Dst::from(out.as_mut_slice())).err();
            fault.is_some()
        });
        assert!(
            matches!(fault, Some(Fault::Mismatch { field: MismatchField::Sequence, .. })),
            "{fault:?}"
        );
        assert!(out.iter().all(|&byte| byte == 0), "a wrong frame's payload was stored");
    }
}

/// A payload that has come in part moves from the memory of `recv_into` to the link's own.
pub(super) fn a_payload_that_is_half_there_can_be_taken_over(make: Make) {
    let (mut tx, mut rx) = make(SlotShape { bytes: 1 << 24, capacity: 2 });
    let (len, mut out) = ((1 << 24) - 5, vec![0; 1 << 24]);
    let (expect, out) = (frame(len, 3), &mut out[..len]);
    let sent = payload(len, 3);
    tx.send_from(&expect, Src::from(sent.as_slice())).unwrap();
    let mut is_here = false;
    // On TCP a part comes, since no socket takes so much at once.
    until("the payload begins to come", || {
        tx.flush().unwrap();
        is_here = rx.recv_into(&expect, Dst::from(&mut *out)).unwrap();
        is_here || out.starts_with(&sent[..1])
    });
    if !is_here {
        rx.take_over(Src::from(&*out));
        out.fill(0xaa);
        until("the rest has come", || {
            tx.flush().unwrap();
            rx.ready(&expect).unwrap()
        });
        let kept = rx.peek(len);
        let mut found = vec![0; len];
        Dst::from(&mut found[..]).fill(kept);
        assert!(found == sent, "other bytes");
        assert!(out.iter().all(|&byte| byte == 0xaa), "memory was written after it was given back");
    }
    rx.release();
}

pub(super) fn a_peeked_header_shows_the_call_and_takes_nothing(make: Make) {
    let (mut tx, mut rx) = make(SMALL);
    assert_eq!(rx.peek_header(), None);
    for slot in 7..9 {
        let frame = frame(100, slot);
        let Frame { sequence, fingerprint, .. } = frame;
        let header = PeekedHeader { sequence, fingerprint };
        give(&mut *tx, &frame, &payload(100, slot)).unwrap();
        until("there is something to see", || {
            tx.flush().unwrap();
            rx.peek_header() == Some(header)
        });
        wait_rx(&mut *rx, &frame, Some(&mut *tx)).unwrap();
        assert_eq!(rx.peek_header(), Some(header));
        assert_eq!(take(&mut *rx, 100), payload(100, slot));
        assert_eq!(rx.peek_header(), None);
    }
}

pub(super) fn slots_arrive_in_order_past_any_wrap(make: Make) {
    let (mut tx, mut rx) = make(SMALL);
    let slots = (1 << 16) + 100;
    let (mut sent, mut taken) = (0, 0);
    while taken < slots {
        for _ in 0..1 + sent % SMALL.capacity as u64 {
            if sent < slots && tx.ready().unwrap() {
                give(&mut *tx, &frame(8, sent), &sent.to_le_bytes()).unwrap();
                sent += 1;
            }
        }
        for _ in 0..(1 + taken % 3).min(sent - taken) {
            wait_rx(&mut *rx, &frame(8, taken), Some(&mut *tx)).unwrap();
            assert_eq!(take(&mut *rx, 8), taken.to_le_bytes());
            taken += 1;
        }
    }
}

pub(super) fn commit_never_waits_for_the_peer(make: Make) {
    for capacity in [1, 2, 8, 33] {
        let (mut tx, mut rx) = make(SlotShape { bytes: 64, capacity });
        for slot in 0..capacity as u64 {
            assert!(tx.ready().unwrap(), "slot {slot} of {capacity}");
            give(&mut *tx, &frame(64, slot), &payload(64, slot)).unwrap();
        }
        for slot in 0..capacity as u64 {
            wait_rx(&mut *rx, &frame(64, slot), Some(&mut *tx)).unwrap();
            assert_eq!(take(&mut *rx, 64), payload(64, slot));
        }
    }
}

pub(super) fn a_full_link_turns_ready_again(make: Make) {
    let shape = SlotShape { bytes: 1 << 17, capacity: 5 };
    let (mut tx, mut rx) = make(shape);
    let (mut sent, mut taken) = (0, 0);
    for round in 1..=2 {
        let mut held = 0;
        until("the link is full", || {
            let room = tx.ready().unwrap();
            if room {
                give(&mut *tx, &frame(shape.bytes, sent), &payload(shape.bytes, sent)).unwrap();
                sent += 1;
                held += usize::from(tx.outgoing().is_some());
            }
            !room
        });
        assert!(
            held == 0 || held >= shape.capacity,
            "held {held}: all slots can wait for a network"
        );
        assert!(sent - taken >= shape.capacity as u64, "round {round}");
        while taken < sent {
            wait_rx(&mut *rx, &frame(shape.bytes, taken), Some(&mut *tx)).unwrap();
            assert_eq!(take(&mut *rx, shape.bytes), payload(shape.bytes, taken), "slot {taken}");
            taken += 1;
        }
        assert!(tx.flush().unwrap() && tx.ready().unwrap(), "round {round}");
        assert_eq!(tx.outgoing(), None, "nothing is left to send");
    }
}

pub(super) fn a_full_link_wakes_its_sender_and_outlives_it(make: Make) {
    let shape = SlotShape { bytes: 1 << 17, capacity: 5 };
    let (mut tx, mut rx) = make(shape);
    let (mut sent, start) = (0, Instant::now());
    let mut fill = |tx: &mut dyn Tx, most| {
        while sent < most && tx.ready().unwrap() {
            give(tx, &frame(shape.bytes, sent), &payload(shape.bytes, sent)).unwrap();
            sent += 1;
        }
        sent
    };
    let full = fill(&mut *tx, u64::MAX);
    let reader = thread::spawn(move || {
        for slot in 0.. {
            if let Err(end) = wait_rx(&mut *rx, &frame(shape.bytes, slot), None) {
                return (slot, end);
            }
            assert_eq!(take(&mut *rx, shape.bytes), payload(shape.bytes, slot), "slot {slot}");
        }
        unreachable!()
    });
    while !tx.ready().unwrap() {
        tx.park(DEADLINE, &[]);
    }
    assert!(start.elapsed() < DEADLINE, "this wait does not need its limit");
    let all = fill(&mut *tx, full + 50);
    drop(tx);
    let (taken, end) = reader.join().unwrap();
    assert!(is_lost(end));
    assert!(all > full && taken == all, "{taken} of {all}");
}

pub(super) fn an_unexpected_frame_is_refused(make: Make) {
    let sent = frame(32, 5);
    for (name, expect, ours, theirs) in [
        (MismatchField::Len, Frame { len: 33, ..sent }, 33, 32),
        (MismatchField::Len, Frame { len: 0, ..sent }, 0, 32),
        (MismatchField::Sequence, Frame { sequence: 6, ..sent }, 6, 5),
        (MismatchField::Fingerprint, Frame { fingerprint: 1, ..sent }, 1, sent.fingerprint),
    ] {
        let (mut tx, mut rx) = make(SMALL);
        give(&mut *tx, &sent, &payload(32, 0)).unwrap();
        let found = wait_rx(&mut *rx, &expect, Some(&mut *tx)).unwrap_err();
        match found {
            Fault::Mismatch { field, ours: a, theirs: b } => {
                assert_eq!((field, a, b), (name, ours, theirs));
            }
            other => panic!("{name:?}: {other:?}"),
        }
    }
}

pub(super) fn a_sender_that_leaves_is_read_to_the_end(make: Make) {
    let (mut tx, mut rx) = make(SMALL);
    for slot in 0..3 {
        give(&mut *tx, &frame(100, slot), &payload(100, slot)).unwrap();
    }
    drop(tx);
    for slot in 0..3 {
        rx.check_alive().unwrap();
        wait_rx(&mut *rx, &frame(100, slot), None).unwrap();
        assert_eq!(take(&mut *rx, 100), payload(100, slot));
    }
    assert!(is_lost(wait_rx(&mut *rx, &frame(100, 3), None).unwrap_err()));
}

pub(super) fn a_receiver_that_leaves_ends_a_wait(make: Make) {
    let shape = SlotShape { bytes: 1 << 17, capacity: 5 };
    let (mut tx, rx) = make(shape);
    let waiting = thread::spawn(move || {
        loop {
            if let Err(fault) = wait_tx(&mut *tx) {
                return fault;
            }
            if let Err(fault) = give(&mut *tx, &frame(shape.bytes, 0), &vec![0; shape.bytes]) {
                return fault;
            }
        }
    });
    drop(rx);
    assert!(is_lost(waiting.join().unwrap()));
}

pub(super) fn check_alive_finds_a_peer_that_left(make: Make) {
    let (tx, mut rx) = make(SMALL);
    rx.check_alive().unwrap();
    drop(tx);
    until("the receiver notices", || rx.check_alive().is_err());
    let (mut tx, rx) = make(SMALL);
    tx.check_alive().unwrap();
    drop(rx);
    until("the sender notices", || tx.check_alive().is_err());
}

pub(super) fn park_ends_with_its_limit_data_or_an_outgoing_link(make: Make) {
    let (mut tx, mut rx) = make(SMALL);
    assert!(!rx.ready(&frame(8, 0)).unwrap());
    rx.park(TICK, &[]);
    tx.park(TICK, &[]);
    let (writable, _peer) = UnixStream::pair().unwrap();
    let start = Instant::now();
    rx.park(DEADLINE, &[writable.as_raw_fd()]);
    tx.park(DEADLINE, &[writable.as_raw_fd()]);
    let sender = thread::spawn(move || {
        give(&mut *tx, &frame(8, 0), &payload(8, 0)).unwrap();
        tx
    });
    while !rx.ready(&frame(8, 0)).unwrap() {
        rx.park(DEADLINE, &[]);
    }
    assert!(start.elapsed() < DEADLINE, "none of these waits needs its limit");
    drop(sender.join().unwrap());
}

pub(super) fn two_threads_play_ping_pong(make: Make) {
    const SLOTS: u64 = 10_000;
    let (mut there, mut back) = (make(SMALL), make(SMALL));
    let player = thread::spawn(move || {
        for slot in 0..SLOTS {
            wait_rx(&mut *there.1, &frame(100, slot), Some(&mut *back.0)).unwrap();
            let bytes = take(&mut *there.1, 100);
            wait_tx(&mut *back.0).unwrap();
            give(&mut *back.0, &frame(100, slot), &bytes).unwrap();
        }
    });
    for slot in 0..SLOTS {
        wait_tx(&mut *there.0).unwrap();
        give(&mut *there.0, &frame(100, slot), &payload(100, slot)).unwrap();
        wait_rx(&mut *back.1, &frame(100, slot), Some(&mut *there.0)).unwrap();
        assert_eq!(take(&mut *back.1, 100), payload(100, slot));
    }
    player.join().unwrap();
}
