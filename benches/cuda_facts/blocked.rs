//! Which calls return while a stream of the context waits for a value? A program that makes another
//! one before the call that writes the value waits for ever.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::{Child, Output, fact, figure, next_line, report};

const MIB: usize = 1 << 20;
const FOLD: &str = "rr_fold_f32_sum";
/// The longest of our kernels to compile.
const LONG: &str = "rr_fold_e4m3_avg";
const EXPORTER: &str = "exporter";

/// Streams and memory that exist before a stream waits.
struct Setup {
    /// The stream that will wait, and a stream that will not.
    waiting: CUstream,
    free: CUstream,
    /// 8 MiB.
    memory: CUdeviceptr,
    /// Addresses of two sources and two outputs, all in `memory`.
    table: CUdeviceptr,
    /// More launches than a stream's queue is said to hold; `queue` fills the waiting stream's own.
    many: usize,
}

impl Setup {
    fn new(quick: bool) -> Answer<Self> {
        let (memory, many) = (memory::zeroed(8 * MIB)?, if quick { 20 } else { 2000 });
        let sources = [memory, memory + MIB as u64];
        let table = memory::table(&[sources, sources].concat())?;
        let (waiting, free) = (driver::stream()?, driver::stream()?);
        Ok(Self { waiting, free, memory, table, many })
    }

    /// A call on the free stream, and the wait for it.
    fn on_free(&self, put: impl Fn(CUstream) -> Answer + 'static) -> Answer<Call> {
        let free = self.free;
        call(move || {
            put(free)?;
            driver::synchronize(free)
        })
    }

    fn folds(&self, kernel: CUfunction, times: usize) -> Answer<Call> {
        let table = self.table;
        self.on_free(move |free| {
            (0..times).try_for_each(|_| driver::fold(kernel, free, 1, table, [2, 2], 1024))
        })
    }

    /// Folds by a kernel that has run before.
    fn warm(&self, times: usize) -> Answer<Call> {
        let kernel = driver::kernel(FOLD)?;
        driver::fold(kernel, self.free, 1, self.table, [2, 2], 1024)?;
        self.folds(kernel, times)
    }
}

/// The call that is made while a stream waits.
type Call = Box<dyn FnOnce() -> Answer>;

fn call(it: impl FnOnce() -> Answer + 'static) -> Answer<Call> {
    Ok(Box::new(it))
}

/// A call that is made while another thread is in cuMemFree, which waits for the stream.
fn beside_free(it: Call) -> Answer<Call> {
    let spare = memory::allocate(8 * MIB)?;
    call(move || {
        std::thread::spawn(move || driver::open().and_then(|_| memory::free(spare)));
        // Long enough to begin to wait.
        std::thread::sleep(Duration::from_millis(100));
        it()
    })
}

/// Prepares a call.
type Prepare = fn(&Setup) -> Answer<Call>;

