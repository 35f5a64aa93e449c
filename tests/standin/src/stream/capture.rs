//! Capture: streams whose work goes into a graph instead of a queue. Law: what a driver refuses
//! during a capture is refused here, and spoils the capture as it does there.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use super::graph::{Graph, Node};
use super::{Kind, Objects, Recorded, Stream, UserObject, Work};
use crate::code::{Code, Done};
use crate::registry::{Handle, lock, new_handle};

/// Which calls are refused, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn by_number(mode: u32) -> Done<Self> {
        match mode {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// As cuStreamIsCapturing numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

pub(crate) struct Capture {
    id: u64,
    origin: u64,
    thread: ThreadId,
    mode: Mode,
    broken: AtomicBool,
    ended: AtomicBool,
    nodes: Mutex<Vec<Node>>,
    /// The graph that is being made, as its users call it.
    graph: Handle,
    objects: Mutex<Objects>,
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// A stream's part in a capture: the nodes that the next one comes after.
pub(crate) struct Joined {
    capture: Arc<Capture>,
    front: Vec<usize>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets how the thread's own calls are looked at; answers how they were.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode) -> Done {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut joined = lock(&stream.joined);
    if stream.kind == Kind::Legacy {
        return Err(Code::CAPTURE_UNSUPPORTED);
    } else if joined.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        origin: stream.handle,
        thread: thread::current().id(),
        mode,
        broken: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        nodes: Mutex::default(),
        graph: new_handle(),
        objects: Mutex::default(),
        streams: Mutex::new(vec![stream.clone()]),
    });
    lock(&ACTIVE).push(capture.clone());
    *joined = Some(Joined { capture, front: Vec::new() });
    Ok(())
}

