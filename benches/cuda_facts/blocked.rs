//! Which calls return while a stream of the context waits for a value? Whoever makes one that does
//! not, before the call that would write the value, waits for ever.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::{Child, Heard, fact, figure, say, told};

const MIB: usize = 1 << 20;
const FOLD: &str = "rr_fold_f32_sum";
/// The longest of our kernels to compile.
const LONG: &str = "rr_fold_e4m3_avg";
const EXPORTER: &str = "exporter";

/// What is there before a stream waits.
struct Scene {
    /// The one that will wait, and another that will not.
    waiting: CUstream,
    free: CUstream,
    /// 8 MiB.
    memory: CUdeviceptr,
    /// Two sources and two outputs in it.
    table: CUdeviceptr,
    /// More launches than a stream's queue is said to hold.
    many: usize,
}

impl Scene {
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
            driver::drain(free)
        })
    }

    fn folds(&self, kernel: CUfunction, times: usize) -> Answer<Call> {
        let table = self.table;
        self.on_free(move |free| {
            (0..times).try_for_each(|_| driver::fold(kernel, free, table, [2, 2], 1024))
        })
    }

    /// The same of a kernel that ran before.
    fn warm(&self, times: usize) -> Answer<Call> {
        let kernel = driver::kernel(FOLD)?;
        driver::fold(kernel, self.free, self.table, [2, 2], 1024)?;
        self.folds(kernel, times)
    }
}

/// What is made while a stream waits.
type Call = Box<dyn FnOnce() -> Answer>;

fn call(it: impl FnOnce() -> Answer + 'static) -> Answer<Call> {
    Ok(Box::new(it))
}

fn unused<T>(_: T) {}

/// Makes what a call needs; what it gives is the call.
type Prepare = fn(&Scene) -> Answer<Call>;

