//! The communicator: the public verbs. Each checks its arguments, takes a plan and has it walked.
//! May touch: everything below; the only room that applications see.

mod own;
mod setup;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use setup::Builder;

use crate::element::ReduceOp;
use crate::error::{Error, Peer, Place, Result};
use crate::exec::{self, Call, Halt, Stop, Wait};
use crate::kernel::Kernel;
use crate::link::{Fault, Frame, Links};
use crate::memory::Buffer;
use crate::plan::{Planner, Request};
use crate::schedule::Schedule;
use crate::sync::Patience;

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
    /// What plans keep what is on its way in; as long as any plan so far has needed.
    scratch: Vec<u8>,
    /// Bytes of the last cache; larger results are stored past it.
    cache: usize,
    abort: Arc<AtomicBool>,
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

    /// Walks the plan for `request` over `buffer`.
    fn run(&mut self, request: &Request, buffer: Buffer<'_>) -> Result<()> {
        self.walk(request, buffer, None)
    }

    /// The same, or, if one is given, by a schedule that is not the planner's, with the digest of
    /// all ranks'.
    fn walk(
        &mut self,
        request: &Request,
        buffer: Buffer<'_>,
        own: Option<(&Schedule, u64)>,
    ) -> Result<()> {
        let name = request.collective.name();
        if let Some(first) = &self.broken {
            return Err(Error::Broken { call: name, first: first.clone() });
        }
        self.sequence += 1;
        if self.abort.load(Ordering::Relaxed) {
            return Err(self.fail(name, Halt { stop: Stop::Aborted, step: 0, peer: self.rank }));
        }
        let world = self.peers.len();
        let plan = match own {
            Some((schedule, digest)) => self.planner.own(request, schedule, digest),
            None => self.planner.plan(request),
        };
        let frame =
            Frame { len: 0, epoch: 0, sequence: self.sequence, fingerprint: plan.fingerprint };
        let op = request.op.unwrap_or(ReduceOp::Max);
        let kernel = Kernel::select(request.dtype, op, world);
        let streaming = request.count * request.dtype.size() >= self.cache;
        let (schedule, partition) = (plan.schedule, plan.partition);
        if self.scratch.len() < partition.scratch_bytes() {
            self.scratch.resize(partition.scratch_bytes(), 0);
        }
        let buffer = buffer.with_scratch(&mut self.scratch);
        let call = Call { schedule, partition, frame, kernel, streaming };
        let wait = Wait::new(&self.patience, self.timeout, &self.abort);
        exec::run(&call, &buffer, &mut self.links, &wait).map_err(|halt| self.fail(name, halt))
    }

    #[cold]
    fn fail(&mut self, operation: &'static str, halt: Halt) -> Error {
        let Halt { stop, step, peer } = halt;
        let (rank, host) = (self.rank, self.host().to_owned());
        let at = Box::new(Place { rank, host, operation, sequence: self.sequence, step });
        let peer = Box::new(self.peers[peer].clone());
        let error = match stop {
            Stop::Aborted => Error::Aborted { at },
            Stop::Timeout(after) => Error::Timeout { at, peer, after },
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
        self.broken = Some(error.to_string());
        // The neighbours learn by the closing of the links that this rank has failed.
        self.links = Links::new(self.peers.len());
        error
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
