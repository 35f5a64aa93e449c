//! Streams: enqueued work, its order, and its dependencies. Law: the work of a stream runs in
//! order; streams that share a hardware queue run in the queue's order.

mod capture;
mod completion;
mod event;
mod graph;
mod object;
mod queue;
mod value;
mod work;

use std::sync::{Arc, Mutex};

pub(crate) use capture::{
    Capture, Mode, begin, end, exchange_mode, refuse_if_captured, refuse_while_capturing, retain,
};
pub(crate) use completion::Completion;
pub(crate) use event::{EVENTS, Event, Recorded};
pub(crate) use graph::{EXECS, Exec, GRAPHS};
pub(crate) use object::{OBJECTS, Objects, UserObject};
pub(crate) use value::{Compare, ValueOp};
pub(crate) use work::{Source, Work};

use crate::code::{Code, Done};
use crate::context::{self, Context};
use crate::counts;
use crate::registry::{Handle, Registry, lock, new_handle};
use crate::settings::Queues;
use capture::Branch;
use queue::{Op, Queue};

pub(crate) static STREAMS: Registry<Stream> = Registry::new();

/// Kinds of streams. The legacy stream and blocking streams wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
    /// A graph's stream, which has no handle in the program.
    Inner,
}

pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    queue: Arc<Queue>,
    last: Mutex<Arc<Completion>>,
    pub(crate) branch: Mutex<Option<Branch>>,
}

/// All streams of a context.
pub(crate) struct Streams {
    queues: Queues,
    state: Mutex<State>,
    /// Held while work is enqueued, for the legacy stream depends on all others.
    order: Mutex<()>,
}

#[derive(Default)]
struct State {
    all: Vec<Arc<Stream>>,
    shared: Vec<Arc<Queue>>,
    created: usize,
}

impl Streams {
    pub(crate) fn new(queues: Queues) -> Self {
        Self { queues, state: Mutex::default(), order: Mutex::new(()) }
    }

    /// The completions of the last work of some streams.
    pub(crate) fn last_of(&self, which: impl Fn(&Stream) -> bool) -> Vec<Arc<Completion>> {
        let state = lock(&self.state);
        state.all.iter().filter(|s| which(s)).map(|stream| stream.last()).collect()
    }

    fn find(&self, which: impl Fn(&Stream) -> bool) -> Option<Arc<Stream>> {
        lock(&self.state).all.iter().find(|stream| which(stream)).cloned()
    }

    /// Ends all queues once their work has ended.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        for stream in state.all.drain(..) {
            stream.queue.close();
        }
        state.shared.clear();
    }

    pub(crate) fn forget(&self, handle: Handle) {
        let mut state = lock(&self.state);
        let shared = self.queues != Queues::Unlimited;
        state.all.retain(|stream| {
            if stream.handle == handle && !shared {
                stream.queue.close();
            }
            stream.handle != handle
        });
    }

    fn queue(&self, state: &mut State) -> Done<Arc<Queue>> {
        let Queues::Shared(count) = self.queues else { return Queue::start() };
        let number = state.created % count;
        state.created += 1;
        if let Some(queue) = state.shared.get(number) {
            return Ok(queue.clone());
        }
        let queue = Queue::start()?;
        state.shared.push(queue.clone());
        Ok(queue)
    }
}

/// A new stream of a context.
pub(crate) fn create(context: &Arc<Context>, kind: Kind) -> Done<Arc<Stream>> {
    let mut state = lock(&context.streams.state);
    let stream = Arc::new(Stream {
        handle: new_handle(),
        context: context.clone(),
        kind,
        queue: context.streams.queue(&mut state)?,
        last: Mutex::new(Completion::completed()),
        branch: Mutex::default(),
    });
    state.all.push(stream.clone());
    Ok(stream)
}

/// The stream of a handle; 0 and 1 are the legacy stream of the current context.
pub(crate) fn get(handle: Handle) -> Done<Arc<Stream>> {
    let stream = if handle <= 1 {
        let context = context::current()?;
        match context.streams.find(|stream| stream.kind == Kind::Legacy) {
            Some(stream) => stream,
            None => create(&context, Kind::Legacy)?,
        }
    } else {
        context::initialized()?;
        STREAMS.get(handle)?
    };
    stream.context.check()?;
    Ok(stream)
}

impl Stream {
    /// The completion of the last work.
    pub(crate) fn last(&self) -> Arc<Completion> {
        lock(&self.last).clone()
    }

    /// Enqueues work, or adds it to the capture, where it has no completion.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) -> Done<Option<Arc<Completion>>> {
        if capture::add(self, &work)? {
            return Ok(None);
        }
        self.enqueue(work, Vec::new()).map(Some)
    }

    /// Enqueues work outside captures, and waits for it.
    pub(crate) fn submit_and_wait(self: &Arc<Self>, work: Work) -> Done {
        if let Some(completion) = self.submit(work)? {
            completion.wait();
        }
        self.context.check()
    }

    /// Enqueues work that waits for other work too.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        work: Work,
        deps: Vec<Arc<Completion>>,
    ) -> Done<Arc<Completion>> {
        counts::add("submissions", 1);
        self.enqueue_part(work, deps)
    }

    /// Enqueues work that is a part of a submission, as the nodes of a graph are.
    fn enqueue_part(
        self: &Arc<Self>,
        work: Work,
        deps: Vec<Arc<Completion>>,
    ) -> Done<Arc<Completion>> {
        self.context.check()?;
        let completion = Completion::pending();
        let _order = lock(&self.context.streams.order);
        let deps = [deps, self.legacy_order()?].concat();
        work.count_waits(&self.context, true);
        let context = self.context.clone();
        self.queue.push(Op { deps, work, completion: completion.clone(), context });
        *lock(&self.last) = completion.clone();
        Ok(completion)
    }

    /// Dependencies by the rules of the legacy stream.
    fn legacy_order(&self) -> Done<Vec<Arc<Completion>>> {
        let streams = &self.context.streams;
        match self.kind {
            Kind::NonBlocking | Kind::Inner => Ok(Vec::new()),
            Kind::Blocking => Ok(streams.last_of(|stream| stream.kind == Kind::Legacy)),
            Kind::Legacy => {
                let blocks = |stream: &Self| stream.kind == Kind::Blocking;
                let capturing =
                    streams.find(|stream| blocks(stream) && lock(&stream.branch).is_some());
                if let Some(stream) = capturing {
                    stream.invalidate();
                    return Err(Code::CAPTURE_IMPLICIT);
                }
                Ok(streams.last_of(blocks))
            }
        }
    }
}
