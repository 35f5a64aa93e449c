//! The verbs on a stream whose parts differ in length: by way of the host.
//! May touch: as `comm`. Law: where all ranks know all lengths a piece is filled as far as these
//! allow; where they do not, it follows from what two ranks say of what goes between them.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::OnStream;
use super::host_call::HostCall;
use super::pieces::{End, Parts, Uneven, share};
use crate::api::dense::verb;
use crate::api::uneven::Uneven as UnevenCall;
use crate::api::verb::{Verb, root_rank};
use crate::device::cuda::Driver;
use crate::element::{DataType, Element, Reduction};
use crate::error::Result;
use crate::schedule::Collective;

/// One line for each verb: its name, its collective, its operation and root if it has them.
macro_rules! verbs {
    ($(
        $(#[$doc:meta])*
        $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;
    )*) => {
        impl OnStream<'_> {$(
            $(#[$doc])*
            pub fn $name<T: Element>(
                &mut self,
                send: &impl DevicePtr<T>,
                recv: &mut impl DevicePtrMut<T>,
                counts: &[usize],
                $($op: impl Into<Reduction>,)?
                $($root: usize,)?
            ) -> Result<()> {
                let verb = verb!(T::DTYPE, $of $(by $op)? $(with $root)?);
                let parts = self.parts_of(verb, counts, [send.len(), recv.len()])?;
                let (driver, _current) = self.enter_for_host(stringify!($name))?;
                let stream = Arc::clone(self.stream);
                let (from, _read) = send.device_ptr(&stream);
                let (to, _written) = recv.device_ptr_mut(&stream);
                self.put_uneven(driver, verb, counts, (parts, [from, to]))
            }
        )*}
    };
}

verbs! {
    /// [`Communicator::all_gather_v`](crate::Communicator::all_gather_v) of device buffers.
    ///
    /// # Errors
    /// If the lengths are not those that `counts` says, what failed before on a stream, and if the
    /// device refuses something.
    all_gather_v: AllGather;

    /// [`Communicator::reduce_scatter_v`](crate::Communicator::reduce_scatter_v) of device buffers.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`].
    reduce_scatter_v: ReduceScatter by op;

    /// [`Communicator::gather_v`](crate::Communicator::gather_v) of device buffers.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; and if there is no such root.
    gather_v: Gather with root;

    /// [`Communicator::scatter_v`](crate::Communicator::scatter_v) of device buffers.
    ///
    /// # Errors
    /// As [`Self::gather_v`].
    scatter_v: Scatter with root;
}

impl OnStream<'_> {
    /// [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v) of device buffers. It
    /// meets calls on host buffers if no part is longer than 512 KiB divided by the size.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; and as
    /// [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v).
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        send_counts: &[usize],
        recv: &mut impl DevicePtrMut<T>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let (dtype, parts) = (T::DTYPE, [send_counts, recv_counts]);
        let call = UnevenCall::of(Collective::AllToAll);
        call.each_to_each(self.comm, parts, [send.len(), recv.len()])?;
        // Only two ranks know of what is between them, so nothing else may decide how it is cut.
        let step = share(self.comm.room(), dtype.size(), 2 * self.comm.size())?;
        let counts: [Arc<[usize]>; 2] = parts.map(Into::into);
        let longest = send_counts.iter().chain(recv_counts).copied().max().unwrap_or(0);
        let (driver, _current) = self.enter_for_host(call.name)?;
        let stream = Arc::clone(self.stream);
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let cut = cut(dtype, (parts, [from, to]), longest, End::After(step));
        self.put(driver, &cut, &HostCall::AllToAllV(dtype, counts))
    }

    /// The parts of both buffers of a call, which are so many elements long.
    fn parts_of<'a>(
        &mut self,
        verb: Verb,
        counts: &'a [usize],
        [send, recv]: [usize; 2],
    ) -> Result<[&'a [usize]; 2]> {
        let Verb { collective, dtype, op } = verb;
        self.comm.has_root(collective)?;
        let call = UnevenCall::of(collective);
        if op.is_some() {
            self.comm.kernel(&call.request(dtype, op))?;
        }
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let scatters = matches!(collective, Collective::ReduceScatter | Collective::Scatter { .. });
        let (whole, part) = if scatters {
            (("send", send), ("recv", recv))
        } else {
            (("recv", recv), ("send", send))
        };
        let mine = call.own(counts, size, rank, part.0, part.1)?;
        let looks_at_all = collective.root().is_none_or(|root| root as usize == rank);
        if looks_at_all {
            call.whole("counts", counts, whole.0, whole.1)?;
        }
        let all = if looks_at_all { counts } else { &[] };
        Ok(if scatters { [all, mine] } else { [mine, all] })
    }

    /// Such a call of buffers by address and bytes, which nothing else uses in another order.
    pub(super) fn uneven_at(
        &mut self,
        verb: Verb,
        counts: &[usize],
        [(from, given), (to, got)]: [(u64, usize); 2],
    ) -> Result<()> {
        let element = verb.dtype.size();
        let parts = self.parts_of(verb, counts, [given / element, got / element])?;
        let (driver, _current) = self.enter_for_host(UnevenCall::of(verb.collective).name)?;
        self.put_uneven(driver, verb, counts, (parts, [from, to]))
    }

    /// A call of which all ranks know all lengths.
    fn put_uneven(
        &mut self,
        driver: Driver,
        verb: Verb,
        counts: &[usize],
        buffers: ([&[usize]; 2], [u64; 2]),
    ) -> Result<()> {
        let (room, element) = (self.comm.room(), verb.dtype.size());
        share(room, element, counts.len() + 1)?;
        let end = End::Filled { counts, room: share(room, element, 1)? };
        let longest = counts.iter().copied().max().unwrap_or(0);
        let call = HostCall::OutOfPlaceV(verb, counts.into());
        self.put(driver, &cut(verb.dtype, buffers, longest, end), &call)
    }
}

/// How a call is cut whose buffers have these parts and are at these addresses.
fn cut<'a>(
    dtype: DataType,
    ([given, got], [from, to]): ([&'a [usize]; 2], [u64; 2]),
    longest: usize,
    end: End<'a>,
) -> Uneven<'a> {
    let sides = [Parts::read(from, given), Parts::written(to, got)];
    Uneven { sides, element: dtype.size(), longest, end }
}

#[cfg(test)]
mod tests {
    use super::super::host_call::lens;
    use super::End;

    /// Pieces fit at the rank that has most, are not empty, and together are all of it.
    #[test]
    fn pieces_fit_and_are_all() {
        let room = 100;
        for counts in [&[0, 0][..], &[50], &[51, 0], &[1000, 1, 0, 333], &[7; 40], &[33, 33, 34]] {
            let (mut from, mut seen) = (0, vec![0; counts.len()]);
            let longest = counts.iter().copied().max().unwrap_or(0);
            while from < longest {
                let piece = from..End::Filled { counts, room }.of(from);
                let parts = lens(counts, &piece);
                let most = parts.iter().sum::<usize>() + parts.iter().max().unwrap_or(&0);
                assert!(!piece.is_empty() && most <= room, "{counts:?}: {piece:?}");
                seen.iter_mut().zip(parts).for_each(|(seen, part)| *seen += part);
                from = piece.end;
            }
            assert_eq!(seen, counts);
        }
        let of = |counts| End::Filled { counts, room }.of(0);
        assert_eq!(of(&[30, 20, 10]), 30, "what fits is one piece");
        assert_eq!(of(&[usize::MAX, usize::MAX]), 33, "sums do not overflow");
    }
}
