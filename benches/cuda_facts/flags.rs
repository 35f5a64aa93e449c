//! Words that streams wait for and write, by where they are: do they work, how long does a signal
//! from stream to stream take, and what does each call cost the host?

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::driver::{self, Answer, Batch};
use super::memory::{self, Host};
use super::process::{fact, fact_of, failed, figure};

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
    fact_of("write and wait", words.work());
    fact_of("batch of 8", words.batch());
    fact_of("write of 64 bits", words.long());
    failed("costs", words.costs(times));
    // Signals come last: a lost one leaves streams that wait.
    for (what, batched, base) in [("signal", false, 1000), ("signal, in batches", true, 2000)] {
        failed(what, words.ping_pong(what, batched, base, 2 * times));
    }
    Ok(())
}

/// A few lines of words.
struct Words {
    /// The addresses by which streams wait for the words, and write them.
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
        driver::synchronize_context()?;
        if let Some(host) = host {
            let same = host.has_one_address()?;
            fact("the device's address", if same { "is the host's" } else { "is NOT the host's" });
        }
        Ok(Self { waited, written, host, stream: driver::stream()? })
    }

    fn work(&self) -> Answer<String> {
        driver::write(self.stream, self.written, 7)?;
        driver::wait(self.stream, self.waited, 7)?;
        driver::wait_until_idle(self.stream, Duration::from_secs(1))?;
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
        driver::wait_until_idle(self.stream, Duration::from_secs(1))?;
        Ok("works")
    }

    fn long(&self) -> Answer<&'static str> {
        driver::write_64(self.stream, self.written + 2 * LINE, 99)?;
        driver::wait_until_idle(self.stream, Duration::from_secs(1))?;
        Ok("works")
    }

    /// Two streams answer each other; all rounds are enqueued before the first stream begins.
    fn ping_pong(&self, what: &str, batched: bool, base: u32, rounds: u32) -> Answer {
        let (ping, pong) = (driver::stream()?, driver::stream()?);
        let (from, to) = (driver::event(true)?, driver::event(true)?);
        let gate = Host::pinned(4096)?;
        driver::wait(ping, gate.device()?, 1)?;
        driver::record(from, ping)?;
        let open = gate.word(0)?;
        let (all, waiting) = channel::<()>();
        // A stream whose queue is full before it begins would never get all rounds.
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
        driver::wait_until_idle(ping, Duration::from_secs(5))?;
        let note = if late { "BLOCKED while putting rounds on the streams" } else { "" };
        let signal = driver::between(from, to)? * 1e6 / f64::from(2 * rounds);
        figure(what, signal, "us", note);
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

    /// The host's time for each call, none of which has to wait.
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

/// The host's time: the median of five samples of `times` calls each; the stream is idle before
/// each sample. Then the GPU's time.
fn cost(what: &str, stream: CUstream, times: u32, mut call: impl FnMut() -> Answer) -> Answer {
    let mut samples = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        for _ in 0..times {
            call()?;
        }
        samples.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(times));
        driver::wait_until_idle(stream, Duration::from_secs(5))?;
    }
    figure(what, median(samples), "us", "of the host");
    // Fewer than a queue holds, also if each operation of a batch has a place of its own.
    let seconds = gpu_seconds(stream, times / 5, call)?;
    figure(what, seconds * 1e6 / f64::from(times / 5), "us", "of the GPU");
    Ok(())
}

/// The GPU's time for `times` calls that are all enqueued before the first begins.
fn gpu_seconds(stream: CUstream, times: u32, mut call: impl FnMut() -> Answer) -> Answer<f64> {
    let (gate, from, to) = (Host::pinned(4096)?, driver::event(true)?, driver::event(true)?);
    driver::wait(stream, gate.device()?, 1)?;
    driver::record(from, stream)?;
    for _ in 0..times {
        call()?;
    }
    driver::record(to, stream)?;
    gate.word(0)?.store(1, Ordering::Release);
    driver::wait_until_idle(stream, Duration::from_secs(5))?;
    driver::between(from, to)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// From the host's store, through a stream that waits for it and writes, to the host's load.
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
    driver::wait_until_idle(stream, Duration::from_secs(1))?;
    figure("there and back", median(trips), "us", "median");
    Ok(())
}

fn await_word(word: &AtomicU32, value: u32, limit: Duration) -> Answer {
    let end = Instant::now() + limit;
    let mut looks = 0_u32;
    while word.load(Ordering::Acquire) < value {
        looks += 1;
        if !looks.is_multiple_of(256) {
            std::hint::spin_loop();
        } else if Instant::now() > end {
            return Err(format!("no answer in {limit:?}"));
        } else {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Other calls that a collective puts on a stream.
fn other_calls(times: u32) -> Answer {
    let (stream, other) = (driver::stream()?, driver::stream()?);
    let (kernel, buffer) = (driver::kernel("rr_fold_f32_sum")?, memory::zeroed(16 << 10)?);
    let half = buffer + (8 << 10);
    let table = memory::table(&[buffer, half, buffer, half])?;
    let fold = || driver::fold(kernel, stream, 1, table, [2, 2], 1024);
    fold()?;
    driver::synchronize_context()?;
    cost("cost of a launch", stream, times, fold)?;
    let event = driver::event(false)?;
    cost("cost of recording an event", stream, times, || driver::record(event, stream))?;
    cost("cost of waiting for an event", other, times, || driver::wait_for_event(other, event))?;
    let copy = || memory::copy(half, buffer, 4096, stream);
    cost("cost of a copy on the device", stream, times, copy)
}
