//! Collectives on device buffers, in the order of a CUDA stream.
//! May touch: as `comm`. Law: whatever happens the host's part of a call ends, and the stream is
//! told, so that no stream waits for ever.

use std::array::from_fn;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::cast_slice_mut;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Communicator;
use super::verbs::refuse;
use crate::device::cuda::{
    Area, Current, Driver, SLOT, SLOTS, Stages, Turn, driver, refuse_capture,
};
use crate::element::{Element, Reduction};
use crate::error::{Error, Result};

/// Where the second buffer of a piece begins behind the first: a line, at which any element may.
const LINE: usize = 64;

/// What calls on streams need.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stages>,
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
    /// ranks' calls of the same name, those on host buffers too if all is at most 1 MiB long.
    ///
    /// Data goes through pinned host memory, and it is the host that reduces it: what is promised
    /// of numbers holds here as it does there. Calls are cut in pieces of 1 MiB in all, so that
    /// copies both ways and the collective overlap.
    ///
    /// The first call on a device allocates that memory, 8 MiB, and nothing does later. (To
    /// allocate and to free may wait for all streams of a context, among them those of thread ranks
    /// that wait for this one: thread ranks that share a device make their streams and buffers
    /// before any of them calls, and need a hardware queue for each stream, as
    /// `CUDA_DEVICE_MAX_CONNECTIONS=32` gives them.)
    ///
    /// What fails after a method returned, the next one says, or [`OnStream::check`]; the buffers
    /// of such a call hold anything.
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

    /// Before anything touches the stream: its context is current until the guard is dropped.
    fn enter(&self, call: &'static str) -> Result<(Driver, Current)> {
        let driver = driver()?;
        let current = Current::new(driver, self.stream.context().cu_ctx())?;
        refuse_capture(call, self.stream.cu_stream())?;
        Ok((driver, current))
    }

    /// Puts a call on the stream, whose buffers have blocks of `block` bytes, `most` of them at any
    /// rank: for each piece of these `work` has the blocks of the one buffer, then those of the
    /// other.
    fn put<T: Element>(
        &mut self,
        driver: Driver,
        sides: [Side; 2],
        (block, most): (usize, usize),
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        if let Some(error) = failure(&self.comm.streams.failed).take() {
            return Err(error);
        }
        let step = (SLOT - LINE) / most / size_of::<T>() * size_of::<T>();
        if step == 0 {
            let (doing, reason) = ("cutting a call", "there are too many ranks for one piece");
            return Err(Error::Device { doing: doing.into(), reason: reason.into() });
        }
        let (context, stream) = (self.stream.context(), self.stream.cu_stream());
        let all = &mut self.comm.streams.all;
        let mut stages = match all.iter().position(|stages| stages.is_of(context)) {
            Some(at) => all.swap_remove(at),
            None => Stages::new(driver, context)?,
        };
        let pieces = block.div_ceil(step).max(1);
        let areas = |piece: usize| {
            let range = piece * step..block.min((piece + 1) * step);
            let second = (sides[0].blocks * range.len()).next_multiple_of(LINE);
            let [one, other] = sides;
            one.areas(0, block, range.clone()).chain(other.areas(second, block, range))
        };
        let lens = |piece: usize| {
            let len = step.min(block - piece * step);
            sides.map(|side| side.blocks * len)
        };
        // All that fits is copied in before the first is waited for.
        let mut tickets = from_fn::<_, SLOTS, _>(|_| None);
        let mut result = Ok(());
        for at in 0..pieces + SLOTS {
            let ticket = &mut tickets[at % SLOTS];
            if let Some(ticket) = ticket.take() {
                result = result.and(stages.end(stream, &ticket, areas(at - SLOTS)));
            }
            if at < pieces && result.is_ok() {
                match stages.begin(stream, areas(at)) {
                    Ok(turn) => {
                        *ticket = Some(turn.ticket());
                        self.start(turn, lens(at), work.clone());
                    }
                    Err(error) => result = Err(error),
                }
            }
        }
        self.comm.streams.all.push(stages);
        if let Err(error) = &result {
            self.give_up(error.to_string());
        }
        result
    }

    /// After a call that was put on the stream in part, or not at all, this rank is out of step
    /// with those who make it.
    fn give_up(&mut self, why: String) {
        drop(self.comm.nonblocking().start((), move |comm, ()| {
            if let Some(engine) = &mut comm.engine {
                engine.give_up(why);
            }
            Ok(())
        }));
    }

    /// Starts the host's part of a piece.
    fn start<T: Element>(
        &mut self,
        mut turn: Turn,
        lens: [usize; 2],
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Send + 'static,
    ) {
        let failed = Arc::clone(&self.comm.streams.failed);
        let pending = self.comm.nonblocking().start((), move |comm, ()| {
            let done = comm.work_on(&mut turn, |comm, bytes| {
                let second = lens[0].next_multiple_of(LINE).min(bytes.len());
                let (one, other) = bytes.split_at_mut(second);
                let one = cast_slice_mut(&mut one[..lens[0]]);
                work(comm, one, cast_slice_mut(&mut other[..lens[1]]))
            });
            if let Err(error) = done {
                failure(&failed).get_or_insert(error);
            }
            Ok(())
        });
        // Its errors are kept elsewhere.
        drop(pending);
    }

    /// A call from `send` to `recv`, which have so many blocks; all of recv is written if it
    /// `fills` it.
    fn apart<T: Element>(
        &mut self,
        call: &'static str,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
        (blocks, most, fills): ([usize; 2], usize, bool),
        work: impl Fn(&mut Communicator, &[T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let stream = Arc::clone(self.stream);
        let lens = [send.num_bytes(), recv.num_bytes()];
        let block = |side: usize| lens[side].checked_div(blocks[side]);
        let block = block(0).into_iter().chain(block(1)).min().unwrap_or(0);
        for (side, argument) in ["send", "recv"].into_iter().enumerate() {
            let expected = blocks[side] * block;
            if blocks[side] > 0 && lens[side] != expected {
                let given = format!("{} bytes long", lens[side]);
                return refuse(call, argument, given, format!("{expected} bytes"));
            }
        }
        let (driver, _current) = self.enter(call)?;
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let send = Side { device: from, blocks: blocks[0], reads: true, writes: false };
        let recv = Side { device: to, blocks: blocks[1], reads: !fills, writes: true };
        self.put(driver, [send, recv], (block, most), move |comm, send: &mut [T], recv| {
            work(comm, send, recv)
        })
    }

    /// A call in place, which works element by element.
    fn in_place<T: Element>(
        &mut self,
        call: &'static str,
        buf: &mut impl DevicePtrMut<T>,
        work: impl Fn(&mut Communicator, &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let (stream, len) = (Arc::clone(self.stream), buf.num_bytes());
        let (driver, _current) = self.enter(call)?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        let whole = Side { device, blocks: 1, reads: true, writes: true };
        let none = Side { blocks: 0, ..whole };
        self.put(driver, [whole, none], (len, 1), move |comm, buf: &mut [T], _| work(comm, buf))
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

impl Side {
    /// Where the bytes `range` of each block are, and where in a turn from `at` on.
    fn areas(self, at: usize, block: usize, range: Range<usize>) -> impl Iterator<Item = Area> {
        let Self { device, blocks, reads, writes } = self;
        let len = range.len();
        (0..blocks).map(move |number| {
            let device = device + (number * block + range.start) as u64;
            Area { device, at: at + number * len, len, reads, writes }
        })
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

/// One line for each verb: its form, its name, its operation and root if it has them. Of two
/// buffers the form says how many blocks each has, and whether all of the second is written.
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
    (@ $form:ident $name:ident $(by $op:ident)? $(with $root:ident)?) => {
        #[doc = concat!("[`Communicator::", stringify!($name), "`] of device buffers.")]
        ///
        /// # Errors
        /// If the lengths do not fit, what failed before on a stream, and if the device refuses
        /// something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize)?
        ) -> Result<()> {
            $(let $op = $op.into();)?
            let is_root = true $(&& $root == self.comm.rank())?;
            let form = Form::$form.of(self.comm.size(), is_root);
            self.apart(stringify!($name), (send, recv), form, move |comm, send: &[T], recv| {
                comm.$name(send, recv, $($op,)? $($root)?)
            })
        }
    };
}

/// What buffers consist of.
#[allow(non_camel_case_types, reason = "as the macro's lines say them")]
enum Form {
    alike,
    alike_but_first,
    alike_at_root,
    scatters,
    gathers,
    exchanges,
}

impl Form {
    /// The blocks of send and recv, none of which is not looked at; how many any rank has; and is
    /// all of recv written?
    fn of(self, size: usize, is_root: bool) -> ([usize; 2], usize, bool) {
        let root = usize::from(is_root);
        match self {
            Self::alike => ([1, 1], 2, true),
            Self::alike_but_first => ([1, 1], 2, false),
            Self::alike_at_root => ([1, root], 2, true),
            Self::scatters => ([size * root, 1], size + 1, true),
            Self::gathers => ([1, size * root], size + 1, true),
            Self::exchanges => ([size, size], 2 * size, true),
        }
    }
}

verbs! {
    in_place all_reduce by op;
    alike all_reduce_into by op;
    scatters reduce_scatter by op;
    gathers all_gather;
    in_place broadcast with root;
    in_place reduce by op with root;
    alike_at_root reduce_into by op with root;
    gathers gather with root;
    scatters scatter with root;
    exchanges all_to_all;
    in_place scan by op;
    alike scan_into by op;
    in_place exscan by op;
    alike_but_first exscan_into by op;
}
