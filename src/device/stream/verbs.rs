//! The collectives on a stream, on buffers of cudarc's and on memory known by its address: `call`,
//! and a row macro for the table in `api::verbs`.
//! Law: a method checks its call, asks for the addresses, and puts the call on the stream; only the
//! addresses depend on the type, so nothing else is compiled once per type.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::even::EvenCall;
use super::uneven::UnevenCall;
use super::{DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts, Verb, call};
use crate::api::collective::uneven_in_place_error;
use crate::api::verbs::for_each_verb;
use crate::device::cuda::copy_on_device;
use crate::element::{DataType, Element};
use crate::error::{Result, argument_error};
use crate::schedule::Collective;

/// A collective whose arguments were checked, before it touches the stream.
pub(super) enum StreamCall<'a> {
    Even(EvenCall),
    Uneven(UnevenCall<'a>),
}

impl OnStream<'_> {
    /// [`call`](crate::Communicator::call) of device buffers. A gather and a scatter have no form
    /// in place on devices.
    ///
    /// # Errors
    /// As the method that makes the same call: see [`Self::all_reduce_bytes`].
    pub fn call(&mut self, call: &Call<'_>, bufs: Buffers<DeviceRef, DeviceRef>) -> Result<()> {
        call.check_counts()?;
        let (Buffers::InPlace(send) | Buffers::OutOfPlace { send, .. }) = bufs;
        let (Buffers::InPlace(recv) | Buffers::OutOfPlace { recv, .. }) = bufs;
        match (call.verb, bufs) {
            (Verb::Send { to }, _) => self.send_bytes(send, call.dtype, to),
            (Verb::Recv { from }, _) => self.recv_bytes(recv, call.dtype, from),
            (Verb::SendRecv { to, from }, bufs) => {
                let (send, recv) = bufs.both(call.name())?;
                self.send_recv_bytes(send, to, recv, from, call.dtype)
            }
            (Verb::Collective(Collective::Barrier), _) => self.barrier(),
            (Verb::Collective(Collective::Broadcast { root }), Buffers::OutOfPlace { .. }) => {
                self.broadcast_apart(call, root, [send, recv])
            }
            (Verb::Collective(_), bufs) => self.put_collective(call, bufs),
        }
    }

    /// Checks a collective and puts it on the stream.
    fn put_collective(
        &mut self,
        call: &Call<'_>,
        bufs: Buffers<DeviceRef, DeviceRef>,
    ) -> Result<()> {
        let (lens, addresses) = match bufs {
            Buffers::InPlace(buf) => (Buffers::InPlace(buf.bytes), [buf.start; 2]),
            Buffers::OutOfPlace { send, recv } => {
                let lens = Buffers::OutOfPlace { send: send.bytes, recv: recv.bytes };
                (lens, [send.start, recv.start])
            }
        };
        let started = self.start(call, lens)?;
        match (&started, bufs) {
            (StreamCall::Even(even), bufs) => even.check(bufs)?,
            (StreamCall::Uneven(uneven), Buffers::OutOfPlace { send, recv }) => {
                uneven.check([send, recv])?;
            }
            (StreamCall::Uneven(_), Buffers::InPlace(_)) => {}
        }
        self.put(started, addresses)
    }

    /// A broadcast for which the root copies what it sends to what it receives.
    fn broadcast_apart(
        &mut self,
        call: &Call<'_>,
        root: u32,
        [send, recv]: [DeviceRef; 2],
    ) -> Result<()> {
        if root as usize == self.comm.rank() {
            let name = call.name();
            for (argument, buf) in [("send", send), ("recv", recv)] {
                buf.elements(name, argument, call.dtype)?;
            }
            send.check_apart(name, recv)?;
            let lens = Buffers::OutOfPlace { send: send.bytes, recv: recv.bytes };
            self.comm.layout(call, Collective::Broadcast { root }, lens)?;
            let (_, _current) = self.enter_context()?;
            if recv.bytes > 0 {
                copy_on_device(self.stream.cu_stream(), recv.start, send.start, recv.bytes)?;
            }
        }
        self.put_collective(call, Buffers::InPlace(recv))
    }

    /// Checks a collective on buffers of so many bytes, and chooses its route.
    pub(super) fn start<'a>(
        &self,
        call: &Call<'a>,
        lens: Buffers<usize, usize>,
    ) -> Result<StreamCall<'a>> {
        let name = call.name();
        let Verb::Collective(collective) = call.verb else {
            return argument_error(name, "verb", call.name(), "a collective");
        };
        self.comm.check_root(name, collective)?;
        call.check_op(collective)?;
        match (call.counts, lens) {
            (Counts::Equal, lens) => Ok(StreamCall::Even(self.start_even(call, collective, lens)?)),
            (Counts::Parts(counts), Buffers::OutOfPlace { send, recv }) => {
                let started = self.start_parts(call, collective, [send, recv], counts)?;
                Ok(StreamCall::Uneven(started))
            }
            (Counts::Pairs { send: given, recv: got }, Buffers::OutOfPlace { send, recv }) => {
                let counts = [given, got];
                let started = self.start_pairs(call, collective, [send, recv], counts)?;
                Ok(StreamCall::Uneven(started))
            }
            (_, Buffers::InPlace(_)) => uneven_in_place_error(name),
        }
    }

    /// Puts a collective on the stream, on buffers at these addresses.
    pub(super) fn put(&mut self, call: StreamCall<'_>, addresses: [CUdeviceptr; 2]) -> Result<()> {
        match call {
            StreamCall::Even(call) => self.put_even(call, addresses),
            StreamCall::Uneven(call) => self.put_uneven(call, addresses),
        }
    }
}

