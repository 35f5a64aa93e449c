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
    /// Of each half: one is copied up, one down.
    bytes: usize,
    times: usize,
}

impl Copies {
    /// Bytes per nanosecond, at best.
    fn rate(&self, block: usize, up: bool, down: bool) -> Answer<f64> {
        let mut best = f64::MAX;
        for _ in 0..self.times {
            let began = Instant::now();
            for at in (0..self.bytes).step_by(block) {
                let (low, high) = (self.device + at as u64, self.bytes + at);
                if up {
                    self.host.up(at, low, block, self.up)?;
                }
                if down {
                    self.host.down(high, self.device + high as u64, block, self.down)?;
                }
            }
            driver::drain(self.up)?;
            driver::drain(self.down)?;
            best = best.min(began.elapsed().as_secs_f64());
        }
        let ways = usize::from(up) + usize::from(down);
        Ok((ways * self.bytes) as f64 / best / 1e9)
    }

    fn by_kernel(&self) -> Answer {
        let (kernel, bytes) = (driver::kernel("rr_move")?, self.bytes as u64);
        let (host, device) = (self.host.device()?, self.device);
        for (what, list) in [
            ("rr_move, up", [host, device, bytes]),
            ("rr_move, down", [device + bytes, host + bytes, bytes]),
        ] {
            let (list, mut best) = (memory::table(&list)?, f64::MAX);
            for _ in 0..self.times {
                let began = Instant::now();
                driver::one_move(kernel, self.up, list)?;
                driver::drain(self.up)?;
                best = best.min(began.elapsed().as_secs_f64());
            }
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
        host.touch();
        host.register()?;
        (host, Some(file))
    };
    let device = memory::zeroed(2 * bytes)?;
    let (up, down) = (driver::stream()?, driver::stream()?);
    driver::finish()?;
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
