//! Collectives on a stream whose parts are equally long: their checks, and the executor of a call.
//! Law: the executor is chosen before the call touches the stream.

use cudarc::driver::sys::CUdeviceptr;

use super::host_call::HostCall;
use super::pieces::EvenPieces;
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::call::{Buffers, Call, Counts};
use crate::api::layout::Layout;
use crate::device::cuda::{CurrentContext, Driver, check_reachable, refuse_capture};
use crate::element::DataType;
use crate::error::{Result, argument_error};
use crate::plan::{DeviceForm, Request};
use crate::schedule::Collective;

/// A call on equal parts whose arguments were checked and whose form was chosen. The call does not
/// know its buffers' addresses yet: cudarc puts a wait on the stream when it tells an address, and
/// a call that is refused must not touch the stream.
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
        let sides = self.sides(call, collective, lens)?;
        let request = call.request(collective, sides.block / call.dtype.size());
        let (driver, current) = self.enter_context()?;
        let form = if is_exchange { DeviceForm::Host } else { self.form(name, &request)? };
        if form.is_by_host() {
            refuse_capture(name, self.stream.cu_stream())?;
        }
        let call = Call { counts: Counts::Equal, function: None, ..*call };
        Ok(EvenCall { call, request, form, driver, sides, _current: current })
    }

    /// The buffers of a call, which are so many bytes long.
    fn sides(
        &self,
        call: &Call<'_>,
        collective: Collective,
        lens: Buffers<usize, usize>,
    ) -> Result<CallBuffers> {
        let is_in_place = matches!(lens, Buffers::InPlace(_));
        if is_in_place && collective.has_blocks() && collective.root().is_some() {
            let expected = "memory of its own, on a device";
            return argument_error(call.name(), "buffers", "one buffer", expected);
        }
        let Layout { count, input, output } = self.comm.layout(call, collective, lens)?;
        let block = count * call.dtype.size();
        if is_in_place && !collective.has_blocks() {
            let all = BlockBuffer { blocks: 1, reads: true, writes: true, ..BlockBuffer::NONE };
            let sides = [all, BlockBuffer { blocks: 0, ..all }];
            return Ok(CallBuffers { sides, block, most: 1 });
        }
        let (rank, size) = (self.comm.rank() as u32, self.comm.size() as u32);
        let [sent, received] = collective.sides(rank, size);
        // The rank that has most blocks in both buffers is the root, if there is one.
        let most = collective.sides(collective.root().unwrap_or(rank), size).iter().sum();
        let [from, to] = if is_in_place { ["buf"; 2] } else { ["send", "recv"] };
        let send = BlockBuffer {
            argument: from,
            address: input.start as u64,
            blocks: sent,
            reads: true,
            writes: false,
        };
        let recv = BlockBuffer {
            argument: to,
            address: output.start as u64,
            blocks: received,
            reads: collective == Collective::Exscan,
            writes: true,
        };
        Ok(CallBuffers { sides: [send, recv], block, most })
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
