//! Collectives on a stream whose parts are equally long: their checks, and the route of a call
//! (direct between devices, by P2P domains, or staged through the host).
//! Law: the route is chosen before the call touches the stream.

use cudarc::driver::sys::CUdeviceptr;

use super::host_call::HostCall;
use super::pieces::EvenPieces;
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts};
use crate::api::collective::argument_error;
use crate::device::cuda::{CurrentContext, Driver, check_reachable, refuse_capture};
use crate::element::DataType;
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

/// A call on equal parts whose arguments were checked and whose route was chosen. The call does
/// not know its buffers' addresses yet: cudarc puts a wait on the stream when it tells an address,
/// and a call that is refused must not touch the stream.
pub(super) struct EvenCall {
    name: &'static str,
    call: Call<'static>,
    route: Route,
    /// The addresses are offsets in the buffers.
    sides: CallBuffers,
    _current: CurrentContext,
}

/// The sides of a call, and its route in the context that is current.
type Routed = (CallBuffers, (Route, CurrentContext));

impl EvenCall {
    /// Checks the buffers of the call, which are known by their addresses, as far as this rank uses
    /// them.
    pub(super) fn check(&self, bufs: Buffers<DeviceRef, DeviceRef>) -> Result<()> {
        match bufs {
            Buffers::InPlace(buf) => buf.elements(self.name, "buf", self.call.dtype).map(drop),
            Buffers::OutOfPlace { send, recv } => {
                let used = || self.sides.sides.iter().zip([send, recv]);
                let used = || used().filter(|(side, _)| side.blocks > 0);
                for (side, buf) in used() {
                    buf.elements(self.name, side.argument, self.call.dtype)?;
                }
                if used().count() < 2 { Ok(()) } else { send.check_apart(self.name, recv) }
            }
        }
    }
}

