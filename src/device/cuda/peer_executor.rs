//! A call of ranks whose devices reach each other's buffers: each says on its stream that it has
//! come, the workers wait for all, run their kernels and say so, and each waits for all workers.
//! May touch: form, board, guard, launch, module, ring, plan's names of forms.
//! Law: calls are put on streams in the same order at every rank, so that one queue for all streams
//! is as good as many.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::control_block::{At, EAGER, ENTERED, OVER, PUT};
use super::failure::{Claim, IN_GRAPH, Trouble};
use super::graphs;
use super::kernel_names::Wanted;
use super::memory_ops::Ops;
use super::module::{Fold, Kernels, Mover};
use super::ring_executor::Around;
use super::selftest::idle;
use super::watchdog_thread::Guard;
use crate::device::algorithm::Form;
use crate::element::DataType;
use crate::error::Error;
use crate::plan::DeviceForm;

/// Calls whose lengths are remembered, for errors.
const REMEMBERED: usize = 2 * EAGER;

/// Why a call was not put on its stream, and which.
pub(crate) type Failure = (Claim, Trouble);

/// A call's name, its length and its number, for errors.
pub(crate) type Known = (&'static str, usize, Option<u64>);

/// What a call does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) form: Form,
    /// What it is called, and elements as the caller counts them: for errors.
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    /// Its number, where it is a part of a call that has another one.
    pub(crate) number: Option<u64>,
    pub(crate) fingerprint: u64,
    /// How it reduces, if it does, and the factor of a scaled sum.
    pub(crate) reduction: Option<(DataType, Wanted, [u8; 16])>,
}

/// A call whose stream has said that it has come.
#[derive(Debug)]
#[must_use = "its stream still has to wait for the others"]
pub(crate) struct Begun {
    pub(super) call: Call,
    claim: Claim,
    pub(super) place: usize,
    /// Does what this rank gives lie where it wants it already?
    pub(super) lies: bool,
}

/// The calls of one rank.
#[derive(Debug)]
pub(crate) struct Together {
    context: Arc<CudaContext>,
    pub(crate) guard: Guard,
    pub(super) kernels: Arc<Mutex<Kernels>>,
    pub(super) folds: Vec<((DataType, Wanted), Fold)>,
    pub(super) mover: Option<Mover>,
    pub(super) ops: Ops,
    /// The ring, where calls go around one.
    pub(super) around: Option<Around>,
    /// Calls so far.
    calls: u64,
    /// What the latest ones were called, their lengths, and the numbers that they have elsewhere.
    known: [Known; REMEMBERED],
    /// The most blocks of a kernel.
    pub(super) most_blocks: u32,
}

