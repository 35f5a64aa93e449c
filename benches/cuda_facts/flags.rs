//! Words that streams wait for and write, by where they are: do they work, how long is a hop from
//! stream to stream, and what does each call cost the host?

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::driver::{self, Answer, Batch};
use super::memory::{self, Host};
use super::process::{fact, figure, tried};

const PINNED: &str = "pinned memory";
const REGISTERED: &str = "registered memory";
const TWICE: &str = "memory registered twice";
const DEVICE: &str = "device memory";
const HOST: &str = "host and stream";
const OTHERS: &str = "other calls";

/// Bytes between words that are used by different streams.
const LINE: u64 = 256;

pub(crate) fn names() -> Vec<&'static str> {
    vec![PINNED, REGISTERED, TWICE, DEVICE, HOST, OTHERS]
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    let times = if quick { 10 } else { 100 };
    match name {
        HOST => return host_and_stream(times),
        OTHERS => return other_calls(times),
        _ => {}
    }
    let words = Words::new(name)?;
    tried("write and wait", words.work());
    tried("batch of 8", words.batch());
    tried("write of 64 bits", words.long());
    if let Err(why) = words.costs(times) {
        fact("costs", &format!("failed: {why}"));
    }
    // Last: a hop that never comes leaves streams that wait.
    for (what, batched, base) in [("hop", false, 1000), ("hop, in batches", true, 2000)] {
        if let Err(why) = words.ping_pong(what, batched, base, 2 * times) {
            fact(what, &format!("failed: {why}"));
        }
    }
    Ok(())
}

/// A few lines of words.
struct Words {
    /// Where streams wait for them, and where they write them.
    waited: CUdeviceptr,
    written: CUdeviceptr,
    host: Option<Host>,
    stream: CUstream,
}

impl Words {
    fn new(name: &str) -> Answer<Self> {
        let bytes = 8192;
        let (waited, written, host) = match name {
            PINNED => {
                let host = Host::pinned(bytes)?;
                (host.device()?, host.device()?, Some(host))
            }
            REGISTERED | TWICE => {
                let (host, file) = Host::shared(bytes)?;
                host.register()?;
                let other = if name == TWICE { Host::map(&file, bytes)? } else { host };
                if name == TWICE {
                    other.register()?;
                }
                (host.device()?, other.device()?, Some(host))
            }
            _ => {
                let at = memory::zeroed(bytes)?;
                (at, at, None)
            }
        };
        driver::finish()?;
        if let Some(host) = host {
            let same = host.alike()?;
            fact("the device's address", if same { "is the host's" } else { "is NOT the host's" });
        }
        Ok(Self { waited, written, host, stream: driver::stream()? })
    }

    fn work(&self) -> Answer<String> {
        driver::write(self.stream, self.written, 7)?;
        driver::wait(self.stream, self.waited, 7)?;
        driver::settle(self.stream, Duration::from_secs(1))?;
        Ok(match self.host {
            None => "works".into(),
            Some(host) => match host.word(0)?.load(Ordering::Acquire) {
                7 => "works, and the host sees it".into(),
                other => format!("works, but the host sees {other}"),
            },
        })
    }