impl OnStream<'_> {
    /// Chooses the route of a call on blocks of `block` bytes. The stream has not been touched, so
    /// that a stream under capture can be refused.
    fn route(
        &self,
        name: &'static str,
        (call, collective): (&Call<'_>, Collective),
        block: usize,
    ) -> Result<(Route, CurrentContext)> {
        let request = call.request(collective, block / call.dtype.size());
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

    /// Bytes of a block. The blocks must fill both buffers, which are `lens` bytes long.
    fn block(&self, name: &'static str, lens: [usize; 2], blocks: [usize; 2]) -> Result<usize> {
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

    /// Checks and routes a collective on buffers of so many bytes, whose parts are equally long.
    pub(super) fn start_even(
        &self,
        name: &'static str,
        (call, collective): (&Call<'_>, Collective),
        lens: Buffers<usize, usize>,
    ) -> Result<EvenCall> {
        let (sides, (route, current)) = match lens {
            Buffers::OutOfPlace { send, recv } => {
                self.sides_out_of_place(name, (call, collective), [send, recv])?
            }
            Buffers::InPlace(len) if collective.has_blocks() => {
                self.sides_in_parts(name, (call, collective), len)?
            }
            Buffers::InPlace(len) => {
                let routed = self.route(name, (call, collective), len)?;
                let whole =
                    BlockBuffer { blocks: 1, reads: true, writes: true, ..BlockBuffer::NONE };
                let sides = [whole, BlockBuffer { blocks: 0, ..whole }];
                (CallBuffers { sides, block: len, most: 1 }, routed)
            }
        };
        let call = Call { counts: Counts::Equal, function: None, ..*call };
        Ok(EvenCall { name, call, route, sides, _current: current })
    }

    /// The sides of a call from `send` to `recv`, which are `lens` bytes long.
    fn sides_out_of_place(
        &self,
        name: &'static str,
        (call, collective): (&Call<'_>, Collective),
        lens: [usize; 2],
    ) -> Result<Routed> {
        let (rank, size) = (self.comm.rank() as u32, self.comm.size() as u32);
        let counts = collective.sides(rank, size);
        // The rank that has most blocks in both buffers is the root, if there is one.
        let most = collective.sides(collective.root().unwrap_or(rank), size).iter().sum();
        let block = self.block(name, lens, counts)?;
        let routed = self.route(name, (call, collective), block)?;
        let [send, recv] = [("send", counts[0]), ("recv", counts[1])]
            .map(|(argument, blocks)| BlockBuffer { argument, blocks, ..BlockBuffer::NONE });
        let send = BlockBuffer { reads: true, ..send };
        let recv = BlockBuffer { reads: collective == Collective::Exscan, writes: true, ..recv };
        Ok((CallBuffers { sides: [send, recv], block, most }, routed))
    }

    /// The sides of a call between a whole buffer of `len` bytes and this rank's block of it, or of
    /// an exchange of all blocks, which is staged through the host: directly, ranks would read
    /// blocks that their peers have overwritten.
    fn sides_in_parts(
        &self,
        name: &'static str,
        (call, collective): (&Call<'_>, Collective),
        len: usize,
    ) -> Result<Routed> {
        if collective.root().is_some() {
            let expected = "memory of its own, on a device";
            return argument_error(name, "buffers", "in place", expected);
        }
        let (rank, size, element) = (self.comm.rank(), self.comm.size(), call.dtype.size());
        let block = self.comm.elements_per_part(collective, "buf", len / element)? * element;
        let routed = if collective == Collective::AllToAll {
            let (driver, current) = self.enter_for_host(name)?;
            (Route::Staged(driver), current)
        } else {
            self.route(name, (call, collective), block)?
        };
        let whole = BlockBuffer { blocks: size, ..BlockBuffer::NONE };
        let mine = BlockBuffer { address: (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [BlockBuffer { reads: true, ..send }, BlockBuffer { writes: true, ..recv }];
        Ok((CallBuffers { sides, block, most }, routed))
    }

    /// Puts a call on the stream, on buffers at these addresses.
    pub(super) fn put_even(&mut self, call: EvenCall, addresses: [CUdeviceptr; 2]) -> Result<()> {
        let EvenCall { name, call, route, mut sides, _current } = call;
        for (side, address) in sides.sides.iter_mut().zip(addresses) {
            side.address = side.address.wrapping_add(address);
        }
        match route {
            Route::Direct(request) => self.put_direct(name, &request, sides),
            Route::P2pDomains(request) => self.put_by_domains((name, &request), sides),
            Route::Staged(driver) => {
                self.check_memory(name, &sides)?;
                let host = HostCall::Even { call, is_in_place: sides.is_in_place() };
                let (room, element) = (self.comm.max_piece_bytes(), call.dtype.size());
                self.put_staged(driver, &EvenPieces::new(room, element, sides)?, &host)
            }
        }
    }

    /// Refuses buffers that the stream's device can't access. The context is current.
    pub(super) fn check_memory(&self, name: &'static str, sides: &CallBuffers) -> Result<()> {
        let device = self.stream.context().cu_device();
        let fits = |side: &BlockBuffer| {
            let (argument, bytes) = (side.argument, side.blocks * sides.block);
            check_reachable((name, argument), side.address, bytes, device)
        };
        sides.sides.iter().try_for_each(fits)
    }

    /// [`barrier`](crate::Communicator::barrier) of streams: work put on this stream later starts
    /// once the streams of all ranks have reached the barrier.
    ///
    /// # Errors
    /// If a call failed before on a stream, or if the device refuses something.
    pub fn barrier(&mut self) -> Result<()> {
        let barrier = Call::new(Collective::Barrier, DataType::U8);
        let (driver, _current) = self.enter_for_host(barrier.name())?;
        let sides = CallBuffers { sides: [BlockBuffer::NONE; 2], block: 0, most: 1 };
        self.put_staged(
            driver,
            &EvenPieces::new(self.comm.max_piece_bytes(), 1, sides)?,
            &HostCall::Even { call: barrier, is_in_place: true },
        )
    }
}
