//! Counters: calls of each entry point by a thread, and the work that the streams of this process
//! carry out. A program reads one by `standinCount`, calls as those of the thread that asks: a
//! library's own threads look at the driver as often as there is time. Law: an unknown name ends
//! the process.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stream::Work;
use crate::{api, c};

/// Counters of a thread besides those that have the name of an entry point: all calls.
const CALLS: &str = "calls";

/// Counters of the process: work that the program put on streams (a graph's launch is one),
/// kernels, copies and fills, stream memory operations, and bytes that kernels, copies, fills and
/// streams wrote.
static WORK: [(&str, AtomicU64); 6] = [
    ("submissions", AtomicU64::new(0)),
    ("kernels", AtomicU64::new(0)),
    ("copies", AtomicU64::new(0)),
    ("waits", AtomicU64::new(0)),
    ("writes", AtomicU64::new(0)),
    ("bytes", AtomicU64::new(0)),
];

thread_local! {
    static OF_THREAD: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
}

/// Counts a call of an entry point.
pub(crate) fn add_call(name: &'static str) {
    // A thread that is about to end has no counters.
    let _ = OF_THREAD.try_with(|counts| {
        let mut counts = counts.borrow_mut();
        *counts.entry(CALLS).or_default() += 1;
        *counts.entry(name).or_default() += 1;
    });
}

pub(crate) fn add(name: &str, count: usize) {
    let found = WORK.iter().find(|(known, _)| *known == name);
    found.map(|(_, counter)| counter.fetch_add(count as u64, Ordering::Relaxed));
}

/// Counts work that a stream is about to carry out, except for the bytes that a kernel writes.
pub(crate) fn add_work(work: &Work) {
    match work {
        Work::Launch(_) => add("kernels", 1),
        Work::Copy { bytes, .. } => {
            add("copies", 1);
            add("bytes", *bytes);
        }
        Work::Fill { width, count, .. } => {
            add("copies", 1);
            add("bytes", width * count);
        }
        Work::Values(ops) => {
            let written = || ops.iter().filter(|op| op.wait.is_none());
            add("waits", ops.len() - written().count());
            add("writes", written().count());
            add("bytes", written().map(|op| op.bytes).sum());
        }
        Work::Nothing | Work::Keep(_) | Work::Free(_) => {}
    }
}

fn count(name: &CStr) -> Option<u64> {
    let name = name.to_str().ok()?;
    if let Some((_, counter)) = WORK.iter().find(|(known, _)| *known == name) {
        return Some(counter.load(Ordering::Relaxed));
    }
    let is_known = name == CALLS || api::names().any(|known| known == name);
    is_known.then(|| OF_THREAD.with_borrow(|counts| counts.get(name).copied().unwrap_or(0)))
}

// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn standinCount(name: *const c_char) -> u64 {
    let name = c::text(name).unwrap_or_default();
    count(name).unwrap_or_else(|| {
        let work = WORK.each_ref().map(|(name, _)| *name);
        eprintln!(
            "stand-in CUDA driver: standinCount of {name:?}: want an entry point, {CALLS} or one \
             of {work:?}"
        );
        std::process::exit(97);
    })
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn only_known_names_are_counted() {
        assert!(count(c"cuInit").is_some() && count(c"bytes").is_some());
        assert_eq!(count(c"cuNothing"), None);
    }
}
