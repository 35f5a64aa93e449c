//! The communicator: the public verbs. Each checks its arguments, takes a plan and has it walked.
//! May touch: everything below; the only room that applications see.

mod c_function;
mod custom_op;
pub(crate) mod dense;
mod explain;
#[cfg(fuzzing)]
pub mod fuzz;
pub(crate) mod group;
pub(crate) mod many;
mod nonblocking;
pub(crate) mod options;
mod p2p;
pub(crate) mod pending;
mod queue;
mod registered;
pub(crate) mod uneven;
mod user_schedule;
pub(crate) mod verb;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use custom_op::FoldOrder;
pub use group::Group;
pub use nonblocking::Queue;
pub use options::{CallOptions, With};
pub use pending::Pending;

use crate::bootstrap::Meeting;
use crate::bootstrap::in_process;
#[cfg(feature = "cuda")]
use crate::device::stream;
use crate::element::{DataType, ReduceOp, Reduction};
use crate::engine::pieces::{Pieces, Whole, plan};
use crate::engine::worker::{self, Worker};
use crate::engine::{Engine, Head};
use crate::error::{Error, Peer, Result};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::{Blocks, Plan, Planner, Request};
use crate::recovery::Recovery;
use crate::schedule::Ring;
use crate::trace::{Flight, MetricsHandle};
use options::{Preferences, Settings};
use smallbox::SmallBox;
use smallbox::space::S32;

/// A box that itself has room for 256 bytes.
pub(crate) type InPlace<T> = SmallBox<T, S32>;

/// A group of ranks that call the same collectives in the same order.
///
/// Every method that communicates takes `&mut self`: one rank is one thread of control, and using
/// it from two threads at once does not compile. After an error that is not about an argument the
/// communicator is of no more use, and says so.
///
/// ```compile_fail,E0499
/// # let mut comm = ringreduce::Communicator::from_env()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| comm.barrier());
///     scope.spawn(|| comm.barrier());
/// });
/// # Ok::<(), ringreduce::Error>(())
/// ```
///
/// The methods by what they are for. A `_bytes` form takes the type of the elements as an argument.
///
/// - **Making one**: [`Self::from_env`], [`Self::builder`], [`Self::local`].
/// - **Collectives**: [`Self::all_reduce`], [`Self::all_reduce_into`], [`Self::reduce_scatter`],
///   [`Self::reduce_scatter_in_place`], [`Self::all_gather`], [`Self::all_gather_in_place`],
///   [`Self::all_to_all`], [`Self::all_to_all_in_place`], [`Self::barrier`].
/// - **With a root**: [`Self::broadcast`], [`Self::reduce`], [`Self::reduce_into`],
///   [`Self::gather`], [`Self::scatter`].
/// - **Of uneven parts**: [`Self::all_gather_v`], [`Self::reduce_scatter_v`], [`Self::gather_v`],
///   [`Self::scatter_v`], [`Self::all_to_all_v`].
/// - **Prefixes**: [`Self::scan`], [`Self::scan_into`], [`Self::exscan`], [`Self::exscan_into`].
/// - **Messages**: [`Self::send`], [`Self::recv`], [`Self::send_recv`].
/// - **Several as one**: [`Self::all_reduce_many`], [`Self::group`].
/// - **By a function**: [`Self::all_reduce_by`], [`Self::reduce_scatter_by`], and C's:
///   [`Self::all_reduce_by_function`], [`Self::reduce_scatter_by_function`].
/// - **Nonblocking**: [`Self::scope`], [`Self::nonblocking`].
/// - **More communicators**: [`Self::split`], [`Self::duplicate`].
/// - **Registered memory**: [`Self::alloc`], [`Self::register`].
/// - **CUDA devices** (with the feature `cuda`): `use_device`, `on_stream`, `alloc_device`.
/// - **Recovery**: [`Self::shrink`], [`Self::evict`], [`Self::grow`], [`Self::agree`],
///   [`Self::revoke`], [`Self::recovery`], [`Self::epoch`], [`Self::abort_handle`].
/// - **Options and answers**: [`Self::with`], [`Self::explain`], [`Self::metrics`].
/// - **Schedules of one's own**: [`Self::prove`], [`Self::run_schedule`], [`Self::run_reduction`].
///
/// [`Self::split`] and [`Self::duplicate`] make more of one, which may be used at the same time.
/// [`Self::scope`] and [`Self::nonblocking`] start operations and go on. Dropping a communicator
/// waits for those that it started.
///
/// **fork**: a child may run another program or end (`exec`, `_exit`), and dropping its copy of a
/// communicator does nothing there. It must not call anything on the copy, nor wait for what the
/// parent has started. Ranks of the parent's host notice its death all the same; those of other
/// hosts only once the child has ended or run another program.
pub struct Communicator {
    pub(crate) seat: Arc<Seat>,
    /// With the worker while operations are pending.
    pub(crate) engine: Option<Engine>,
    /// From the first operation for owned buffers on.
    pub(crate) worker: Option<Worker>,
    pub(crate) settings: Settings,
    pub(crate) abort: Arc<AtomicBool>,
    /// What it went on from.
    pub(crate) recovery: Option<Box<Recovery>>,
    #[cfg(feature = "cuda")]
    pub(crate) streams: stream::Streams,
}

