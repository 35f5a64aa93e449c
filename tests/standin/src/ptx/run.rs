//! A launch: blocks and their threads run one after the other, and alternate where they wait for
//! each other. Law: no thread starves another, so that a kernel which ends on a GPU that holds all
//! blocks ends here.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::kernel::{Kernel, SPECIAL};
use super::thread::{Environment, Stop, Thread};
use crate::code::Code;

/// A forbidden access of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) address: u64,
    pub(crate) line: u32,
}

impl Fault {
    pub(crate) fn new(code: Code, address: u64) -> Self {
        Self { code, address, line: 0 }
    }

    pub(super) fn at(self, line: u32) -> Self {
        Self { line, ..self }
    }
}

/// Allocated memory: device addresses `start..end`, the first byte at `host`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) host: usize,
}

/// The memory that a kernel sees. `find` keeps the memory that it finds until the kernel ends.
pub(crate) struct View<'a> {
    find: &'a mut dyn FnMut(u64) -> Option<Range>,
    found: Vec<Range>,
    last: usize,
    /// Bytes that the kernel has written.
    pub(crate) written: usize,
}

impl<'a> View<'a> {
    pub(crate) fn new(find: &'a mut dyn FnMut(u64) -> Option<Range>) -> Self {
        Self { find, found: Vec::new(), last: 0, written: 0 }
    }

    /// The host address of `bytes` at a device address.
    pub(super) fn host(&mut self, address: u64, bytes: usize) -> Result<usize, Fault> {
        let holds = |range: &Range| {
            range.start <= address
                && address.checked_add(bytes as u64).is_some_and(|end| end <= range.end)
        };
        if !self.found.get(self.last).is_some_and(holds) {
            self.last = match self.found.iter().position(holds) {
                Some(at) => at,
                None => {
                    let range = (self.find)(address).filter(holds);
                    self.found.push(range.ok_or(Fault::new(Code::ILLEGAL_ADDRESS, address))?);
                    self.found.len() - 1
                }
            };
        }
        let range = &self.found[self.last];
        Ok(range.host + (address - range.start) as usize)
    }

    // The addresses below come from `host` and are aligned.
    pub(crate) fn load(host: usize, bytes: usize) -> u64 {
        const ORDER: Ordering = Ordering::Acquire;
        match bytes {
            // SAFETY: mapped, aligned memory that is only used atomically while a kernel runs.
            1 => u64::from(unsafe { AtomicU8::from_ptr(host as *mut u8) }.load(ORDER)),
            // SAFETY: as above.
            2 => u64::from(unsafe { AtomicU16::from_ptr(host as *mut u16) }.load(ORDER)),
            // SAFETY: as above.
            4 => u64::from(unsafe { AtomicU32::from_ptr(host as *mut u32) }.load(ORDER)),
            // SAFETY: as above.
            _ => unsafe { AtomicU64::from_ptr(host as *mut u64) }.load(ORDER),
        }
    }

    pub(crate) fn store(host: usize, bytes: usize, value: u64) {
        const ORDER: Ordering = Ordering::Release;
        match bytes {
            // SAFETY: mapped, aligned memory that is only used atomically while a kernel runs.
            1 => unsafe { AtomicU8::from_ptr(host as *mut u8) }.store(value as u8, ORDER),
            // SAFETY: as above.
            2 => unsafe { AtomicU16::from_ptr(host as *mut u16) }.store(value as u16, ORDER),
            // SAFETY: as above.
            4 => unsafe { AtomicU32::from_ptr(host as *mut u32) }.store(value as u32, ORDER),
            // SAFETY: as above.
            _ => unsafe { AtomicU64::from_ptr(host as *mut u64) }.store(value, ORDER),
        }
    }
}

/// A kernel with everything that a launch says.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes beyond the kernel's own.
    pub(crate) shared_bytes: usize,
    pub(crate) params: Vec<u8>,
}

/// A waiting block: its number, its shared memory, its threads and why they stopped.
struct Waiting {
    number: u64,
    shared: Vec<u8>,
    threads: Vec<(Thread, Stop)>,
}

/// The most ended threads whose registers the next blocks use again: allocating registers takes
/// longer than most kernels run.
const MOST_SPARE: usize = 1024;

thread_local! {
    static SPARE: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
}

/// An ended thread, or a new one.
fn new_thread() -> Thread {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn recycle(thread: Thread) {
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MOST_SPARE {
            spare.push(thread);
        }
    });
}

impl Launch {
    /// Runs all blocks; ends early without a fault if `abandoned`.
    pub(crate) fn run(
        &self,
        view: &mut View<'_>,
        abandoned: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let blocks: u64 = self.grid.iter().map(|&n| u64::from(n)).product();
        let mut waiting = Vec::new();
        for number in 0..blocks {
            let mut block = self.begin(number, view)?;
            self.resume(&mut block, view)?;
            if !block.threads.is_empty() {
                waiting.push(block);
            }
            if number % 64 == 0 && abandoned() {
                return Ok(());
            }
        }
        while !waiting.is_empty() && !abandoned() {
            for block in &mut waiting {
                self.resume(block, view)?;
            }
            waiting.retain(|block| !block.threads.is_empty());
            // All blocks wait for another stream, or for the host.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Starts every thread of a block; threads that end leave the block.
    fn begin(&self, number: u64, view: &mut View<'_>) -> Result<Waiting, Fault> {
        let shared = vec![0; self.kernel.shared_bytes + self.shared_bytes];
        let mut block = Waiting { number, shared, threads: Vec::new() };
        let count = self.block.iter().product();
        let mut spare = new_thread();
        for thread in 0..count {
            spare.restart(&self.kernel, &self.special(block.number, thread));
            let stop = spare.run(&mut Environment {
                kernel: &self.kernel,
                params: &self.params,
                shared: &mut block.shared,
                view,
            })?;
            if stop != Stop::Exit {
                block.threads.push((std::mem::replace(&mut spare, new_thread()), stop));
            }
        }
        recycle(spare);
        Ok(block)
    }

    /// Resumes a block until all its threads have ended, or the others wait for something outside
    /// the block.
    fn resume(&self, block: &mut Waiting, view: &mut View<'_>) -> Result<(), Fault> {
        loop {
            // A barrier opens when all threads that have not ended are at it.
            let open = block.threads.iter().all(|(_, stop)| *stop == Stop::Barrier);
            let mut moved = false;
            for (thread, stop) in &mut block.threads {
                if *stop == Stop::Barrier && !open {
                    continue;
                }
                *stop = thread.run(&mut Environment {
                    kernel: &self.kernel,
                    params: &self.params,
                    shared: &mut block.shared,
                    view,
                })?;
                moved |= *stop != Stop::Preempted;
            }
            let ended = block.threads.extract_if(.., |(_, stop)| *stop == Stop::Exit);
            ended.for_each(|(thread, _)| recycle(thread));
            if block.threads.is_empty() || !moved {
                return Ok(());
            }
        }
    }

    fn special(&self, block: u64, thread: u32) -> [u32; SPECIAL.len()] {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let (plane, rest) = (u64::from(gx) * u64::from(gy), u64::from(gx));
        let at = [(block % rest) as u32, (block % plane / rest) as u32, (block / plane) as u32];
        let t = [thread % bx, thread / bx % by, thread / bx / by];
        [t[0], t[1], t[2], bx, by, bz, at[0], at[1], at[2], gx, gy, gz]
    }
}
