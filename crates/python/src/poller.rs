//! The thread that looks whether awaited messages have ended: one for the process, which sleeps
//! while none is awaited.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::handle::{Completion, State, lock};
use crate::signals::forks;

type Awaited = (Arc<Mutex<State>>, Completion);

struct New {
    messages: Vec<Awaited>,
    /// The forks between the process that has the thread and the one that loaded the library.
    thread_of: Option<u64>,
}

static NEW: Mutex<New> = Mutex::new(New { messages: Vec::new(), thread_of: None });
static CAME: Condvar = Condvar::new();

const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Posts the completion once the message has ended.
pub(crate) fn poll_for(state: Arc<Mutex<State>>, completion: Completion) {
    let mut new = NEW.lock().unwrap_or_else(PoisonError::into_inner);
    let process = Some(forks());
    if new.thread_of != process {
        // A parent's messages are its own, whose locks a fork must not take.
        std::mem::forget(std::mem::take(&mut new.messages));
        if thread::Builder::new().name("ring-await".into()).spawn(poll).is_err() {
            // The waiting thread is woken at once, and waits for the message itself.
            return completion.post();
        }
        new.thread_of = process;
    }
    new.messages.push((state, completion));
    CAME.notify_one();
}

fn poll() {
    let (mut all, mut pause) = (Vec::<Awaited>::new(), LONGEST_PAUSE);
    loop {
        let mut new = NEW.lock().unwrap_or_else(PoisonError::into_inner);
        while new.messages.is_empty() && all.is_empty() {
            new = CAME.wait(new).unwrap_or_else(PoisonError::into_inner);
        }
        if !new.messages.is_empty() {
            pause = Duration::from_micros(20);
        }
        all.append(&mut new.messages);
        drop(new);
        let before = all.len();
        all.retain(|(state, completion)| {
            let has_ended = lock(state).has_ended();
            if has_ended {
                completion.post();
            }
            !has_ended
        });
        if all.len() == before {
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
