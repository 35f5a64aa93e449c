//! Collectives on a stream whose parts differ in length, staged through the host in pieces.
//! Law: where all ranks know all lengths, a piece is filled as far as the lengths allow; in an
//! all-to-all, a piece's parts follow from the lengths that two ranks know of each other.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::OnStream;
use super::host_call::HostCall;
use super::pieces::{PieceEnd, UnevenBuffer, UnevenPieces, elements_per_piece};
use crate::api::uneven::Uneven as UnevenCall;
use crate::api::verb::Verb;
use crate::device::cuda::Driver;
use crate::element::{DataType, Element};
use crate::error::Result;
use crate::schedule::Collective;

impl OnStream<'_> {
    /// [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v) of device buffers. The
    /// call meets calls on host buffers if no part is longer than 512 KiB divided by the size.
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
        call.check_all_to_all(self.comm, parts, [send.len(), recv.len()])?;
        // Only two ranks know the length of the part between them, so the size of pieces depends on
        // nothing else but the number of ranks.
        let step =
            elements_per_piece(self.comm.max_piece_bytes(), dtype.size(), 2 * self.comm.size())?;
        let counts: [Arc<[usize]>; 2] = parts.map(Into::into);
        let longest = send_counts.iter().chain(recv_counts).copied().max().unwrap_or(0);
        let (driver, _current) = self.enter_for_host(call.name)?;
        let stream = Arc::clone(self.stream);
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let cut = cut(dtype, (parts, [from, to]), longest, PieceEnd::After(step));
        self.put_staged(driver, &cut, &HostCall::AllToAllV(dtype, counts))
    }

    /// A call from `send` to `recv`.
    pub(super) fn out_of_place_v<T: Element>(
        &mut self,
        verb: Verb,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
        counts: &[usize],
    ) -> Result<()> {
        let parts = self.parts_of(verb, counts, [send.num_bytes(), recv.num_bytes()])?;
        let (driver, _current) = self.enter_for_host(UnevenCall::of(verb.collective).name)?;
        let stream = Arc::clone(self.stream);
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        self.put_uneven(driver, verb, counts, (parts, [from, to]))
    }

    /// The parts' lengths in this rank's buffers, which are `send` and `recv` bytes long.
    fn parts_of<'a>(
        &mut self,
        verb: Verb,
        counts: &'a [usize],
        lens: [usize; 2],
    ) -> Result<[&'a [usize]; 2]> {
        let Verb { collective, dtype, op } = verb;
        self.comm.check_root(collective)?;
        let call = UnevenCall::of(collective);
        if op.is_some() {
            self.comm.kernel(&call.request(dtype, op))?;
        }
        let mine = self.comm.own_part_of(verb, counts, lens)?;
        let all = if self.comm.reads_all_parts(collective) { counts } else { &[] };
        Ok(if call.scatters() { [all, mine] } else { [mine, all] })
    }

    /// A call from `send` to `recv` by address and bytes. The caller orders other uses of the
    /// buffers.
    pub(super) fn uneven_at(
        &mut self,
        verb: Verb,
        counts: &[usize],
        [(from, given), (to, got)]: [(u64, usize); 2],
    ) -> Result<()> {
        let parts = self.parts_of(verb, counts, [given, got])?;
        let (driver, _current) = self.enter_for_host(UnevenCall::of(verb.collective).name)?;
        self.put_uneven(driver, verb, counts, (parts, [from, to]))
    }

    /// Puts a call on the stream of which all ranks know all lengths.
    fn put_uneven(
        &mut self,
        driver: Driver,
        verb: Verb,
        counts: &[usize],
        buffers: ([&[usize]; 2], [u64; 2]),
    ) -> Result<()> {
        let (room, element) = (self.comm.max_piece_bytes(), verb.dtype.size());
        elements_per_piece(room, element, counts.len() + 1)?;
        let end = PieceEnd::Filled { counts, room: elements_per_piece(room, element, 1)? };
        let longest = counts.iter().copied().max().unwrap_or(0);
        let call = HostCall::OutOfPlaceV(verb, counts.into());
        self.put_staged(driver, &cut(verb.dtype, buffers, longest, end), &call)
    }
}

/// How a call is cut into pieces, by the parts of its buffers and their addresses.
fn cut<'a>(
    dtype: DataType,
    ([given, got], [from, to]): ([&'a [usize]; 2], [u64; 2]),
    longest: usize,
    end: PieceEnd<'a>,
) -> UnevenPieces<'a> {
    let sides = [UnevenBuffer::read(from, given), UnevenBuffer::written(to, got)];
    UnevenPieces { sides, element: dtype.size(), longest, end }
}

#[cfg(test)]
mod tests {
    use super::super::host_call::piece_counts;
    use super::PieceEnd;

    /// Pieces fit at the rank that has most, are not empty, and together are the whole call.
    #[test]
    fn pieces_fit_the_room_and_cover_the_call() {
        let room = 100;
        for counts in [&[0, 0][..], &[50], &[51, 0], &[1000, 1, 0, 333], &[7; 40], &[33, 33, 34]] {
            let (mut from, mut seen) = (0, vec![0; counts.len()]);
            let longest = counts.iter().copied().max().unwrap_or(0);
            while from < longest {
                let piece = from..PieceEnd::Filled { counts, room }.of(from);
                let parts = piece_counts(counts, &piece);
                let most = parts.iter().sum::<usize>() + parts.iter().max().unwrap_or(&0);
                assert!(!piece.is_empty() && most <= room, "{counts:?}: {piece:?}");
                seen.iter_mut().zip(parts).for_each(|(seen, part)| *seen += part);
                from = piece.end;
            }
            assert_eq!(seen, counts);
        }
        let of = |counts| PieceEnd::Filled { counts, room }.of(0);
        assert_eq!(of(&[30, 20, 10]), 30, "what fits is one piece");
        assert_eq!(of(&[usize::MAX, usize::MAX]), 33, "sums do not overflow");
    }
}
