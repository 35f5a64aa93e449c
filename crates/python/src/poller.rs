//! The thread that looks whether awaited messages have ended: one for the process, which sleeps
//! while none is awaited.

use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use crate::handle::{Ring, State, lock};

type Awaited = (Arc<Mutex<State>>, Ring);

static NEW: Mutex<Vec<Awaited>> = Mutex::new(Vec::new());
static CAME: Condvar = Condvar::new();
static THREAD: Once = Once::new();

const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Rings once the message has ended.
pub(crate) fn poll_for(state: Arc<Mutex<State>>, ring: Ring) {
    NEW.lock().unwrap_or_else(PoisonError::into_inner).push((state, ring));
    THREAD.call_once(|| {
        let started = thread::Builder::new().name("ring-await".into()).spawn(poll);
        if started.is_err() {
            // Whoever awaits asks for the result, and waits for it there.
            take_new(|new| new.drain(..).for_each(|(_, ring)| ring.ring()));
        }
    });
    CAME.notify_one();
}

fn take_new(take: impl FnOnce(&mut Vec<Awaited>)) {
    take(&mut NEW.lock().unwrap_or_else(PoisonError::into_inner));
}

fn poll() {
    let (mut all, mut pause) = (Vec::<Awaited>::new(), LONGEST_PAUSE);
    loop {
        let mut new = NEW.lock().unwrap_or_else(PoisonError::into_inner);
        while new.is_empty() && all.is_empty() {
            new = CAME.wait(new).unwrap_or_else(PoisonError::into_inner);
        }
        if !new.is_empty() {
            pause = Duration::from_micros(20);
        }
        all.append(&mut new);
        drop(new);
        let before = all.len();
        all.retain(|(state, ring)| {
            let has_ended = lock(state).has_ended();
            if has_ended {
                ring.ring();
            }
            !has_ended
        });
        if all.len() == before {
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
