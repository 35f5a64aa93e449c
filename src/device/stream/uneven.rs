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

    /// A call from `send` to `recv` of which all ranks know all lengths, of elements of the verb's
    /// type.
    pub(super) fn out_of_place_v<T>(
        &mut self,
        verb: Verb,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
        counts: &[usize],
    ) -> Result<()> {
        let Verb { collective, dtype, op } = verb;
        self.comm.check_root(collective)?;
        let call = UnevenCall::of(collective);
        if op.is_some() {
            self.comm.kernel(&call.request(dtype, op))?;
        }
        let mine = self.comm.own_part_of(verb, counts, [send.num_bytes(), recv.num_bytes()])?;
        let all = if self.comm.uses_whole_buffer(collective) { counts } else { &[] };
        let parts = if call.scatters() { [all, mine] } else { [mine, all] };
        let (driver, _current) = self.enter_for_host(call.name)?;
        let stream = Arc::clone(self.stream);
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let (room, element) = (self.comm.max_piece_bytes(), dtype.size());
        elements_per_piece(room, element, counts.len() + 1)?;
        let end = PieceEnd::Filled { counts, room: elements_per_piece(room, element, 1)? };
        let longest = counts.iter().copied().max().unwrap_or(0);
        let cut = cut(dtype, (parts, [from, to]), longest, end);
        self.put_staged(driver, &cut, &HostCall::OutOfPlaceV(verb, counts.into()))
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
