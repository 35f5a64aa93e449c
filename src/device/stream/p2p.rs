//! Messages between two ranks on a stream, by way of the host.
//! Law: both ends cut a message alike, whatever call it is a part of.

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::host_call::HostCall;
use super::pieces::{PieceEnd, elements_per_piece};
use super::uneven::UnevenCall;
use super::{DeviceRef, OnStream};
use crate::api::call::{Call, Verb};
use crate::api::p2p::MessageEnd;
use crate::element::{DataType, Element};
use crate::error::Result;

const SEND_RECV: &str = "send_recv";

impl OnStream<'_> {
    /// [`send`](crate::Communicator::send) of a device buffer. It matches a receive into a host
    /// buffer if it is shorter than 512 KiB. An empty buffer is no message on a stream.
    ///
    /// # Errors
    /// If `to` is no other rank, an earlier call on a stream failed, or the device refuses
    /// something.
    pub fn send<T: Element>(&mut self, buf: &impl DevicePtr<T>, to: usize) -> Result<()> {
        let (stream, len) = (self.stream, [buf.len()]);
        let call = self.start_send(T::DTYPE, &len, to)?;
        let (device, _read) = buf.device_ptr(stream);
        self.put_uneven(call, [device, 0])
    }

    /// As [`Self::send`], with the type known at run time.
    ///
    /// # Errors
    /// As [`Self::send`]; and if `buf` is null or not whole elements.
    pub fn send_bytes(&mut self, buf: DeviceRef, dtype: DataType, to: usize) -> Result<()> {
        let len = [buf.elements("send", "buf", dtype)?];
        let call = self.start_send(dtype, &len, to)?;
        self.put_uneven(call, [buf.start, 0])
    }

    fn start_send<'a>(
        &self,
        dtype: DataType,
        len: &'a [usize; 1],
        to: usize,
    ) -> Result<UnevenCall<'a>> {
        self.comm.check_peer("send", "to", to)?;
        let call = self.start_message(
            ("send", dtype),
            [len, &[]],
            HostCall::Message(Call::of(Verb::Send { to }, dtype)),
        )?;
        Ok(call.on_one_buffer())
    }

    /// [`recv`](crate::Communicator::recv) into a device buffer, as [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn recv<T: Element>(&mut self, buf: &mut impl DevicePtrMut<T>, from: usize) -> Result<()> {
        let (stream, len) = (self.stream, [buf.len()]);
        let call = self.start_recv(T::DTYPE, &len, from)?;
        let (device, _written) = buf.device_ptr_mut(stream);
        self.put_uneven(call, [0, device])
    }

    /// As [`Self::recv`], with the type known at run time.
    ///
    /// # Errors
    /// As [`Self::recv`]; and if `buf` is null or not whole elements.
    pub fn recv_bytes(&mut self, buf: DeviceRef, dtype: DataType, from: usize) -> Result<()> {
        let len = [buf.elements("recv", "buf", dtype)?];
        let call = self.start_recv(dtype, &len, from)?;
        self.put_uneven(call, [0, buf.start])
    }

    fn start_recv<'a>(
        &self,
        dtype: DataType,
        len: &'a [usize; 1],
        from: usize,
    ) -> Result<UnevenCall<'a>> {
        self.comm.check_peer("recv", "from", from)?;
        let call = self.start_message(
            ("recv", dtype),
            [&[], len],
            HostCall::Message(Call::of(Verb::Recv { from }, dtype)),
        )?;
        Ok(call.on_one_buffer())
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
        let (stream, lens) = (self.stream, [[send.len()], [recv.len()]]);
        let call = self.start_send_recv(T::DTYPE, &lens, [to, from])?;
        let (read, _read) = send.device_ptr(stream);
        let (written, _written) = recv.device_ptr_mut(stream);
        self.put_uneven(call, [read, written])
    }

    /// As [`Self::send_recv`], with the type known at run time.
    ///
    /// # Errors
    /// As [`Self::send_recv`]; and if a buffer is null, overlaps the other one, or is not whole
    /// elements.
    pub fn send_recv_bytes(
        &mut self,
        send: DeviceRef,
        to: usize,
        recv: DeviceRef,
        from: usize,
        dtype: DataType,
    ) -> Result<()> {
        let lens = [
            [send.elements(SEND_RECV, "send", dtype)?],
            [recv.elements(SEND_RECV, "recv", dtype)?],
        ];
        let call = self.start_send_recv(dtype, &lens, [to, from])?;
        call.check([send, recv])?;
        self.put_uneven(call, [send.start, recv.start])
    }

    fn start_send_recv<'a>(
        &self,
        dtype: DataType,
        [given, got]: &'a [[usize; 1]; 2],
        [to, from]: [usize; 2],
    ) -> Result<UnevenCall<'a>> {
        let message = |len: &[usize; 1], peer| MessageEnd { bytes: len[0] * dtype.size(), peer };
        if !self.comm.is_send_to_self(message(given, to), message(got, from))? {
            self.comm.check_peer(SEND_RECV, "to", to)?;
            self.comm.check_peer(SEND_RECV, "from", from)?;
        }
        self.start_message(
            (SEND_RECV, dtype),
            [given, got],
            HostCall::Message(Call::of(Verb::SendRecv { to, from }, dtype)),
        )
    }

    /// A message, or one each way, in pieces that leave room for one the other way.
    fn start_message<'a>(
        &self,
        (name, dtype): (&'static str, DataType),
        lens: [&'a [usize]; 2],
        host: HostCall,
    ) -> Result<UnevenCall<'a>> {
        let room = self.comm.max_piece_bytes();
        let end = PieceEnd::After(elements_per_piece(room, dtype.size(), 2)?);
        self.uneven_call((name, dtype), lens, end, host)
    }
}
