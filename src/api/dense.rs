//! The collectives whose parts are equally long, typed and by bytes: a line for each, which says
//! which buffers it has, its collective, and whether it takes an operation and a root.
//! May touch: as `comm`. Law: a verb is a cast to bytes and a call of `verb`; nothing else is
//! compiled for each type.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verb::{Verb, root_rank};
use crate::element::{DataType, Element, ReduceOp, Reduction};
use crate::error::Result;
use crate::schedule::Collective;

/// The collective that a line of a table of verbs names, of this type.
macro_rules! verb {
    ($dtype:expr, $of:ident $(by $op:ident)?) => {
        Verb { collective: Collective::$of, dtype: $dtype, op: verb!(@op $($op)?) }
    };
    ($dtype:expr, $of:ident $(by $op:ident)? with $root:ident) => {
        Verb {
            collective: Collective::$of { root: root_rank($root) },
            dtype: $dtype,
            op: verb!(@op $($op)?),
        }
    };
    (@op) => { None };
    (@op $op:ident) => { Some($op.into()) };
}
pub(crate) use verb;

macro_rules! verbs {
    ($(
        $(#[$doc:meta])*
        $form:ident $name:ident, $bytes:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;
    )*) => {
        impl Communicator {
            $(verbs!(@ $form [$(#[$doc])*] $name, $bytes: $of [$($op)?] [$($root)?]
                [$of $(by $op)? $(with $root)?]);)*
        }
    };
    (@ out_of_place [$($docs:tt)*] $name:ident, $bytes:ident: $of:ident [$($op:ident)?]
        [$($root:ident)?] [$($verb:tt)*]) => {
        $($docs)*
        pub fn $name<T: Element>(
            &mut self,
            send: &[T],
            recv: &mut [T],
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            let verb = verb!(T::DTYPE, $($verb)*);
            self.out_of_place(verb, cast_slice(send), cast_slice_mut(recv))
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time; \
            the buffers may have any alignment.")]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if a buffer is not whole \
            elements.")]
        pub fn $bytes(
            &mut self,
            send: &[u8],
            recv: &mut [u8],
            dtype: DataType,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            self.out_of_place(verb!(dtype, $($verb)*), send, recv)
        }
    };
    (@ $form:ident [$($docs:tt)*] $name:ident, $bytes:ident: $of:ident [$($op:ident)?]
        [$($root:ident)?] [$($verb:tt)*]) => {
        $($docs)*
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut [T],
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            self.$form(verb!(T::DTYPE, $($verb)*), cast_slice_mut(buf))
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time; \
            `buf` may have any alignment.")]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if `buf` is not whole \
            elements.")]
        pub fn $bytes(
            &mut self,
            buf: &mut [u8],
            dtype: DataType,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            self.$form(verb!(dtype, $($verb)*), buf)
        }
    };
}

