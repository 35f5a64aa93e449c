//! Collectives on device buffers, in the order of a CUDA stream: straight to the other ranks'
//! buffers where devices reach them (`direct`), else by way of the host (`staged`).
//! May touch: as `comm`. Law: whatever happens the host's part of a call ends, and the stream is
//! told, so that no stream waits for ever.

mod alloc;
mod attach;
mod dense;
mod device_ref;
mod direct;
mod explain;
mod host_call;
mod many;
mod memory;
mod p2p;
mod p2p_domains;
mod phases;
mod pieces;
mod reach;
mod scratch;
mod staged;
mod uneven;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaStream;

use super::cuda::{Current, Driver, Stages, Watch, driver};
use crate::api::Communicator;
use crate::error::{Error, Peer, Result};
use crate::plan::Request;
use direct::Direct;
use p2p_domains::Islands;

pub use attach::{DevicePath, device_count};
pub use device_ref::DeviceRef;
pub use memory::{DeviceMemory, DeviceRegistration};

/// What calls on streams need.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    stages: Vec<Stages>,
    direct: Option<Direct>,
    islands: Option<Box<Islands>>,
    /// Have some ranks no device? Then calls are made whole, as those ranks make them.
    mixed: bool,
    /// Whose calls come to nothing if one fails here: those of the island that this rank goes to
    /// others for.
    stands_for: Option<Arc<Watch>>,
    /// The call of another communicator that the calls are parts of, and that one's ranks.
    whole: Option<Request>,
    world: Option<Arc<[Peer]>>,
    /// The first failure that nobody has been told of.
    failed: Arc<Mutex<Option<Error>>>,
}

impl Drop for Streams {
    fn drop(&mut self) {
        if let Some(error) = failure(&self.failed).take() {
            tracing::warn!("a call on a stream failed and nobody asked: {error}");
        }
    }
}

fn failure(failed: &Mutex<Option<Error>>) -> MutexGuard<'_, Option<Error>> {
    failed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where collectives are put on a stream: each method returns once its work is enqueued, and the
/// result is in the buffer when the stream has got so far. See [`Communicator::on_stream`].
#[derive(Debug)]
pub struct OnStream<'a> {
    comm: &'a mut Communicator,
    stream: &'a Arc<CudaStream>,
}

impl Communicator {
    /// For collectives on buffers of a CUDA device, in the order of `stream`. They match other
    /// ranks' calls of the same name.
    ///
    /// After [`Self::use_device`], where the ranks' devices reach each other's memory, kernels read
    /// and write the ranks' buffers where they are. Numbers are then those of `direct`: folded in
    /// the order of ranks, narrow floats rounded once; around a ring they are the ring's. Of the
    /// forms that a call may have [`OnStream::explain`] tells the one that is taken; `TwoShot`,
    /// `AllPairs` (for one-shot) and `Ring` of [`Algorithm`](crate::Algorithm) ask for one, where
    /// it is possible.
    ///
    /// Otherwise data goes through pinned host memory, and it is the host that reduces it: what is
    /// promised of numbers holds here as it does there. Calls are cut in pieces of 1 MiB in all, so
    /// that copies both ways and the collective overlap; they match calls on host buffers too if
    /// all is at most 1 MiB long. The first such call on a device allocates that memory, 8 MiB,
    /// and nothing does later. No more than 16 pieces may be under way: the next one waits for
    /// the first, since a device's queues hold only so much, and a full one blocks all thread ranks
    /// that share the device.
    ///
    /// To allocate and to free may wait for all streams of a context, among them those of thread
    /// ranks that wait for this one: thread ranks that share a device make their streams and
    /// buffers before any of them calls, and need a hardware queue for each stream, as
    /// `CUDA_DEVICE_MAX_CONNECTIONS=32` gives them.
    ///
    /// Calls that go straight return when they are enqueued, but no more than 32 of them may be
    /// under way: the next one waits for the first. Between processes a call on memory that is not
    /// from [`Self::alloc_device`] or [`Self::register_device`] is made in pieces of 4 MiB, each of
    /// which counts.
    ///
    /// Calls that go straight may be captured into graphs, all ranks the same in the same order, up
    /// to 224 in all graphs that have not been destroyed; between processes on memory from
    /// [`Self::alloc_device`] or from [`Self::register_device`] only, and without cudarc's event
    /// tracking. A graph is launched once at a time, by all ranks alike, and dropped before the
    /// communicator.
    ///
    /// What fails after a method returned, the next one says, or [`OnStream::check`]; the buffers
    /// of such a call hold anything.
    ///
    /// All this was tested on a stand-in for the driver only, not yet on a device.
    pub fn on_stream<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        OnStream { comm: self, stream }
    }
}

impl OnStream<'_> {
    /// What became of the calls so far: of those by way of the host when their host's part is
    /// over, which it waits for; of those that go straight as far as the stream has come. After the
    /// stream was synchronized, no error means that all of them are good.
    ///
    /// # Errors
    /// The first failure that nobody was told of.
    pub fn check(&mut self) -> Result<()> {
        self.check_islands()?;
        self.comm.come_home();
        self.comm.direct_failure("check")?;
        failure(&self.comm.streams.failed).take().map_or(Ok(()), Err)
    }

    /// Before anything touches the stream: its context is current until the guard is dropped.
    fn enter(&self) -> Result<(Driver, Current)> {
        let driver = driver()?;
        let current = Current::new(driver, self.stream.context().cu_ctx())?;
        Ok((driver, current))
    }
}

/// A buffer of a call on the device, of so many blocks of the same length.
#[derive(Clone, Copy, Debug)]
struct Side {
    device: u64,
    blocks: usize,
    /// Is it copied in, and is it copied out?
    reads: bool,
    writes: bool,
}

/// A call's buffers: those read and written, bytes of a block, and the most blocks that any rank
/// has in both.
#[derive(Clone, Copy, Debug)]
struct Sides {
    sides: [Side; 2],
    block: usize,
    most: usize,
}
