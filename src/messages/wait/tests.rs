//! Threads that wait for messages of one rank side by side.

use super::*;
use crate::Communicator;

fn pair() -> [Communicator; 2] {
    Communicator::local(2).unwrap().try_into().unwrap()
}

fn message(tag: u32) -> Awaited {
    Awaited::Message(Expected { source: Some(1), tag: Some(tag) })
}

/// A thread that looks takes the packets of all; one that sleeps is woken for its own alone.
#[test]
fn a_thread_that_takes_the_packets_of_a_sleeping_one_wakes_it() {
    let [here, there] = pair();
    let messages = here.rank_info.messages.shared();
    let is_rung = |limit| messages.bell.sleep(&[], &[], limit);
    let sleep = messages.lock().note_sleep(&[Waiting::new(message(7), Some(1))]);
    there.messenger().send(&[1_u8], 0, 8).unwrap();
    while !messages.has_ended(message(8)) {}
    assert!(!is_rung(Duration::ZERO), "it does not sleep for this message");
    there.messenger().send(&[1_u8], 0, 7).unwrap();
    while !messages.has_ended(message(7)) {}
    assert!(is_rung(Duration::from_secs(60)));
    messages.lock().slept_for.retain(|&(other, _)| other != sleep);
    assert!(!messages.has_ended(message(9)) && !is_rung(Duration::ZERO));
}

/// The wait of a thread is over at its timeout although messages of others come and go.
#[test]
fn a_wait_sees_its_timeout_while_other_messages_move() {
    const MESSAGES: usize = 2000;
    let [here, there] = pair();
    let (here, there) = (here.messenger(), there.messenger());
    let received = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let long = vec![1_u8; 1 << 20];
            (0..MESSAGES).for_each(|_| there.send(&long, 0, 1).unwrap());
        });
        scope.spawn(|| {
            let mut long = vec![0_u8; 1 << 20];
            for _ in 0..MESSAGES {
                here.recv(&mut long, 1, 1).unwrap();
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let soon = here.with_timeout(Duration::from_millis(20));
        let error = soon.recv(&mut [0_u8], 1, 2).unwrap_err();
        assert!(matches!(error, crate::Error::Timeout { .. }), "{error}");
        let received = received.load(Ordering::Relaxed);
        assert!(received < MESSAGES / 2, "after {received} messages of {MESSAGES}");
    });
}
