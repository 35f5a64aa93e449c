//! How many operations a stream takes behind a wait whose value is not there yet, before a call
//! blocks; and whether the device then still takes work for other streams.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::driver::{self, Answer, Batch};
use super::memory::{self, Host};
use super::process::{fact, figure};

const LAUNCHES: &str = "launches";
const WRITES: &str = "writes of values";
const BATCHES: &str = "batches of 8 values";

/// Operations that have been added.
static ADDED: AtomicU32 = AtomicU32::new(0);
/// A call that takes so long is blocked.
const LIMIT: Duration = Duration::from_millis(500);

pub(crate) fn names() -> Vec<&'static str> {
    vec![LAUNCHES, WRITES, BATCHES]
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    let most: u32 = if quick { 40 } else { 20_000 };
    let (stream, gate, words) = (driver::stream()?, Host::pinned(4096)?, memory::zeroed(8192)?);
    let table = memory::table(&[words, words + 4096, words, words + 4096])?;
    let kernel = driver::kernel("rr_fold_f32_sum")?;
    let mut batch = (0..8).fold(Batch::default(), |batch, value| batch.write(words, value));
    let mut add = || match name {
        LAUNCHES => driver::fold(kernel, stream, 1, table, [2, 2], 16),
        WRITES => driver::write(stream, words, 1),
        _ => batch.put(stream),
    };
    add()?;
    driver::synchronize_context()?;
    driver::wait(stream, gate.device()?, 1)?;
    let (over, waiting) = channel::<()>();
    let open = gate.word(0)?;
    let watcher = std::thread::spawn(move || {
        let depth = blocks_at(|| waiting.recv_timeout(LIMIT));
        let others = depth.map(|_| other_stream_blocks(words));
        open.store(1, Ordering::Release);
        depth.zip(others)
    });
    while ADDED.load(Ordering::Relaxed) < most && open.load(Ordering::Acquire) == 0 {
        add()?;
        ADDED.fetch_add(1, Ordering::Relaxed);
    }
    drop(over);
    let found = watcher.join().map_err(|_| "the thread that opens the gate")?;
    driver::wait_until_idle(stream, Duration::from_secs(10))?;
    match found {
        None => figure("", f64::from(most), "", "were added, and none blocked"),
        Some((depth, blocks)) => {
            figure("", f64::from(depth), "", "were added before one BLOCKED");
            let others = if blocks { "BLOCK too" } else { "return" };
            fact("calls on another stream meanwhile", others);
        }
    }
    Ok(())
}

/// The number of operations that were added before a call blocked, if one does before the end.
fn blocks_at(ends: impl Fn() -> Result<(), RecvTimeoutError>) -> Option<u32> {
    let mut last = u32::MAX;
    while ends() == Err(RecvTimeoutError::Timeout) {
        let now = ADDED.load(Ordering::Relaxed);
        if now == last {
            return Some(now);
        }
        last = now;
    }
    None
}

/// True if a call of another thread, on the default stream, which does not wait for others here,
/// does not return.
fn other_stream_blocks(words: u64) -> bool {
    let (done, waiting) = channel();
    std::thread::spawn(move || {
        let added = driver::open().and_then(|_| memory::fill_async(words + 4096, 16, null_mut()));
        done.send(added)
    });
    waiting.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout)
}
