//! Sends and receives of these tests: as an executor makes them, with a deadline on every wait.

use std::time::{Duration, Instant};

use ringreduce::memory::Dst;
use ringreduce::partition::SlotShape;
use ringreduce::transport::{Fault, Frame, Rx, Tx};

/// The longest wait; a test that takes longer hangs.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);
pub(super) const TICK: Duration = Duration::from_millis(20);
pub(super) const SMALL: SlotShape = SlotShape { bytes: 128, capacity: 4 };

pub(super) fn frame(len: usize, sequence: u64) -> Frame {
    Frame { len: len as u32, sequence, fingerprint: 0xfeed_0000_0000_beef }
}

/// Bytes that differ from slot to slot.
pub(super) fn payload(len: usize, slot: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (slot.wrapping_mul(0x9e37_79b9) + i * 31) as u8).collect()
}

/// Fills the next slot, which must be free, and commits it.
pub(super) fn give(tx: &mut dyn Tx, frame: &Frame, bytes: &[u8]) -> Result<(), Fault> {
    let mut slot = tx.reserve(bytes.len()).unwrap();
    assert_eq!(slot.len(), bytes.len());
    // SAFETY: the view is valid for its length, which was just compared, and exclusively lent.
    unsafe { slot.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    tx.commit(frame)
}

/// Copies the next slot, which must be filled, and releases it.
pub(super) fn take(rx: &mut dyn Rx, len: usize) -> Vec<u8> {
    let slot = rx.peek(len);
    assert_eq!(slot.len(), len);
    // SAFETY: the view is valid for its length, and lent until the release below.
    let bytes = unsafe { std::slice::from_raw_parts(slot.ptr(), len) }.to_vec();
    let start = slot.ptr();
    if let Some((read, mut written)) = rx.peek_mut(len) {
        assert_eq!([read.ptr(), written.ptr().cast_const()], [start; 2]);
        assert_eq!([read.len(), written.len()], [len; 2]);
    }
    rx.release();
    bytes
}

pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
    }
}

pub(super) fn wait_tx(tx: &mut dyn Tx) -> Result<(), Fault> {
    let start = Instant::now();
    while !tx.ready()? {
        assert!(start.elapsed() < DEADLINE, "no free slot within {DEADLINE:?}");
        tx.park(TICK, &[]);
        tx.check_alive()?;
    }
    Ok(())
}

/// Waits for the next slot and flushes `other` meanwhile, as an executor does.
pub(super) fn wait_rx(
    rx: &mut dyn Rx,
    expect: &Frame,
    mut other: Option<&mut dyn Tx>,
) -> Result<(), Fault> {
    let start = Instant::now();
    while !rx.ready(expect)? {
        assert!(start.elapsed() < DEADLINE, "no slot within {DEADLINE:?}");
        let mut outgoing = None;
        if let Some(tx) = other.as_mut() {
            tx.flush()?;
            outgoing = tx.outgoing();
        }
        rx.park(TICK, outgoing.as_slice());
        rx.check_alive()?;
    }
    Ok(())
}

/// Receives the payload of the next slot into `out`, as [`Rx::recv_into`] does; the caller releases
/// the slot.
pub(super) fn land(rx: &mut dyn Rx, expect: &Frame, out: &mut [u8]) -> Result<(), Fault> {
    let start = Instant::now();
    while !rx.recv_into(expect, Dst::from(&mut *out))? {
        assert!(start.elapsed() < DEADLINE, "no payload within {DEADLINE:?}");
        std::thread::yield_now();
    }
    Ok(())
}

pub(super) fn is_lost(fault: Fault) -> bool {
    matches!(fault, Fault::Lost(why) if !why.is_empty())
}
