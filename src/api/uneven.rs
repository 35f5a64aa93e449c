//! The collectives whose parts differ in length. One part follows the other, in the order of ranks;
//! `counts` says how many elements each has. May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::dense::verb;
use super::verb::{Verb, count, refuse, root_rank};
use crate::element::{DataType, Element, Reduction};
use crate::engine::linked_up_to;
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::{Blocks, Request};
use crate::schedule::{Collective, Ring};

/// A line for each verb, as in the table of the others.
macro_rules! verbs {
    ($(
        $(#[$doc:meta])*
        $name:ident, $bytes:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;
    )*) => {
        impl Communicator {$(
            $(#[$doc])*
            pub fn $name<T: Element>(
                &mut self,
                send: &[T],
                recv: &mut [T],
                counts: &[usize],
                $($op: impl Into<Reduction>,)?
                $($root: usize,)?
            ) -> Result<()> {
                let verb = verb!(T::DTYPE, $of $(by $op)? $(with $root)?);
                self.out_of_place_v(verb, cast_slice(send), cast_slice_mut(recv), counts)
            }

            #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run \
                time; the buffers may have any alignment. `counts` are elements.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($name), "`]; and if a buffer is not whole \
                elements.")]
            pub fn $bytes(
                &mut self,
                send: &[u8],
                recv: &mut [u8],
                counts: &[usize],
                dtype: DataType,
                $($op: impl Into<Reduction>,)?
                $($root: usize,)?
            ) -> Result<()> {
                let verb = verb!(dtype, $of $(by $op)? $(with $root)?);
                self.out_of_place_v(verb, send, recv, counts)
            }
        )*}
    };
}

verbs! {
    /// Every rank's `send`, in rank order, to everybody's `recv`. All ranks pass the same `counts`:
    /// the length of each rank's `send`.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let counts: Vec<usize> = (1..=comm.size()).collect(); // rank 0 has 1, rank 1 has 2
    /// let (own, whole) = (counts[comm.rank()], counts.iter().sum());
    /// let mut all = vec![0; whole];
    /// comm.all_gather_v(&vec![7; own], &mut all, &counts)?;
    /// assert!(all.iter().all(|&it| it == 7));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths are not those that `counts` says.
    all_gather_v, all_gather_v_bytes: AllGather;

    /// Reduces `send` over all ranks, element by element; part r of the result goes to rank r's
    /// `recv`. All ranks pass the same `counts`: the length of each rank's `recv`.
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let counts: Vec<usize> = (1..=comm.size()).collect(); // rank 0 has 1, rank 1 has 2
    /// let (own, whole) = (counts[comm.rank()], counts.iter().sum());
    /// let mut part = vec![0; own];
    /// comm.reduce_scatter_v(&vec![7; whole], &mut part, &counts, ReduceOp::Max)?;
    /// assert!(part.iter().all(|&it| it == 7));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_gather_v`].
    reduce_scatter_v, reduce_scatter_v_bytes: ReduceScatter by op;

    /// Every rank's `send`, in rank order, to the root's `recv`; the others' `recv` is not looked
    /// at and may be empty. All ranks pass the same `counts`: the length of each rank's `send`.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let counts: Vec<usize> = (1..=comm.size()).collect(); // rank 0 has 1, rank 1 has 2
    /// let (own, whole) = (counts[comm.rank()], counts.iter().sum());
    /// let mut all = vec![0; if comm.rank() == 0 { whole } else { 0 }];
    /// comm.gather_v(&vec![7; own], &mut all, &counts, 0)?;
    /// assert!(all.iter().all(|&it| it == 7));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; if there is no such root; and in worlds without links
    /// between all pairs: see [`Builder::all_pairs`](crate::Builder::all_pairs).
    gather_v, gather_v_bytes: Gather with root;

    /// Part r of the root's `send` to rank r's `recv`; the others' `send` is not looked at and may
    /// be empty. All ranks pass the same `counts`: the length of each rank's `recv`.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let counts: Vec<usize> = (1..=comm.size()).collect(); // rank 0 has 1, rank 1 has 2
    /// let (own, whole) = (counts[comm.rank()], counts.iter().sum());
    /// let all = vec![7; if comm.rank() == 0 { whole } else { 0 }];
    /// let mut part = vec![0; own];
    /// comm.scatter_v(&all, &mut part, &counts, 0)?;
    /// assert!(part.iter().all(|&it| it == 7));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::gather_v`].
    scatter_v, scatter_v_bytes: Scatter with root;
}

