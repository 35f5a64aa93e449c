//! The verbs on a stream whose parts differ in length: by way of the host.
//! May touch: as `comm`. Law: where all ranks know all lengths a piece is filled as far as these
//! allow; where they do not, it follows from what two ranks say of what goes between them.

use std::iter::zip;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::OnStream;
use super::cut::{Parts, Uneven, share, within};
use crate::comm::Communicator;
use crate::comm::uneven::Call;
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Message;
use crate::schedule::Collective;

/// Both buffers of a call, and how they are cut in parts.
struct Given<'a, S, R> {
    name: &'static str,
    send: &'a S,
    recv: &'a mut R,
    parts: [&'a [usize]; 2],
}

impl OnStream<'_> {
    /// [`Communicator::all_gather_v`] of device buffers.
    ///
    /// # Errors
    /// If the lengths are not those that `counts` says, what failed before on a stream, and if the
    /// device refuses something.
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        counts: &[usize],
    ) -> Result<()> {
        let call = Call { call: Collective::AllGather, name: "all_gather_v" };
        let mine = call.own(counts, self.comm.size(), self.comm.rank(), "send", send.len())?;
        call.whole("counts", counts, "recv", recv.len())?;
        let given = Given { name: call.name, send, recv, parts: [mine, counts] };
        self.put_uneven(given, counts, Communicator::all_gather_v)
    }

    /// [`Communicator::reduce_scatter_v`] of device buffers.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`].
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        counts: &[usize],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (call, op) =
            (Call { call: Collective::ReduceScatter, name: "reduce_scatter_v" }, op.into());
        self.comm.kernel(&call.request(T::DTYPE, Some(op)))?;
        let mine = call.own(counts, self.comm.size(), self.comm.rank(), "recv", recv.len())?;
        call.whole("counts", counts, "send", send.len())?;
        let given = Given { name: call.name, send, recv, parts: [counts, mine] };
        self.put_uneven(given, counts, move |comm, send: &[T], recv, counts| {
            comm.reduce_scatter_v(send, recv, counts, op)
        })
    }

    /// [`Communicator::gather_v`] of device buffers.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; and if there is no such root.
    pub fn gather_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let collective = self.comm.rooted(|root| Collective::Gather { root }, root)?;
        let call = Call { call: collective, name: "gather_v" };
        let rank = self.comm.rank();
        let mine = call.own(counts, self.comm.size(), rank, "send", send.len())?;
        let all = if rank == root { counts } else { &[] };
        if rank == root {
            call.whole("counts", counts, "recv", recv.len())?;
        }
        let given = Given { name: call.name, send, recv, parts: [mine, all] };
        self.put_uneven(given, counts, move |comm, send: &[T], recv, counts| {
            comm.gather_v(send, recv, counts, root)
        })
    }

    /// [`Communicator::scatter_v`] of device buffers.
    ///
    /// # Errors
    /// As [`Self::gather_v`].
    pub fn scatter_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let collective = self.comm.rooted(|root| Collective::Scatter { root }, root)?;
        let call = Call { call: collective, name: "scatter_v" };
        let rank = self.comm.rank();
        let mine = call.own(counts, self.comm.size(), rank, "recv", recv.len())?;
        let all = if rank == root { counts } else { &[] };
        if rank == root {
            call.whole("counts", counts, "send", send.len())?;
        }
        let given = Given { name: call.name, send, recv, parts: [all, mine] };
        self.put_uneven(given, counts, move |comm, send: &[T], recv, counts| {
            comm.scatter_v(send, recv, counts, root)
        })
    }

    /// [`Communicator::all_to_all_v`] of device buffers. It meets calls on host buffers if no part
    /// is longer than 512 KiB divided by the size.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; and as [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        send_counts: &[usize],
        recv: &mut impl DevicePtrMut<T>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let call = Call { call: Collective::AllToAll, name: "all_to_all_v" };
        let (rank, size) = (self.comm.rank(), self.comm.size());
        call.one_each("send_counts", send_counts, size)?;
        call.one_each("recv_counts", recv_counts, size)?;
        call.whole("send_counts", send_counts, "send", send.len())?;
        call.whole("recv_counts", recv_counts, "recv", recv.len())?;
        call.same_for_itself(send_counts[rank], recv_counts[rank])?;
        // Only two ranks know of what is between them, so nothing else may decide how it is cut.
        let step = share::<T>(self.comm.room(), 2 * size)?;
        let counts: [Arc<[usize]>; 2] = [send_counts.into(), recv_counts.into()];
        let work =
            move |comm: &mut Communicator, piece: Range<usize>, send: &[T], recv: &mut [T]| {
                // Who has no more is done; so only the first piece is a call of all.
                if piece.start > 0 {
                    return pass_on(comm, (send, recv), &counts, &piece);
                }
                let [given, got] = counts.each_ref().map(|counts| parts(counts, &piece));
                comm.all_to_all_v(send, &given, recv, &got)
            };
        let longest = send_counts.iter().chain(recv_counts).copied().max().unwrap_or(0);
        let given = Given { name: call.name, send, recv, parts: [send_counts, recv_counts] };
        self.put_parts(given, longest, |from| from + step, work)
    }

    /// A call of which all ranks know all lengths.
    fn put_uneven<T: Element>(
        &mut self,
        given: Given<'_, impl DevicePtr<T>, impl DevicePtrMut<T>>,
        counts: &[usize],
        work: impl Fn(&mut Communicator, &[T], &mut [T], &[usize]) -> Result<()>
        + Clone
        + Send
        + 'static,
    ) -> Result<()> {
        share::<T>(self.comm.room(), counts.len() + 1)?;
        let room = share::<T>(self.comm.room(), 1)?;
        let longest = counts.iter().copied().max().unwrap_or(0);
        let all: Arc<[usize]> = counts.into();
        let work = move |comm: &mut Communicator, piece, send: &[T], recv: &mut [T]| {
            work(comm, send, recv, &parts(&all, &piece))
        };
        self.put_parts(given, longest, |from| level(counts, room, from), work)
    }

    /// A call that is cut so.
    fn put_parts<T: Element>(
        &mut self,
        given: Given<'_, impl DevicePtr<T>, impl DevicePtrMut<T>>,
        longest: usize,
        end: impl Fn(usize) -> usize,
        work: impl Fn(&mut Communicator, Range<usize>, &[T], &mut [T]) -> Result<()>
        + Clone
        + Send
        + 'static,
    ) -> Result<()> {
        let Given { name, send, recv, parts: [given, got] } = given;
        let stream = Arc::clone(self.stream);
        let (driver, _current) = self.enter_for_host(name)?;
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let sides = [Parts::read(from, given), Parts::written(to, got)];
        let cut = Uneven { sides, element: size_of::<T>(), longest, end };
        self.put(driver, &cut, move |comm, piece, send: &mut [T], recv| {
            work(comm, piece, send, recv)
        })
    }
}

