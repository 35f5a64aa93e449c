//! Streams: what is enqueued, in which order it runs, and who waits for whom. Law: the work of a
//! stream runs in its order; streams that share a hardware queue run in the queue's order.

mod capture;
mod event;
mod graph;
mod mark;
mod object;
mod queue;
mod value;
mod work;

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

pub(crate) use capture::{
    Capture, Mode, Status, begin, end, exchange_mode, forbid, retain, unsafe_call,
};
pub(crate) use event::{EVENTS, Event, Recorded};
pub(crate) use graph::{EXECS, Exec, GRAPHS};
pub(crate) use mark::Mark;
pub(crate) use object::{OBJECTS, Objects, UserObject};
pub(crate) use value::{Compare, ValueOp};
pub(crate) use work::{Source, Work};

use crate::code::{Code, Done};
use crate::context::{self, Context};
use crate::registry::{Handle, Registry, lock, new_handle};
use crate::settings::Queues;
use capture::Joined;
use queue::{Op, Queue};

pub(crate) static STREAMS: Registry<Stream> = Registry::new();

/// How a stream stands to the legacy stream, which waits for blocking ones and they for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
    /// A graph's own, which nobody sees.
    Inner,
}

pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    /// Of a thread's own default stream.
    thread: Option<ThreadId>,
    queue: Arc<Queue>,
    tail: Mutex<Arc<Mark>>,
    pub(crate) joined: Mutex<Option<Joined>>,
}

/// All streams of a context.
pub(crate) struct Streams {
    queues: Queues,
    inside: Mutex<Inside>,
    /// Held while work is enqueued: the legacy stream looks at all others.
    order: Mutex<()>,
}

#[derive(Default)]
struct Inside {
    all: Vec<Arc<Stream>>,
    shared: Vec<Arc<Queue>>,
    made: usize,
}

impl Streams {
    pub(crate) fn new(queues: Queues) -> Self {
        Self { queues, inside: Mutex::default(), order: Mutex::new(()) }
    }

    /// The last marks of some streams.
    pub(crate) fn tails(&self, which: impl Fn(&Stream) -> bool) -> Vec<Arc<Mark>> {
        let inside = lock(&self.inside);
        inside.all.iter().filter(|s| which(s)).map(|stream| stream.tail()).collect()
    }

    fn find(&self, which: impl Fn(&Stream) -> bool) -> Option<Arc<Stream>> {
        lock(&self.inside).all.iter().find(|stream| which(stream)).cloned()
    }

    /// Nothing more comes; what waits is let go.
    pub(crate) fn close(&self) {
        let mut inside = lock(&self.inside);
        for stream in inside.all.drain(..) {
            stream.queue.close();
        }
        inside.shared.clear();
    }

    pub(crate) fn forget(&self, handle: Handle) {
        let mut inside = lock(&self.inside);
        let shared = self.queues != Queues::Unlimited;
        inside.all.retain(|stream| {
            if stream.handle == handle && !shared {
                stream.queue.close();
            }
            stream.handle != handle
        });
    }

    fn queue(&self, inside: &mut Inside) -> Done<Arc<Queue>> {
        let Queues::Shared(count) = self.queues else { return Queue::start() };
        let turn = inside.made % count;
        inside.made += 1;
        if let Some(queue) = inside.shared.get(turn) {
            return Ok(queue.clone());
        }
        let queue = Queue::start()?;
        inside.shared.push(queue.clone());
        Ok(queue)
    }
}

/// A new stream of a context.
pub(crate) fn create(context: &Arc<Context>, kind: Kind, priority: i32) -> Done<Arc<Stream>> {
    create_for(context, kind, priority, None)
}

fn create_for(
    context: &Arc<Context>,
    kind: Kind,
    priority: i32,
    thread: Option<ThreadId>,
) -> Done<Arc<Stream>> {
    let mut inside = lock(&context.streams.inside);
    let stream = Arc::new(Stream {
        handle: new_handle(),
        context: context.clone(),
        kind,
        priority,
        thread,
        queue: context.streams.queue(&mut inside)?,
        tail: Mutex::new(Mark::finished()),
        joined: Mutex::default(),
    });
    inside.all.push(stream.clone());
    Ok(stream)
}

/// The stream that a caller means: 0 and 1 are the legacy stream, 2 the thread's own.
pub(crate) fn get(handle: Handle) -> Done<Arc<Stream>> {
    let thread = std::thread::current().id();
    let stream = match handle {
        0 | 1 => {
            let context = context::current()?;
            match context.streams.find(|stream| stream.kind == Kind::Legacy) {
                Some(stream) => stream,
                None => create(&context, Kind::Legacy, 0)?,
            }
        }
        2 => {
            let context = context::current()?;
            match context.streams.find(|stream| stream.thread == Some(thread)) {
                Some(stream) => stream,
                None => create_for(&context, Kind::Blocking, 0, Some(thread))?,
            }
        }
        _ => {
            context::initialized()?;
            STREAMS.get(handle)?
        }
    };
    stream.context.check()?;
    Ok(stream)
}

impl Stream {
    pub(crate) fn tail(&self) -> Arc<Mark> {
        lock(&self.tail).clone()
    }

    /// Enqueues work, or adds it to the capture; the mark says when it has run.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) -> Done<Option<Arc<Mark>>> {
        if capture::add(self, &work)? {
            return Ok(None);
        }
        self.enqueue(work, Vec::new()).map(Some)
    }

    /// Enqueues work, and waits for it. Not while capturing.
    pub(crate) fn submit_and_wait(self: &Arc<Self>, work: Work) -> Done {
        if let Some(mark) = self.submit(work)? {
            mark.wait();
        }
        self.context.check()
    }

    /// Enqueues work that waits for marks too.
    pub(crate) fn enqueue(self: &Arc<Self>, work: Work, deps: Vec<Arc<Mark>>) -> Done<Arc<Mark>> {
        self.context.check()?;
        let mark = Mark::pending();
        let _order = lock(&self.context.streams.order);
        let deps = [deps, self.default_order()?].concat();
        self.push(work, deps, mark.clone());
        *lock(&self.tail) = mark.clone();
        Ok(mark)
    }

    /// What the legacy stream's rules add.
    fn default_order(&self) -> Done<Vec<Arc<Mark>>> {
        let streams = &self.context.streams;
        match self.kind {
            Kind::NonBlocking | Kind::Inner => Ok(Vec::new()),
            Kind::Blocking => Ok(streams.tails(|stream| stream.kind == Kind::Legacy)),
            Kind::Legacy => {
                let blocks = |stream: &Self| stream.kind == Kind::Blocking;
                let capturing =
                    streams.find(|stream| blocks(stream) && lock(&stream.joined).is_some());
                if let Some(stream) = capturing {
                    stream.invalidate();
                    return Err(Code::CAPTURE_IMPLICIT);
                }
                Ok(streams.tails(blocks))
            }
        }
    }

    fn push(&self, work: Work, deps: Vec<Arc<Mark>>, mark: Arc<Mark>) {
        work.count_waits(&self.context, true);
        self.queue.push(Op { deps, work, mark, context: self.context.clone() });
    }
}
