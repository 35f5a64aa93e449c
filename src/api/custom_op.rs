//! Collectives that reduce by a closure of the caller's, over any plain type.

mod c_function;

use core::any::type_name;
use core::panic::Location;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::Communicator;
use super::call::{Buffers, Call};
use crate::element::{DataType, LARGEST, Reduction};
use crate::error::{Result, argument_error};
use crate::kernel::Kernel;
use crate::plan::{digest, mix};
use crate::schedule::Collective;

/// The order in which a user-defined reduction combines the ranks' contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoldOrder {
    /// Any order, the same on every rank and in every run; for functions that are commutative.
    Any,
    /// ((rank 0, rank 1), rank 2), ...; for functions that are associative only.
    Ranks,
}

impl Communicator {
    /// Reduces `buf` over all ranks by `f`, element by element, in place. The left argument of `f`
    /// comes from the rank that is earlier in the fold.
    ///
    /// All ranks pass the same function, length and order, and end with the same bits. Ranks
    /// compare functions by name; closures and function pointers, which have none, by their type
    /// and by the file, line and column of this call.
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
    /// With [`FoldOrder::Ranks`] and without links between all pairs
    /// ([`Builder::all_pairs`](crate::Builder::all_pairs)) every rank receives every contribution:
    /// the call moves as many bytes as an `all_gather`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if an element is empty or larger than 4096 bytes. If `f`
    /// panics, every further call on the communicator fails.
    #[track_caller]
    pub fn all_reduce_by<T: Pod>(
        &mut self,
        buf: &mut [T],
        order: FoldOrder,
        f: impl Fn(&T, &T) -> T + Sync,
    ) -> Result<()> {
        let by = user_reduction::<T, _>(Collective::AllReduce, &f, Location::caller())?;
        let (call, kernel) = (reduction(Collective::AllReduce), Kernel::for_closure(&f));
        let buffers = Buffers::InPlace(cast_slice_mut(buf));
        self.call(&call.by_function(by, &kernel, order), buffers)
    }

    /// Reduces `send`, size x `recv.len()` long, over all ranks by `f`; part r of the result goes
    /// to rank r's `recv`. As [`Self::all_reduce_by`]; with [`FoldOrder::Ranks`] and without links
    /// between all pairs every rank receives every contribution to its part.
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
        let by = user_reduction::<T, _>(Collective::ReduceScatter, &f, Location::caller())?;
        let (call, kernel) = (reduction(Collective::ReduceScatter), Kernel::for_closure(&f));
        let buffers = Buffers::OutOfPlace { send: cast_slice(send), recv: cast_slice_mut(recv) };
        self.call(&call.by_function(by, &kernel, order), buffers)
    }
}

/// A call whose elements only the user's function knows.
fn reduction(collective: Collective) -> Call<'static> {
    Call::new(collective, DataType::U8)
}

/// Refuses elements of a size that user-defined reductions can't have.
pub(super) fn check_element_size(
    call: &'static str,
    argument: &'static str,
    size: usize,
) -> Result<()> {
    if (1..=LARGEST).contains(&size) {
        return Ok(());
    }
    let expected = format!("elements of 1 to {LARGEST} bytes");
    argument_error(call, argument, format!("elements of {size} bytes"), expected)
}

/// The reduction by a function, with the digest by which ranks compare functions.
fn user_reduction<T: Pod, F>(call: Collective, _: &F, place: &Location<'_>) -> Result<Reduction> {
    check_element_size(call.name(), "T", size_of::<T>())?;
    let name = type_name::<F>();
    // All closures of a function have the name of that function, and all function pointers that of
    // their type.
    let has_name = size_of::<F>() == 0 && !name.contains("{{closure}}");
    let (file, line, column) = (place.file(), place.line(), place.column());
    let place = [digest(file.as_bytes()), line.into(), column.into()];
    let names = [name, type_name::<T>()].map(|name| digest(name.as_bytes()));
    let identity = names.into_iter().chain(place.into_iter().filter(|_| !has_name));
    Ok(Reduction::user(identity.fold(0, |digest, part| mix(digest ^ part)), size_of::<T>()))
}