impl Together {
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        guard: Guard,
        kernels: Arc<Mutex<Kernels>>,
        around: Option<Around>,
        (most_blocks, flushes): (u32, bool),
    ) -> Self {
        Self {
            context: Arc::clone(context),
            guard,
            kernels,
            folds: Vec::new(),
            mover: None,
            ops: Ops::new(flushes),
            around,
            calls: 0,
            known: [("", 0, None); REMEMBERED],
            most_blocks,
        }
    }

    pub(crate) fn is_of(&self, context: &CudaContext) -> bool {
        self.context.cu_ctx() == context.cu_ctx()
    }

    /// What a call is called, and how many elements it has, if it is one of the latest.
    pub(crate) fn what(&self, claim: Claim) -> Option<Known> {
        let is_known = (1..=self.calls).contains(&claim.number())
            && self.calls - claim.number() < REMEMBERED as u64;
        is_known.then(|| self.known[claim.number() as usize % REMEMBERED])
    }

    /// When all calls are over, or else false: then what they use must stay, and kernels do.
    pub(crate) fn finish(&mut self) -> bool {
        let finished = self.guard.finish();
        if !finished {
            std::mem::forget(Arc::clone(&self.kernels));
        }
        finished
    }

    /// The ranks that run kernels of a call.
    fn workers_of(&self, call: &Call) -> std::ops::Range<usize> {
        0..call.form.workers()
    }

    /// Puts the beginning of a call on the stream: this rank's buffers, which the worker sees as
    /// `buffers` says, may be used. It goes there with what follows, or with [`Self::flush`].
    pub(crate) fn begin(
        &mut self,
        captures: Option<CUstream>,
        call: Call,
        buffers: impl Fn(usize) -> [CUdeviceptr; 2],
    ) -> Result<Begun, Failure> {
        let mut place = self.place()?;
        if call.form.workers() > self.guard.watch.boards.me {
            // To load a kernel may wait for streams: before any waits for this rank.
            self.load(&call).map_err(|error| self.refused(error.to_string()))?;
        }
        self.calls += 1;
        self.known[self.calls as usize % REMEMBERED] = (call.name, call.count, call.number);
        let sequence = self.calls | if captures.is_some() { IN_GRAPH } else { 0 };
        let claim = Claim { sequence, fingerprint: call.fingerprint };
        if captures.is_some() {
            // Where the others look that do not capture it.
            self.announce(place, claim, OVER)?;
            place = self.captured_place(claim)?;
        }
        self.announce(place, claim, PUT)?;
        let watch = Arc::clone(&self.guard.watch);
        let boards = &watch.boards;
        if let Some(stream) = captures {
            boards.took(claim.number());
            let kept = graphs::keep(stream, boards.claiming(place));
            kept.map_err(|error| self.refused(error.to_string()))?;
        }
        self.ops.set(boards.state(At { rank: boards.me, place }), ENTERED);
        let lies = if call.form.by == DeviceForm::Ring {
            self.begin_around(&call, place, &buffers)
        } else {
            self.give_to_workers(&call, place, &buffers);
            false
        };
        self.guard.wake();
        Ok(Begun { call, claim, place, lies })
    }

    /// Tells the workers where this rank's buffers are, and that they may be used.
    fn give_to_workers(
        &mut self,
        call: &Call,
        place: usize,
        buffers: &impl Fn(usize) -> [CUdeviceptr; 2],
    ) {
        let watch = Arc::clone(&self.guard.watch);
        let boards = &watch.boards;
        for worker in self.workers_of(call) {
            let at = At { rank: worker, place };
            let [send, recv] = buffers(worker);
            boards.put_buffers(at, [send, recv]);
            if !call.form.folds() {
                for peer in 0..boards.size() {
                    let (maker, index) = call.form.mover(boards.me, peer);
                    if maker == worker {
                        boards.put_source(at, index, send, call.form.moved(boards.me, peer));
                    }
                    let (maker, index) = call.form.mover(peer, boards.me);
                    if maker == worker {
                        boards.put_target(at, index, recv, call.form.moved(peer, boards.me));
                    }
                }
            }
            if worker != boards.me {
                self.ops.set(boards.ready(at, boards.me), 1);
            }
        }
    }

    /// Where the next call is made that is in no graph, once that is free.
    fn place(&self) -> Result<usize, Failure> {
        let watch = &self.guard.watch;
        let none = Claim { sequence: self.calls + 1, fingerprint: 0 };
        let eager = (self.calls % EAGER as u64) as usize;
        let (mut round, began) = (0_u32, Instant::now());
        loop {
            if let Some(failure) = watch.trouble(none) {
                return Err(failure);
            }
            // If it has come to one the guard knows better.
            if began.elapsed() > watch.timeout() && !watch.is_in_call() {
                let why = format!("{EAGER} calls are under way, and the stream comes to none");
                return Err(self.refuse(none, why));
            }
            let at = At { rank: watch.boards.me, place: eager };
            if watch.boards.claimed(at).sequence == 0 || watch.boards.reached(eager) == OVER {
                return Ok(eager);
            }
            round = round.saturating_add(1);
            match round {
                0..100 => std::hint::spin_loop(),
                100..200 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    /// Says what this rank calls, and looks whether others call the same.
    fn announce(&self, place: usize, claim: Claim, state: u32) -> Result<(), Failure> {
        let watch = &self.guard.watch;
        watch.boards.claim(place, claim, state);
        match watch.disagreement(place) {
            None => Ok(()),
            Some(trouble) => {
                // Nothing of it is on the stream.
                watch.boards.claim(place, claim, OVER);
                watch.fail(claim, trouble.clone());
                Err((claim, trouble))
            }
        }
    }

    /// This rank can't go on with the call that it is in.
    pub(crate) fn refused(&self, why: String) -> Failure {
        self.refuse(Claim { sequence: self.calls, fingerprint: 0 }, why)
    }

    fn refuse(&self, claim: Claim, why: String) -> Failure {
        let trouble = Trouble::Refused { reason: why, beyond: None };
        self.guard.watch.fail(claim, trouble.clone());
        (claim, trouble)
    }

    /// Puts what is to be done so far on the stream.
    pub(crate) fn flush(&mut self, stream: CUstream, begun: &Begun) -> Result<(), Failure> {
        self.ops.run(stream).map_err(|error| self.refuse(begun.claim, error.to_string()))
    }

    /// Puts the end of a call on the stream: this rank's part, and that it waits for the others'.
    pub(crate) fn end(&mut self, stream: CUstream, begun: Begun) -> Result<(), Failure> {
        self.put_end(stream, &begun).map_err(|error| {
            let failure = self.refuse(begun.claim, error.to_string());
            self.abandon(stream, begun);
            failure
        })
    }

    /// This rank does not do its part of a call that failed. Others may be at work on its buffers,
    /// so its stream waits for them, or for the guard.
    pub(crate) fn abandon(&mut self, stream: CUstream, begun: Begun) {
        let Begun { call, place, claim, .. } = begun;
        let boards = &self.guard.watch.boards;
        let mine = At { rank: boards.me, place };
        // A graph may be launched of which this is all: only so does the guard see it.
        self.ops.set(boards.state(mine), ENTERED);
        self.ops.set(boards.works(mine), 0);
        if self.put_wait(stream, &call, place).is_ok() {
            return;
        }
        let watch = &self.guard.watch;
        watch.abandon(place);
        // Nothing on the stream says that its kernels have ended; those of a graph are yet to come,
        // and find that they are stopped.
        if claim.sequence & IN_GRAPH != 0 {
            watch.boards.claim(place, Claim { sequence: 0, fingerprint: 0 }, OVER);
        } else if idle(stream, watch.timeout(), || false).is_ok() {
            watch.boards.rests(place);
        }
    }

    /// The latest call, for what is found out between two.
    pub(crate) fn latest(&self) -> Claim {
        Claim { sequence: self.calls, fingerprint: 0 }
    }

    fn put_end(&mut self, stream: CUstream, begun: &Begun) -> Result<(), Error> {
        let &Begun { call, place, .. } = begun;
        let watch = Arc::clone(&self.guard.watch);
        let (boards, me) = (&watch.boards, watch.boards.me);
        let others = || (0..boards.size()).filter(move |&rank| rank != me);
        let mine = At { rank: me, place };
        if call.form.by == DeviceForm::Ring {
            return self.put_around(stream, begun);
        }
        if self.workers_of(&call).contains(&me) {
            others().for_each(|rank| self.ops.wait(boards.ready(mine, rank), 1));
            self.ops.run(stream)?;
            call.form.jobs(me).try_for_each(|job| self.work(stream, &call, mine, &job))?;
            self.ops.set(boards.works(mine), 0);
            for rank in others() {
                self.ops.set(boards.ready(mine, rank), 0);
                self.ops.set(boards.done(mine, rank), 1);
            }
        }
        self.put_wait(stream, &call, place)
    }

    /// Puts on the stream that this rank waits for the others' parts.
    pub(super) fn put_wait(
        &mut self,
        stream: CUstream,
        call: &Call,
        place: usize,
    ) -> Result<(), Error> {
        let watch = Arc::clone(&self.guard.watch);
        let (boards, me) = (&watch.boards, watch.boards.me);
        let (mine, workers) = (At { rank: me, place }, self.workers_of(call));
        let around = call.form.by == DeviceForm::Ring;
        let is_fetched = around && self.is_fetched(call);
        let mut wait = |word| {
            self.ops.wait(word, 1);
            self.ops.set(word, 0);
        };
        if is_fetched {
            wait(boards.fetched(mine));
        }
        if !around {
            let others = workers.filter(|&worker| worker != me);
            others.for_each(|rank| wait(boards.done(At { rank, place }, me)));
        }
        self.ops.set(boards.state(mine), OVER);
        self.ops.run(stream)
    }
}
