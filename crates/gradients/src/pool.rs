//! Memory that is lent to one bucket after another, for ranks that keep a part of each result only.
//! Law: memory that comes back was handed to `keep` first.

use std::fmt;
use std::time::Instant;

use ringreduce::{Communicator, Registered, Result};

use crate::bucket::{Bucket, State};

/// Takes over the result of a bucket, before its memory is lent to another one.
pub type Keep = Box<dyn FnMut(usize, &mut [u8]) + Send>;

/// Buckets that have memory at a time: one is filled while another one is exchanged.
const LENT: usize = 2;

/// Memory for buckets. More than [`LENT`] buckets have some only where gradients come in an order
/// in which none of them can start.
pub(crate) struct Pool {
    keep: Keep,
    spare: Vec<Registered<'static, u8>>,
    made: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("made", &self.made).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(keep: Keep) -> Self {
        Self { keep, spare: Vec::new(), made: 0 }
    }

    /// Forgets all memory.
    pub(crate) fn clear(&mut self) {
        self.spare.clear();
        self.made = 0;
    }

    /// The number of memories that there are.
    pub(crate) fn made(&self) -> usize {
        self.made
    }

    /// Lends memory to a bucket that has none; waits for an earlier one where as much is lent as
    /// shall be.
    pub(crate) fn lend(
        &mut self,
        comm: &Communicator,
        buckets: &mut [Bucket],
        to: usize,
        waits: &mut Vec<(Instant, Instant)>,
    ) -> Result<()> {
        if self.spare.is_empty() && self.made >= LENT {
            let mut going = buckets
                .iter_mut()
                .enumerate()
                .filter(|(_, it)| matches!(it.state, State::Going(_)));
            if let Some((at, oldest)) = going.next()
                && let Some(memory) = oldest.wait(waits)?
            {
                self.take_back(at, oldest.len, memory);
            }
        }
        let memory = match self.spare.pop() {
            Some(memory) => memory,
            None => {
                self.made += 1;
                comm.alloc(buckets.iter().map(|bucket| bucket.len).max().unwrap_or(0))?
            }
        };
        buckets[to].lend(memory);
        Ok(())
    }

    /// Takes the memory of a bucket back, with its result.
    pub(crate) fn take_back(
        &mut self,
        bucket: usize,
        len: usize,
        mut memory: Registered<'static, u8>,
    ) {
        (self.keep)(bucket, &mut memory[..len]);
        self.spare.push(memory);
    }
}
