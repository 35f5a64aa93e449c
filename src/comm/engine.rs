//! The engine of a communicator: what takes a call's plan and has it walked. It is with the
//! communicator, or with its worker while operations are pending; never with both.
//! May touch: as `comm`. Law: from the plan on nothing allocates, if nothing fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Seat;
use super::options::Settings;
use super::registry::{DirectCall, Registry};
use crate::error::{Error, Peer, Place, Result};
use crate::exec::{self, Call, Halt, Stop, Wait};
use crate::kernel::Kernel;
use crate::link::{Fault, Frame, Links};
use crate::memory::{Buffer, Pieces};
use crate::plan::{Message, Plan, Planner, Request, Rules};
use crate::schedule::{Algorithm, Space};
use crate::sync::Patience;

/// Links and what they are used with.
pub(super) struct Engine {
    pub(super) planner: Planner,
    pub(super) links: Links,
    pub(super) registry: Registry,
    pub(super) patience: Patience,
    /// What plans keep what is on its way in; as long as any plan so far has needed.
    pub(super) scratch: Vec<u8>,
    /// What travels as another type than it has in its buffer.
    pub(super) travelling: Vec<f32>,
    /// Room for the lists of calls on many buffers; empty between two calls.
    pub(super) pieces: Pieces<'static>,
    pub(super) messages: Vec<Message>,
    /// Bytes of the last cache; larger results are stored past it.
    pub(super) cache: usize,
    pub(super) abort: Arc<AtomicBool>,
    /// Calls made so far.
    pub(super) sequence: u64,
    /// The first failure, after which nothing works any more.
    pub(super) broken: Option<String>,
}

/// In the number of a message between two, which is that of the last call of all: no slot of a call
/// that all ranks make has it.
const MESSAGE: u64 = 1 << 63;

/// What a call is, whatever it walks.
pub(super) struct Head<'a> {
    pub(super) name: &'static str,
    pub(super) kernel: Kernel<'a>,
    /// The call that all ranks make. None for a message between two, which has the number
    /// of the last one of those.
    pub(super) request: Option<&'a Request>,
    /// The digest of the call that this one is a part of, in another type; or 0.
    pub(super) stands_for: u64,
    /// No collective that the user asked for: it goes as always, whatever algorithm calls have to
    /// be made by.
    pub(super) usual: bool,
}

impl<'a> Head<'a> {
    /// A call that all ranks make.
    pub(super) fn of(request: &'a Request, kernel: Kernel<'a>) -> Self {
        let name = request.collective.name();
        Self { name, kernel, request: Some(request), stands_for: 0, usual: false }
    }
}

impl Engine {
    /// Before the first call.
    pub(super) fn new(planner: Planner, links: Links, patience: Patience, cache: usize) -> Self {
        let abort = Arc::new(AtomicBool::new(false));
        let (scratch, travelling, registry) = (Vec::new(), Vec::new(), Registry::default());
        let (pieces, messages) = (Pieces::default(), Vec::new());
        Self {
            planner,
            links,
            registry,
            patience,
            scratch,
            travelling,
            pieces,
            messages,
            cache,
            abort,
            sequence: 0,
            broken: None,
        }
    }

