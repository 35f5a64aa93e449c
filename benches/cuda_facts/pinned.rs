//! How fast copies between the device and the host's memory are, by the length of each, up, down
//! and both at once; and a kernel that does the same on mapped memory.

use std::time::Instant;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::figure;

const PINNED: &str = "pinned memory";
const REGISTERED: &str = "registered memory";

pub(crate) fn names() -> Vec<&'static str> {
    vec![PINNED, REGISTERED]
}

struct Copies {
    host: Host,
    device: CUdeviceptr,
    up: CUstream,
    down: CUstream,
    /// Bytes of each half of the memory: one half is copied up, the other down.
    bytes: usize,
    times: usize,
}

impl Copies {
    /// The best rate of `times` trials, in bytes per nanosecond.
    fn rate(&self, block: usize, up: bool, down: bool) -> Answer<f64> {
        let best = self.best_seconds(|| {
            for at in (0..self.bytes).step_by(block) {
                let (low, high) = (self.device + at as u64, self.bytes + at);
                if up {
                    self.host.up(at, low, block, self.up)?;
                }
                if down {
                    self.host.down(high, self.device + high as u64, block, self.down)?;
                }
            }
            driver::synchronize(self.up)?;
            driver::synchronize(self.down)
        })?;
        let directions = usize::from(up) + usize::from(down);
        Ok((directions * self.bytes) as f64 / best / 1e9)
    }

    fn best_seconds(&self, mut work: impl FnMut() -> Answer) -> Answer<f64> {
        let mut best = f64::MAX;
        for _ in 0..self.times {
            let began = Instant::now();
            work()?;
            best = best.min(began.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    fn by_kernel(&self) -> Answer {
        let (kernel, bytes) = (driver::kernel("rr_move")?, self.bytes as u64);
        let (host, device) = (self.host.device()?, self.device);
        for (what, list) in [
            ("rr_move, up", [host, device, bytes]),
            ("rr_move, down", [device + bytes, host + bytes, bytes]),
        ] {
            let list = memory::table(&list)?;
            let best = self.best_seconds(|| {
                driver::one_move(kernel, self.up, 132, list)?;
                driver::synchronize(self.up)
            })?;
            figure(what, bytes as f64 / best / 1e9, "GB/s", "132 blocks");
        }
        Ok(())
    }
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    let (bytes, times) = if quick { (64 << 10, 1) } else { (256 << 20, 4) };
    let (host, _file) = if name == PINNED {
        (Host::pinned(2 * bytes)?, None)
    } else {
        let (host, file) = Host::shared(2 * bytes)?;
        host.fill(1);
        host.register()?;
        (host, Some(file))
    };
    let device = memory::zeroed(2 * bytes)?;
    let (up, down) = (driver::stream()?, driver::stream()?);
    driver::synchronize_context()?;
    let copies = Copies { host, device, up, down, bytes, times };
    for block in [1 << 20, 4 << 20, 16 << 20] {
        let block = if quick { bytes } else { block };
        for (way, up, down) in [("up", true, false), ("down", false, true), ("both", true, true)] {
            let what = format!("{} KiB each, {way}", block >> 10);
            figure(&what, copies.rate(block, up, down)?, "GB/s", "");
        }
        if quick {
            break;
        }
    }
    copies.by_kernel()
}
