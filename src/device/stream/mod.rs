//! Collectives on device buffers, in the order of a CUDA stream: direct, on the ranks' buffers
//! where devices have peer access (`direct`), else by way of staging buffers of the host
//! (`staged`).
//! Law: whatever happens the host's part of a call ends and the stream is told, so that no stream
//! waits for ever.

mod alloc;
mod attach;
mod device_ref;
mod direct;
mod even;
mod explain;
mod failures;
mod host_call;
mod internal_calls;
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
mod verbs;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::cuda::{CurrentContext, Driver, LastUse, StagingBuffers, Watchdog, driver};
use crate::api::Communicator;
use crate::error::{Peer, Result};
use crate::plan::Request;
use direct::Direct;
pub(crate) use failures::StreamFailures;
use p2p_domains::P2pDomains;

pub use attach::{DevicePath, device_count};
pub use device_ref::DeviceRef;
pub use memory::{DeviceMemory, DeviceRegistration};

/// The state of a communicator that calls on streams need.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// The context that [`Communicator::use_device`] was given.
    context: Option<Arc<CudaContext>>,
    staging: Vec<StagingBuffers>,
    direct: Option<Box<Direct>>,
    domains: Option<Box<P2pDomains>>,
    /// True if some ranks have no device. Then calls are not cut in pieces, as those ranks make
    /// them whole.
    has_host_ranks: bool,
    /// The watchdog of the P2P domain that this rank leads: if a call fails here, the domain's
    /// calls fail.
    domain_watchdog: Option<Arc<Watchdog>>,
    /// In a communicator that makes parts of another one's calls: the whole call, and the peers of
    /// that communicator.
    whole_request: Option<Request>,
    world_peers: Option<Arc<[Peer]>>,
    pub(crate) failures: Arc<StreamFailures>,
}

impl Drop for Streams {
    fn drop(&mut self) {
        if let Err(error) = self.failures.report() {
            tracing::warn!("a call on a stream failed, and no later call reported it: {error}");
        }
    }
}

/// Collectives on a CUDA stream. Each method returns once its work is enqueued, and the result is
/// in the buffer when the stream has passed it. See [`Communicator::on_stream`].
#[derive(Debug)]
pub struct OnStream<'a> {
    comm: &'a mut Communicator,
    stream: &'a Arc<CudaStream>,
}

impl Communicator {
    /// Collectives on buffers of a CUDA device, in the order of `stream`. They match other ranks'
    /// calls of the same name.
    ///
    /// **Direct calls.** After [`Self::use_device`], where the ranks' devices access each other's
    /// memory, kernels read and write the ranks' buffers where they are. Results are those of the
    /// algorithm `direct`: contributions are reduced in the order of ranks, and narrow floats are
    /// rounded once. Around a ring of devices they are the ring's. [`OnStream::explain`] tells the
    /// form of a call; `TwoShot`, `AllPairs` (for one-shot) and `Ring` of
    /// [`Algorithm`](crate::Algorithm) ask for one, where it is possible.
    ///
    /// **Calls by way of the host.** Otherwise data goes through pinned host memory and the host
    /// reduces it, with the host's promises about numbers. Calls are cut into pieces of 1 MiB in
    /// all, so that the copies of both directions and the collective overlap. They match calls on
    /// host buffers too if all is at most 1 MiB long. The first such call on a device allocates the
    /// pinned memory, 8 MiB, and later calls allocate nothing. At most 16 pieces may be under way,
    /// and the next one waits for the first: a device's queues are short, and a full one blocks all
    /// thread ranks that share the device. An all-to-all in place always goes by way of the host,
    /// so all ranks exchange in place or none.
    ///
    /// **Allocation.** Allocating and freeing may wait for all streams of a context, among them
    /// streams of thread ranks that wait for this rank. Thread ranks that share a device therefore
    /// make their streams and buffers before the first of them calls. They need a hardware queue
    /// for each stream, as `CUDA_DEVICE_MAX_CONNECTIONS=32` gives them.
    ///
    /// **Limits.** Direct calls return when they are enqueued, but at most 32 of them may be under
    /// way: the next one waits for the first. Between processes a call on memory that is not from
    /// [`Self::alloc_device`] or [`Self::register_device`] is made in pieces of 4 MiB, each of
    /// which counts.
    ///
    /// **Graphs.** Direct calls may be captured into graphs, by all ranks the same calls in the
    /// same order, up to 224 in all graphs that have not been destroyed. Between processes their
    /// memory has to be from [`Self::alloc_device`] or [`Self::register_device`]. cudarc's event
    /// tracking has to be off. A graph is launched once at a time, by all ranks alike, and dropped
    /// before its memory and the communicator.
    ///
    /// **Memory and streams of others.** A `_bytes` method takes a [`DeviceRef`], which is an
    /// address and a length, and the type of the elements; [`Self::borrow_stream`] takes a
    /// `cudaStream_t`. Objects, groups, messages with tags and functions of the user's have no form
    /// on streams: synchronize the stream, and make the call on host memory.
    ///
    /// **Failures.** A failure after a method has returned is an error of the next method, or of
    /// [`OnStream::check`]; the contents of the buffers of the failed call are undefined.
    ///
    /// All this was tested on a stand-in for the driver only, not yet on a device.
    pub fn on_stream<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        OnStream { comm: self, stream }
    }
}

impl OnStream<'_> {
    /// The outcome of the calls so far: of calls by way of the host after their host's part, for
    /// which this waits; of direct calls as far as the stream has come. After the stream was
    /// synchronized, no error means that all calls succeeded.
    ///
    /// # Errors
    /// The first failure that was not reported yet.
    pub fn check(&mut self) -> Result<()> {
        self.check_domains()?;
        self.comm.reclaim_engine();
        self.comm.direct_failure("check")?;
        self.comm.streams.failures.report()
    }

    /// Makes this stream wait for all work that `other` was given until now; both are streams of
    /// the device of [`Communicator::use_device`]. Without this, work on two streams has no order.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn join(&mut self, other: &CudaStream) -> Result<()> {
        let (_driver, _current) = self.enter_context()?;
        let mut end = LastUse::new(self.stream.context())?;
        end.record(other.cu_stream())?;
        end.wait(self.stream.cu_stream())
    }

    /// Makes the stream's context current until the [`CurrentContext`] is dropped.
    fn enter_context(&self) -> Result<(Driver, CurrentContext)> {
        let driver = driver()?;
        let current = CurrentContext::new(driver, self.stream.context().cu_ctx())?;
        Ok((driver, current))
    }
}

/// A buffer on the device, of so many blocks of the same length.
#[derive(Clone, Copy, Debug)]
struct BlockBuffer {
    /// Its name in errors.
    argument: &'static str,
    /// On the device.
    address: u64,
    blocks: usize,
    /// True if the buffer is read, and if it is written.
    reads: bool,
    writes: bool,
}

impl BlockBuffer {
    const NONE: Self = Self { argument: "buf", address: 0, blocks: 0, reads: false, writes: false };
}

/// The two buffers of a call, the bytes of a block, and the most blocks that any rank has in both.
#[derive(Clone, Copy, Debug)]
struct CallBuffers {
    sides: [BlockBuffer; 2],
    block: usize,
    most: usize,
}
