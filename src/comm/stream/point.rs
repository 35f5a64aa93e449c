//! Messages between two ranks, on a stream: by way of the host.
//! May touch: as `comm`. Law: a message is cut alike at both ends, whatever call it is a part of.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::OnStream;
use super::cut::{Parts, Uneven, share};
use crate::comm::Communicator;
use crate::device::cuda::Driver;
use crate::element::Element;
use crate::error::Result;

impl OnStream<'_> {
    /// [`Communicator::send`] of a device buffer. It meets calls on host buffers if it is shorter
    /// than 512 KiB.
    ///
    /// # Errors
    /// If `to` is no other rank, what failed before on a stream, and if the device refuses
    /// something.
    pub fn send<T: Element>(&mut self, buf: &impl DevicePtr<T>, to: usize) -> Result<()> {
        self.comm.is_another("send", "to", to)?;
        let (stream, lens) = (Arc::clone(self.stream), [buf.len()]);
        let (driver, _current) = self.enter_for_host("send")?;
        let (device, _read) = buf.device_ptr(&stream);
        let sides = [Parts::read(device, &lens), Parts::none()];
        self.put_message(driver, sides, lens[0], move |comm, buf: &mut [T], _| comm.send(buf, to))
    }

    /// [`Communicator::recv`] to a device buffer, as [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn recv<T: Element>(&mut self, buf: &mut impl DevicePtrMut<T>, from: usize) -> Result<()> {
        self.comm.is_another("recv", "from", from)?;
        let (stream, lens) = (Arc::clone(self.stream), [buf.len()]);
        let (driver, _current) = self.enter_for_host("recv")?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        let sides = [Parts::none(), Parts::written(device, &lens)];
        self.put_message(driver, sides, lens[0], move |comm, _, buf: &mut [T]| comm.recv(buf, from))
    }

    /// [`Communicator::send_recv`] of device buffers, as [`Self::send`]. What is longer goes both
    /// ways piece by piece: it meets such calls, and sends and receives of ranks that do not wait
    /// for all of the one before they begin the other.
    ///
    /// # Errors
    /// As [`Self::send`]; and if this rank sends itself what is not as long as what it receives.
    pub fn send_recv<T: Element>(
        &mut self,
        send: &impl DevicePtr<T>,
        to: usize,
        recv: &mut impl DevicePtrMut<T>,
        from: usize,
    ) -> Result<()> {
        const NAME: &str = "send_recv";
        if !self.comm.is_to_itself((send.num_bytes(), to), (recv.num_bytes(), from))? {
            self.comm.is_another(NAME, "to", to)?;
            self.comm.is_another(NAME, "from", from)?;
        }
        let (stream, given, got) = (Arc::clone(self.stream), [send.len()], [recv.len()]);
        let (driver, _current) = self.enter_for_host(NAME)?;
        let (read, _read) = send.device_ptr(&stream);
        let (written, _written) = recv.device_ptr_mut(&stream);
        let sides = [Parts::read(read, &given), Parts::written(written, &got)];
        let longest = given[0].max(got[0]);
        self.put_message(driver, sides, longest, move |comm, send: &mut [T], recv| {
            comm.send_recv(send, to, recv, from)
        })
    }

    /// What goes each way, in pieces that have room beside one the other way.
    fn put_message<T: Element>(
        &mut self,
        driver: Driver,
        sides: [Parts<'_>; 2],
        longest: usize,
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let step = share::<T>(self.comm.room(), 2)?;
        let end = |from| from + step;
        let cut = Uneven { sides, element: size_of::<T>(), longest, end };
        self.put(driver, &cut, move |comm, _, one: &mut [T], other: &mut [T]| {
            work(comm, one, other)
        })
    }
}