/// Each in a process of its own.
const CALLS: &[(&str, Prepare)] = &[
    ("cuMemAlloc", |_| call(|| memory::memory(64 * MIB).map(unused))),
    ("cuMemFree", |_| {
        let spare = memory::memory(8 * MIB)?;
        call(move || memory::free(spare))
    }),
    ("cuMemGetInfo", |_| call(|| memory::left().map(unused))),
    ("cuMemHostAlloc", |_| call(|| Host::pinned(MIB).map(unused))),
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
    ("cuPointerGetAttribute", |scene| {
        let at = scene.memory;
        call(move || memory::number(at).map(unused))
    }),
    ("cuPointerSetAttribute SYNC_MEMOPS", |scene| {
        let at = scene.memory;
        call(move || memory::synchronous(at))
    }),
    ("cuModuleLoadData", |_| call(|| driver::module(FOLD).map(unused))),
    ("cuModuleLoadData of a long kernel", |_| call(|| driver::module(LONG).map(unused))),
    ("cuModuleUnload", |_| {
        let module = driver::module(FOLD)?;
        call(move || driver::end_module(module))
    }),
    ("cuModuleGetFunction", |_| {
        let module = driver::module(FOLD)?;
        call(move || driver::function(module, FOLD).map(unused))
    }),
    ("cuFuncLoad", |_| {
        let kernel = driver::kernel(FOLD)?;
        call(move || driver::load(kernel))
    }),
    ("cuFuncGetAttribute, the first call", |_| {
        let kernel = driver::kernel(FOLD)?;
        call(move || driver::ask_about(kernel))
    }),
    ("cuLaunchKernel, the first of a module", |scene| scene.folds(driver::kernel(FOLD)?, 1)),
    ("cuLaunchKernel after cuFuncGetAttribute", |scene| {
        let kernel = driver::kernel(FOLD)?;
        driver::ask_about(kernel)?;
        scene.folds(kernel, 1)
    }),
    ("cuLaunchKernel, not the first", |scene| scene.warm(1)),
    ("cuLaunchKernel, 2000 of them", |scene| scene.warm(scene.many)),
    ("cuStreamCreate", |_| call(|| driver::stream().map(unused))),
    ("cuStreamDestroy", |_| {
        let other = driver::stream()?;
        call(move || driver::end_stream(other))
    }),
    (DESTROYED, |scene| {
        let waiting = scene.waiting;
        call(move || driver::end_stream(waiting))
    }),
    ("cuEventCreate", |_| call(|| driver::event(false).map(unused))),
    ("cuEventDestroy", |_| {
        let event = driver::event(false)?;
        call(move || driver::end_event(event))
    }),
    ("cuIpcGetMemHandle", |scene| {
        let at = scene.memory;
        call(move || memory::export(at).map(unused))
    }),
    ("cuIpcOpenMemHandle", |_| {
        let (exporter, handle) = exported()?;
        call(move || {
            let _until_then = exporter;
            memory::import(&handle).map(unused)
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
    ("cuMemAllocAsync", |scene| scene.on_free(|free| memory::of_pool(MIB, free).map(unused))),
    ("cuMemFreeAsync", |scene| {
        let at = memory::of_pool(MIB, scene.free)?;
        scene.on_free(move |free| memory::to_pool(at, free))
    }),
    ("cuMemsetD8Async", |scene| {
        let at = scene.memory;
        scene.on_free(move |free| memory::fill_async(at, MIB, free))
    }),
    ("cuMemcpyHtoDAsync, 16 KiB, pageable", |scene| {
        let (host, at) = (Host::pageable(16 << 10), scene.memory);
        scene.on_free(move |free| host.up(0, at, 16 << 10, free))
    }),
    ("cuMemcpyHtoDAsync, 4 MiB, pageable", |scene| {
        let (host, at) = (Host::pageable(4 * MIB), scene.memory);
        scene.on_free(move |free| host.up(0, at, 4 * MIB, free))
    }),
    ("cuMemcpyDtoHAsync, 4 MiB, pageable", |scene| {
        let (host, at) = (Host::pageable(4 * MIB), scene.memory);
        scene.on_free(move |free| host.down(0, at, 4 * MIB, free))
    }),
    ("cuMemcpyHtoDAsync, 1 MiB, pinned", |scene| {
        let (host, at) = (Host::pinned(MIB)?, scene.memory);
        scene.on_free(move |free| host.up(0, at, MIB, free))
    }),
    ("cuMemcpyDtoDAsync", |scene| {
        let at = scene.memory;
        scene.on_free(move |free| memory::copy(at + 4 * MIB as u64, at, 4 * MIB, free))
    }),
    ("cuMemcpyHtoD", |scene| {
        let (host, at) = (Host::pageable(64), scene.memory);
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
        Heard::Line(handle) if !handle.contains('\t') => Ok((exporter, handle)),
        Heard::Line(why) => Err(format!("the exporter: {}", why.trim())),
        Heard::Nothing | Heard::End => Err("the exporter said nothing".into()),
    }
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    if name == EXPORTER {
        say(&memory::export(memory::zeroed(4 * MIB)?)?);
        // Until nobody is there any more.
        let _ = told();
        return Ok(());
    }
    let limit = Duration::from_millis(if quick { 1000 } else { 2000 });
    let prepare = CALLS.iter().find(|(known, _)| *known == name).ok_or("no such call")?.1;
    let (scene, gate) = (Scene::new(quick)?, Host::pinned(4096)?);
    let (call, flag) = (prepare(&scene)?, gate.word(0)?);
    driver::finish()?;
    driver::wait(scene.waiting, gate.device()?, 1)?;
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
    // A stream that does not wait blocks nobody, and shows nothing.
    let waits =
        name == DESTROYED || flag.load(Ordering::Acquire) == 1 || !driver::idle(scene.waiting)?;
    drop(over);
    let blocked = opener.join().map_err(|_| "the thread that writes the flag")?;
    let done = answer.is_ok();
    let answer = answer.err().map_or("ok".to_owned(), |why| format!("failed: {why}"));
    if blocked {
        // How long it took beside that, for it may only be slow.
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
