//! The two ends of a FIFO and the slots between them.

#[path = "../../../src/transport/fifo/slot_ownership.rs"]
mod slot_ownership;

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::sync::Sleeper;
use crate::transport::Frame;
use slot_ownership::{Header, SharedWords};

const LIMIT: Duration = Duration::from_millis(10);

/// The memory that both ends map; the payload of a slot is one number.
struct Memory {
    control: SharedWords,
    slots: Vec<(Header, UnsafeCell<u32>)>,
}

impl Memory {
    fn new(capacity: usize) -> Self {
        let slot = |_| (Header::default(), UnsafeCell::new(0));
        Self { control: SharedWords::default(), slots: (0..capacity).map(slot).collect() }
    }

    fn slot(&self, number: u32) -> &(Header, UnsafeCell<u32>) {
        &self.slots[number as usize % self.slots.len()]
    }
}

fn frame(number: u32) -> Frame {
    let sequence = u64::from(number) + 7;
    Frame { len: number, sequence, fingerprint: !sequence }
}

fn send(memory: &Memory, count: u32) {
    let mut released = 0;
    for number in 0..count {
        while number.wrapping_sub(released) as usize >= memory.slots.len() {
            let now = memory.control.released();
            if now == released {
                memory.control.sleep_on_release(released, LIMIT);
            }
            released = now;
        }
        let (header, payload) = memory.slot(number);
        // SAFETY: loom panics if both ends access the payload.
        payload.with_mut(|payload| unsafe { *payload = number + 100 });
        header.fill(number, &frame(number), &memory.control, Sleeper::wake);
        if number == 0 {
            memory.control.sender.attach();
        }
    }
}

fn receive(memory: &Memory, count: u32) {
    for number in 0..count {
        let (header, payload) = memory.slot(number);
        while !header.is_filled(number) {
            header.sleep_until_filled(number, &memory.control, LIMIT);
        }
        assert_eq!(header.frame(), frame(number));
        // SAFETY: loom panics if both ends access the payload.
        assert_eq!(payload.with(|payload| unsafe { *payload }), number + 100);
        if number == 0 {
            memory.control.receiver.attach();
        }
        memory.control.release(number.wrapping_add(1), Sleeper::wake);
    }
}

fn walk(capacity: usize, count: u32) {
    loom::model(move || {
        let memory = Arc::new(Memory::new(capacity));
        let its = Arc::clone(&memory);
        let sender = thread::spawn(move || send(&its, count));
        receive(&memory, count);
        sender.join().unwrap();
    });
}

#[test]
fn one_slot() {
    walk(1, 2);
}

#[test]
fn two_slots() {
    walk(2, 3);
}
