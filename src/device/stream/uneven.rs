//! Collectives on a stream whose parts differ in length, staged through the host in pieces.
//! Law: where all ranks know all lengths, a piece is filled as far as the lengths allow; in an
//! all-to-all, a piece's parts follow from the lengths that two ranks know of each other.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::host_call::HostCall;
use super::pieces::{PieceEnd, UnevenBuffer, UnevenPieces, elements_per_piece};
use super::{DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts};
use crate::api::uneven;
use crate::device::cuda::{CurrentContext, Driver, check_reachable};
use crate::element::{DataType, Element};
use crate::error::Result;
use crate::schedule::Collective;

/// A call on parts of different lengths, or on messages, whose arguments were checked before it
/// touches the stream. It goes by way of the host.
pub(super) struct UnevenCall<'a> {
    name: &'static str,
    driver: Driver,
    /// The addresses are not known yet.
    cut: UnevenPieces<'a>,
    host: HostCall,
    dtype: DataType,
    _current: CurrentContext,
}

impl UnevenCall<'_> {
    /// The same call, whose only buffer is named so in errors.
    pub(super) fn on_one_buffer(mut self) -> Self {
        self.cut.sides.iter_mut().for_each(|side| side.argument = "buf");
        self
    }

    /// Checks two buffers that are known by their addresses, as far as this rank uses them.
    pub(super) fn check(&self, bufs: [DeviceRef; 2]) -> Result<()> {
        let used = || self.cut.sides.iter().zip(bufs).filter(|(side, _)| !side.counts.is_empty());
        for (side, buf) in used() {
            buf.elements(self.name, side.argument, self.dtype)?;
        }
        if used().count() < 2 { Ok(()) } else { bufs[0].check_apart(self.name, bufs[1]) }
    }
}

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
        let (stream, lens) = (self.stream, [send.num_bytes(), recv.num_bytes()]);
        let counts = Counts::Pairs { send: send_counts, recv: recv_counts };
        let call = Call::new(Collective::AllToAll, T::DTYPE).with(counts);
        let [send_len, recv_len] = lens;
        let lens = Buffers::OutOfPlace { send: send_len, recv: recv_len };
        let call = self.start(&call, lens)?;
        let (from, _read) = send.device_ptr(stream);
        let (to, _written) = recv.device_ptr_mut(stream);
        self.put(call, [from, to])
    }

    /// As [`Self::all_to_all_v`], with the type known at run time. Counts are elements.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`]; and if a buffer is null, overlaps the other one, or is not whole
    /// elements.
    pub fn all_to_all_v_bytes(
        &mut self,
        send: DeviceRef,
        send_counts: &[usize],
        recv: DeviceRef,
        recv_counts: &[usize],
        dtype: DataType,
    ) -> Result<()> {
        let counts = Counts::Pairs { send: send_counts, recv: recv_counts };
        let call = Call::new(Collective::AllToAll, dtype).with(counts);
        self.call(&call, Buffers::OutOfPlace { send, recv })
    }

    /// Checks an exchange from `send` to `recv`, which are `lens` bytes long.
    pub(super) fn start_pairs<'a>(
        &self,
        call: &Call<'a>,
        collective: Collective,
        lens: [usize; 2],
        counts: [&'a [usize]; 2],
    ) -> Result<UnevenCall<'a>> {
        let dtype = call.dtype;
        let lens = [call.elements("send", lens[0])?, call.elements("recv", lens[1])?];
        uneven::check_pairs(self.comm, call.name(), collective, counts, lens)?;
        // Only two ranks know the length of the part between them, so the size of pieces depends on
        // nothing else but the number of ranks.
        let (room, parts) = (self.comm.max_piece_bytes(), 2 * self.comm.size());
        let end = PieceEnd::After(elements_per_piece(room, dtype.size(), parts)?);
        let host = HostCall::Pairs(dtype, counts.map(Into::into));
        self.uneven_call((call.name(), dtype), counts, end, host)
    }

    /// Checks a call from `send` to `recv`, which are `lens` bytes long, of which all ranks know
    /// all lengths.
    pub(super) fn start_parts<'a>(
        &self,
        call: &Call<'a>,
        collective: Collective,
        lens: [usize; 2],
        counts: &'a [usize],
    ) -> Result<UnevenCall<'a>> {
        let mine = self.comm.own_part_of(call, collective, counts, lens)?;
        let all = if self.comm.uses_whole_buffer(collective) { counts } else { &[] };
        let parts = if collective.scatters() { [all, mine] } else { [mine, all] };
        let (room, element) = (self.comm.max_piece_bytes(), call.dtype.size());
        elements_per_piece(room, element, counts.len() + 1)?;
        let end = PieceEnd::Filled { counts, room: elements_per_piece(room, element, 1)? };
        let whole = Call { counts: Counts::Equal, function: None, ..*call };
        let host = HostCall::Parts(whole, counts.into());
        let started = self.uneven_call((call.name(), call.dtype), parts, end, host)?;
        let longest = counts.iter().copied().max().unwrap_or(0);
        Ok(UnevenCall { cut: UnevenPieces { longest, ..started.cut }, ..started })
    }

    /// A call by way of the host on parts of these lengths, which are no longer at other ranks.
    pub(super) fn uneven_call<'a>(
        &self,
        (name, dtype): (&'static str, DataType),
        [given, got]: [&'a [usize]; 2],
        end: PieceEnd<'a>,
        host: HostCall,
    ) -> Result<UnevenCall<'a>> {
        let longest = given.iter().chain(got).copied().max().unwrap_or(0);
        let sides = [UnevenBuffer::read(given), UnevenBuffer::written(got)];
        let cut = UnevenPieces { sides, element: dtype.size(), longest, end };
        let (driver, current) = self.enter_for_host(name)?;
        Ok(UnevenCall { name, driver, cut, host, dtype, _current: current })
    }

    /// Puts a call on the stream, on buffers at these addresses.
    pub(super) fn put_uneven(
        &mut self,
        call: UnevenCall<'_>,
        addresses: [CUdeviceptr; 2],
    ) -> Result<()> {
        let UnevenCall { name, driver, mut cut, host, dtype, _current } = call;
        let device = self.stream.context().cu_device();
        for (side, address) in cut.sides.iter_mut().zip(addresses) {
            side.address = address;
            let bytes = side.counts.iter().sum::<usize>() * dtype.size();
            check_reachable((name, side.argument), address, bytes, device)?;
        }
        self.put_staged(driver, &cut, &host)
    }
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
