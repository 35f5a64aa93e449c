//! Hardware queues: a thread each, that runs one thing after the other. Law: what cannot run yet
//! blocks all that is behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Mark, Work};
use crate::code::{Code, Done};
use crate::context::Context;
use crate::registry::lock;
use crate::{posted, settings};

pub(super) struct Op {
    pub(super) deps: Vec<Arc<Mark>>,
    pub(super) work: Work,
    pub(super) mark: Arc<Mark>,
    pub(super) context: Arc<Context>,
}

#[derive(Default)]
pub(super) struct Queue {
    inside: Mutex<Inside>,
    bell: Condvar,
    /// Rung when something was taken out.
    room: Condvar,
}

#[derive(Default)]
struct Inside {
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

    /// Adds work; whoever adds some to a full queue is blocked, with all locks that it holds.
    pub(super) fn push(&self, op: Op) {
        let mut inside = lock(&self.inside);
        while inside.ops.len() >= settings::get().depth && !inside.closed {
            inside = self.room.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
        inside.ops.push_back(op);
        self.bell.notify_one();
    }

    /// The thread ends when nothing is left.
    pub(super) fn close(&self) {
        lock(&self.inside).closed = true;
        self.bell.notify_one();
        self.room.notify_all();
    }

    fn next(&self) -> Option<Op> {
        let mut inside = lock(&self.inside);
        loop {
            match inside.ops.pop_front() {
                Some(op) => {
                    self.room.notify_all();
                    return Some(op);
                }
                None if inside.closed => return None,
                None => {
                    posted::flush();
                    inside = self.bell.wait(inside).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn run(&self) {
        while let Some(op) = self.next() {
            for mark in &op.deps {
                mark.wait();
            }
            if !op.context.is_lost()
                && let Err(code) = op.work.run(&op.context)
            {
                op.context.failed(code);
            }
            op.work.count_waits(&op.context, false);
            op.mark.pass();
        }
    }
}
