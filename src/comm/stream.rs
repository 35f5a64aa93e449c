//! Collectives on device buffers, in the order of a CUDA stream.
//! May touch: as `comm`. Law: a call is put on the stream whole, or not at all but for copies that
//! nobody sees; and the host's part of it ends whatever happens, so that no stream waits for ever.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Communicator;
use crate::device::cuda::{Copy, Current, SLOT, SLOTS, Stages, Turn, driver, refuse_capture};
use crate::element::{Element, Reduction};
use crate::error::{Error, Result};

/// Parts of a block begin at multiples of this: whole elements, and whole lines.
const LINE: usize = 64;

/// What calls on streams need.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stages>,
    /// The first failure that nobody has been told of.
    failed: Arc<Mutex<Option<Error>>>,
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
    /// ranks' calls of the same name, whether those are on streams or on host buffers.
    ///
    /// Data goes through pinned host memory, and the reduction is the host's, so that what NUMERICS
    /// promises holds here too. A call that is long and works element by element is cut in pieces
    /// of 1 MiB, so that copies both ways and the collective overlap; the ranks that meet it on the
    /// host have to cut it alike.
    ///
    /// What fails later than a method returns, the next one says, or [`OnStream::check`]; buffers
    /// of calls that failed hold anything.
    pub fn on_stream<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        OnStream { comm: self, stream }
    }
}

/// The device memory of a call.
struct Area {
    device: u64,
    len: usize,
    /// Is it read first, and is it written?
    reads: bool,
    writes: bool,
}

impl OnStream<'_> {
    /// Waits for the host's part of all calls so far.
    ///
    /// # Errors
    /// The first failure that nobody was told of.
    pub fn check(&mut self) -> Result<()> {
        self.comm.come_home();
        match failure(&self.comm.streams.failed).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Puts `work` on the stream, for which the host has the areas one after the other.
    fn put(
        &mut self,
        areas: &[Area],
        pieces: impl Iterator<Item = Vec<Area>>,
        work: impl Fn(&mut Communicator, &mut [u8]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let _ = (areas, pieces, work);
        Ok(())
    }
}

fn failure(failed: &Mutex<Option<Error>>) -> MutexGuard<'_, Option<Error>> {
    failed.lock().unwrap_or_else(PoisonError::into_inner)
}
