//! Collectives on a stream whose parts are equally long: their checks, and the route of a call
//! (direct between devices, by P2P domains, or staged through the host).
//! Law: the route is chosen in one place, before the call touches the stream.

use cudarc::driver::sys::CUdeviceptr;

use super::host_call::HostCall;
use super::pieces::EvenPieces;
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::verb::{Verb, argument_error};
use crate::device::cuda::{CurrentContext, Driver, check_reachable, refuse_capture};
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

/// A call on equal parts whose arguments were checked and whose route was chosen, before it touches
/// the stream: cudarc puts a wait on the stream to tell the address of a buffer.
pub(super) struct EvenCall {
    name: &'static str,
    verb: Verb,
    route: Route,
    /// The addresses are offsets in the buffers.
    sides: CallBuffers,
    _current: CurrentContext,
}

impl EvenCall {
    /// Checks the one buffer of the call, which is known by its address.
    pub(super) fn check_one(&self, buf: DeviceRef) -> Result<()> {
        buf.elements(self.name, "buf", self.verb.dtype).map(drop)
    }

    /// Checks two buffers that are known by their addresses, as far as this rank uses them.
    pub(super) fn check_two(&self, bufs: [DeviceRef; 2]) -> Result<()> {
        let used = || self.sides.sides.iter().zip(bufs).filter(|(side, _)| side.blocks > 0);
        for (side, buf) in used() {
            buf.elements(self.name, side.argument, self.verb.dtype)?;
        }
        if used().count() < 2 { Ok(()) } else { bufs[0].check_apart(self.name, bufs[1]) }
    }
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

    fn blocks(&self, verb: Verb) -> Result<BufferBlocks> {
        use Collective::{AllGather, AllToAll, Exscan, Gather, Reduce, ReduceScatter, Scatter};
        let call = verb.collective;
        self.comm.check_verb(verb)?;
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

    /// Checks and routes a call from `send` to `recv`, which are `lens` bytes long.
    pub(super) fn start_out_of_place(
        &self,
        name: &'static str,
        verb: Verb,
        lens: [usize; 2],
    ) -> Result<EvenCall> {
        let BufferBlocks { counts, most, fills_recv } = self.blocks(verb)?;
        let block = self.block(name, lens, counts)?;
        let (route, current) = self.route(name, verb, block)?;
        let [send, recv] = [("send", counts[0]), ("recv", counts[1])]
            .map(|(argument, blocks)| BlockBuffer { argument, blocks, ..BlockBuffer::NONE });
        let send = BlockBuffer { reads: true, ..send };
        let recv = BlockBuffer { reads: !fills_recv, writes: true, ..recv };
        let sides = CallBuffers { sides: [send, recv], block, most };
        Ok(EvenCall { name, verb, route, sides, _current: current })
    }

    /// Checks and routes a call in place on `len` bytes, element by element.
    pub(super) fn start_in_place(
        &self,
        name: &'static str,
        verb: Verb,
        len: usize,
    ) -> Result<EvenCall> {
        self.comm.check_verb(verb)?;
        let (route, current) = self.route(name, verb, len)?;
        let whole = BlockBuffer { blocks: 1, reads: true, writes: true, ..BlockBuffer::NONE };
        let sides = [whole, BlockBuffer { blocks: 0, ..whole }];
        let sides = CallBuffers { sides, block: len, most: 1 };
        Ok(EvenCall { name, verb, route, sides, _current: current })
    }

    /// Checks and routes a call between a whole buffer of `len` bytes and this rank's block of it,
    /// or an exchange of all blocks, which is staged through the host: directly, ranks would read
    /// blocks that their peers have overwritten.
    pub(super) fn start_in_parts(
        &self,
        name: &'static str,
        verb: Verb,
        len: usize,
    ) -> Result<EvenCall> {
        self.comm.check_verb(verb)?;
        let (rank, size, element) = (self.comm.rank(), self.comm.size(), verb.dtype.size());
        let block = self.comm.block_count(verb.collective, "buf", len / element)? * element;
        let (route, current) = if verb.collective == Collective::AllToAll {
            let (driver, current) = self.enter_for_host(name)?;
            (Route::Staged(driver), current)
        } else {
            self.route(name, verb, block)?
        };
        let whole = BlockBuffer { blocks: size, ..BlockBuffer::NONE };
        let mine = BlockBuffer { device: (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match verb.collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [BlockBuffer { reads: true, ..send }, BlockBuffer { writes: true, ..recv }];
        let sides = CallBuffers { sides, block, most };
        Ok(EvenCall { name, verb, route, sides, _current: current })
    }

    /// Puts a call on the stream, on buffers at these addresses.
    pub(super) fn put_even(&mut self, call: EvenCall, addresses: [CUdeviceptr; 2]) -> Result<()> {
        let EvenCall { name, verb, route, mut sides, _current } = call;
        for (side, address) in sides.sides.iter_mut().zip(addresses) {
            side.device = side.device.wrapping_add(address);
        }
        match route {
            Route::Direct(request) => self.put_direct(name, &request, sides),
            Route::P2pDomains(request) => self.put_by_domains((name, &request), sides),
            Route::Staged(driver) => {
                self.check_memory(name, &sides)?;
                let host = match sides.is_in_place() {
                    true => HostCall::InPlace(verb),
                    false => HostCall::OutOfPlace(verb),
                };
                let (room, element) = (self.comm.max_piece_bytes(), verb.dtype.size());
                self.put_staged(driver, &EvenPieces::new(room, element, sides)?, &host)
            }
        }
    }

    /// Refuses buffers that the stream's device can't access. The context is current.
    pub(super) fn check_memory(&self, name: &'static str, sides: &CallBuffers) -> Result<()> {
        let device = self.stream.context().cu_device();
        let fits = |side: &BlockBuffer| {
            let (argument, bytes) = (side.argument, side.blocks * sides.block);
            check_reachable((name, argument), side.device, bytes, device)
        };
        sides.sides.iter().try_for_each(fits)
    }

    /// [`barrier`](crate::Communicator::barrier) of streams: work put on this stream later starts
    /// once the streams of all ranks have reached the barrier.
    ///
    /// # Errors
    /// If a call failed before on a stream, or if the device refuses something.
    pub fn barrier(&mut self) -> Result<()> {
        let (driver, _current) = self.enter_for_host("barrier")?;
        let sides = CallBuffers { sides: [BlockBuffer::NONE; 2], block: 0, most: 1 };
        self.put_staged(
            driver,
            &EvenPieces::new(self.comm.max_piece_bytes(), 1, sides)?,
            &HostCall::Barrier,
        )
    }
}