verbs! {
    /// Reduces `buf` over all ranks, element by element, in place. All ranks pass the same length
    /// and operation and end with the same bits.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut buf = [1.0_f32, 2.0];
    /// comm.all_reduce(&mut buf, ReduceOp::Sum)?;
    /// assert_eq!(buf, [1.0, 2.0]); // times the number of ranks
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a peer is lost, makes another call or does not come before the timeout.
    in_place all_reduce, all_reduce_bytes: AllReduce by op;

    /// Reduces `send` over all ranks into `recv`, which has the same length.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (send, mut recv) = ([1, 2], [0; 2]);
    /// comm.all_reduce_into(&send, &mut recv, ReduceOp::Max)?;
    /// assert_eq!(recv, send);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths differ.
    out_of_place all_reduce_into, all_reduce_into_bytes: AllReduce by op;

    /// Reduces `send`, size x `recv.len()` long, over all ranks; part r of the result goes to
    /// rank r's `recv`.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut part = [0; 2];
    /// let all = vec![1; comm.size() * part.len()];
    /// comm.reduce_scatter(&all, &mut part, ReduceOp::Avg)?;
    /// assert_eq!(part, [1, 1]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place reduce_scatter, reduce_scatter_bytes: ReduceScatter by op;

    /// As [`Self::reduce_scatter`], in place: `buf` is size parts long, and part `rank` of it
    /// becomes the result; the others stay as they are.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut all = vec![1; comm.size() * 2];
    /// comm.reduce_scatter_in_place(&mut all, ReduceOp::Avg)?;
    /// let own = comm.rank() * 2;
    /// assert_eq!(all[own..own + 2], [1, 1]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_own_part reduce_scatter_in_place, reduce_scatter_in_place_bytes: ReduceScatter by op;

    /// Every rank's `send`, in rank order, to everybody's `recv`, size x `send.len()` long.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut all = vec![0; comm.size()];
    /// comm.all_gather(&[comm.rank()].map(|it| it as u32), &mut all)?;
    /// assert!(all.into_iter().eq(0..comm.size() as u32));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place all_gather, all_gather_bytes: AllGather;

    /// As [`Self::all_gather`], in place: part `rank` of `buf` is what this rank gives.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (rank, mut all) = (comm.rank(), vec![0; comm.size()]);
    /// all[rank] = rank as u32;
    /// comm.all_gather_in_place(&mut all)?;
    /// assert!(all.into_iter().eq(0..comm.size() as u32));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_own_part all_gather_in_place, all_gather_in_place_bytes: AllGather;

    /// The root's `buf` to everybody's, of the same length.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut seed = [if comm.rank() == 0 { 42_u64 } else { 0 }];
    /// comm.broadcast(&mut seed, 0)?;
    /// assert_eq!(seed, [42]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    in_place broadcast, broadcast_bytes: Broadcast with root;

    /// Reduces `buf` over all ranks, element by element, in place at the root. The others' stay as
    /// they are.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut ranks = [1];
    /// comm.reduce(&mut ranks, ReduceOp::Sum, 0)?;
    /// assert!(comm.rank() != 0 || ranks[0] as usize == comm.size());
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    in_place reduce, reduce_bytes: Reduce by op with root;

    /// Reduces `send` over all ranks into the root's `recv`, which has the same length; the others'
    /// `recv` is not looked at and may be empty.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (send, mut recv) = ([1, 2], [0; 2]);
    /// comm.reduce_into(&send, &mut recv, ReduceOp::Min, 0)?;
    /// assert!(comm.rank() != 0 || recv == send);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::reduce`]; and at the root if the lengths differ.
    out_of_place reduce_into, reduce_into_bytes: Reduce by op with root;

    /// Every rank's `send`, in rank order, to the root's `recv`, size x `send.len()` long; the
    /// others' `recv` is not looked at and may be empty.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut all = if comm.rank() == 0 { vec![0; comm.size()] } else { vec![] };
    /// comm.gather(&[7], &mut all, 0)?;
    /// assert!(all.iter().all(|&it| it == 7));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; if there is no such root, and at the root if the lengths do not
    /// fit.
    out_of_place gather, gather_bytes: Gather with root;

    /// Part r of the root's `send`, size x `recv.len()` long, to rank r's `recv`; the others'
    /// `send` is not looked at and may be empty.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let all = if comm.rank() == 0 { vec![7; comm.size()] } else { vec![] };
    /// let mut own = [0];
    /// comm.scatter(&all, &mut own, 0)?;
    /// assert_eq!(own, [7]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::gather`].
    out_of_place scatter, scatter_bytes: Scatter with root;

    /// Part r of `send` to rank r, whose own part for this rank becomes part r of `recv`. Both are
    /// of size equal parts.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let send = vec![comm.rank() as u32; comm.size()];
    /// let mut recv = vec![0; comm.size()];
    /// comm.all_to_all(&send, &mut recv)?;
    /// assert!(recv.into_iter().eq(0..comm.size() as u32));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place all_to_all, all_to_all_bytes: AllToAll;

    /// As [`Self::all_to_all`], in place.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut parts = vec![comm.rank() as u32; comm.size()];
    /// comm.all_to_all_in_place(&mut parts)?;
    /// assert!(parts.into_iter().eq(0..comm.size() as u32));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_place all_to_all_in_place, all_to_all_in_place_bytes: AllToAll;

    /// Reduces `buf` over the ranks from 0 to this one, in the order of ranks, in place.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut upto = [1];
    /// comm.scan(&mut upto, ReduceOp::Sum)?;
    /// assert_eq!(upto[0] as usize, comm.rank() + 1);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `op` is the average, of which there is none.
    in_place scan, scan_bytes: Scan by op;

    /// Reduces `send` over the ranks from 0 to this one into `recv`, which has the same length.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut upto = [0];
    /// comm.scan_into(&[1], &mut upto, ReduceOp::Sum)?;
    /// assert_eq!(upto[0], comm.rank() as i32 + 1);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::scan`]; and if the lengths differ.
    out_of_place scan_into, scan_into_bytes: Scan by op;

    /// Reduces `buf` over the ranks from 0 to the one before this, in the order of ranks, in place.
    /// Rank 0's stays as it is.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut elements = [10];
    /// comm.exscan(&mut elements, ReduceOp::Sum)?;
    /// let start = if comm.rank() == 0 { 0 } else { elements[0] };
    /// assert_eq!(start, 10 * comm.rank() as i32);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::scan`].
    in_place exscan, exscan_bytes: Exscan by op;

    /// Reduces `send` over the ranks from 0 to the one before this into `recv`, which has the same
    /// length. Rank 0's `recv` stays as it is.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut start = [0];
    /// comm.exscan_into(&[10], &mut start, ReduceOp::Sum)?;
    /// assert_eq!(start[0], 10 * comm.rank() as i32);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::scan_into`].
    out_of_place exscan_into, exscan_into_bytes: Exscan by op;
}

impl Communicator {
    /// Returns when every rank has called it.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// comm.barrier()?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        let op = ReduceOp::Max;
        self.in_place(verb!(DataType::U8, Barrier by op), &mut [0])
    }
}
