//! Collectives that reduce by a function of the caller's, over any plain type.
//! May touch: as `comm`.

use core::any::type_name;
use core::panic::Location;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::Communicator;
use super::options::CallOptions;
use super::verb::{refuse, same_length};
use crate::element::{DataType, LARGEST, Reduction};
use crate::engine::Head;
use crate::engine::pieces::{Pieces, Whole};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::{Request, digest, mix};
use crate::schedule::Collective;

/// In which order a caller's function is given what the ranks contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoldOrder {
    /// In any, the same on every rank and in every run: for functions that are commutative.
    Any,
    /// ((rank 0, rank 1), rank 2), ...: for functions that are associative at most.
    Ranks,
}

impl Communicator {
    /// Reduces `buf` over all ranks by `f`, element by element, in place; the left argument comes
    /// from the rank that is earlier in the fold. All ranks pass the same function, length and
    /// order, and end with the same bits. A function that has a name is known to the others by it;
    /// a closure or function pointer by its type and the line and column of this call.
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
    #[track_caller]
    pub fn all_reduce_by<T: Pod>(
        &mut self,
        buf: &mut [T],
        order: FoldOrder,
        f: impl Fn(&T, &T) -> T + Sync,
    ) -> Result<()> {
        let by = known_as::<T, _>(Collective::AllReduce, &f, Location::caller())?;
        let request = request(Collective::AllReduce, buf.len(), by);
        let buffer = Buffer::in_place(cast_slice_mut(buf));
        self.reduce_by(&request, order, Kernel::by(&f), &buffer)
    }

    /// Reduces `send`, size x `recv.len()` long, over all ranks by `f`; part r of the result goes
    /// to rank r's `recv`. As [`Self::all_reduce_by`]; in [`FoldOrder::Ranks`] and worlds without
    /// links between all pairs every rank receives every contribution to its part.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// # use ringreduce::FoldOrder;
    /// let (all, mut part) = (vec![[1, 7]; comm.size()], [[0; 2]]);
    /// let widest = |a: &[i32; 2], b: &[i32; 2]| [a[0].min(b[0]), a[1].max(b[1])];
    /// comm.reduce_scatter_by(&all, &mut part, FoldOrder::Any, widest)?;
    /// assert_eq!(part, [[1, 7]]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce_by`]; and if the lengths do not fit.
    #[track_caller]
    pub fn reduce_scatter_by<T: Pod>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        order: FoldOrder,
        f: impl Fn(&T, &T) -> T + Sync,
    ) -> Result<()> {
        let call = Collective::ReduceScatter;
        let by = known_as::<T, _>(call, &f, Location::caller())?;
        let request = request(call, recv.len(), by);
        let (send, recv) = (cast_slice(send), cast_slice_mut(recv));
        let whole = recv.len().checked_mul(self.size());
        same_length(call, "send", send.len(), whole, "size x recv")?;
        self.reduce_by(&request, order, Kernel::by(&f), &Buffer::apart(send, recv))
    }

    /// Makes such a call. After a panic of the function the communicator is broken: the others are
    /// in the middle of the call.
    pub(super) fn reduce_by(
        &mut self,
        request: &Request,
        order: FoldOrder,
        kernel: Kernel<'_>,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        let all_pairs = self.ring(request.collective.name())?.all_pairs();
        let mut call = Unfinished { comm: self, finished: false };
        let comm = &mut *call.comm;
        let head = &Head::of(request, kernel);
        let whole = &Whole { head, request, blocks: None, buffer };
        let result = match order {
            FoldOrder::Any => comm.make_call(whole, None),
            FoldOrder::Ranks if all_pairs => comm.with(in_order()).make_call(whole, None),
            FoldOrder::Ranks => comm.make_call(whole, Some(&gathering(request, kernel))),
        };
        call.finished = true;
        result
    }
}

/// The calls that bring a rank everybody's contributions to what it gets.
fn gathering<'a>(request: &Request, kernel: Kernel<'a>) -> Pieces<'a> {
    let blocks = request.collective.has_blocks();
    let collective = if blocks { Collective::AllToAll } else { Collective::AllGather };
    Pieces { call: Request { collective, ..*request }, kernel, scale: None }
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

pub(super) fn request(collective: Collective, count: usize, by: Reduction) -> Request {
    Request { collective, count, dtype: DataType::U8, op: Some(by) }
}

/// One by one, from rank 0 on.
fn in_order() -> CallOptions {
    CallOptions::new().deterministic(true)
}

/// Elements of so many bytes can be reduced by a function.
pub(super) fn fits(call: Collective, argument: &'static str, size: usize) -> Result<()> {
    if (1..=LARGEST).contains(&size) {
        return Ok(());
    }
    let expected = format!("elements of 1 to {LARGEST} bytes");
    refuse(call.name(), argument, format!("elements of {size} bytes"), expected)
}

/// A function as other ranks know it.
fn known_as<T: Pod, F>(call: Collective, _: &F, place: &Location<'_>) -> Result<Reduction> {
    fits(call, "T", size_of::<T>())?;
    let name = type_name::<F>();
    // All closures of a function have the name of that function, and pointers that of a type.
    let has_name = size_of::<F>() == 0 && !name.contains("{{closure}}");
    let (file, line, column) = (place.file(), place.line(), place.column());
    let place = [digest(file.as_bytes()), line.into(), column.into()];
    let names = [name, type_name::<T>()].map(|name| digest(name.as_bytes()));
    let known = names.into_iter().chain(place.into_iter().filter(|_| !has_name));
    Ok(Reduction::user(known.fold(0, |known, more| mix(known ^ more)), size_of::<T>()))
}
