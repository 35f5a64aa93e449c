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
pub(super) use verb;

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
    /// # Errors
    /// If a peer is lost, makes another call or does not come before the timeout.
    in_place all_reduce, all_reduce_bytes: AllReduce by op;

    /// Reduces `send` over all ranks into `recv`, which has the same length.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths differ.
    out_of_place all_reduce_into, all_reduce_into_bytes: AllReduce by op;

    /// Reduces `send`, size x `recv.len()` long, over all ranks; part r of the result goes to
    /// rank r's `recv`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place reduce_scatter, reduce_scatter_bytes: ReduceScatter by op;

    /// As [`Self::reduce_scatter`], in place: `buf` is size parts long, and part `rank` of it
    /// becomes the result; the others stay as they are.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_own_part reduce_scatter_in_place, reduce_scatter_in_place_bytes: ReduceScatter by op;

    /// Every rank's `send`, in rank order, to everybody's `recv`, size x `send.len()` long.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place all_gather, all_gather_bytes: AllGather;

    /// As [`Self::all_gather`], in place: part `rank` of `buf` is what this rank gives.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_own_part all_gather_in_place, all_gather_in_place_bytes: AllGather;

    /// The root's `buf` to everybody's, of the same length.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    in_place broadcast, broadcast_bytes: Broadcast with root;

    /// Reduces `buf` over all ranks, element by element, in place at the root. The others' stay as
    /// they are.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    in_place reduce, reduce_bytes: Reduce by op with root;

    /// Reduces `send` over all ranks into the root's `recv`, which has the same length; the others'
    /// `recv` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::reduce`]; and at the root if the lengths differ.
    out_of_place reduce_into, reduce_into_bytes: Reduce by op with root;

    /// Every rank's `send`, in rank order, to the root's `recv`, size x `send.len()` long; the
    /// others' `recv` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; if there is no such root, and at the root if the lengths do not
    /// fit.
    out_of_place gather, gather_bytes: Gather with root;

    /// Part r of the root's `send`, size x `recv.len()` long, to rank r's `recv`; the others'
    /// `send` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::gather`].
    out_of_place scatter, scatter_bytes: Scatter with root;

    /// Part r of `send` to rank r, whose own part for this rank becomes part r of `recv`. Both are
    /// of size equal parts.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    out_of_place all_to_all, all_to_all_bytes: AllToAll;

    /// As [`Self::all_to_all`], in place.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    in_place all_to_all_in_place, all_to_all_in_place_bytes: AllToAll;

    /// Reduces `buf` over the ranks from 0 to this one, in the order of ranks, in place.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `op` is the average, of which there is none.
    in_place scan, scan_bytes: Scan by op;

    /// Reduces `send` over the ranks from 0 to this one into `recv`, which has the same length.
    ///
    /// # Errors
    /// As [`Self::scan`]; and if the lengths differ.
    out_of_place scan_into, scan_into_bytes: Scan by op;

    /// Reduces `buf` over the ranks from 0 to the one before this, in the order of ranks, in place.
    /// Rank 0's stays as it is.
    ///
    /// # Errors
    /// As [`Self::scan`].
    in_place exscan, exscan_bytes: Exscan by op;

    /// Reduces `send` over the ranks from 0 to the one before this into `recv`, which has the same
    /// length. Rank 0's `recv` stays as it is.
    ///
    /// # Errors
    /// As [`Self::scan_into`].
    out_of_place exscan_into, exscan_into_bytes: Exscan by op;
}

impl Communicator {
    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        let op = ReduceOp::Max;
        self.in_place(verb!(DataType::U8, Barrier by op), &mut [0])
    }
}