/// Makes a verb's typed method and its `_bytes` twin.
macro_rules! row {
    (out_of_place $($row:tt)*) => { row! { @two [] "do not fit" $($row)* } };
    (out_of_place_v $($row:tt)*) => {
        row! { @two [counts] "are not those in `counts`" $($row)* }
    };
    (@two [$($counts:ident)?] $misfit:literal
        $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of device buffers.")]
        ///
        /// # Errors
        #[doc = concat!("If the lengths ", $misfit, ", if the root is no rank, if a call failed \
            before on a stream, or if the device refuses something.")]
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($counts: &[usize],)?
            $($params)*
        ) -> Result<()> {
            let (call, stream) = (call!(T::DTYPE, $verb $(, $counts)?), self.stream);
            let lens = Buffers::OutOfPlace { send: send.num_bytes(), recv: recv.num_bytes() };
            let call = self.start(&call, lens)?;
            let (from, _read) = send.device_ptr(stream);
            let (to, _written) = recv.device_ptr_mut(stream);
            self.put(call, [from, to])
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time.")]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if a buffer that this rank \
            uses is null, overlaps the other one, or is not whole elements.")]
        pub fn $bytes(
            &mut self,
            send: DeviceRef,
            recv: DeviceRef,
            $($counts: &[usize],)?
            dtype: DataType,
            $($params)*
        ) -> Result<()> {
            let call = call!(dtype, $verb $(, $counts)?);
            self.put_collective(&call, Buffers::OutOfPlace { send, recv })
        }
    };
    (in_place $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of a device buffer.")]
        ///
        /// # Errors
        /// If the length does not fit, if the root is no rank, if a call failed before on a stream,
        /// or if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($params)*
        ) -> Result<()> {
            let (call, stream) = (call!(T::DTYPE, $verb), self.stream);
            let call = self.start(&call, Buffers::InPlace(buf.num_bytes()))?;
            let (at, _written) = buf.device_ptr_mut(stream);
            self.put(call, [at; 2])
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time.")]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if `buf` is null or not whole \
            elements.")]
        pub fn $bytes(&mut self, buf: DeviceRef, dtype: DataType, $($params)*) -> Result<()> {
            self.put_collective(&call!(dtype, $verb), Buffers::InPlace(buf))
        }
    };
}

impl OnStream<'_> {
    for_each_verb!(row);
}
