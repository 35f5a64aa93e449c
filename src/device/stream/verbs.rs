//! The collectives on a stream, on buffers of cudarc's and on memory known by its address: a row
//! macro for the table in `api::verbs`.
//! Law: a method checks its call, asks for the addresses, and puts the call on the stream; only the
//! addresses depend on the type, so nothing else is compiled once per type.

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::{DeviceRef, OnStream};
use crate::api::verb::verb;
use crate::api::verbs::for_each_verb;
use crate::element::{DataType, Element};
use crate::error::Result;

/// Makes a verb's typed method and its `_bytes` twin.
macro_rules! row {
    (out_of_place $($row:tt)*) => {
        row! { @two [start_out_of_place put_even] [] "do not fit" $($row)* }
    };
    (out_of_place_v $($row:tt)*) => {
        row! {
            @two [start_out_of_place_v put_uneven] [counts] "are not those in `counts`" $($row)*
        }
    };
    (in_place $($row:tt)*) => { row! { @one start_in_place "." $($row)* } };
    (in_own_part $($row:tt)*) => { row! { @one start_in_parts "." $($row)* } };
    (exchange_in_place $($row:tt)*) => {
        row! {
            @one start_in_parts
            ", always staged through the host; so all ranks have to exchange in place, or none."
            $($row)*
        }
    };
    (@two [$start:ident $put:ident] [$($counts:ident)?] $misfit:literal
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
            let (verb, stream) = (verb!(T::DTYPE, $verb), self.stream);
            let lens = [send.num_bytes(), recv.num_bytes()];
            let call = self.$start(stringify!($name), verb, lens $(, $counts)?)?;
            let (from, _read) = send.device_ptr(stream);
            let (to, _written) = recv.device_ptr_mut(stream);
            self.$put(call, [from, to])
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
            let (verb, lens) = (verb!(dtype, $verb), [send.bytes, recv.bytes]);
            let call = self.$start(stringify!($name), verb, lens $(, $counts)?)?;
            call.check_two([send, recv])?;
            self.$put(call, [send.start, recv.start])
        }
    };
    (@one $start:ident $route:literal
        $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of a device buffer", $route)]
        ///
        /// # Errors
        /// If the length does not fit, if the root is no rank, if a call failed before on a stream,
        /// or if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($params)*
        ) -> Result<()> {
            let (verb, stream) = (verb!(T::DTYPE, $verb), self.stream);
            let call = self.$start(stringify!($name), verb, buf.num_bytes())?;
            let (at, _written) = buf.device_ptr_mut(stream);
            self.put_even(call, [at; 2])
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time.")]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if `buf` is null or not whole \
            elements.")]
        pub fn $bytes(&mut self, buf: DeviceRef, dtype: DataType, $($params)*) -> Result<()> {
            let call = self.$start(stringify!($name), verb!(dtype, $verb), buf.bytes)?;
            call.check_one(buf)?;
            self.put_even(call, [buf.start; 2])
        }
    };
}

impl OnStream<'_> {
    for_each_verb!(row);
}
