//! The communicator and its public methods. Each method checks its arguments, asks the planner for
//! a plan and has the engine execute it.

mod blocking;
mod builder;
pub(crate) mod call;
pub(crate) mod collective;
mod custom_op;
mod explain;
mod failing;
#[cfg(feature = "internals")]
pub mod fuzz;
pub(crate) mod group;
pub(crate) mod layout;
pub(crate) mod many;
mod messenger;
mod monitor;
pub(crate) mod nonblocking;
#[cfg(feature = "serde")]
mod objects;
pub(crate) mod options;
pub(crate) mod p2p;
mod queue;
mod registered;
mod request;
pub(crate) mod uneven;
mod user_schedule;
pub(crate) mod verbs;

use std::fmt;
#[cfg(feature = "internals")]
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use builder::Builder;
pub use call::{Buffers, Call, Counts, Verb};
pub use custom_op::FoldOrder;
pub use group::{Group, group, group_all};
pub use messenger::{Messenger, Source, Status, Tag};
pub use monitor::{CurrentCall, Monitor};
pub use nonblocking::Queue;
pub use nonblocking::pending::Pending;
pub use options::{CallOptions, With};
pub use request::MessageRequest;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::in_process;
use crate::codec::printable;
#[cfg(feature = "cuda")]
use crate::device::stream;
use crate::engine::settings::{Preferences, Settings};
use crate::engine::{Engine, RankInfo};
use crate::error::communicator_name::{CommunicatorName, MAX_NAME_BYTES, shortened};
use crate::error::{Error, Peer, Result, argument_error};
use crate::recovery::Recovery;
use crate::schedule::Ring;
use group::GroupLists;
use nonblocking::worker::{Worker, worker_ended};
use smallbox::SmallBox;
use smallbox::space::S32;

/// A box that stores values of up to 256 bytes inline, without allocating.
pub(crate) type InlineBox<T> = SmallBox<T, S32>;

/// A group of ranks that call the same collectives in the same order.
///
/// Every method that communicates takes `&mut self`: a rank is one thread of control, and using a
/// communicator from two threads at once does not compile. After an error that is not about an
/// argument, every further call fails with [`Error::Broken`].
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
/// The methods by purpose. A `_bytes` method takes the type of the elements as an argument.
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
/// - **Objects** (with the feature `serde`): `broadcast_object`, `gather_object`,
///   `all_gather_object`.
/// - **Messages**: [`Self::send`], [`Self::recv`], [`Self::send_recv`]; with tags, from any rank
///   and from any thread: [`Self::messenger`].
/// - **Several as one**: [`Self::all_reduce_many`], [`Self::group`].
/// - **By a function**: [`Self::all_reduce_by`], [`Self::reduce_scatter_by`], and C's:
///   [`Self::all_reduce_by_function`], [`Self::reduce_scatter_by_function`].
/// - **Nonblocking**: [`Self::scope`], [`Self::nonblocking`].
/// - **More communicators**: [`Self::split`], [`Self::duplicate`]; of their members alone, on any
///   thread: [`Self::group_creator`].
/// - **Registered memory**: [`Self::alloc`], [`Self::register`].
/// - **CUDA devices** (with the feature `cuda`): `use_device`, `on_stream`, `alloc_device`.
/// - **Recovery**: [`Self::shrink`], [`Self::evict`], [`Self::grow`], [`Self::agree`],
///   [`Self::revoke`], [`Self::recovery`], [`Self::epoch`].
/// - **Any of these as a value**: [`Self::call`].
/// - **Options and answers**: [`Self::with`], [`Self::explain`], [`Self::monitor`],
///   [`Self::set_name`].
/// - **Schedules of one's own**: [`Self::prove`], [`Self::run_schedule`], [`Self::run_reduction`].
///
/// Communicators that [`Self::split`] and [`Self::duplicate`] make may be used at the same time as
/// this one. [`Self::scope`] and [`Self::nonblocking`] start operations that run beside the caller;
/// dropping a communicator waits for them.
///
/// **fork**: a child process may run another program or end (`exec`, `_exit`). Dropping its copy of
/// a communicator does nothing, and calls on it, messages and waits for operations that the parent
/// has started fail with [`Error::Broken`]. If the parent dies, ranks of its host notice at once;
/// ranks of other hosts notice once the child has ended or run another program.
pub struct Communicator {
    pub(crate) rank_info: Arc<RankInfo>,
    /// `None` while the worker has the engine, for operations that are pending.
    pub(crate) engine: Option<Engine>,
    /// `None` until the first operation is started.
    pub(crate) worker: Option<Worker>,
    pub(crate) settings: Settings,
    pub(crate) abort: Arc<AtomicBool>,
    /// The first failure, which the engine sets.
    pub(crate) failure: Arc<OnceLock<Error>>,
    /// The lists of a group, empty between two groups.
    group_lists: GroupLists<'static>,
    /// How the ranks met. The communicator of the worker has the same.
    pub(crate) origin: Arc<Origin>,
    /// Where the ranks come from, if this communicator continues an earlier one.
    pub(crate) recovery: Option<Box<Recovery>>,
    #[cfg(feature = "cuda")]
    pub(crate) streams: stream::Streams,
}

/// How the ranks met. A split or a recovery makes new communicators in the same way.
pub(crate) enum Origin {
    Processes(Box<Bootstrap>),
    Threads(Arc<in_process::ThreadGroup>),
}

