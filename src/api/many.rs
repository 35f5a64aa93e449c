//! Many buffers as one: what would be many small calls is one. May touch: as `comm`.
//! Law: nothing is packed; slots are filled from the buffers and emptied into them.

use bytemuck::cast_slice_mut;

use super::Communicator;
use super::verb::count;
use crate::element::{DataType, Element, Reduction};
use crate::engine::Head;
use crate::engine::pieces::Whole;
use crate::error::Result;
use crate::plan::{Request, mix};
use crate::schedule::Collective;

pub(crate) const NAME: &str = "all_reduce_many";

impl Communicator {
    /// Reduces each of `bufs` over all ranks, in place, as one [`Self::all_reduce`] of all of them
    /// one after the other would: with its bits, and its few messages. All ranks pass as many
    /// buffers, each of the same length as the others' at that place.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let (mut weights, mut bias) = (vec![1.0_f32; 1000], [2.0_f32; 10]);
    /// comm.all_reduce_many(&mut [&mut weights[..], &mut bias], ReduceOp::Avg)?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn all_reduce_many<T: Element, B: AsMut<[T]>>(
        &mut self,
        bufs: &mut [B],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let bytes = bufs.iter_mut().map(|buf| cast_slice_mut(buf.as_mut()));
        self.many(bytes, T::DTYPE, op.into())
    }

    /// As [`Self::all_reduce_many`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::all_reduce_many`]; and if a buffer is not whole elements.
    pub fn all_reduce_many_bytes<B: AsMut<[u8]>>(
        &mut self,
        bufs: &mut [B],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.many(bufs.iter_mut().map(B::as_mut), dtype, op.into())
    }

    /// The same, of buffers that need no list.
    pub(crate) fn many<'a>(
        &mut self,
        bufs: impl Iterator<Item = &'a mut [u8]>,
        dtype: DataType,
        op: Reduction,
    ) -> Result<()> {
        let mut pieces = std::mem::take(&mut self.at_home(NAME)?.0.pieces).emptied();
        let (mut all, mut lengths) = (0, mix(1));
        for buf in bufs {
            let elements = count(NAME, "bufs", buf.len(), dtype)?;
            all += elements;
            lengths = mix(lengths ^ elements as u64);
            pieces.update(buf);
        }
        let request =
            Request { collective: Collective::AllReduce, count: all, dtype, op: Some(op) };
        // Told from one buffer by where the pieces end.
        let kernel = self.kernel(&request)?;
        let head = &Head { name: NAME, stands_for: lengths, ..Head::of(&request, kernel) };
        let (request, buffer) = (&request, &pieces.buffer());
        let done = self.run_whole(&Whole { head, request, blocks: None, buffer });
        self.at_home(NAME)?.0.pieces = pieces.emptied();
        done
    }
}