    /// Walks a plan over `buffer`.
    pub(super) fn run(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        plan: impl FnOnce(&mut Planner) -> Plan<'_>,
    ) -> Result<()> {
        let Head { name, kernel, request, .. } = *head;
        if let Some(first) = &self.broken {
            return Err(Error::Broken { call: name, first: first.clone() });
        }
        self.sequence += u64::from(request.is_some());
        let sequence = if request.is_some() { self.sequence } else { self.sequence | MESSAGE };
        let bytes = buffer.len(Space::Output);
        let _span = settings.tag.as_deref().map(|tag| {
            tracing::debug_span!("call", name, tag, rank = seat.rank, sequence, bytes).entered()
        });
        if self.abort.load(Ordering::Relaxed) {
            let halt = Halt { stop: Stop::Aborted, step: 0, peer: seat.rank };
            return Err(self.fail(seat, settings, name, halt));
        }
        let folds = request.is_some_and(Request::folds);
        if seat.peers.len() == 1 && folds {
            // Nobody to reduce with: the result is what the reduction makes of one contribution.
            fold_alone(&kernel, buffer, bytes);
            return Ok(());
        }
        if request.is_some() && seat.peers.len() > 1 && self.planner.speeds().is_none() {
            self.find_speed(seat, settings)?;
        }
        let plan = allowed(&mut self.planner, settings, head, plan);
        // What is refused is no call.
        self.sequence -= u64::from(request.is_some() && plan.is_err());
        let Plan { schedule, partition, fingerprint, .. } = plan?;
        let frame = Frame { len: 0, epoch: 0, sequence, fingerprint };
        let wait = Wait::new(&self.patience, settings.timeout, &self.abort);
        if let Some(request) = request {
            let (me, cache) = (seat.rank, self.cache);
            let direct = DirectCall { request, frame, kernel, me, cache };
            if let Some(done) = self.registry.run(&direct, buffer, &mut self.links, &wait) {
                return done.map_err(|halt| self.fail(seat, settings, name, halt));
            }
            self.registry.passes_by(sequence);
        }
        let streaming = bytes >= self.cache;
        if self.scratch.len() < partition.scratch_bytes() {
            self.scratch.resize(partition.scratch_bytes(), 0);
        }
        let buffer = buffer.with_scratch(&mut self.scratch);
        let call = Call { schedule, partition, frame, kernel, streaming };
        exec::run(&call, &buffer, &mut self.links, &wait).map_err(|halt| {
            // A rank that makes this call on registered memory sends nothing: that is the cause.
            let peer = request.and_then(|_| self.registry.is_direct(sequence, seat.rank));
            let stop = Stop::Memory { registered: false };
            let halt = peer.map_or(halt, |peer| Halt { stop, step: 0, peer });
            self.fail(seat, settings, name, halt)
        })
    }

    #[cold]
    pub(super) fn fail(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        operation: &'static str,
        halt: Halt,
    ) -> Error {
        let Halt { stop, step, peer } = halt;
        let peer = if let Stop::Other { peer, .. } = stop { peer } else { peer };
        let at = self.place(seat, settings, operation, step);
        if peer != seat.rank {
            self.registry.blame(peer);
        }
        let peer = Box::new(seat.peers[peer].clone());
        let error = match stop {
            Stop::Aborted => Error::Aborted { at },
            Stop::Timeout(after) => Error::Timeout { at, peer, after },
            Stop::Memory { registered } => {
                let name = |yes| if yes { "registered" } else { "not registered" }.to_string();
                let (ours, theirs) = (name(registered), name(!registered));
                Error::Mismatch { at, peer, field: "the buffer", ours, theirs }
            }
            Stop::Fault(fault) | Stop::Other { fault, .. } => of_fault(at, peer, fault),
        };
        self.broken_by(error)
    }

    /// Where this rank is, for an error.
    pub(super) fn place(
        &self,
        seat: &Seat,
        settings: &Settings,
        operation: &'static str,
        step: usize,
    ) -> Box<Place> {
        let (rank, host) = (seat.rank, seat.peers[seat.rank].host.clone());
        let tag = settings.tag.as_deref().map(str::to_owned);
        Box::new(Place { rank, host, operation, sequence: self.sequence, tag, step })
    }

    /// After `error` nothing works any more.
    #[cold]
    pub(super) fn broken_by(&mut self, error: Error) -> Error {
        self.give_up(error.to_string());
        error
    }

    /// After the first failure, `why`, nothing works any more. The others learn of it by the
    /// closing of the links and of the lines of registered memory.
    pub(super) fn give_up(&mut self, why: String) {
        self.broken.get_or_insert(why);
        self.links = Links::default();
        self.registry.close();
    }
}