/// Which rank this is, and who the others are.
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    /// In the order of ranks; what they are called is another communicator's where calls are parts
    /// of its calls.
    pub(crate) peers: Arc<[Peer]>,
    pub(crate) transports: Vec<&'static str>,
    /// Can every rank map every other one's memory?
    pub(crate) shares: bool,
    pub(crate) origin: Origin,
    /// Where its calls are written down.
    pub(crate) flight: Flight,
}

/// How its ranks met; some of them meet again in the same way.
pub(crate) enum Origin {
    /// As processes.
    Processes(Box<Meeting>),
    /// As threads of this process.
    Threads(Arc<in_process::Group>),
}

/// Ends the pending call of one communicator, from any thread.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<AtomicBool>);

impl AbortHandle {
    /// The rank's pending call, or else its next one, fails with
    /// [`Error::Aborted`](crate::Error::Aborted). Returns at once.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Communicator {
    /// In a child that was forked nothing is closed and nobody is waited for: links, sockets and
    /// shared memory are the parent's too, and no thread but one has come along.
    fn drop(&mut self) {
        if self.seat.peers[self.seat.rank].pid != std::process::id() {
            std::mem::forget((self.engine.take(), self.worker.take()));
            #[cfg(feature = "cuda")]
            std::mem::forget(std::mem::take(&mut self.streams));
        }
        if let Some(engine) = &mut self.engine {
            engine.take_leave();
        }
        // Streams' calls end while the links are there, by which others see that this rank lives.
        #[cfg(feature = "cuda")]
        drop(std::mem::take(&mut self.streams));
    }
}

impl Communicator {
    pub(crate) fn new(seat: Seat, engine: Engine, timeout: Duration) -> Self {
        let settings = Settings::new(timeout, Preferences::default());
        let abort = Arc::clone(&engine.abort);
        Self::of(Arc::new(seat), Some(engine), settings, abort)
    }

    pub(crate) fn of(
        seat: Arc<Seat>,
        engine: Option<Engine>,
        settings: Settings,
        abort: Arc<AtomicBool>,
    ) -> Self {
        Self {
            seat,
            engine,
            worker: None,
            settings,
            abort,
            recovery: None,
            #[cfg(feature = "cuda")]
            streams: stream::Streams::default(),
        }
    }