/// Ends the capture that began in `stream`.
pub(crate) fn end(stream: &Arc<Stream>) -> Done<Graph> {
    let capture = match &*lock(&stream.joined) {
        Some(joined) => joined.capture.clone(),
        None => return Err(Code::ILLEGAL_STATE),
    };
    if capture.origin != stream.handle {
        capture.broken.store(true, Ordering::SeqCst);
        return Err(Code::CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(Code::CAPTURE_WRONG_THREAD);
    }
    lock(&ACTIVE).retain(|active| active.id != capture.id);
    capture.ended.store(true, Ordering::SeqCst);
    let mut fronts = Vec::new();
    for joined in lock(&capture.streams).drain(..) {
        let front = lock(&joined.joined).take().map(|joined| joined.front).unwrap_or_default();
        if joined.handle == stream.handle {
            fronts.insert(0, front);
        } else {
            fronts.push(front);
        }
    }
    if capture.broken.load(Ordering::SeqCst) {
        return Err(Code::CAPTURE_INVALIDATED);
    }
    let nodes = std::mem::take(&mut *lock(&capture.nodes));
    let before = ancestors(&nodes, fronts.first().map_or(&[], Vec::as_slice));
    if fronts.iter().flatten().any(|node| !before.contains(node)) {
        return Err(Code::CAPTURE_UNJOINED);
    }
    let objects = std::mem::take(&mut *lock(&capture.objects));
    Ok(Graph { nodes, objects })
}

/// Gives an object to the graph that a capture makes.
pub(crate) fn retain(graph: Handle, object: Arc<UserObject>) -> Done {
    let active = lock(&ACTIVE);
    let capture = active.iter().find(|capture| capture.graph == graph);
    lock(&capture.ok_or(Code::INVALID_VALUE)?.objects).push(object);
    Ok(())
}

/// These nodes and all that come before them.
fn ancestors(nodes: &[Node], front: &[usize]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut todo = front.to_vec();
    while let Some(node) = todo.pop() {
        if found.insert(node) {
            todo.extend(&nodes[node].deps);
        }
    }
    found
}

/// Adds work to the capture that a stream is in, if it is in one.
pub(super) fn add(stream: &Stream, work: &Work) -> Done<bool> {
    let mut joined = lock(&stream.joined);
    let Some(joined) = joined.as_mut() else { return Ok(false) };
    joined.capture.check()?;
    if matches!(work, Work::Free(_)) {
        joined.capture.broken.store(true, Ordering::SeqCst);
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    let mut nodes = lock(&joined.capture.nodes);
    nodes.push(Node { deps: joined.front.clone(), work: work.clone() });
    joined.front = vec![nodes.len() - 1];
    Ok(true)
}

/// Refuses a call that waits for a stream, or asks it, while it is captured.
pub(crate) fn forbid(stream: &Stream) -> Done {
    if lock(&stream.joined).is_none() {
        return Ok(());
    }
    stream.invalidate();
    Err(Code::CAPTURE_UNSUPPORTED)
}

/// Refuses a call that may wait for the device while somebody captures who minds.
pub(crate) fn unsafe_call() -> Done {
    let (me, mode) = (thread::current().id(), MODE.get());
    let minds = |capture: &Capture| match (mode, capture.thread == me) {
        (Mode::Relaxed, _) => false,
        (_, true) => capture.mode != Mode::Relaxed,
        (Mode::Global, false) => capture.mode == Mode::Global,
        (Mode::ThreadLocal, false) => false,
    };
    let mut answer = Ok(());
    for capture in lock(&ACTIVE).iter().filter(|capture| minds(capture)) {
        capture.broken.store(true, Ordering::SeqCst);
        answer = Err(Code::CAPTURE_UNSUPPORTED);
    }
    answer
}

impl Capture {
    fn check(&self) -> Done {
        if self.broken.load(Ordering::SeqCst) { Err(Code::CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

impl Stream {
    /// The graph that it is captured into; 0 is none.
    pub(crate) fn captured_graph(&self) -> Handle {
        lock(&self.joined).as_ref().map_or(0, |joined| joined.capture.graph)
    }

    /// Is it captured, and by which number?
    pub(crate) fn capture_status(&self) -> (Status, u64) {
        match &*lock(&self.joined) {
            None => (Status::None, 0),
            Some(joined) if joined.capture.check().is_err() => {
                (Status::Invalidated, joined.capture.id)
            }
            Some(joined) => (Status::Active, joined.capture.id),
        }
    }

    /// Spoils the capture that the stream is in.
    pub(crate) fn invalidate(&self) {
        if let Some(joined) = &*lock(&self.joined) {
            joined.capture.broken.store(true, Ordering::SeqCst);
        }
    }

    /// What an event holds that is recorded here while capturing.
    pub(crate) fn captured_place(&self) -> Done<Option<Recorded>> {
        let joined = lock(&self.joined);
        let Some(joined) = &*joined else { return Ok(None) };
        joined.capture.check()?;
        Ok(Some(Recorded::Captured(joined.capture.clone(), joined.front.clone())))
    }

    /// Lets the stream come after an event; a captured one takes it into the capture.
    pub(crate) fn come_after(self: &Arc<Self>, event: &Recorded) -> Done {
        let mut joined = lock(&self.joined);
        match (event, joined.as_mut()) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::At(mark), None) => {
                drop(joined);
                self.enqueue(Work::Nothing, vec![mark.clone()]).map(drop)
            }
            (Recorded::At(_), Some(joined)) => {
                joined.capture.broken.store(true, Ordering::SeqCst);
                Err(Code::CAPTURE_ISOLATION)
            }
            (Recorded::Captured(capture, _), _) if capture.ended.load(Ordering::SeqCst) => {
                Err(Code::CAPTURED_EVENT)
            }
            (Recorded::Captured(capture, front), None) => {
                capture.check()?;
                lock(&capture.streams).push(self.clone());
                *joined = Some(Joined { capture: capture.clone(), front: front.clone() });
                Ok(())
            }
            (Recorded::Captured(capture, front), Some(joined)) => {
                if capture.id != joined.capture.id {
                    capture.broken.store(true, Ordering::SeqCst);
                    joined.capture.broken.store(true, Ordering::SeqCst);
                    return Err(Code::CAPTURE_MERGE);
                }
                capture.check()?;
                joined.front.extend(front);
                joined.front.sort_unstable();
                joined.front.dedup();
                Ok(())
            }
        }
    }
}
