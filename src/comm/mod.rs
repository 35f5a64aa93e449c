//! The communicator: the public verbs. Each checks its arguments, takes a plan and has it walked.
//! May touch: everything below; the only room that applications see.

mod by;
mod registered;
mod setup;
mod share;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use by::FoldOrder;
pub use setup::Builder;

use crate::element::{DataType, ReduceOp, Reduction};
use crate::error::{Error, Peer, Place, Result};
use crate::exec::{self, Call, Halt, Stop, Wait};
use crate::kernel::Kernel;
use crate::link::{Fault, Frame, Links};
use crate::memory::Buffer;
use crate::plan::{Planner, Request};
use crate::schedule::Collective;
use crate::sync::Patience;
use registered::{DirectCall, Registry};

/// A group of ranks that call the same collectives in the same order.
///
/// Every method that communicates takes `&mut self`: one rank is one thread of control, and using
/// it from two threads at once does not compile. After an error that is not about an argument the
/// communicator is of no more use, and says so.
pub struct Communicator {
    rank: usize,
    local_rank: usize,
    local_size: usize,
    peers: Arc<[Peer]>,
    planner: Planner,
    links: Links,
    patience: Patience,
    timeout: Duration,
    /// Bytes of the last cache; larger results are stored past it.
    cache: usize,
    abort: Arc<AtomicBool>,
    registry: Registry,
    /// Calls made so far.
    sequence: u64,
    /// The first failure, after which nothing works any more.
    broken: Option<String>,
}

/// Ends the pending call of one communicator, from any thread.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<AtomicBool>);