/// Where a piece ends that has as much of all parts, and of one more that is as long as any, as
/// there is room for: what the rank has that has most of a call.
fn level(counts: &[usize], room: usize, from: usize) -> usize {
    let rest = || counts.iter().map(|count| count.saturating_sub(from));
    let longest = rest().max().unwrap_or(0);
    if rest().fold(longest, usize::saturating_add) <= room {
        return from + longest;
    }
    from + room / (rest().filter(|&rest| rest > 0).count() + 1)
}

/// What a piece has of each part.
fn parts(counts: &[usize], piece: &Range<usize>) -> Vec<usize> {
    counts.iter().map(|&count| within(piece, count)).collect()
}

/// What two ranks have for each other beyond the first piece.
fn pass_on<T: Element>(
    comm: &mut Communicator,
    (send, recv): (&[T], &mut [T]),
    counts: &[Arc<[usize]>; 2],
    piece: &Range<usize>,
) -> Result<()> {
    let mut messages = Vec::with_capacity(2 * comm.size());
    for (outgoing, counts) in zip([true, false], counts) {
        let mut start = 0;
        for (peer, len) in zip(0.., parts(counts, piece)) {
            let end = start + len * size_of::<T>();
            if start < end {
                let range = (start, end);
                messages.push(Message { outgoing, peer, range, dtype: T::DTYPE });
            }
            start = end;
        }
    }
    let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
    comm.pass_on("all_to_all_v", &messages, &buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces fit at the rank that has most, are not empty, and together are all of it.
    #[test]
    fn pieces_fit_and_are_all() {
        let room = 100;
        for counts in [&[0, 0][..], &[50], &[51, 0], &[1000, 1, 0, 333], &[7; 40], &[33, 33, 34]] {
            let (mut from, mut seen) = (0, vec![0; counts.len()]);
            let longest = counts.iter().copied().max().unwrap_or(0);
            while from < longest {
                let piece = from..level(counts, room, from);
                let parts = parts(counts, &piece);
                let most = parts.iter().sum::<usize>() + parts.iter().max().unwrap_or(&0);
                assert!(!piece.is_empty() && most <= room, "{counts:?}: {piece:?}");
                seen.iter_mut().zip(parts).for_each(|(seen, part)| *seen += part);
                from = piece.end;
            }
            assert_eq!(seen, counts);
        }
        assert_eq!(level(&[30, 20, 10], room, 0), 30, "what fits is one piece");
        assert_eq!(level(&[usize::MAX, usize::MAX], room, 0), 33, "sums do not overflow");
    }
}