/// The plan for a call, if the options that it goes by let it be made.
pub(super) fn allowed<'p>(
    planner: &'p mut Planner,
    settings: &Settings,
    head: &Head<'_>,
    plan: impl FnOnce(&'p mut Planner) -> Plan<'p>,
) -> Result<Plan<'p>> {
    let Head { name: call, request, stands_for, usual, .. } = *head;
    let folds = request.is_some_and(Request::folds);
    let in_order = settings.numbers.deterministic && folds;
    let required = settings.required.filter(|_| !usual);
    let ring = planner.ring();
    let (size, most) = (ring.size(), ring.most_pairs());
    let reached = required.is_none_or(|asked| asked.reaches(ring));
    planner.go_by(Rules { in_order, stands_for, forced: required.or(settings.preferred) });
    let plan = plan(planner);
    if size == 1 && folds {
        return Ok(plan); // it is what the reduction makes of one contribution
    }
    if in_order && !request.is_some_and(|it| plan.algorithm.folds_left(it.collective)) {
        return Err(not_in_order(call, size, most));
    }
    match required {
        Some(asked) if asked != plan.algorithm => {
            Err(cannot(call, asked, size, (!reached).then_some(most)))
        }
        _ => Ok(plan),
    }
}

/// Which worlds have links between all pairs, for errors of calls that need them.
pub(super) fn linked_up_to(most: u32) -> String {
    format!(
        "worlds of up to {most} ranks have links between all pairs, larger ones if \
         RINGREDUCE_ALL_PAIRS or Builder::all_pairs says so"
    )
}

/// There is no schedule that folds such a call in the order of ranks.
#[cold]
fn not_in_order(call: &'static str, size: u32, most: u32) -> Error {
    let more = if size > most { format!("; {}", linked_up_to(most)) } else { String::new() };
    let expected = format!(
        "off, or a call that is folded in the order of ranks: scan, exscan, and all_reduce and \
         reduce_scatter by the library's schedules over links between all pairs{more}"
    );
    Error::Argument { call, argument: "deterministic", given: "on".into(), expected }
}

/// The algorithm of the call's options can't make it.
#[cold]
fn cannot(call: &'static str, asked: Algorithm, size: u32, unlinked: Option<u32>) -> Error {
    let more = unlinked.map_or(String::new(), |most| format!("; {}", linked_up_to(most)));
    let expected = format!("one that can make this call among {size} ranks, such as ring{more}");
    Error::Argument { call, argument: "algorithm", given: asked.to_string(), expected }
}

/// What a link failed of, and where.
fn of_fault(at: Box<Place>, peer: Box<Peer>, fault: Fault) -> Error {
    match fault {
        Fault::Lost(evidence) => Error::PeerLost { at, peer, evidence },
        Fault::Mismatch { field: "fingerprint", ours, theirs } => {
            let field = "the digest of collective, type, operation, count and root";
            let (ours, theirs) = (format!("{ours:016x}"), format!("{theirs:016x}"));
            Error::Mismatch { at, peer, field, ours, theirs }
        }
        Fault::Mismatch { field, ours, theirs } => {
            let (ours, theirs) = (ours.to_string(), theirs.to_string());
            Error::Mismatch { at, peer, field, ours, theirs }
        }
    }
}

/// What the reduction makes of a single contribution.
fn fold_alone(kernel: &Kernel<'_>, buffer: &Buffer<'_>, bytes: usize) {
    let mut from = 0;
    while from < bytes {
        let read = buffer.together(Space::Input, from, bytes - from);
        let part = from..from + buffer.together(Space::Output, from, read);
        let (given, got) = (Space::Input, Space::Output);
        let out = buffer.dst(got, part.clone());
        kernel.fold(true, &mut [out], &[buffer.src(given, part.clone())]);
        from = part.end;
    }
}
