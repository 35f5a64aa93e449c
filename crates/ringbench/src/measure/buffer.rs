//! A buffer to measure with: aligned, or off alignment by a given number of bytes, with its pages
//! touched, and between two guards that no collective may write to.

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};
use ringreduce::{Communicator, Registered};

use crate::cli::Memory as Kind;
use tools::sizes::human;

const LINE: usize = 64;
/// The alignment of registered buffers, which large buffers of programs nearly have.
const PAGE: usize = 4096;
/// An allocation above 32 MiB gets a mapping of its own and begins at the same offset in its page
/// at every rank, so that all ranks pass the same part of it. Untouched memory costs nothing.
const OWN_MAPPING: usize = (32 << 20) + 1;
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
    /// The buffer's offset in the memory.
    at: usize,
}

impl Guarded {
    /// Allocates memory. Collective over all ranks.
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
                let mut memory = comm.alloc(padded(capacity, PAGE + unalign))?;
                memory.fill(CANARY);
                memory
            }
            Kind::Register => {
                // A registration must live as long as its memory: the process's life.
                let memory = touched(capacity, PAGE + unalign, OWN_MAPPING)?;
                comm.register(Box::leak(Box::new(memory)))?
            }
        };
        Ok(Self::of(Memory::Registered(memory), PAGE, unalign))
    }

    fn of(memory: Memory, align: usize, unalign: usize) -> Self {
        let at = memory[GUARD..].as_ptr().align_offset(align) + GUARD + unalign;
        Self { memory, at }
    }

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

    /// Sets the guards around the first `len` bytes, and these bytes, to the canary.
    pub(crate) fn arm(&mut self, len: usize) {
        self.guarded_mut(len).fill(CANARY);
    }

    /// The number of guard bytes around the first `len` bytes that were written since
    /// [`Self::arm`].
    pub(crate) fn overwritten_guard_bytes(&self, len: usize) -> u64 {
        let all = self.guarded(len);
        let guards = [&all[..GUARD], &all[GUARD + len..]];
        guards.into_iter().flatten().filter(|&&byte| byte != CANARY).count() as u64
    }
}

fn padded(capacity: usize, off: usize) -> usize {
    capacity.saturating_add(2 * GUARD + off)
}

/// Ordinary memory, written once: the first touch of a page is not part of any measurement.
fn touched(capacity: usize, off: usize, reserved: usize) -> Result<Vec<u8>> {
    let len = padded(capacity, off);
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(len.max(reserved))
        .with_context(|| format!("no memory for a buffer of {}: lower -e", human(capacity)))?;
    memory.resize(len, CANARY);
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
    fn writes_outside_the_buffer_are_counted() {
        let mut buffer = guarded(1000, 0).unwrap();
        assert_eq!(buffer.get(1000).as_ptr().align_offset(LINE), 0);
        buffer.arm(100);
        buffer.get_mut(100).fill(7);
        assert_eq!(buffer.overwritten_guard_bytes(100), 0);
        buffer.get_mut(102).fill(7);
        assert_eq!(buffer.overwritten_guard_bytes(100), 2);
        let before = buffer.at - 1;
        buffer.memory[before] = 0;
        assert_eq!(buffer.overwritten_guard_bytes(100), 3);
    }

    #[test]
    fn a_buffer_is_off_alignment_as_asked() {
        let buffer = guarded(10, 3).unwrap();
        assert_eq!(buffer.get(10).as_ptr().align_offset(LINE), LINE - 3);
    }

    /// Calls on buffers at different offsets would be refused.
    #[test]
    fn registered_buffers_have_the_same_offset_at_all_ranks() {
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
                        assert_eq!(buffer.overwritten_guard_bytes(capacity), 0);
                    }
                });
            }
        });
    }

    #[test]
    fn a_buffer_larger_than_memory_is_an_error() {
        assert!(guarded(isize::MAX as usize - 1, 0).is_err());
    }
}
