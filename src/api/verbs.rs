//! The table of verbs: one line for each collective method. [`Communicator`](crate::Communicator),
//! [`Queue`](crate::Queue), [`Group`](crate::Group) and [`OnStream`](crate::OnStream) make their
//! methods from it, each by a row macro of its own. Adding a verb is adding a line here.

/// Calls `$row!` for each line of the table. A line has the documentation of `Communicator`'s
/// method, the form, the name, the name of the `_bytes` twin, and the collective; `by op` if the
/// verb takes an operation, and `with root` if it takes a root. The form says which buffers the
/// verb has.
macro_rules! for_each_verb {
    (@lines $row:ident $(
        $(#[$doc:meta])*
        $form:ident $name:ident, $bytes:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;
    )*) => {
        $($row! {
            $form [$(#[$doc])*] $name, $bytes
            ($($op: impl Into<$crate::element::Reduction>,)? $($root: usize,)?)
            [$of ($($op)?) ($($root)?)]
        })*
    };
    ($row:ident) => { $crate::api::verbs::for_each_verb! { @lines $row
        /// Reduces `buf` over all ranks, element by element, in place. All ranks pass the same
        /// length and operation, and end with the same bits.
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

        /// As [`Self::reduce_scatter`], in place: `buf` has size parts, and part `rank` of it
        /// becomes the result; the other parts stay as they are.
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
        in_place reduce_scatter_in_place, reduce_scatter_in_place_bytes: ReduceScatter by op;

        /// Gathers every rank's `send`, in rank order, into `recv` on all ranks; `recv` is size x
        /// `send.len()` long.
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

        /// As [`Self::all_gather`], in place: part `rank` of `buf` is this rank's contribution.
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
        in_place all_gather_in_place, all_gather_in_place_bytes: AllGather;

        /// Copies the root's `buf` to `buf` on all ranks, which has the same length.
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

        /// Reduces `buf` over all ranks, element by element, in place at the root. The other ranks'
        /// `buf` stays as it is.
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

        /// Reduces `send` over all ranks into the root's `recv`, which has the same length. The
        /// other ranks' `recv` is not looked at and may be empty.
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

        /// Gathers every rank's `send`, in rank order, into the root's `recv`, size x `send.len()`
        /// long. The other ranks' `recv` is not looked at and may be empty.
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

        /// Copies part r of the root's `send`, size x `recv.len()` long, to rank r's `recv`. The
        /// other ranks' `send` is not looked at and may be empty.
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

        /// Sends part r of `send` to rank r, and stores the part that rank r sends to this rank as
        /// part r of `recv`. Both buffers have size equal parts.
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
        /// As [`Self::all_reduce`]; and if `op` is the average, which prefixes do not have.
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

        /// Reduces `buf` over the ranks from 0 to the one before this, in the order of ranks, in
        /// place. Rank 0's `buf` stays as it is.
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

        /// Reduces `send` over the ranks from 0 to the one before this into `recv`, which has the
        /// same length. Rank 0's `recv` stays as it is.
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

        /// Gathers every rank's `send`, in rank order, into `recv` on all ranks. All ranks pass the
        /// same `counts`: the length of each rank's `send`.
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
        /// As [`Self::all_reduce`]; and if the lengths are not those in `counts`.
        out_of_place_v all_gather_v, all_gather_v_bytes: AllGather;

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
        out_of_place_v reduce_scatter_v, reduce_scatter_v_bytes: ReduceScatter by op;

        /// Gathers every rank's `send`, in rank order, into the root's `recv`. The other ranks'
        /// `recv` is not looked at and may be empty. All ranks pass the same `counts`: the length
        /// of each rank's `send`.
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
        /// As [`Self::all_gather_v`]; if there is no such root; and without links between all
        /// pairs: see [`Builder::all_pairs`](crate::Builder::all_pairs).
        out_of_place_v gather_v, gather_v_bytes: Gather with root;

        /// Copies part r of the root's `send` to rank r's `recv`. The other ranks' `send` is not
        /// looked at and may be empty. All ranks pass the same `counts`: the length of each rank's
        /// `recv`.
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
        out_of_place_v scatter_v, scatter_v_bytes: Scatter with root;
    } };
}
pub(crate) use for_each_verb;
