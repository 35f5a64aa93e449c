//! Collectives on a stream whose parts are equally long: their checks, and the executor of a call.
//! Law: the executor is chosen before the call touches the stream.

use cudarc::driver::sys::CUdeviceptr;

use super::host_call::HostCall;
use super::pieces::EvenPieces;
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts};
use crate::device::cuda::{CurrentContext, Driver, check_reachable, refuse_capture};
use crate::element::DataType;
use crate::error::{Result, argument_error};
use crate::plan::{DeviceForm, Request};
use crate::schedule::Collective;

/// A call on equal parts whose arguments were checked and whose form was chosen. The call does not
/// know its buffers' addresses yet: cudarc puts a wait on the stream when it tells an address, and a
/// call that is refused must not touch the stream.
pub(super) struct EvenCall {
    call: Call<'static>,
    request: Request,
    form: DeviceForm,
    driver: Driver,
    /// The addresses are offsets in the buffers.
    sides: CallBuffers,
    _current: CurrentContext,
}

impl EvenCall {
    /// Checks the buffers of the call, which are known by their addresses, as far as this rank uses
    /// them.
    pub(super) fn check(&self, bufs: Buffers<DeviceRef, DeviceRef>) -> Result<()> {
        match bufs {
            Buffers::InPlace(buf) => {
                buf.elements(self.call.name(), "buf", self.call.dtype).map(drop)
            }
            Buffers::OutOfPlace { send, recv } => {
                let used = || self.sides.sides.iter().zip([send, recv]);
                let used = || used().filter(|(side, _)| side.blocks > 0);
                for (side, buf) in used() {
                    buf.elements(self.call.name(), side.argument, self.call.dtype)?;
                }
                if used().count() < 2 { Ok(()) } else { send.check_apart(self.call.name(), recv) }
            }
        }
    }
}

impl OnStream<'_> {
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

    /// Checks a collective on buffers of so many bytes, whose parts are equally long, and chooses
    /// its form.
    pub(super) fn start_even(
        &self,
        call: &Call<'_>,
        collective: Collective,
        lens: Buffers<usize, usize>,
    ) -> Result<EvenCall> {
        let name = call.name();
        // Where the ranks exchange all blocks in place, a rank that reads others' memory would read
        // blocks that they have overwritten.
        let is_exchange = collective == Collective::AllToAll && matches!(lens, Buffers::InPlace(_));
        let sides = match lens {
            Buffers::OutOfPlace { send, recv } => {
                self.sides_out_of_place(name, collective, [send, recv])?
            }
            Buffers::InPlace(len) if collective.has_blocks() => {
                self.sides_in_parts(name, collective, call.dtype, len)?
            }
            Buffers::InPlace(len) => {
                let whole =
                    BlockBuffer { blocks: 1, reads: true, writes: true, ..BlockBuffer::NONE };
                let sides = [whole, BlockBuffer { blocks: 0, ..whole }];
                CallBuffers { sides, block: len, most: 1 }
            }
        };
        let request = call.request(collective, sides.block / call.dtype.size());
        let (driver, current) = self.enter_context()?;
        let form = if is_exchange { DeviceForm::Host } else { self.form(name, &request)? };
        if form.is_by_host() {
            refuse_capture(name, self.stream.cu_stream())?;
        }
        let call = Call { counts: Counts::Equal, function: None, ..*call };
        Ok(EvenCall { call, request, form, driver, sides, _current: current })
    }

    /// The sides of a call from `send` to `recv`, which are `lens` bytes long.
    fn sides_out_of_place(
        &self,
        name: &'static str,
        collective: Collective,
        lens: [usize; 2],
    ) -> Result<CallBuffers> {
        let (rank, size) = (self.comm.rank() as u32, self.comm.size() as u32);
        let counts = collective.sides(rank, size);
        // The rank that has most blocks in both buffers is the root, if there is one.
        let most = collective.sides(collective.root().unwrap_or(rank), size).iter().sum();
        let block = self.block(name, lens, counts)?;
        let [send, recv] = [("send", counts[0]), ("recv", counts[1])]
            .map(|(argument, blocks)| BlockBuffer { argument, blocks, ..BlockBuffer::NONE });
        let send = BlockBuffer { reads: true, ..send };
        let recv = BlockBuffer { reads: collective == Collective::Exscan, writes: true, ..recv };
        Ok(CallBuffers { sides: [send, recv], block, most })
    }

    /// The sides of a call between a whole buffer of `len` bytes and this rank's block of it, or of
    /// an exchange of all blocks.
    fn sides_in_parts(
        &self,
        name: &'static str,
        collective: Collective,
        dtype: DataType,
        len: usize,
    ) -> Result<CallBuffers> {
        if collective.root().is_some() {
            let expected = "memory of its own, on a device";
            return argument_error(name, "buffers", "in place", expected);
        }
        let (rank, size, element) = (self.comm.rank(), self.comm.size(), dtype.size());
        let block = self.comm.elements_per_part(collective, "buf", len / element)? * element;
        let whole = BlockBuffer { blocks: size, ..BlockBuffer::NONE };
        let mine = BlockBuffer { address: (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [BlockBuffer { reads: true, ..send }, BlockBuffer { writes: true, ..recv }];
        Ok(CallBuffers { sides, block, most })
    }

    /// Puts a call on the stream, on buffers at these addresses.
    pub(super) fn put_even(&mut self, call: EvenCall, addresses: [CUdeviceptr; 2]) -> Result<()> {
        let EvenCall { call, request, form, driver, mut sides, _current } = call;
        let name = call.name();
        for (side, address) in sides.sides.iter_mut().zip(addresses) {
            side.address = side.address.wrapping_add(address);
        }
        match form {
            DeviceForm::Islands => self.put_by_domains((name, &request), sides),
            DeviceForm::Host => {
                self.check_memory(name, &sides)?;
                let host = HostCall::Even { call, is_in_place: sides.is_in_place() };
                let (room, element) = (self.comm.max_piece_bytes(), call.dtype.size());
                self.put_staged(driver, &EvenPieces::new(room, element, sides)?, &host)
            }
            _ => self.put_direct(name, &request, sides),
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
