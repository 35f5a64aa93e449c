//! Capture: streams whose work goes into a graph instead of a queue. Law: a call that a real driver
//! refuses during a capture is refused here too, and invalidates the capture as there.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use super::graph::{Graph, Node};
use super::{Kind, Objects, Recorded, Stream, UserObject, Work};
use crate::code::{Code, Done};
use crate::registry::{Handle, lock, new_handle};

/// The threads whose unsafe calls a capture refuses.
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
    /// The handle of the stream in which the capture began.
    origin: Handle,
    thread: ThreadId,
    mode: Mode,
    invalid: AtomicBool,
    ended: AtomicBool,
    nodes: Mutex<Vec<Node>>,
    /// The handle of the graph that is being captured, which no other capture has.
    graph: Handle,
    objects: Mutex<Objects>,
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// A stream's branch of a capture: the nodes that its next node waits for.
pub(crate) struct Branch {
    capture: Arc<Capture>,
    front: Vec<usize>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets the mode of the thread's own calls; answers the mode before.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode) -> Done {
    let mut branch = lock(&stream.branch);
    if stream.kind == Kind::Legacy {
        return Err(Code::CAPTURE_UNSUPPORTED);
    } else if branch.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        origin: stream.handle,
        thread: thread::current().id(),
        mode,
        invalid: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        nodes: Mutex::default(),
        graph: new_handle(),
        objects: Mutex::default(),
        streams: Mutex::new(vec![stream.clone()]),
    });
    lock(&ACTIVE).push(capture.clone());
    *branch = Some(Branch { capture, front: Vec::new() });
    Ok(())
}

/// Ends the capture that began in `stream`.
pub(crate) fn end(stream: &Arc<Stream>) -> Done<Graph> {
    let capture = match &*lock(&stream.branch) {
        Some(branch) => branch.capture.clone(),
        None => return Err(Code::ILLEGAL_STATE),
    };
    if capture.origin != stream.handle {
        capture.invalidate();
        return Err(Code::CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(Code::CAPTURE_WRONG_THREAD);
    }
    lock(&ACTIVE).retain(|active| active.graph != capture.graph);
    capture.ended.store(true, Ordering::SeqCst);
    let mut fronts = Vec::new();
    for captured in lock(&capture.streams).drain(..) {
        let branch = lock(&captured.branch).take();
        let front = branch.map(|branch| branch.front).unwrap_or_default();
        if captured.handle == stream.handle {
            fronts.insert(0, front);
        } else {
            fronts.push(front);
        }
    }
    if capture.invalid.load(Ordering::SeqCst) {
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

/// Moves an object to the graph of a capture.
pub(crate) fn retain(graph: Handle, object: Arc<UserObject>) -> Done {
    let active = lock(&ACTIVE);
    let capture = active.iter().find(|capture| capture.graph == graph);
    lock(&capture.ok_or(Code::INVALID_VALUE)?.objects).push(object);
    Ok(())
}

/// The nodes of a front, and all that they depend on.
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
    let mut branch = lock(&stream.branch);
    let Some(branch) = branch.as_mut() else { return Ok(false) };
    branch.capture.check()?;
    if matches!(work, Work::Free(_)) {
        branch.capture.invalidate();
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    let mut nodes = lock(&branch.capture.nodes);
    nodes.push(Node { deps: branch.front.clone(), work: work.clone() });
    branch.front = vec![nodes.len() - 1];
    Ok(true)
}

/// Refuses a call that waits for a captured stream, or asks about it.
pub(crate) fn refuse_if_captured(stream: &Stream) -> Done {
    if lock(&stream.branch).is_none() {
        return Ok(());
    }
    stream.invalidate();
    Err(Code::CAPTURE_UNSUPPORTED)
}

/// Refuses a call that may wait for the device, by the modes of all captures.
pub(crate) fn refuse_while_capturing() -> Done {
    let (me, mode) = (thread::current().id(), MODE.get());
    let refuses = |capture: &Capture| match (mode, capture.thread == me) {
        (Mode::Relaxed, _) => false,
        (_, true) => capture.mode != Mode::Relaxed,
        (Mode::Global, false) => capture.mode == Mode::Global,
        (Mode::ThreadLocal, false) => false,
    };
    let mut answer = Ok(());
    for capture in lock(&ACTIVE).iter().filter(|capture| refuses(capture)) {
        capture.invalidate();
        answer = Err(Code::CAPTURE_UNSUPPORTED);
    }
    answer
}

impl Capture {
    fn invalidate(&self) {
        self.invalid.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> Done {
        if self.invalid.load(Ordering::SeqCst) { Err(Code::CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

impl Stream {
    /// The status of the stream's capture, and the graph that it makes; 0 is none.
    pub(crate) fn capture_status(&self) -> (Status, Handle) {
        let branch = lock(&self.branch);
        let Some(Branch { capture, .. }) = &*branch else { return (Status::None, 0) };
        let status = if capture.check().is_ok() { Status::Active } else { Status::Invalidated };
        (status, capture.graph)
    }

    /// Invalidates the capture of the stream, if there is one.
    pub(crate) fn invalidate(&self) {
        if let Some(branch) = &*lock(&self.branch) {
            branch.capture.invalidate();
        }
    }

    /// The position that an event records in a captured stream.
    pub(crate) fn captured_position(&self) -> Done<Option<Recorded>> {
        let branch = lock(&self.branch);
        let Some(Branch { capture, front }) = &*branch else { return Ok(None) };
        capture.check()?;
        Ok(Some(Recorded::Captured(capture.clone(), front.clone())))
    }

    /// Lets the stream wait for an event; a captured event takes the stream into its capture.
    pub(crate) fn wait_for(self: &Arc<Self>, event: &Recorded) -> Done {
        let mut branch = lock(&self.branch);
        match (event, branch.as_mut()) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::After(completion), None) => {
                drop(branch);
                self.enqueue(Work::Nothing, vec![completion.clone()]).map(drop)
            }
            (Recorded::After(_), Some(branch)) => {
                branch.capture.invalidate();
                Err(Code::CAPTURE_ISOLATION)
            }
            (Recorded::Captured(capture, _), _) if capture.ended.load(Ordering::SeqCst) => {
                Err(Code::CAPTURED_EVENT)
            }
            (Recorded::Captured(capture, front), None) => {
                capture.check()?;
                lock(&capture.streams).push(self.clone());
                *branch = Some(Branch { capture: capture.clone(), front: front.clone() });
                Ok(())
            }
            (Recorded::Captured(capture, front), Some(branch)) => {
                if capture.graph != branch.capture.graph {
                    capture.invalidate();
                    branch.capture.invalidate();
                    return Err(Code::CAPTURE_MERGE);
                }
                capture.check()?;
                branch.front.extend(front);
                branch.front.sort_unstable();
                branch.front.dedup();
                Ok(())
            }
        }
    }
}
