//! A subscriber of warnings panics while a rank waits for a message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::yield_now;
use std::time::Duration;

use harness::process::in_own_process;
use harness::ranks::pair;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Panics;

impl Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("on purpose");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A process of its own: where other threads register the place of a warning meanwhile, `tracing`
/// may keep that nobody listens there. A wait warns after five seconds.
pub(crate) fn awaits() {
    let [here, there] = pair();
    let (here, there) = (here.messenger(), there.messenger());
    let mut buf = [0_u8; 400];
    let receive = || here.with_timeout(Duration::from_secs(60)).recv(&mut buf, 1, 7);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        tracing::subscriber::with_default(Panics, receive).map(drop)
    }));
    assert!(panic.is_err());
    // The message meets no receive.
    there.send(&[1_u8; 400], 0, 7).unwrap();
    while here.try_probe(1, 7).unwrap().is_none() {
        yield_now();
    }
    assert_eq!(buf, [0; 400]);
    here.recv(&mut buf, 1, 7).unwrap();
    assert_eq!(buf, [1; 400]);
    // The worker makes progress while no thread waits.
    let long = here.irecv(vec![0_u8; 1 << 20], 1, 8).unwrap();
    there.send(&vec![2_u8; 1 << 20], 0, 8).unwrap();
    assert_eq!(long.wait().unwrap().0, vec![2; 1 << 20]);
}

#[test]
fn a_panic_while_a_message_is_awaited_ends_its_receive_and_nothing_else() {
    in_own_process("panicking_subscriber::awaits");
}