    fn batch(&self) -> Answer<&'static str> {
        let (waited, written) = (self.waited + LINE, self.written + LINE);
        let add = |batch: Batch, i: u32| batch.write(written, 10 + i).wait(waited, 10 + i);
        (0..4).fold(Batch::default(), add).put(self.stream)?;
        driver::settle(self.stream, Duration::from_secs(1))?;
        Ok("works")
    }

    fn long(&self) -> Answer<&'static str> {
        driver::write_long(self.stream, self.written + 2 * LINE, 99)?;
        driver::settle(self.stream, Duration::from_secs(1))?;
        Ok("works")
    }

    /// Two streams answer each other; all is put on them before the first begins.
    fn ping_pong(&self, what: &str, batched: bool, base: u32, rounds: u32) -> Answer {
        let (ping, pong) = (driver::stream()?, driver::stream()?);
        let (from, to) = (driver::event(true)?, driver::event(true)?);
        let gate = Host::pinned(4096)?;
        driver::wait(ping, gate.device()?, 1)?;
        driver::record(from, ping)?;
        let open = gate.word(0)?;
        let (all, waiting) = channel::<()>();
        // A stream that takes no more until it goes on would never get all.
        let opener = std::thread::spawn(move || {
            let late = waiting.recv_timeout(Duration::from_secs(1));
            open.store(1, Ordering::Release);
            late == Err(RecvTimeoutError::Timeout)
        });
        for value in base + 1..=base + rounds {
            self.round([ping, pong], value, batched)?;
        }
        driver::record(to, ping)?;
        drop(all);
        let late = opener.join().map_err(|_| "the thread that opens the gate")?;
        driver::settle(ping, Duration::from_secs(5))?;
        let note = if late { "BLOCKED while putting rounds on the streams" } else { "" };
        let hop = driver::between(from, to)? * 1e6 / f64::from(2 * rounds);
        figure(what, hop, "us", note);
        Ok(())
    }

    fn round(&self, [ping, pong]: [CUstream; 2], value: u32, batched: bool) -> Answer {
        let (there, back) = (self.waited, self.waited + LINE);
        let (go, answer) = (self.written, self.written + LINE);
        if batched {
            Batch::default().write(go, value).wait(back, value).put(ping)?;
            return Batch::default().wait(there, value).write(answer, value).put(pong);
        }
        driver::write(ping, go, value)?;
        driver::wait(ping, back, value)?;
        driver::wait(pong, there, value)?;
        driver::write(pong, answer, value)
    }

    /// What the host pays for each call, none of which has to wait.
    fn costs(&self, times: u32) -> Answer {
        let (stream, read, written) = (self.stream, self.waited, self.written + 3 * LINE);
        cost("cost of a write", stream, times, || driver::write(stream, written, 1))?;
        cost("cost of a wait", stream, times, || driver::wait(stream, read, 0))?;
        for n in [2, 8, 16] {
            let add = |batch: Batch, _| batch.write(written, 1).wait(read, 0);
            let mut batch = (0..n / 2).fold(Batch::default(), add);
            cost(&format!("cost of a batch of {n}"), stream, times / 2, || batch.put(stream))?;
        }
        Ok(())
    }
}

/// The median of five turns of so many calls; the stream is empty before each turn.
fn cost(what: &str, stream: CUstream, times: u32, mut call: impl FnMut() -> Answer) -> Answer {
    let mut turns = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        for _ in 0..times {
            call()?;
        }
        turns.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(times));
        driver::settle(stream, Duration::from_secs(5))?;
    }
    figure(what, median(turns), "us", "of the host");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// From the host's store, over a stream that waits for it and writes, to the host's load.
fn host_and_stream(times: u32) -> Answer {
    let (host, stream) = (Host::pinned(4096)?, driver::stream()?);
    let (at, flag, answer) = (host.device()?, host.word(0)?, host.word(LINE as usize / 4)?);
    for value in 1..=times {
        driver::wait(stream, at, value)?;
        driver::write(stream, at + LINE, value)?;
    }
    let mut trips = Vec::new();
    for value in 1..=times {
        let began = Instant::now();
        flag.store(value, Ordering::Release);
        await_word(answer, value, Duration::from_secs(2))?;
        trips.push(began.elapsed().as_secs_f64() * 1e6);
    }
    driver::settle(stream, Duration::from_secs(1))?;
    figure("there and back", median(trips), "us", "median");
    Ok(())
}

fn await_word(word: &AtomicU32, value: u32, limit: Duration) -> Answer {
    let end = Instant::now() + limit;
    let mut turns = 0_u32;
    while word.load(Ordering::Acquire) < value {
        turns += 1;
        if !turns.is_multiple_of(256) {
            std::hint::spin_loop();
        } else if Instant::now() > end {
            return Err(format!("no answer in {limit:?}"));
        } else {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// What else a collective puts on a stream.
fn other_calls(times: u32) -> Answer {
    let (stream, other) = (driver::stream()?, driver::stream()?);
    let (kernel, buffer) = (driver::kernel("rr_fold_f32_sum")?, memory::zeroed(16 << 10)?);
    let half = buffer + (8 << 10);
    let table = memory::table(&[buffer, half, buffer, half])?;
    let fold = || driver::fold(kernel, stream, table, [2, 2], 1024);
    fold()?;
    driver::finish()?;
    cost("cost of a launch", stream, times, fold)?;
    let event = driver::event(false)?;
    cost("cost of recording an event", stream, times, || driver::record(event, stream))?;
    cost("cost of waiting for an event", other, times, || driver::wait_event(other, event))?;
    let copy = || memory::copy(half, buffer, 4096, stream);
    cost("cost of a copy on the device", stream, times, copy)
}
