//! The engine of a communicator: executes one call from plan to bytes. The communicator owns it, or
//! its worker while operations are pending. Law: a call that succeeds allocates nothing.

pub(crate) mod conversion;
pub(crate) mod failure;
pub(crate) mod pieces;
pub(crate) mod registry;
mod undo_copy;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::Seat;
use crate::api::group::Lists;
use crate::api::options::Settings;
use crate::bootstrap::group_construction::Because;
use crate::error::{Error, Result};
use crate::exec::{self, Call, Halt, Lanes, Stop, Wait};
use crate::health::Links;
use crate::kernel::Kernel;
use crate::memory::{Buffer, Pieces};
use crate::plan::{Plan, Planner, Request, Rules};
use crate::recovery::uniform::Alike;
use crate::schedule::{Algorithm, Ring, Space};
use crate::sync::Patience;
use crate::transport::{Frame, MESSAGE};
pub use conversion::wire_error;
use registry::{DirectCall, Known, Registry};

/// Links and what they are used with.
pub(super) struct Engine {
    pub(super) planner: Planner,
    pub(super) links: Links,
    pub(super) registry: Registry,
    pub(super) patience: Patience,
    /// What plans keep what is on its way in; as long as any plan so far has needed.
    pub(super) scratch: Vec<u8>,
    pub(super) own: Vec<f32>,
    /// What a call is about to overwrite, if it is to be put back; as long as any so far.
    pub(super) backup: Vec<u8>,
    /// Room for the list of a call on many buffers; empty between two calls.
    pub(super) pieces: Pieces<'static>,
    pub(super) lists: Lists,
    /// How far the messages of a call are.
    pub(super) lanes: Lanes,
    /// Bytes of the last cache; larger results are stored past it.
    pub(super) cache: usize,
    pub(super) abort: Arc<AtomicBool>,
    /// Calls made so far.
    pub(super) sequence: u64,
    /// The first failure, after which nothing works any more.
    pub(super) broken: Option<String>,
    /// What the ranks agree on when a call fails.
    pub(super) alike: Alike,
    /// Because of whom this rank leaves, if a group of it has failed.
    pub(super) because: Arc<Because>,
}

/// In the numbers of the probe's calls, which no others have. (The two highest bits tell kinds of
/// calls apart, for links too.)
pub(super) const PROBE: u64 = 1 << 62;

/// How often, in calls, a rank reads what others have told it: one that never waits would not, and
/// there is room for some hundreds of frames.
const READS: u64 = 128;

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
    /// Its parts differ in length, so that the ranks may pass different counts.
    pub(super) uneven: bool,
}

impl<'a> Head<'a> {
    /// A call that all ranks make.
    pub(super) fn of(request: &'a Request, kernel: Kernel<'a>) -> Self {
        let name = request.collective.name();
        Self { name, kernel, request: Some(request), stands_for: 0, usual: false, uneven: false }
    }

    /// What its plan goes by. `registered`: is it on registered memory?
    pub(super) fn rules(&self, settings: &Settings, registered: bool) -> Rules {
        let forced = self.required(settings).or(settings.preferred);
        let stands_for = self.stands_for;
        Rules { forced, in_order: self.in_order(settings), stands_for, registered }
    }

    fn in_order(&self, settings: &Settings) -> bool {
        settings.numbers.deterministic && self.request.is_some_and(Request::folds)
    }

    /// The algorithm that has to make it.
    fn required(&self, settings: &Settings) -> Option<Algorithm> {
        settings.required.filter(|_| !self.usual)
    }

    /// What refusals say of the world.
    pub(super) fn world(&self, settings: &Settings, ring: &Ring) -> World {
        let reached = self.required(settings).is_none_or(|asked| asked.reaches(ring));
        World { size: ring.size(), most: ring.most_pairs(), reached }
    }

    /// Refuses a call that `algorithm` would make, if that is not what was asked for.
    #[inline]
    pub(super) fn admit(
        &self,
        settings: &Settings,
        algorithm: Algorithm,
        world: World,
    ) -> Result<()> {
        let folds_left = |it: &Request| algorithm.folds_left(it.collective);
        if self.in_order(settings) && !self.request.is_some_and(folds_left) {
            return Err(self.not_in_order(world));
        }
        match self.required(settings) {
            Some(asked) if asked != algorithm => Err(self.cannot(settings, asked, world)),
            _ => Ok(()),
        }
    }

