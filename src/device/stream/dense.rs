//! Collectives on a stream whose parts are equally long: a row macro for the table in `api::verbs`,
//! and the route of a call (direct between devices, by P2P domains, or staged through the host).
//! Law: the route is chosen in one place.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::host_call::HostCall;
use super::pieces::EvenPieces;
use super::{BlockBuffer, CallBuffers, OnStream};
use crate::api::verb::{Verb, argument_error, verb};
use crate::api::verbs::for_each_verb;
use crate::device::cuda::{CurrentContext, Driver, refuse_capture};
use crate::element::Element;
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

/// The route of a call: kernels that reach all devices, P2P domains and the host between them, or
/// staging through the host's memory.
#[derive(Clone, Copy, Debug)]
enum Route {
    Direct(Request),
    P2pDomains(Request),
    Staged(Driver),
}

/// The blocks that the buffers of a call have.
#[derive(Clone, Copy, Debug)]
struct BufferBlocks {
    /// Of this rank's `send` and `recv`.
    counts: [usize; 2],
    /// The most blocks that any rank has in both.
    most: usize,
    /// The call writes all of `recv`.
    fills_recv: bool,
}

impl OnStream<'_> {
    /// Chooses the route of a call on blocks of `block` bytes. The stream has not been touched, so
    /// that a stream under capture can be refused.
    fn route(
        &self,
        name: &'static str,
        verb: Verb,
        block: usize,
    ) -> Result<(Route, CurrentContext)> {
        let Verb { collective, dtype, op } = verb;
        let request = Request { collective, count: block / dtype.size(), dtype, op };
        if op.is_some() {
            self.comm.kernel(&request)?;
        }
        let (driver, current) = self.enter_context()?;
        if self.comm.is_direct(name, self.stream, &request)? {
            return Ok((Route::Direct(request), current));
        }
        refuse_capture(name, self.stream.cu_stream())?;
        if self.comm.uses_p2p_domains(&request) {
            return Ok((Route::P2pDomains(request), current));
        }
        Ok((Route::Staged(driver), current))
    }

    fn put_by_route(
        &mut self,
        (name, route): (&'static str, Route),
        sides: CallBuffers,
        call: &HostCall,
        element: usize,
    ) -> Result<()> {
        match route {
            Route::Direct(request) => self.put_direct(name, &request, sides),
            Route::P2pDomains(request) => self.put_by_domains((name, &request), sides),
            Route::Staged(driver) => self.put_staged(
                driver,
                &EvenPieces::new(self.comm.max_piece_bytes(), element, sides)?,
                call,
            ),
        }
    }

    fn blocks(&self, verb: Verb) -> Result<BufferBlocks> {
        use Collective::{AllGather, AllToAll, Exscan, Gather, Reduce, ReduceScatter, Scatter};
        let call = verb.collective;
        self.comm.check_root(call)?;
        let (size, root) = (self.comm.size(), usize::from(self.comm.uses_whole_buffer(call)));
        let (counts, most) = match call {
            ReduceScatter | Scatter { .. } => ([size * root, 1], size + 1),
            AllGather | Gather { .. } => ([1, size * root], size + 1),
            AllToAll => ([size, size], 2 * size),
            Reduce { .. } => ([1, root], 2),
            _ => ([1, 1], 2),
        };
        Ok(BufferBlocks { counts, most, fills_recv: call != Exscan })
    }

    /// Bytes of a block. The blocks must fill both buffers, which are `lens` bytes long.
    fn block(&self, name: &'static str, lens: [usize; 2], blocks: BufferBlocks) -> Result<usize> {
        let blocks = blocks.counts;
        let block = |side: usize| lens[side].checked_div(blocks[side]);
        let block = block(0).into_iter().chain(block(1)).min().unwrap_or(0);
        for (side, argument) in ["send", "recv"].into_iter().enumerate() {
            let expected = blocks[side] * block;
            if blocks[side] > 0 && lens[side] != expected {
                let given = format!("{} bytes long", lens[side]);
                return argument_error(name, argument, given, format!("{expected} bytes"));
            }
        }
        Ok(block)
    }

    /// A call from `send` to `recv`, of elements of the verb's type.
    pub(super) fn out_of_place<T>(
        &mut self,
        name: &'static str,
        verb: Verb,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
    ) -> Result<()> {
        let (stream, blocks) = (Arc::clone(self.stream), self.blocks(verb)?);
        let block = self.block(name, [send.num_bytes(), recv.num_bytes()], blocks)?;
        let (route, _current) = self.route(name, verb, block)?;
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let BufferBlocks { counts, most, fills_recv } = blocks;
        let send = BlockBuffer { device: from, blocks: counts[0], reads: true, writes: false };
        let recv = BlockBuffer { device: to, blocks: counts[1], reads: !fills_recv, writes: true };
        let sides = CallBuffers { sides: [send, recv], block, most };
        self.put_by_route((name, route), sides, &HostCall::OutOfPlace(verb), verb.dtype.size())
    }

    /// A call in place, element by element of the verb's type.
    pub(super) fn in_place<T>(
        &mut self,
        name: &'static str,
        verb: Verb,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        self.comm.check_root(verb.collective)?;
        let (stream, block) = (Arc::clone(self.stream), buf.num_bytes());
        let (route, _current) = self.route(name, verb, block)?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        let whole = BlockBuffer { device, blocks: 1, reads: true, writes: true };
        let sides =
            CallBuffers { sides: [whole, BlockBuffer { blocks: 0, ..whole }], block, most: 1 };
        self.put_by_route((name, route), sides, &HostCall::InPlace(verb), verb.dtype.size())
    }
}

