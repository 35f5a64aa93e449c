//! The thread that looks whether awaited messages have ended: one for the process, which sleeps
//! while none is awaited.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_utils::atomic::AtomicCell;

use crate::handle::{Completion, State, lock};
use crate::signals::forks;

type Awaited = (Arc<Mutex<State>>, Completion);

/// The messages that a thread of this process is to look at.
struct Poller {
    new: Mutex<Vec<Awaited>>,
    came: Condvar,
    /// The forks between the process that has the thread and the one that loaded the library.
    thread_of: u64,
}

/// The poller of this process or of a parent, whose thread may have held its lock as this process
/// was forked: so each process has one of its own, and never touches its parent's.
static POLLER: AtomicCell<Option<&'static Poller>> = AtomicCell::new(None);

const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Posts the completion once the message has ended.
pub(crate) fn poll_for(state: Arc<Mutex<State>>, completion: Completion) {
    let process = forks();
    let known = POLLER.load().filter(|poller| poller.thread_of == process);
    let Some(poller) = known.or_else(|| start(process)) else {
        // The waiting thread is woken at once, and waits for the message itself.
        return completion.post();
    };
    poller.new.lock().unwrap_or_else(PoisonError::into_inner).push((state, completion));
    poller.came.notify_one();
}

/// A poller with a thread, which lives as long as the process. Two threads that start one at the
/// same time have one each.
fn start(thread_of: u64) -> Option<&'static Poller> {
    let poller = Poller { new: Mutex::default(), came: Condvar::new(), thread_of };
    let poller: &'static Poller = Box::leak(Box::new(poller));
    let named = thread::Builder::new().name("ring-await".into());
    named.spawn(|| poller.poll()).ok()?;
    POLLER.store(Some(poller));
    Some(poller)
}

impl Poller {
    fn poll(&self) {
        let (mut all, mut pause) = (Vec::<Awaited>::new(), LONGEST_PAUSE);
        loop {
            let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
            while new.is_empty() && all.is_empty() {
                new = self.came.wait(new).unwrap_or_else(PoisonError::into_inner);
            }
            if !new.is_empty() {
                pause = Duration::from_micros(20);
            }
            all.append(&mut new);
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
}
