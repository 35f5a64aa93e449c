//! Hardware queues: a thread each, which runs one operation after the other. Law: an operation that
//! cannot run yet blocks all operations behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Completion, Work};
use crate::code::{Code, Done};
use crate::context::Context;
use crate::registry::lock;
use crate::{delayed_writes, settings};

pub(super) struct Op {
    pub(super) deps: Vec<Arc<Completion>>,
    pub(super) work: Work,
    pub(super) completion: Arc<Completion>,
    pub(super) context: Arc<Context>,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    added: Condvar,
    removed: Condvar,
}

#[derive(Default)]
struct State {
    ops: VecDeque<Op>,
    closed: bool,
}

impl Queue {
    pub(super) fn start() -> Done<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let worker = queue.clone();
        let name = "cuda-queue".to_owned();
        match std::thread::Builder::new().name(name).spawn(move || worker.run()) {
            Ok(_) => Ok(queue),
            Err(_) => Err(Code::OPERATING_SYSTEM),
        }
    }

    /// Adds work. A thread that adds to a full queue is blocked, with all locks that it holds.
    pub(super) fn push(&self, op: Op) {
        let mut state = lock(&self.state);
        while state.ops.len() >= settings::get().depth && !state.closed {
            state = self.removed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ops.push_back(op);
        self.added.notify_one();
    }

    /// The queue's thread ends when no work is left.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.added.notify_one();
        self.removed.notify_all();
    }

    fn next(&self) -> Option<Op> {
        let mut state = lock(&self.state);
        loop {
            match state.ops.pop_front() {
                Some(op) => {
                    self.removed.notify_all();
                    return Some(op);
                }
                None if state.closed => return None,
                None => {
                    delayed_writes::flush();
                    state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn run(&self) {
        while let Some(op) = self.next() {
            op.deps.iter().for_each(|completion| completion.wait());
            if !op.context.is_lost()
                && let Err(code) = op.work.run(&op.context)
            {
                op.context.failed(code);
            }
            op.work.count_waits(&op.context, false);
            op.completion.complete();
        }
    }
}
