//! One all-reduce over many buffers, as data-parallel training does with its gradients.
//! Law: nothing is packed; slots are filled from the buffers and emptied into them.

use bytemuck::cast_slice_mut;

use super::Communicator;
use super::collective::{check_reduction, element_count};
use crate::element::{DataType, Element, Reduction};
use crate::engine::CheckedCall;
use crate::error::Result;
use crate::plan::{Request, mix};
use crate::schedule::Collective;

pub(crate) const NAME: &str = "all_reduce_many";

impl Communicator {
    /// Reduces each of `bufs` over all ranks, in place, with the bits and the few messages of one
    /// [`Self::all_reduce`] over their concatenation. All ranks pass the same number of buffers,
    /// and buffers at the same index have the same length on all ranks.
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
        self.all_reduce_buffers(bytes, T::DTYPE, op.into())
    }

    /// As [`Self::all_reduce_many`], with the type known at run time; the buffers may have any
    /// alignment.
    ///
    /// # Errors
    /// As [`Self::all_reduce_many`]; and if a buffer is not whole elements.
    pub fn all_reduce_many_bytes<B: AsMut<[u8]>>(
        &mut self,
        bufs: &mut [B],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.all_reduce_buffers(bufs.iter_mut().map(B::as_mut), dtype, op.into())
    }

    /// Makes the call over an iterator of buffers, so that callers need not allocate a list.
    pub(crate) fn all_reduce_buffers<'a>(
        &mut self,
        bufs: impl Iterator<Item = &'a mut [u8]>,
        dtype: DataType,
        op: Reduction,
    ) -> Result<()> {
        let collective = Collective::AllReduce;
        check_reduction(NAME, collective, dtype, op)?;
        let mut pieces =
            std::mem::take(&mut self.engine_on_this_thread(NAME)?.0.buffer_list).cleared();
        let (mut all, mut lengths) = (0, mix(1));
        for buf in bufs {
            let elements = element_count(NAME, "bufs", buf.len(), dtype)?;
            all += elements;
            lengths = mix(lengths ^ elements as u64);
            pieces.add(buf);
        }
        let request = Request { collective, count: all, dtype, op: Some(op) };
        // The digest of the lengths tells this call from a call on one buffer, or on other lengths.
        let buffer = pieces.buffer();
        let (engine, settings) = self.engine_on_this_thread(NAME)?;
        let call = CheckedCall::of(&request, &buffer, settings);
        let done = engine.make(&CheckedCall { name: NAME, parent_digest: lengths, ..call });
        engine.buffer_list = pieces.cleared();
        done
    }
}
