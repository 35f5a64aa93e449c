//! Can waits and writes of values be captured, with kernels between them, and what does it cost to
//! replay them?

use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUgraphExec, CUstream};

use super::driver::{self, Answer, Batch};
use super::memory::{self, Host};
use super::process::{fact, figure};

/// A name; whether values are batched, whether a kernel follows, and whether a batch follows that.
const FORMS: [(&str, bool, bool, bool); 4] = [
    ("values one by one", false, false, false),
    ("values in a batch", true, false, false),
    ("values one by one, kernel", false, true, false),
    ("batch, kernel, batch", true, true, true),
];

pub(crate) fn names() -> Vec<&'static str> {
    FORMS.map(|form| form.0).to_vec()
}

/// The work of a stream, in any of the forms.
struct Work {
    stream: CUstream,
    /// Two words of registered memory, on cache lines of their own.
    words: [CUdeviceptr; 2],
    kernel: CUfunction,
    table: CUdeviceptr,
}

impl Work {
    fn new() -> Answer<Self> {
        let (host, _) = Host::shared(4096)?;
        host.register()?;
        let (at, buffer) = (host.device()?, memory::zeroed(16 << 10)?);
        let sources = [buffer, buffer + (8 << 10)];
        let table = memory::table(&[sources, sources].concat())?;
        let kernel = driver::kernel("rr_fold_f32_sum")?;
        let work = Self { stream: driver::stream()?, words: [at, at + 64], kernel, table };
        // The first launch loads the kernel, which a capture does not allow.
        work.fold()?;
        driver::synchronize_context()?;
        Ok(work)
    }

    fn fold(&self) -> Answer {
        driver::fold(self.kernel, self.stream, 1, self.table, [2, 2], 1024)
    }

    fn batch(&self, word: usize) -> Answer {
        let at = self.words[word];
        Batch::default().write(at, 1).wait(at, 1).put(self.stream)
    }

    fn put(&self, batched: bool, kernel: bool, again: bool) -> Answer {
        if batched {
            self.batch(0)?;
        } else {
            driver::write(self.stream, self.words[0], 1)?;
            driver::wait(self.stream, self.words[0], 1)?;
        }
        if kernel {
            self.fold()?;
        }
        if again { self.batch(1) } else { Ok(()) }
    }

    fn replay(&self, exec: CUgraphExec, times: u32) -> Answer {
        let began = Instant::now();
        for _ in 0..times {
            driver::replay(exec, self.stream)?;
        }
        let host = began.elapsed();
        driver::wait_until_idle(self.stream, Duration::from_secs(3))?;
        let each = |all: Duration| all.as_secs_f64() * 1e6 / f64::from(times);
        figure("replay, one after the other", each(began.elapsed()), "us", "");
        figure("replay, the host's part", each(host), "us", "");
        let began = Instant::now();
        for _ in 0..times {
            driver::replay(exec, self.stream)?;
            driver::synchronize(self.stream)?;
        }
        figure("replay, each waited for", each(began.elapsed()), "us", "");
        Ok(())
    }
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    let form = FORMS.iter().find(|form| form.0 == name).ok_or("no such form")?;
    driver::open()?;
    let work = Work::new()?;
    driver::begin_capture(work.stream)?;
    let put = work.put(form.1, form.2, form.3);
    // The capture ends in any case: while it goes on, the stream takes nothing else.
    let graph = driver::end_capture(work.stream);
    put?;
    let graph = graph?;
    fact("captured", &format!("{} nodes", driver::node_count(graph)?));
    let exec = driver::instantiate(graph)?;
    driver::replay(exec, work.stream)?;
    driver::wait_until_idle(work.stream, Duration::from_secs(2))?;
    fact("replayed", "works");
    work.replay(exec, if quick { 5 } else { 100 })
}
