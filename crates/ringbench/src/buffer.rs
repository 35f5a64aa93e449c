//! A buffer to measure with: aligned (or off by as much as asked), touched, and with a guard on
//! either side that no collective may write to.

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};
use ringreduce::{Communicator, Registered};

use crate::cli::Memory as Kind;
use crate::sizes::human;

const LINE: usize = 64;
/// Registered buffers begin a page, as large ones of programs nearly do.
const PAGE: usize = 4096;
/// An allocation of more than 32 MiB has a mapping of its own, at whose beginning it lies: so it
/// begins at the same place in its page at every rank, and all ranks pass the same part of it.
/// Memory that is reserved and not touched costs nothing.
const MAPPED: usize = (32 << 20) + 1;
/// Bytes watched on either side.
pub(crate) const GUARD: usize = 128;
const CANARY: u8 = 0xa5;

enum Memory {
    Plain(Vec<u8>),
    Registered(Registered<'static, u8>),
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

/// Memory for up to a given number of bytes between two guards.
pub(crate) struct Guarded {
    memory: Memory,
    /// Where the buffer begins in it.
    at: usize,
}

impl Guarded {
    /// Memory of one kind; all ranks together.
    pub(crate) fn new(
        comm: &mut Communicator,
        kind: Kind,
        capacity: usize,
        unalign: usize,
    ) -> Result<Self> {
        let memory = match kind {
            Kind::Plain => {
                let memory = touched(capacity, LINE + unalign, 0)?;
                return Ok(Self::of(Memory::Plain(memory), LINE, unalign));
            }
            Kind::Alloc => {
                let mut memory = comm.alloc(whole(capacity, PAGE + unalign))?;
                memory.fill(CANARY);
                memory
            }
            Kind::Register => {
                // It stays for as long as the process does.
                let memory = touched(capacity, PAGE + unalign, MAPPED)?;
                comm.register(Box::leak(Box::new(memory)))?
            }
        };
        Ok(Self::of(Memory::Registered(memory), PAGE, unalign))
    }

    fn of(memory: Memory, align: usize, unalign: usize) -> Self {
        let at = memory[GUARD..].as_ptr().align_offset(align) + GUARD + unalign;
        Self { memory, at }
    }

    /// The first `len` bytes.
    pub(crate) fn get(&self, len: usize) -> &[u8] {
        &self.memory[self.at..self.at + len]
    }

    pub(crate) fn get_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.at..self.at + len]
    }

    /// The first `len` bytes and the guards around them.
    pub(crate) fn guarded(&self, len: usize) -> &[u8] {
        &self.memory[self.at - GUARD..self.at + len + GUARD]
    }

    pub(crate) fn guarded_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.at - GUARD..self.at + len + GUARD]
    }

    /// Sets the guards around the first `len` bytes, and those to what no result looks like.
    pub(crate) fn arm(&mut self, len: usize) {
        self.guarded_mut(len).fill(CANARY);
    }

    /// Bytes beside the first `len` that were written since [`Self::arm`].
    pub(crate) fn breached(&self, len: usize) -> u64 {
        let all = self.guarded(len);
        let guards = [&all[..GUARD], &all[GUARD + len..]];
        guards.into_iter().flatten().filter(|&&byte| byte != CANARY).count() as u64
    }
}

fn whole(capacity: usize, off: usize) -> usize {
    capacity.saturating_add(2 * GUARD + off)
}

/// Ordinary memory that was written to, with room for so many bytes at least: that keeps the first
/// touch of a page out of every measurement.
fn touched(capacity: usize, off: usize, reserved: usize) -> Result<Vec<u8>> {
    let whole = whole(capacity, off);
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(whole.max(reserved))
        .with_context(|| format!("no memory for a buffer of {}: lower -e", human(capacity)))?;
    memory.resize(whole, CANARY);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use ringreduce::ReduceOp;

    use super::*;

    fn guarded(capacity: usize, unalign: usize) -> Result<Guarded> {
        let mut comm = Communicator::local(1).unwrap().remove(0);
        Guarded::new(&mut comm, Kind::Plain, capacity, unalign)
    }

    #[test]
    fn writes_beside_the_buffer_are_seen() {
        let mut buffer = guarded(1000, 0).unwrap();
        assert_eq!(buffer.get(1000).as_ptr().align_offset(LINE), 0);
        buffer.arm(100);
        buffer.get_mut(100).fill(7);
        assert_eq!(buffer.breached(100), 0);
        buffer.get_mut(102).fill(7);
        assert_eq!(buffer.breached(100), 2);
        let before = buffer.at - 1;
        buffer.memory[before] = 0;
        assert_eq!(buffer.breached(100), 3);
    }

    #[test]
    fn off_by_as_much_as_asked() {
        let buffer = guarded(10, 3).unwrap();
        assert_eq!(buffer.get(10).as_ptr().align_offset(LINE), LINE - 3);
    }

    /// Or calls on them would be refused.
    #[test]
    fn registered_buffers_lie_alike_at_all_ranks() {
        let ranks = Communicator::local(2).unwrap();
        std::thread::scope(|scope| {
            for mut comm in ranks {
                scope.spawn(move || {
                    for capacity in [1000, 300_000] {
                        let mut buffer =
                            Guarded::new(&mut comm, Kind::Register, capacity, 0).unwrap();
                        buffer.arm(capacity);
                        let part = buffer.get_mut(capacity);
                        assert_eq!(part.as_ptr().align_offset(PAGE), 0);
                        part.fill(1);
                        comm.all_reduce(part, ReduceOp::Sum).unwrap();
                        assert!(part.iter().all(|&it| it == 2));
                        assert_eq!(buffer.breached(capacity), 0);
                    }
                });
            }
        });
    }

    #[test]
    fn too_large_is_an_error() {
        assert!(guarded(isize::MAX as usize - 1, 0).is_err());
    }
}
