//! Records whatever is in their memory, for the fuzzer. It is built for the fuzzer alone.
//! May touch: as `flight`. Law: no panic, and nothing is believed that can't be.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::layout::{Board, KEPT, MAGIC, MEMBERS, bytes};
use super::reader;
use crate::memory::mapping::Region;

/// The bytes are pieces of a record: which line of it, and its eight words.
pub fn record(data: &[u8]) {
    static BOARD: OnceLock<Option<Board>> = OnceLock::new();
    let board = BOARD.get_or_init(|| Region::anonymous(bytes()).ok().map(Board::new));
    let Some(board) = board else { return };
    board.head().magic.store(MAGIC, Ordering::Relaxed);
    for at in 0..KEPT {
        board.entry(at).number.store(0, Ordering::Relaxed);
    }
    for piece in data.as_chunks::<66>().0 {
        let at = u64::from(u16::from_le_bytes([piece[0], piece[1]]));
        let word =
            |i: usize| piece[2 + 8 * i..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        if at < KEPT {
            let it = board.entry(at);
            let words =
                [&it.number, &it.what, &it.sequence, &it.count, &it.bytes, &it.start, &it.end];
            for (i, to) in words.into_iter().chain([&it.place]).enumerate() {
                to.store(word(i), Ordering::Relaxed);
            }
        } else {
            let it = board.group(at as usize % MEMBERS);
            let words = [&it.key, &it.rank, &it.size, &it.made, &it.taken];
            for (i, to) in words.into_iter().enumerate() {
                to.store(word(i), Ordering::Relaxed);
            }
        }
    }
    let Some(record) = reader::record(board) else { return };
    assert!(record.ops.is_sorted_by_key(|op| op.number) && record.ops.len() <= KEPT as usize);
    for op in &record.ops {
        assert!(op.end >= op.start && op.member.is_none_or(|at| record.members[at].is_some()));
        let _ = (op.what.name(), op.what.dtype(), op.what.op(), op.what.algorithm());
    }
}
