//! Fuzz targets: the decoders of bytes that arrive over links. For tests and the fuzzer alone.
//! Law: no bytes make a decoder panic; bytes that a decoder accepts are encoded as the same bytes.
#![allow(missing_docs, reason = "tests and the fuzzer call these, by their names")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::tcp::interface::{Interface, choose};
use super::{Frame, Rx, Tx, fifo};
use crate::memory::mapping::Region;
use crate::memory::resource_limit;
use crate::partition::SlotShape;

pub use super::tcp::fuzz_header as header;

pub fn interfaces(data: &[u8]) {
    let Ok(spec) = std::str::from_utf8(data) else { return };
    let one = |name: &str, address: &str| {
        Some(Interface { name: name.into(), address: address.parse().ok()?, up: true })
    };
    let all = [one("lo", "127.0.0.1"), one("eth0", "10.1.2.3"), one("ib0", "fd00::1")];
    let all: Vec<_> = all.into_iter().flatten().collect();
    if let Ok(chosen) = choose(Some(spec), &all) {
        assert!(all.iter().any(|interface| interface.address == chosen));
    }
}

pub fn control_groups(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        resource_limit::fuzz(text);
    }
}

/// A link on shared memory into which another process writes any words while its two ends work.
/// Each piece of the input is the next action of an end, an offset and a word to write there.
pub fn shm_slots(data: &[u8]) {
    let shape = SlotShape { bytes: 96, capacity: 2 };
    let Ok((region, fd)) = Region::shared(fifo::footprint(&[shape])) else { return };
    let (region, file) = (Arc::new(region), File::from(fd));
    let memory = fifo::FifoMemory::whole(Arc::clone(&region), 1);
    let end = || fifo::Fifo::new(&memory, (&[shape], 0), None, None);
    let (mut tx, mut rx) = (fifo::Tx::new(end()), fifo::Rx::new(end()));
    let frame = Frame { len: 64, sequence: 2, fingerprint: 3 };
    let len = frame.len as usize;
    let (mut empty, mut filled) = (false, false);
    for &[doing, low, high, ref word @ ..] in data.as_chunks::<11>().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % (region.len() - word.len());
        if at > 0 && file.write_all_at(word, at as u64).is_err() {
            return;
        }
        match doing % 8 {
            0 => empty = tx.ready().unwrap_or(false),
            1 if empty => {
                let Ok(slot) = tx.reserve(len) else { return };
                slot.fill(crate::memory::Src::from(&[7; 64][..]));
                empty = tx.commit(&frame).is_err();
            }
            2 => filled |= rx.ready(&frame).unwrap_or(false),
            3 if filled => {
                let mut taken = [0; 64];
                crate::memory::Dst::from(&mut taken[..]).fill(rx.peek(len));
            }
            4 if filled => {
                rx.release();
                filled = false;
            }
            5 => rx.park(Duration::ZERO, &[]),
            6 => tx.park(Duration::ZERO, &[]),
            _ => {
                let _ = (rx.peek_header(), rx.check_alive(), tx.check_alive());
            }
        }
    }
}
