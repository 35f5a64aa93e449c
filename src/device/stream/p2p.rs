//! Messages between two ranks on a stream, by way of the host.
//! Law: both ends cut a message alike, whatever call it is a part of.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::OnStream;
use super::host_call::HostCall;
use super::pieces::{PieceEnd, UnevenBuffer, UnevenPieces, elements_per_piece};
use crate::device::cuda::Driver;
use crate::element::{DataType, Element};
use crate::error::Result;

impl OnStream<'_> {
    /// [`send`](crate::Communicator::send) of a device buffer. It matches a receive into a host
    /// buffer if it is shorter than 512 KiB.
    ///
    /// # Errors
    /// If `to` is no other rank, an earlier call on a stream failed, or the device refuses
    /// something.
    pub fn send<T: Element>(&mut self, buf: &impl DevicePtr<T>, to: usize) -> Result<()> {
        self.send_of(T::DTYPE, buf, to)
    }

    /// [`Self::send`] of elements of this type.
    pub(super) fn send_of<T>(
        &mut self,
        dtype: DataType,
        buf: &impl DevicePtr<T>,
        to: usize,
    ) -> Result<()> {
        self.comm.check_peer("send", "to", to)?;
        let (stream, lens) = (Arc::clone(self.stream), [buf.num_bytes() / dtype.size()]);
        let (driver, _current) = self.enter_for_host("send")?;
        let (device, _read) = buf.device_ptr(&stream);
        let sides = [UnevenBuffer::read(device, &lens), UnevenBuffer::none()];
        self.put_message(driver, sides, (dtype, lens[0]), &HostCall::Send(dtype, to))
    }

    /// [`recv`](crate::Communicator::recv) into a device buffer, as [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn recv<T: Element>(&mut self, buf: &mut impl DevicePtrMut<T>, from: usize) -> Result<()> {
        self.recv_of(T::DTYPE, buf, from)
    }

    /// [`Self::recv`] of elements of this type.
    pub(super) fn recv_of<T>(
        &mut self,
        dtype: DataType,
        buf: &mut impl DevicePtrMut<T>,
        from: usize,
    ) -> Result<()> {
        self.comm.check_peer("recv", "from", from)?;
        let (stream, lens) = (Arc::clone(self.stream), [buf.num_bytes() / dtype.size()]);
        let (driver, _current) = self.enter_for_host("recv")?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        let sides = [UnevenBuffer::none(), UnevenBuffer::written(device, &lens)];
        self.put_message(driver, sides, (dtype, lens[0]), &HostCall::Recv(dtype, from))
    }

    /// [`send_recv`](crate::Communicator::send_recv) of device buffers, as [`Self::send`]. Longer
    /// messages go both ways piece by piece. They match such calls, and sends and receives of ranks
    /// that start the second before the first has ended.
    ///
    /// # Errors
    /// As [`Self::send`]; and if this rank sends itself more or less than it receives.
    pub fn send_recv<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        to: usize,
        recv: &mut impl DevicePtrMut<T>,
        from: usize,
    ) -> Result<()> {
        const NAME: &str = "send_recv";
        if !self.comm.is_send_to_self((send.num_bytes(), to), (recv.num_bytes(), from))? {
            self.comm.check_peer(NAME, "to", to)?;
            self.comm.check_peer(NAME, "from", from)?;
        }
        let (stream, given, got) = (Arc::clone(self.stream), [send.len()], [recv.len()]);
        let (driver, _current) = self.enter_for_host(NAME)?;
        let (read, _read) = send.device_ptr(&stream);
        let (written, _written) = recv.device_ptr_mut(&stream);
        let sides = [UnevenBuffer::read(read, &given), UnevenBuffer::written(written, &got)];
        let (dtype, longest) = (T::DTYPE, given[0].max(got[0]));
        let call = HostCall::SendRecv { dtype, to, from };
        self.put_message(driver, sides, (dtype, longest), &call)
    }

    /// Puts a message, or one each way, on the stream, in pieces that leave room for one the other
    /// way.
    fn put_message(
        &mut self,
        driver: Driver,
        sides: [UnevenBuffer<'_>; 2],
        (dtype, longest): (DataType, usize),
        call: &HostCall,
    ) -> Result<()> {
        let end =
            PieceEnd::After(elements_per_piece(self.comm.max_piece_bytes(), dtype.size(), 2)?);
        self.put_staged(driver, &UnevenPieces { sides, element: dtype.size(), longest, end }, call)
    }
}
