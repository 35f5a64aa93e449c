//! Collectives that reduce by a function of the caller's, over any plain type.
//! May touch: as `comm`.

use core::any::type_name;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::{CallOptions, Communicator};
use crate::element::{DataType, Reduction};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, LARGEST};
use crate::memory::{Buffer, Dst, Src};
use crate::plan::{Request, digest};
use crate::schedule::Collective;

/// In which order a caller's function is given what the ranks contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldOrder {
    /// In any, the same on every rank and in every run: for functions that are commutative.
    Any,
    /// ((rank 0, rank 1), rank 2), ...: for functions that are associative at most.
    Ranks,
}

/// Bytes of each rank's contribution that are gathered at once where the order is that of ranks.
const GATHERED: usize = 64 << 10;

impl Communicator {
    /// Reduces `buf` over all ranks by `f`, element by element, in place; the left argument comes
    /// from the rank that is earlier in the fold. All ranks pass the same function, length and
    /// order, and end with the same bits. Functions are told apart by the names of their types,
    /// which are those of the place where they are written.
    ///
    /// ```
    /// use ringreduce::{Communicator, FoldOrder};
    /// let mut comm = Communicator::local(1)?.remove(0);
    /// let mut spans = [[3_u32, 7]];
    /// comm.all_reduce_by(&mut spans, FoldOrder::Any, |a, b| [a[0].min(b[0]), a[1].max(b[1])])?;
    /// assert_eq!(spans, [[3, 7]]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// In [`FoldOrder::Ranks`] and worlds without links between all pairs
    /// ([`Builder::all_pairs`](crate::Builder::all_pairs)) every rank receives every contribution:
    /// it costs as many bytes as an `all_gather`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if an element is empty or larger than 4096 bytes. If `f`
    /// panics, the communicator is of no more use.
    pub fn all_reduce_by<T: Pod>(
        &mut self,
        buf: &mut [T],
        order: FoldOrder,
        f: impl Fn(&T, &T) -> T + Sync,
    ) -> Result<()> {
        let by = user::<T, _>(Collective::AllReduce, &f)?;
        let kernel = Kernel::by(&f);
        let all_pairs = self.ring(Collective::AllReduce.name())?.all_pairs();
        self.guarded(|comm| match order {
            FoldOrder::Any => {
                let request = request(Collective::AllReduce, buf.len(), by);
                comm.run_by(&request, &Buffer::in_place(cast_slice_mut(buf)), kernel)
            }
            FoldOrder::Ranks if all_pairs => {
                let request = request(Collective::AllReduce, buf.len(), by);
                let buffer = Buffer::in_place(cast_slice_mut(buf));
                comm.with(in_order()).run_by(&request, &buffer, kernel)
            }
            FoldOrder::Ranks => comm.gathered(by, buf, kernel),
        })
    }

    /// Reduces `send`, size x `recv.len()` long, over all ranks by `f`; part r of the result goes
    /// to rank r's `recv`. As [`Self::all_reduce_by`]; in [`FoldOrder::Ranks`] and worlds without
    /// links between all pairs every rank receives every contribution to every part.
    ///
    /// # Errors
    /// As [`Self::all_reduce_by`]; and if the lengths do not fit.
    pub fn reduce_scatter_by<T: Pod>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        order: FoldOrder,
        f: impl Fn(&T, &T) -> T + Sync,
    ) -> Result<()> {
        let call = Collective::ReduceScatter;
        let by = user::<T, _>(call, &f)?;
        if recv.len().checked_mul(self.size()) != Some(send.len()) {
            let (given, argument) = (format!("{} elements long", send.len()), "send");
            let expected = format!("size x recv, {} x {}", self.size(), recv.len());
            return Err(Error::Argument { call: call.name(), argument, given, expected });
        }
        let mine = self.rank() * recv.len();
        let kernel = Kernel::by(&f);
        let all_pairs = self.ring(call.name())?.all_pairs();
        self.guarded(|comm| match order {
            FoldOrder::Any => {
                let request = request(call, recv.len(), by);
                let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
                comm.run_by(&request, &buffer, kernel)
            }
            FoldOrder::Ranks if all_pairs => {
                let request = request(call, recv.len(), by);
                let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
                comm.with(in_order()).run_by(&request, &buffer, kernel)
            }
            FoldOrder::Ranks => {
                let mut all = send.to_vec();
                comm.gathered(by, &mut all, kernel)?;
                recv.copy_from_slice(&all[mine..mine + recv.len()]);
                Ok(())
            }
        })
    }

    /// Gathers what all ranks contribute, a piece at a time, and folds it here.
    fn gathered<T: Pod>(&mut self, by: Reduction, buf: &mut [T], kernel: Kernel<'_>) -> Result<()> {
        let (size, rank) = (self.size(), self.rank());
        let count = (GATHERED / size_of::<T>()).min(buf.len()).max(1);
        let mut all = vec![T::zeroed(); count * size];
        // Once at least: an empty buffer too is a call that the others are told of.
        for at in (0..buf.len().max(1)).step_by(count) {
            let piece = at..buf.len().min(at + count);
            let (piece, len) = (&mut buf[piece.clone()], piece.len());
            let all = &mut all[..len * size];
            all[rank * len..][..len].copy_from_slice(piece);
            let request = request(Collective::AllGather, len, by);
            if size > 1 {
                let (whole, mine) = self.parts::<T>(len);
                self.run_by(&request, &Buffer::within(cast_slice_mut(all), mine, whole), kernel)?;
            }
            let sources = all.chunks(len.max(1)).map(|part| Src::from(cast_slice(part)));
            let sources: Vec<Src<'_>> = sources.collect();
            if len > 0 {
                kernel.fold(true, &mut [Dst::from(cast_slice_mut(piece))], &sources);
            }
        }
        Ok(())
    }

    /// After a panic of the function the communicator is broken: the others are in the middle of
    /// the call.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut call = Unfinished { comm: self, finished: false };
        let result = work(call.comm);
        call.finished = true;
        result
    }
}

/// Breaks the communicator unless the call came to an end.
struct Unfinished<'a> {
    comm: &'a mut Communicator,
    finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.finished
            && let Some(engine) = &mut self.comm.engine
        {
            engine.give_up("the function of a reduction panicked".into());
        }
    }
}

fn request(collective: Collective, count: usize, by: Reduction) -> Request {
    Request { collective, count, dtype: DataType::U8, op: Some(by) }
}

/// One by one, from rank 0 on.
fn in_order() -> CallOptions {
    CallOptions::new().deterministic(true)
}

/// A function as other ranks know it.
fn user<T: Pod, F: Fn(&T, &T) -> T>(call: Collective, _: &F) -> Result<Reduction> {
    let size = size_of::<T>();
    if !(1..=LARGEST).contains(&size) {
        let (given, argument) = (format!("{} of {size} bytes", type_name::<T>()), "T");
        let expected = format!("elements of 1 to {LARGEST} bytes");
        return Err(Error::Argument { call: call.name(), argument, given, expected });
    }
    let names = [type_name::<F>(), type_name::<T>()].concat();
    Ok(Reduction::user(digest(names.as_bytes()), size))
}