/// Each call is made in a process of its own.
const CALLS: &[(&str, Prepare)] = &[
    ("cuMemAlloc", |_| call(|| memory::allocate(64 * MIB).map(drop))),
    ("cuMemFree", |_| {
        let spare = memory::allocate(8 * MIB)?;
        call(move || memory::free(spare))
    }),
    ("cuMemGetInfo", |_| call(|| memory::free_and_total().map(drop))),
    ("cuMemHostAlloc", |_| call(|| Host::pinned(MIB).map(drop))),
    ("cuMemFreeHost", |_| {
        let host = Host::pinned(MIB)?;
        call(move || host.unpin())
    }),
    ("cuMemHostRegister", |_| {
        let (host, _) = Host::shared(MIB)?;
        call(move || host.register())
    }),
    ("cuMemHostUnregister", |_| {
        let (host, _) = Host::shared(MIB)?;
        host.register()?;
        call(move || host.unregister())
    }),
    ("cuPointerGetAttribute", |setup| {
        let at = setup.memory;
        call(move || memory::buffer_id(at).map(drop))
    }),
    ("cuPointerSetAttribute SYNC_MEMOPS", |setup| {
        let at = setup.memory;
        call(move || memory::synchronous(at))
    }),
    ("cuModuleLoadData", |_| call(|| driver::module(FOLD).map(drop))),
    ("cuModuleLoadData of a long kernel", |_| call(|| driver::module(LONG).map(drop))),
    ("cuModuleUnload", |_| {
        let module = driver::module(FOLD)?;
        call(move || driver::unload_module(module))
    }),
    ("cuModuleGetFunction", |_| {
        let module = driver::module(FOLD)?;
        call(move || driver::function(module, FOLD).map(drop))
    }),
    ("cuFuncLoad", |_| {
        let kernel = driver::kernel(FOLD)?;
        call(move || driver::load(kernel))
    }),
    ("cuFuncGetAttribute, the first call", |_| {
        let kernel = driver::kernel(FOLD)?;
        call(move || driver::max_threads(kernel).map(drop))
    }),
    ("cuLaunchKernel, the first of a module", |setup| setup.folds(driver::kernel(FOLD)?, 1)),
    ("cuLaunchKernel after cuFuncGetAttribute", |setup| {
        let kernel = driver::kernel(FOLD)?;
        driver::max_threads(kernel).map(drop)?;
        setup.folds(kernel, 1)
    }),
    ("cuLaunchKernel, not the first", |setup| setup.warm(1)),
    ("cuLaunchKernel, 2000 on another stream", |setup| setup.warm(setup.many)),
    ("cuStreamCreate", |_| call(|| driver::stream().map(drop))),
    ("cuStreamDestroy", |_| {
        let other = driver::stream()?;
        call(move || driver::destroy_stream(other))
    }),
    (DESTROYED, |setup| {
        let waiting = setup.waiting;
        call(move || driver::destroy_stream(waiting))
    }),
    ("cuEventCreate", |_| call(|| driver::event(false).map(drop))),
    ("cuEventDestroy", |_| {
        let event = driver::event(false)?;
        call(move || driver::destroy_event(event))
    }),
    ("cuIpcGetMemHandle", |setup| {
        let at = setup.memory;
        call(move || memory::export(at).map(drop))
    }),
    ("cuIpcOpenMemHandle", |_| {
        let (exporter, handle) = exported()?;
        call(move || {
            let _until_then = exporter;
            memory::import(&handle).map(drop)
        })
    }),
    ("cuIpcCloseMemHandle", |_| {
        let (exporter, handle) = exported()?;
        let at = memory::import(&handle)?;
        call(move || {
            let _until_then = exporter;
            memory::close(at)
        })
    }),
    ("cuLaunchKernel beside a cuMemFree that waits", |setup| beside_free(setup.warm(1)?)),
    ("cuIpcOpenMemHandle beside a cuMemFree that waits", |_| {
        let (exporter, handle) = exported()?;
        beside_free(call(move || {
            let _until_then = exporter;
            memory::import(&handle).map(drop)
        })?)
    }),
    ("cuMemAllocAsync", |setup| setup.on_free(|free| memory::allocate_async(MIB, free).map(drop))),
    ("cuMemFreeAsync", |setup| {
        let at = memory::allocate_async(MIB, setup.free)?;
        setup.on_free(move |free| memory::free_async(at, free))
    }),
    ("cuMemsetD8Async", |setup| {
        let at = setup.memory;
        setup.on_free(move |free| memory::fill_async(at, MIB, free))
    }),
    ("cuMemcpyHtoDAsync, 16 KiB, pageable", |setup| {
        let (host, at) = (Host::pageable(16 << 10), setup.memory);
        setup.on_free(move |free| host.up(0, at, 16 << 10, free))
    }),
    ("cuMemcpyHtoDAsync, 4 MiB, pageable", |setup| {
        let (host, at) = (Host::pageable(4 * MIB), setup.memory);
        setup.on_free(move |free| host.up(0, at, 4 * MIB, free))
    }),
    ("cuMemcpyDtoHAsync, 4 MiB, pageable", |setup| {
        let (host, at) = (Host::pageable(4 * MIB), setup.memory);
        setup.on_free(move |free| host.down(0, at, 4 * MIB, free))
    }),
    ("cuMemcpyHtoDAsync, 1 MiB, pinned", |setup| {
        let (host, at) = (Host::pinned(MIB)?, setup.memory);
        setup.on_free(move |free| host.up(0, at, MIB, free))
    }),
    ("cuMemcpyDtoDAsync", |setup| {
        let at = setup.memory;
        setup.on_free(move |free| memory::copy(at + 4 * MIB as u64, at, 4 * MIB, free))
    }),
    ("cuMemcpyHtoD", |setup| {
        let (host, at) = (Host::pageable(64), setup.memory);
        call(move || host.up_now(at, 64))
    }),
];

const DESTROYED: &str = "cuStreamDestroy of the one that waits";

pub(crate) fn names() -> Vec<&'static str> {
    CALLS.iter().map(|(name, _)| *name).collect()
}

/// A process that holds memory until its input ends, and the handle of that memory.
fn exported() -> Answer<(Child, String)> {
    let exporter = Child::beside(&format!("blocked\t{EXPORTER}"))?;
    match exporter.line(Duration::from_secs(5)) {
        Output::Line(handle) if !handle.contains('\t') => Ok((exporter, handle)),
        Output::Line(why) => Err(format!("the exporter: {}", why.trim())),
        Output::Timeout | Output::End => Err("the exporter printed nothing".into()),
    }
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    if name == EXPORTER {
        report(&memory::export(memory::zeroed(4 * MIB)?)?);
        // The memory stays until the other process closes the pipe.
        let _ = next_line();
        return Ok(());
    }
    let limit = Duration::from_millis(if quick { 1000 } else { 2000 });
    let prepare = CALLS.iter().find(|(known, _)| *known == name).ok_or("no such call")?.1;
    let (setup, gate) = (Setup::new(quick)?, Host::pinned(4096)?);
    let (call, flag) = (prepare(&setup)?, gate.word(0)?);
    driver::synchronize_context()?;
    driver::wait(setup.waiting, gate.device()?, 1)?;
    // Long enough to begin to wait.
    std::thread::sleep(Duration::from_millis(20));
    let (over, waiting) = channel::<()>();
    let opener = std::thread::spawn(move || {
        let blocked = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        flag.store(1, Ordering::Release);
        let after = Duration::from_secs(3);
        if blocked && waiting.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            fact("", &format!("BLOCKED, and not over {after:?} after the flag was written"));
        }
        blocked
    });
    let began = Instant::now();
    let answer = call();
    let took = began.elapsed();
    // The result means nothing if the stream did not wait.
    let waits =
        name == DESTROYED || flag.load(Ordering::Acquire) == 1 || !driver::is_idle(setup.waiting)?;
    drop(over);
    let blocked = opener.join().map_err(|_| "the thread that writes the flag")?;
    let done = answer.is_ok();
    let answer = answer.err().map_or("ok".to_owned(), |why| format!("failed: {why}"));
    if blocked {
        // The time beyond the limit, for a call may only be slow.
        let after = took.saturating_sub(limit).as_secs_f64() * 1e3;
        fact("", &format!("BLOCKED until the flag was written, then {after:.2} ms: {answer}"));
    } else if !waits {
        fact("", "failed: the stream did not wait");
    } else if !done {
        fact("", &answer);
    } else {
        figure("", took.as_secs_f64() * 1e3, "ms", &answer);
    }
    Ok(())
}