    /// There is no schedule that folds such a call in the order of ranks.
    #[cold]
    fn not_in_order(&self, world: World) -> Error {
        let expected = format!(
            "off, or a call that is folded in the order of ranks: scan, exscan, and all_reduce, \
             reduce_scatter and reduce_scatter_v by the library's schedules over links between all \
             pairs{}",
            unlinked(world.size <= world.most, world.most)
        );
        let (call, argument) = (self.name, "deterministic");
        Error::Argument { call, argument, given: "on".into(), expected }
    }

    /// The algorithm of the call's options can't make it.
    #[cold]
    fn cannot(&self, settings: &Settings, asked: Algorithm, world: World) -> Error {
        let World { size, most, reached } = world;
        let more = unlinked(reached, most);
        let such = if self.in_order(settings) { "all_pairs" } else { "ring" };
        let expected =
            format!("one that can make this call among {size} ranks, such as {such}{more}");
        let (call, argument) = (self.name, "algorithm");
        Error::Argument { call, argument, given: asked.to_string(), expected }
    }
}

/// The world's size, the largest one linked between all pairs, and if the algorithm reaches all.
#[derive(Clone, Copy)]
pub(super) struct World {
    size: u32,
    most: u32,
    reached: bool,
}

/// What helps where links are missing.
fn unlinked(reached: bool, most: u32) -> String {
    if reached { String::new() } else { format!("; {}", linked_up_to(most)) }
}

/// Which worlds have links between all pairs, for errors of calls that need them.
pub(super) fn linked_up_to(most: u32) -> String {
    format!(
        "worlds of up to {most} ranks have links between all pairs, larger ones if \
         RINGREDUCE_ALL_PAIRS or Builder::all_pairs says so"
    )
}