impl Communicator {
    /// Part r of `send` to rank r, whose own part for this rank becomes part r of `recv`. Each rank
    /// says how long its parts are: what one sends is what the other expects.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (send_counts, recv_counts) = (vec![2; comm.size()], vec![2; comm.size()]);
    /// let (send, mut recv) = (vec![7; 2 * comm.size()], vec![0; 2 * comm.size()]);
    /// comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts)?;
    /// assert_eq!(recv, send);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::gather_v`]; and if two ranks differ over the length of what one sends the other:
    /// then the one that receives says so, and the others have lost it, in this call or the next.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let (send, recv) = (cast_slice(send), cast_slice_mut(recv));
        self.all_to_all_v_bytes(send, send_counts, recv, recv_counts, T::DTYPE)
    }

    /// As [`Self::all_to_all_v`], with the type known at run time; the buffers may have any
    /// alignment. Counts are elements.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`]; and if a buffer is not whole elements.
    pub fn all_to_all_v_bytes(
        &mut self,
        send: &[u8],
        send_counts: &[usize],
        recv: &mut [u8],
        recv_counts: &[usize],
        dtype: DataType,
    ) -> Result<()> {
        let call = Uneven::of(Collective::AllToAll);
        call.all_pairs(self.ring(call.name)?)?;
        let lens = [
            count(call.name, "send", send.len(), dtype)?,
            count(call.name, "recv", recv.len(), dtype)?,
        ];
        call.each_to_each(self, [send_counts, recv_counts], lens)?;
        let blocks = Blocks::new(send_counts, recv_counts, &[]);
        let buffer = Buffer::apart(send, recv);
        self.run_uneven(call.name, &call.request(dtype, None), blocks, &buffer)
    }
}

/// A collective whose parts differ in length, and its method's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uneven {
    pub(super) collective: Collective,
    pub(crate) name: &'static str,
}

impl Uneven {
    pub(crate) fn of(collective: Collective) -> Self {
        let name = match collective {
            Collective::AllGather => "all_gather_v",
            Collective::ReduceScatter => "reduce_scatter_v",
            Collective::Gather { .. } => "gather_v",
            Collective::Scatter { .. } => "scatter_v",
            _ => "all_to_all_v",
        };
        Self { collective, name }
    }

    /// Do the counts of an all-to-all, one for each rank, fit buffers of so many elements?
    pub(crate) fn each_to_each(
        &self,
        comm: &Communicator,
        [send, recv]: [&[usize]; 2],
        [send_len, recv_len]: [usize; 2],
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        self.one_each("send_counts", send, size)?;
        self.one_each("recv_counts", recv, size)?;
        self.whole("send_counts", send, "send", send_len)?;
        self.whole("recv_counts", recv, "recv", recv_len)?;
        if send[rank] == recv[rank] {
            return Ok(());
        }
        let given = format!("{} for this rank itself", recv[rank]);
        refuse(self.name, "recv_counts", given, format!("{}, as send_counts", send[rank]))
    }

    pub(crate) fn request(&self, dtype: DataType, op: Option<Reduction>) -> Request {
        Request { collective: self.collective, count: 0, dtype, op }
    }

    pub(super) fn all_pairs(&self, ring: &Ring) -> Result<()> {
        if ring.all_pairs() {
            return Ok(());
        }
        let expected =
            format!("at most {}: {}", ring.most_pairs(), linked_up_to(ring.most_pairs()));
        refuse(self.name, "size", ring.size(), expected)
    }

    fn one_each(&self, argument: &'static str, counts: &[usize], size: usize) -> Result<()> {
        if counts.len() == size {
            return Ok(());
        }
        let given = format!("{} numbers long", counts.len());
        refuse(self.name, argument, given, format!("{size}, one for each rank"))
    }

    /// This rank's entry of `counts`, which must be the length of its buffer.
    pub(crate) fn own<'a>(
        &self,
        counts: &'a [usize],
        size: usize,
        rank: usize,
        argument: &'static str,
        len: usize,
    ) -> Result<&'a [usize]> {
        self.one_each("counts", counts, size)?;
        let mine = counts[rank];
        if mine == len {
            return Ok(&counts[rank..=rank]);
        }
        let expected = format!("{mine}, what counts says of rank {rank}");
        refuse(self.name, argument, format!("{len} elements long"), expected)
    }

    /// Do `counts` add up to the length of a buffer?
    pub(crate) fn whole(
        &self,
        argument: &'static str,
        counts: &[usize],
        buffer: &'static str,
        len: usize,
    ) -> Result<()> {
        let total = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        if total == Some(len) {
            return Ok(());
        }
        let total = total.map_or("more than there is address space".into(), |sum| sum.to_string());
        let given = format!("{total} elements together");
        refuse(self.name, argument, given, format!("{len}, the length of {buffer}"))
    }
}
