//! The time that registering the host's memory takes, by length and by whether its pages are
//! allocated; and, to compare, that of allocating pinned memory and the device's memory.

use std::time::Instant;

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::figure;

const SIZES: [(&str, usize); 4] =
    [("4 KiB", 4 << 10), ("2 MiB", 2 << 20), ("64 MiB", 64 << 20), ("512 MiB", 512 << 20)];
const ALLOCATED: &str = "allocated";

pub(crate) fn names() -> Vec<&'static str> {
    SIZES.map(|(name, _)| name).into_iter().chain([ALLOCATED]).collect()
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    let small = if quick { 4 << 10 } else { usize::MAX };
    if name == ALLOCATED {
        return allocated((64 << 20).min(small));
    }
    let size = SIZES.iter().find(|size| size.0 == name).ok_or("no such size")?.1.min(small);
    for touched in [false, true] {
        let (host, _file) = Host::shared(size)?;
        if touched {
            host.fill(1);
        }
        let note = if touched { "pages that are there" } else { "pages never touched" };
        timed("register", note, || host.register())?;
        timed("unregister", note, || host.unregister())?;
    }
    Ok(())
}

fn allocated(bytes: usize) -> Answer {
    let note = &format!("{bytes} bytes");
    let host = timed("cuMemHostAlloc and filling it", note, || Host::pinned(bytes))?;
    timed("cuMemFreeHost", note, || host.unpin())?;
    let device = timed("cuMemAlloc", note, || memory::allocate(bytes))?;
    timed("cuIpcGetMemHandle", note, || memory::export(device))?;
    timed("cuMemFree", note, || memory::free(device))
}

fn timed<T>(what: &str, note: &str, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let began = Instant::now();
    let done = work()?;
    figure(what, began.elapsed().as_secs_f64() * 1e3, "ms", note);
    Ok(done)
}