/// Calls in place on a buffer of one block per rank.
impl OnStream<'_> {
    /// A call between the whole buffer and this rank's block of it, or an exchange of all blocks,
    /// which is staged through the host: directly, ranks would read blocks that their peers have
    /// overwritten.
    fn in_parts<T>(
        &mut self,
        name: &'static str,
        verb: Verb,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let (rank, size, stream) = (self.comm.rank(), self.comm.size(), Arc::clone(self.stream));
        let block = self.comm.block_count(verb.collective, "buf", buf.len())? * size_of::<T>();
        let (route, _current) = if verb.collective == Collective::AllToAll {
            let (driver, current) = self.enter_for_host(name)?;
            (Route::Staged(driver), current)
        } else {
            self.route(name, verb, block)?
        };
        let (device, _written) = buf.device_ptr_mut(&stream);
        let whole = BlockBuffer { device, blocks: size, reads: false, writes: false };
        let mine = BlockBuffer { device: device + (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match verb.collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [BlockBuffer { reads: true, ..send }, BlockBuffer { writes: true, ..recv }];
        let sides = CallBuffers { sides, block, most };
        self.put_by_route((name, route), sides, &HostCall::OutOfPlace(verb), verb.dtype.size())
    }

    /// [`barrier`](crate::Communicator::barrier) of streams: work put on this stream later starts
    /// once the streams of all ranks have reached the barrier.
    ///
    /// # Errors
    /// If a call failed before on a stream, or if the device refuses something.
    pub fn barrier(&mut self) -> Result<()> {
        let (driver, _current) = self.enter_for_host("barrier")?;
        let nothing = BlockBuffer { device: 0, blocks: 0, reads: false, writes: false };
        let sides = CallBuffers { sides: [nothing; 2], block: 0, most: 1 };
        self.put_staged(
            driver,
            &EvenPieces::new(self.comm.max_piece_bytes(), 1, sides)?,
            &HostCall::Barrier,
        )
    }
}

/// Makes a verb's method.
macro_rules! row {
    (out_of_place $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of device buffers.")]
        ///
        /// # Errors
        /// If the lengths do not fit, if a call failed before on a stream, or if the device refuses
        /// something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($params)*
        ) -> Result<()> {
            self.out_of_place(stringify!($name), verb!(T::DTYPE, $verb), (send, recv))
        }
    };
    (out_of_place_v $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of device buffers.")]
        ///
        /// # Errors
        /// If the lengths are not those in `counts`, if the root is no rank, if a call failed
        /// before on a stream, or if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            counts: &[usize],
            $($params)*
        ) -> Result<()> {
            self.out_of_place_v(verb!(T::DTYPE, $verb), (send, recv), counts)
        }
    };
    ($form:ident $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of a device buffer", row!(@route $form))]
        ///
        /// # Errors
        #[doc = row!(@errors $form)]
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($params)*
        ) -> Result<()> {
            row!(@call $form)(self, stringify!($name), verb!(T::DTYPE, $verb), buf)
        }
    };
    (@call in_place) => { Self::in_place };
    (@call $form:ident) => { Self::in_parts };
    (@route exchange_in_place) => {
        ", always staged through the host; so all ranks have to exchange in place, or none."
    };
    (@route $form:ident) => { "." };
    (@errors in_place) => {
        "If a call failed before on a stream, or if the device refuses something."
    };
    (@errors $form:ident) => {
        "If `buf` can't be cut into size parts, if a call failed before on a stream, or if the \
         device refuses something."
    };
}

impl OnStream<'_> {
    for_each_verb!(row);
}