impl Engine {
    /// Before the first call.
    pub(super) fn new(planner: Planner, links: Links, patience: Patience, cache: usize) -> Self {
        let abort = Arc::new(AtomicBool::new(false));
        let (scratch, own, registry) = (Vec::new(), Vec::new(), Registry::default());
        let (pieces, lists, lanes) = (Pieces::default(), Lists::default(), Lanes::default());
        Self {
            planner,
            links,
            registry,
            patience,
            scratch,
            own,
            backup: Vec::new(),
            pieces,
            lists,
            lanes,
            cache,
            abort,
            sequence: 0,
            broken: None,
            alike: Alike::default(),
            because: Arc::default(),
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
        let uniform = settings.failures.uniform && head.request.is_some() && seat.peers.len() > 1;
        let works = self.works(head.name);
        if settings.rehearses || works.is_err() && !uniform {
            return works.and_then(|()| self.walk(seat, settings, head, buffer, plan));
        }
        let (number, bytes) = (number(head, self.sequence), buffer.len(Space::Output));
        seat.flight.enter((head.name, head.uneven), head.request, number, bytes);
        let mut done = works.and_then(|()| self.walk(seat, settings, head, buffer, plan));
        if uniform {
            done = self.alike(seat, settings, head, (number, done));
        } else if done.is_ok() && head.request.is_some() {
            self.alike.passed = number;
        }
        seat.flight.leave(&done);
        done
    }

    /// The registered memory that a call may go by.
    pub(super) fn known(
        &self,
        settings: &Settings,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Option<Known> {
        // Others write to it until they know that this rank failed.
        let goes = !settings.failures.retry_safe;
        goes.then(|| self.registry.known(request, buffer)).flatten()
    }

    pub(super) fn walk(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        plan: impl FnOnce(&mut Planner) -> Plan<'_>,
    ) -> Result<()> {
        let Head { name, kernel, request, .. } = *head;
        let (alone, own) = (seat.peers.len() == 1, u64::from(request.is_some()));
        let marks = request.is_some() && !alone && !settings.rehearses;
        if marks && self.sequence.is_multiple_of(READS) {
            self.links.controls().read();
        }
        let unmeasured = request.is_some() && !alone && self.planner.speeds().is_none();
        if unmeasured && !settings.rehearses {
            self.links.lives().enter(self.sequence + 1, 0);
            self.find_speed(seat, settings)?;
        }
        let known = request.and_then(|request| self.known(settings, request, buffer));
        self.planner.go_by(head.rules(settings, known.is_some()));
        let world = head.world(settings, self.planner.ring());
        let plan = plan(&mut self.planner);
        if !alone {
            head.admit(settings, plan.algorithm, world).inspect_err(|_| {
                // It is in no call then.
                self.links.lives().enter(self.sequence, 0);
            })?;
        }
        if marks {
            self.links.lives().enter(self.sequence + 1, plan.fingerprint);
        }
        if settings.rehearses {
            return Ok(());
        }
        seat.flight.by(plan.algorithm);
        let sequence = number(head, self.sequence);
        self.sequence += own;
        let bytes = buffer.len(Space::Output);
        let _span = settings.tag.as_deref().map(|tag| {
            tracing::debug_span!("call", name, tag, rank = seat.rank, sequence, bytes).entered()
        });
        if self.abort.load(Ordering::Relaxed) {
            let halt = Halt { stop: Stop::Aborted, step: 0, peer: seat.rank };
            return Err(self.fail(seat, settings, name, halt));
        }
        if alone && request.is_some_and(Request::folds) {
            // Nobody to reduce with: the result is what the reduction makes of one contribution.
            fold_alone(&kernel, buffer, bytes);
            return Ok(());
        }
        let wait = Wait::new(&self.patience, settings.timeout, &self.abort);
        let wait = wait.recorded(&seat.flight);
        let ways = Ways {
            me: seat.rank,
            known,
            residents: seat.local_size,
            cache: self.cache,
            registry: &mut self.registry,
            links: &mut self.links,
            scratch: &mut self.scratch,
            lanes: &mut self.lanes,
        };
        let done = ways.make(&plan, head, sequence, buffer, &wait);
        if marks && done.is_ok() {
            self.links.lives().leave(sequence);
        }
        let count = request.map(|request| request.count);
        done.map_err(|halt| self.fail_of(seat, settings, (name, count), halt))
    }
}

impl Drop for Engine {
    /// Survivors that this rank has spoken with need not wait for it.
    fn drop(&mut self) {
        if let Some(mut council) = self.alike.council.take() {
            council.leave(&mut self.links);
        }
    }
}

/// The number of a call after so many, or of a message after the last.
fn number(head: &Head<'_>, calls: u64) -> u64 {
    if head.request.is_some() { calls + 1 } else { calls | MESSAGE }
}

/// What plans are walked with.
pub(super) struct Ways<'a> {
    pub(super) me: usize,
    /// The registered memory that the call is on.
    pub(super) known: Option<Known>,
    /// Ranks on this host.
    pub(super) residents: usize,
    /// Bytes of the last cache.
    pub(super) cache: usize,
    pub(super) registry: &'a mut Registry,
    pub(super) links: &'a mut Links,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) lanes: &'a mut Lanes,
}

impl Ways<'_> {
    /// Makes the call with this number: directly, if it is planned so, or else over links.
    pub(super) fn make(
        self,
        plan: &Plan<'_>,
        head: &Head<'_>,
        sequence: u64,
        buffer: &Buffer<'_>,
        wait: &Wait<'_>,
    ) -> Result<(), Halt> {
        let Plan { algorithm, schedule, partition, fingerprint } = *plan;
        let Self { me, known, residents, cache, registry, links, scratch, lanes } = self;
        let frame = Frame { len: 0, sequence, fingerprint };
        let kernel = head.kernel;
        // Copies out of one memory into another find nothing of it in the caches, which all ranks
        // of the host fill: four of them, 16 MiB each, took 6.6 to 9.6 ms in an all-to-all through
        // the cache and 4.5 to 5.8 past it; in place 3.0 and 3.5.
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let apart = read.end <= written.start || written.end <= read.start;
        let copies = apart && head.request.is_some_and(|request| request.op.is_none());
        let streaming = written.len() * if copies { residents } else { 1 } >= cache;
        let call = Call { schedule, partition, frame, kernel, streaming };
        let Some(request) = head.request else {
            return exec::exchange(&call, buffer, links, wait, lanes);
        };
        if algorithm == Algorithm::Direct {
            let direct = DirectCall { request, frame, kernel, me, known };
            if let Some(done) = registry.run(direct, buffer, links, wait) {
                return done;
            }
        }
        // Nobody can mistake a call of the probe.
        if sequence & PROBE == 0 {
            registry.passes_by(sequence, fingerprint);
        }
        if scratch.len() < partition.scratch_bytes() {
            scratch.resize(partition.scratch_bytes(), 0);
        }
        exec::run(&call, &buffer.with_scratch(scratch), links, wait).map_err(|halt| {
            // A rank that makes this call directly sends nothing: that is the cause.
            let direct = registry.direct(sequence, fingerprint, me);
            direct.map_or(halt, |(peer, stop)| Halt { stop, step: 0, peer })
        })
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
