//! Fuzz target: a record with arbitrary bytes in its memory. Law: reading it never panics, and no
//! value out of range is reported.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::layout::{MAGIC, OPERATIONS, RecordMemory, bytes};
use super::reader;
use crate::memory::mapping::Region;

/// Entries of communicators that the data writes.
const WRITTEN: usize = 256;

/// Reads a record made of `data`: pieces of a 2-byte index of an entry and its eight words.
pub fn record(data: &[u8]) {
    static MEMORY: OnceLock<Option<RecordMemory>> = OnceLock::new();
    let memory =
        MEMORY.get_or_init(|| Region::anonymous_on_use(bytes()).ok().map(RecordMemory::new));
    let Some(memory) = memory else { return };
    memory.header().magic.store(MAGIC, Ordering::Relaxed);
    for at in 0..OPERATIONS {
        memory.entry(at).number.store(0, Ordering::Relaxed);
    }
    for at in 0..WRITTEN {
        memory.communicator(at).key.store(0, Ordering::Relaxed);
    }
    for piece in data.as_chunks::<66>().0 {
        let at = u64::from(u16::from_le_bytes([piece[0], piece[1]]));
        let word =
            |i: usize| piece[2 + 8 * i..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        if at < OPERATIONS {
            let it = memory.entry(at);
            let words =
                [&it.number, &it.what, &it.sequence, &it.count, &it.bytes, &it.start, &it.end];
            for (i, to) in words.into_iter().chain([&it.position]).enumerate() {
                to.store(word(i), Ordering::Relaxed);
            }
        } else {
            let at = at as usize % WRITTEN;
            memory.header().used.store(word(5), Ordering::Relaxed);
            let it = memory.communicator(at);
            let words = [&it.key, &it.rank, &it.size, &it.made, &it.taken];
            for (i, to) in words.into_iter().chain(&it.name).enumerate() {
                to.store(word(i), Ordering::Relaxed);
            }
        }
    }
    let Some(record) = reader::record(memory) else { return };
    assert!(record.ops.is_sorted_by_key(|op| op.number) && record.ops.len() <= OPERATIONS as usize);
    for member in record.communicators.iter().flatten() {
        assert!(!member.name.to_string().contains(char::is_control));
    }
    for op in &record.ops {
        assert!(op.end >= op.start);
        assert!(op.communicator.is_none_or(|at| record.communicators[at].is_some()));
        let _ = (op.code.name(), op.code.dtype(), op.code.op(), op.code.algorithm());
    }
}
