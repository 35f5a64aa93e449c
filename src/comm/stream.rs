//! Collectives on device buffers, in the order of a CUDA stream.
//! May touch: as `comm`. Law: whatever happens the host's part of a call ends, and the stream is
//! told, so that no stream waits for ever.

use std::array::from_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Communicator;
use crate::device::cuda::{Area, Current, SLOT, SLOTS, Stages, Turn, driver, refuse_capture};
use crate::element::{Element, Reduction};
use crate::error::{Error, Result};

/// Where the second buffer of a call begins behind the first: a line, at which any element may.
const LINE: usize = 64;

/// What calls on streams need.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stages>,
    /// The first failure that nobody has been told of.
    failed: Arc<Mutex<Option<Error>>>,
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
    /// ranks' calls of the same name, those on host buffers too if these are at most 1 MiB long.
    ///
    /// Data goes through pinned host memory, and it is the host that reduces it: what is promised
    /// of numbers holds here as it does there. Calls that work element by element are cut in pieces
    /// of 1 MiB, so that copies both ways and the collective overlap.
    ///
    /// What fails after a method returned, the next one says, or [`OnStream::check`]; the buffers of
    /// such a call hold anything.
    pub fn on_stream<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        OnStream { comm: self, stream }
    }
}

impl OnStream<'_> {
    /// Waits for the host's part of all calls so far; the stream may still have to copy out.
    ///
    /// # Errors
    /// The first failure that nobody was told of.
    pub fn check(&mut self) -> Result<()> {
        self.comm.come_home();
        failure(&self.comm.streams.failed).take().map_or(Ok(()), Err)
    }

    /// Puts a call of some pieces on the stream: `work` has the areas of each one after the other.
    fn put<const N: usize>(
        &mut self,
        call: &'static str,
        pieces: usize,
        areas: impl Fn(usize) -> [Area; N],
        work: impl Fn(&mut Communicator, &mut [u8]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        if let Some(error) = failure(&self.comm.streams.failed).take() {
            return Err(error);
        }
        let (driver, context, stream) = (driver()?, self.stream.context(), self.stream.cu_stream());
        let _current = Current::new(driver, context.cu_ctx())?;
        refuse_capture(call, stream)?;
        let all = &mut self.comm.streams.all;
        let mut stages = match all.iter().position(|stages| stages.is_of(stream)) {
            Some(at) => all.swap_remove(at),
            None => Stages::new(driver, context, stream),
        };
        let mut begin = |stages: &mut Stages, piece| {
            let turn = stages.begin(&areas(piece))?;
            let ticket = turn.ticket();
            self.start(turn, work.clone());
            Ok(ticket)
        };
        // All that fits is copied in before the first is waited for.
        let mut tickets = from_fn::<_, SLOTS, _>(|_| None);
        let mut result = Ok(());
        for step in 0..pieces + SLOTS {
            let ticket = &mut tickets[step % SLOTS];
            if let Some(ticket) = ticket.take() {
                let ended = stages.end(&ticket, &areas(step - SLOTS));
                result = result.and(ended);
            }
            if step < pieces && result.is_ok() {
                match begin(&mut stages, step) {
                    Ok(begun) => *ticket = Some(begun),
                    Err(error) => result = Err(error),
                }
            }
        }
        self.comm.streams.all.push(stages);
        result
    }

    /// Starts the host's part of a piece.
    fn start(
        &mut self,
        mut turn: Turn,
        work: impl Fn(&mut Communicator, &mut [u8]) -> Result<()> + Send + 'static,
    ) {
        let failed = Arc::clone(&self.comm.streams.failed);
        let pending = self.comm.nonblocking().start((), move |comm, ()| {
            let done = comm.work_on(&mut turn, &work);
            if let Err(error) = done {
                failure(&failed).get_or_insert(error);
            }
            Ok(())
        });
        // Its errors are kept elsewhere.
        drop(pending);
    }

    /// One call of one piece, from `send` to `recv`, of which all is written if it `fills` it.
    fn apart<T: Element>(
        &mut self,
        call: &'static str,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        fills: bool,
        work: impl Fn(&mut Communicator, &[T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let stream = Arc::clone(self.stream);
        let lens = [send.num_bytes(), recv.num_bytes()];
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let second = lens[0].next_multiple_of(LINE);
        let areas = |_| {
            let send = Area { device: from, at: 0, len: lens[0], reads: true, writes: false };
            let recv = Area { device: to, at: second, len: lens[1], reads: !fills, writes: true };
            [send, recv]
        };
        self.put(call, 1, areas, move |comm, bytes| {
            let (send, recv) = bytes.split_at_mut(second);
            work(comm, cast_slice(&send[..lens[0]]), cast_slice_mut(recv))
        })
    }

    /// A call that works element by element, in place.
    fn in_place<T: Element>(
        &mut self,
        call: &'static str,
        buf: &mut impl DevicePtrMut<T>,
        work: impl Fn(&mut Communicator, &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let (stream, whole) = (Arc::clone(self.stream), buf.num_bytes());
        let (device, _written) = buf.device_ptr_mut(&stream);
        let step = SLOT / size_of::<T>() * size_of::<T>();
        let areas = |piece| {
            let from = piece * step;
            let len = step.min(whole - from);
            [Area { device: device + from as u64, at: 0, len, reads: true, writes: true }]
        };
        let pieces = whole.div_ceil(step).max(1);
        self.put(call, pieces, areas, move |comm, bytes| work(comm, cast_slice_mut(bytes)))
    }
}

impl Communicator {
    /// The host's part. If the stream does not come, the others must not wait for this rank.
    fn work_on(
        &mut self,
        turn: &mut Turn,
        work: impl Fn(&mut Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (timeout, abort) = (self.settings.timeout, Arc::clone(&self.abort));
        match turn.bytes(timeout, || abort.load(Ordering::Relaxed)) {
            Ok(bytes) => work(self, bytes),
            Err(error) => {
                if let Some(engine) = &mut self.engine {
                    engine.give_up(error.to_string());
                }
                Err(error)
            }
        }
    }
}

/// One line for each verb: its name, its operation and root if it has them, and of two buffers
/// whether all of the second one is written, or only the root's.
macro_rules! verbs {
    ($($form:ident $name:ident $(by $op:ident)? $(with $root:ident)?;)*) => {
        impl OnStream<'_> {
            $(verbs!(@ $form $name $(by $op)? $(with $root)?);)*
        }
    };
    (@ in_place $name:ident $(by $op:ident)? $(with $root:ident)?) => {
        #[doc = concat!("[`Communicator::", stringify!($name), "`] of a device buffer.")]
        ///
        /// # Errors
        /// What failed before on a stream; and if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize)?
        ) -> Result<()> {
            $(let $op = $op.into();)?
            self.in_place(stringify!($name), buf, move |comm, buf: &mut [T]| {
                comm.$name(buf, $($op,)? $($root)?)
            })
        }
    };
    (@ fills $name:ident $(by $op:ident)? $(with $root:ident)?) => {
        verbs!(@ apart true, $name $(by $op)? $(with $root)?);
    };
    (@ may_fill $name:ident $(by $op:ident)? $(with $root:ident)?) => {
        verbs!(@ apart false, $name $(by $op)? $(with $root)?);
    };
    (@ apart $fills:literal, $name:ident $(by $op:ident)? $(with $root:ident)?) => {
        #[doc = concat!("[`Communicator::", stringify!($name), "`] of device buffers.")]
        ///
        /// # Errors
        /// What failed before on a stream; and if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize)?
        ) -> Result<()> {
            $(let $op = $op.into();)?
            self.apart(stringify!($name), send, recv, $fills, move |comm, send: &[T], recv| {
                comm.$name(send, recv, $($op,)? $($root)?)
            })
        }
    };
}

verbs! {
    in_place all_reduce by op;
    fills all_reduce_into by op;
    fills reduce_scatter by op;
    fills all_gather;
    in_place broadcast with root;
    in_place reduce by op with root;
    may_fill reduce_into by op with root;
    may_fill gather with root;
    fills scatter with root;
    fills all_to_all;
    in_place scan by op;
    fills scan_into by op;
    in_place exscan by op;
    may_fill exscan_into by op;
}