    /// The same, whose calls go by these.
    pub(crate) fn going_by(mut self, preferences: Preferences) -> Self {
        self.settings = Settings::new(self.settings.timeout, preferences);
        self
    }

    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.seat.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.seat.peers.len()
    }

    /// This rank's number among those on its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.seat.local_rank
    }

    /// How many ranks there are on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.seat.local_size
    }

    /// The name of this rank's host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.seat.peers[self.seat.rank].host
    }

    /// All ranks, with their hosts and processes.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        &self.seat.peers
    }

    /// What this rank's links run over, each kind once: `shm`, `tcp` or, between threads of one
    /// process, `threads`. Empty in a world of one.
    #[must_use]
    pub fn transports(&self) -> Vec<&'static str> {
        self.seat.transports.clone()
    }

    /// A handle that ends this rank's pending call from another thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.abort))
    }

    /// What this communicator has done so far, as text that Prometheus reads: calls, bytes of
    /// results, seconds asleep for other ranks, and errors by kind; of each collective that was
    /// called. [`Self::metrics_handle`] lets other threads ask, such as one that serves HTTP.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    /// let mut comm = Communicator::local(1)?.remove(0);
    /// comm.all_reduce(&mut [1.0_f32, 2.0], ReduceOp::Sum)?;
    /// let line = "ringreduce_bytes_total{collective=\"all_reduce\",rank=\"0\"} 8";
    /// assert!(comm.metrics().lines().any(|it| it == line));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics_handle().metrics()
    }

    /// A handle by which any thread reads what [`Self::metrics`] gives, while this communicator is
    /// in a call or elsewhere.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    /// let mut comm = Communicator::local(1)?.remove(0);
    /// let handle = comm.metrics_handle();
    /// let reader = std::thread::spawn(move || handle.metrics());
    /// comm.barrier()?;
    /// assert!(reader.join().is_ok_and(|text| text.contains("ringreduce_calls_total")));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    #[must_use]
    pub fn metrics_handle(&self) -> MetricsHandle {
        self.seat.flight.metrics()
    }

    /// The kernel of this library for `request`. What does not reduce needs none, and gets the
    /// cheapest.
    pub(crate) fn kernel(&self, request: &Request) -> Result<Kernel<'static>> {
        let (dtype, op) =
            request.op.map_or((DataType::U8, ReduceOp::Max.into()), |op| (request.dtype, op));
        let ranks = self.settings.averages.unwrap_or(self.size());
        Kernel::select(dtype, op, ranks).ok_or_else(|| {
            let (given, defined) = (format!("{op} of {dtype}"), Reduction::defined_for(dtype));
            let (call, expected) = (request.collective.name(), format!("one of {defined}"));
            Error::Argument { call, argument: "op", given, expected }
        })
    }

    /// Makes the call of `request` over `buffer`.
    fn run(&mut self, request: &Request, buffer: &Buffer<'_>) -> Result<()> {
        let head = &Head::of(request, self.kernel(request)?);
        self.run_whole(&Whole { head, request, blocks: None, buffer })
    }

    /// The same, for blocks that differ in length.
    fn run_uneven(
        &mut self,
        name: &'static str,
        request: &Request,
        blocks: Blocks<'_>,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        let head = &Head { name, uneven: true, ..Head::of(request, self.kernel(request)?) };
        self.run_whole(&Whole { head, request, blocks: Some(blocks), buffer })
    }

    /// The same, for any call by a kernel of this library: it may travel as another type.
    fn run_whole(&mut self, whole: &Whole<'_>) -> Result<()> {
        let pieces = self.travel(whole.head.name, whole.request, Some(whole.buffer))?;
        self.make_call(whole, pieces.as_ref())
    }

    /// Makes a collective call over the user's buffer: as it is, or in these pieces. All of them
    /// are made here, so that what a failure leaves of the buffer is the same for all.
    fn make_call(&mut self, whole: &Whole<'_>, pieces: Option<&Pieces<'_>>) -> Result<()> {
        let Whole { head, request, blocks, buffer } = *whole;
        self.kept(head.name, buffer, |comm| match pieces {
            Some(pieces) if !comm.settings.rehearses => comm.in_pieces(whole, pieces),
            _ => comm.walk(head, buffer, |planner| plan(planner, request, blocks)),
        })
    }

    /// Walks a plan over `buffer`, after all operations that are pending.
    pub(crate) fn walk(
        &mut self,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        plan: impl FnOnce(&mut Planner) -> Plan<'_>,
    ) -> Result<()> {
        let (engine, seat, settings) = self.at_home(head.name)?;
        engine.run(seat, settings, head, buffer, plan)
    }

    /// The engine for the call `name`, after all operations that are pending; and what it goes by.
    pub(crate) fn at_home(
        &mut self,
        name: &'static str,
    ) -> Result<(&mut Engine, &Seat, &Settings)> {
        if self.engine.is_none() {
            self.come_home();
        }
        let engine = self.engine.as_mut().ok_or_else(|| worker::lost(name))?;
        Ok((engine, &self.seat, &self.settings))
    }

    /// The order of the ranks, and which links they have.
    fn ring(&mut self, name: &'static str) -> Result<&Ring> {
        Ok(self.at_home(name)?.0.planner.ring())
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Communicator");
        out.field("rank", &self.rank()).field("size", &self.size()).field("host", &self.host());
        if let Some(engine) = &self.engine {
            out.field("links", &engine.links)
                .field("calls", &engine.sequence)
                .field("broken", &engine.broken);
        }
        out.finish_non_exhaustive()
    }
}