impl Drop for Communicator {
    /// A forked child closes nothing and waits for nothing: links, sockets and shared memory are
    /// the parent's too, and the child has one thread only.
    fn drop(&mut self) {
        if self.rank_info.peers[self.rank_info.rank].pid != std::process::id() {
            std::mem::forget((self.engine.take(), self.worker.take()));
            #[cfg(feature = "cuda")]
            std::mem::forget(std::mem::take(&mut self.streams));
        }
        if let Some(engine) = &mut self.engine {
            engine.announce_group_failure();
        }
        // Calls on streams end before the links close, because peers see by the links that this
        // rank lives.
        #[cfg(feature = "cuda")]
        drop(std::mem::take(&mut self.streams));
    }
}

impl Communicator {
    pub(crate) fn new(origin: Origin, engine: Engine, timeout: Duration) -> Self {
        Self {
            rank_info: Arc::clone(&engine.rank_info),
            abort: Arc::clone(&engine.abort),
            failure: Arc::clone(&engine.broken),
            engine: Some(engine),
            worker: None,
            settings: Settings::new(timeout, Preferences::default()),
            group_lists: GroupLists::default(),
            origin: Arc::new(origin),
            recovery: None,
            #[cfg(feature = "cuda")]
            streams: stream::Streams::default(),
        }
    }

    /// The communicator of this one's worker, which has no engine yet.
    pub(crate) fn for_worker(&self) -> Self {
        Self {
            rank_info: Arc::clone(&self.rank_info),
            engine: None,
            worker: None,
            settings: self.settings.clone(),
            abort: Arc::clone(&self.abort),
            failure: Arc::clone(&self.failure),
            group_lists: GroupLists::default(),
            origin: Arc::clone(&self.origin),
            recovery: None,
            #[cfg(feature = "cuda")]
            streams: stream::Streams::default(),
        }
    }

    /// This communicator with other preferences for its calls.
    pub(crate) fn with_preferences(mut self, preferences: Preferences) -> Self {
        self.settings = Settings::new(self.settings.timeout, preferences);
        self
    }

    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank_info.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.rank_info.peers.len()
    }

    /// This rank's number among the ranks of its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.rank_info.local_rank
    }

    /// The number of ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.rank_info.local_size
    }

    /// The name of this rank's host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.rank_info.peers[self.rank_info.rank].host
    }

    /// Names this communicator, so that errors, warnings, records, `ringrun status` and metrics
    /// tell it from the others of the program. The name is this rank's own affair: it need not be
    /// equal at all ranks, and nothing is sent.
    ///
    /// Communicators made of a named one are named after it: those of [`Self::split`] "name/color",
    /// those of [`Self::duplicate`] "name/duplicate"; what [`Self::shrink`], [`Self::evict`] and
    /// [`Self::grow`] make goes on under the same name. A new rank that joins names its own.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// comm.set_name("data parallel")?;
    /// let experts = comm.split(Some(3), 0)?;
    /// assert_eq!(experts.and_then(|it| it.name()).as_deref(), Some("data parallel/3"));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the name is empty, longer than 64 bytes, or has characters that a terminal does not show.
    pub fn set_name(&self, name: &str) -> Result<()> {
        let given = match name.len() {
            0 => "empty".into(),
            1..=MAX_NAME_BYTES if printable(name) == name => {
                self.rank_info.record.set_name(name);
                return Ok(());
            }
            1..=MAX_NAME_BYTES => format!("{name:?}"),
            bytes => format!("{bytes} bytes long"),
        };
        argument_error("set_name", "name", given, "1 to 64 bytes of printable characters")
    }

    /// The name of this communicator, if [`Self::set_name`] has given one to it or to the
    /// communicator that it was made of.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.rank_info.name.copy()
    }

    /// Names this communicator after `parent`, the name of the one it was made of, if that has one.
    pub(crate) fn inherit_name(&self, parent: &CommunicatorName, suffix: &str) {
        if let Some(name) = parent.get() {
            let name = shortened(&format!("{name}{suffix}"), MAX_NAME_BYTES);
            self.rank_info.record.set_name(&name);
        }
    }

    /// All ranks, with their hosts and processes.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        &self.rank_info.peers
    }

    /// The transports of this rank's links, each once: `shm`, `tcp` or, between threads of one
    /// process, `threads`. Empty if the communicator has one rank.
    #[must_use]
    pub fn transports(&self) -> Vec<&'static str> {
        self.rank_info.transports.clone()
    }

    /// The address of this host at which other ranks reach this one; none without links over TCP.
    /// For ringbench alone.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    #[must_use]
    pub fn tcp_address(&self) -> Option<IpAddr> {
        self.rank_info.address()
    }

    /// The engine for the call `name`, after all pending operations, and the settings of its calls.
    pub(crate) fn engine_on_this_thread(
        &mut self,
        name: &'static str,
    ) -> Result<(&mut Engine, &Settings)> {
        self.rank_info.process.check(name)?;
        if self.engine.is_none() {
            self.reclaim_engine();
        }
        let engine = self.engine.as_mut().ok_or_else(|| worker_ended(name))?;
        Ok((engine, &self.settings))
    }

    /// The ring: the order of the ranks, and which links they have.
    fn ring(&mut self, name: &'static str) -> Result<&Ring> {
        Ok(self.engine_on_this_thread(name)?.0.planner.ring())
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Communicator");
        out.field("rank", &self.rank()).field("size", &self.size()).field("host", &self.host());
        if let Some(engine) = &self.engine {
            out.field("links", &engine.peers)
                .field("calls", &engine.sequence)
                .field("broken", &engine.broken);
        }
        out.finish_non_exhaustive()
    }
}