impl AbortHandle {
    /// The rank's pending call, or else its next one, fails with [`Error::Aborted`]. Returns at
    /// once.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Communicator {
    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// This rank's number among those on its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How many ranks there are on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The name of this rank's host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.peers[self.rank].host
    }

    /// All ranks, with their hosts and processes.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// What this rank's links run over, each kind once: `shm`, `tcp` or, between threads of one
    /// process, `threads`. Empty in a world of one.
    #[must_use]
    pub fn transports(&self) -> Vec<&'static str> {
        self.links.transports()
    }

    /// A handle that ends this rank's pending call from another thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.abort))
    }

    /// Walks the plan for `request` over `buffer`, with the kernel of this library for it.
    fn run(&mut self, request: &Request, buffer: &Buffer<'_>) -> Result<()> {
        self.run_as(request.collective.name(), 0, request, buffer)
    }

    /// The same, as part of the call `name`, which is told from others by its `salt`.
    fn run_as(
        &mut self,
        name: &'static str,
        salt: u64,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        // What does not reduce needs no kernel, and gets the cheapest.
        let (dtype, op) =
            request.op.map_or((DataType::U8, ReduceOp::Max.into()), |op| (request.dtype, op));
        let Some(kernel) = Kernel::select(dtype, op, self.size()) else {
            let (given, defined) = (format!("{op} of {dtype}"), Reduction::defined_for(dtype));
            let expected = format!("one of {defined}");
            return Err(Error::Argument { call: name, argument: "op", given, expected });
        };
        self.walk_as(name, salt, request, buffer, kernel)
    }

    /// Walks the plan for `request` over `buffer`.
    fn walk(&mut self, request: &Request, buffer: &Buffer<'_>, kernel: Kernel<'_>) -> Result<()> {
        self.walk_as(request.collective.name(), 0, request, buffer, kernel)
    }

    /// The same, as [`Self::run_as`].
    fn walk_as(
        &mut self,
        name: &'static str,
        salt: u64,
        request: &Request,
        buffer: &Buffer<'_>,
        kernel: Kernel<'_>,
    ) -> Result<()> {
        if let Some(first) = &self.broken {
            return Err(Error::Broken { call: name, first: first.clone() });
        }
        self.sequence += 1;
        if self.abort.load(Ordering::Relaxed) {
            return Err(self.fail(name, Halt { stop: Stop::Aborted, step: 0, peer: self.rank }));
        }
        let world = self.peers.len();
        let plan = self.planner.plan(request);
        let fingerprint = plan.fingerprint ^ salt;
        let frame = Frame { len: 0, epoch: 0, sequence: self.sequence, fingerprint };
        let bytes = request.count * request.element_size();
        if world == 1 && request.op.is_some() {
            // Nobody to reduce with: the result is what the reduction makes of one contribution.
            kernel.fold(true, &mut [buffer.dst(0..bytes)], &[buffer.src(0..bytes)]);
            return Ok(());
        }
        let wait = Wait::new(&self.patience, self.timeout, &self.abort);
        let done = match self.registry.of(request, buffer) {
            Some(found) => {
                let direct =
                    DirectCall { request, frame, kernel, me: self.rank, cache: self.cache };
                self.registry.run(&direct, &found, buffer, &mut self.links, &wait)
            }
            None => {
                self.registry.passes_by(self.sequence);
                let streaming = bytes >= self.cache;
                let (schedule, partition) = (plan.schedule, plan.partition);
                let call = Call { schedule, partition, frame, kernel, streaming };
                exec::run(&call, buffer, &mut self.links, &wait).map_err(|halt| {
                    let peer = self.registry.elsewhere(self.sequence, self.rank);
                    peer.map_or(halt, |peer| Halt {
                        stop: Stop::Memory { registered: false },
                        step: 0,
                        peer,
                    })
                })
            }
        };
        done.map_err(|halt| self.fail(name, halt))
    }

    /// A barrier, as part of the call `name`.
    fn meet_in(&mut self, name: &'static str) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        self.run_as(name, 0, &request, &Buffer::in_place(&mut [0]))
    }

    /// Where this rank is, for an error.
    fn place(&self, operation: &'static str, step: usize) -> Box<Place> {
        let (rank, host) = (self.rank, self.host().to_owned());
        Box::new(Place { rank, host, operation, sequence: self.sequence, step })
    }

    #[cold]
    fn fail(&mut self, operation: &'static str, halt: Halt) -> Error {
        let Halt { stop, step, peer } = halt;
        let at = self.place(operation, step);
        if peer != self.rank {
            self.registry.blame(peer);
        }
        let peer = Box::new(self.peers[peer].clone());
        let error = match stop {
            Stop::Aborted => Error::Aborted { at },
            Stop::Timeout(after) => Error::Timeout { at, peer, after },
            Stop::Memory { registered } => {
                let name = |yes| if yes { "registered" } else { "not registered" }.to_string();
                let (ours, theirs) = (name(registered), name(!registered));
                Error::Mismatch { at, peer, field: "the buffer", ours, theirs }
            }
            Stop::Fault(Fault::Lost(evidence)) => Error::PeerLost { at, peer, evidence },
            Stop::Fault(Fault::Mismatch { field: "fingerprint", ours, theirs }) => {
                let field = "the digest of collective, type, operation, count and root";
                let (ours, theirs) = (format!("{ours:016x}"), format!("{theirs:016x}"));
                Error::Mismatch { at, peer, field, ours, theirs }
            }
            Stop::Fault(Fault::Mismatch { field, ours, theirs }) => {
                let (ours, theirs) = (ours.to_string(), theirs.to_string());
                Error::Mismatch { at, peer, field, ours, theirs }
            }
        };
        self.broken_by(error)
    }

    /// After `error` nothing works any more.
    #[cold]
    fn broken_by(&mut self, error: Error) -> Error {
        self.give_up(error.to_string());
        error
    }

    /// After this nothing works any more.
    #[cold]
    fn give_up(&mut self, first: impl Into<String>) {
        self.broken.get_or_insert_with(|| first.into());
        // The others learn by the closing of the links that this rank has failed.
        self.links = Links::new(self.peers.len());
        self.registry.close();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("size", &self.size())
            .field("host", &self.host())
            .field("links", &self.links)
            .field("calls", &self.sequence)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
