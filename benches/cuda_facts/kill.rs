//! Three processes, each with memory that the others have opened. One is killed while streams of
//! the others wait for it: do these go on once the host writes the flag, and what is left to them?

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::{Child, Heard, say, told, tried};

const KILLED: &str = "one of three";
const RANK: &str = "rank";
const PAGE: usize = 4096;
const WORDS: usize = 1 << 20;
/// What the dead one's stream would have written; and, by rank, what streams write behind the wait.
const FLAG: usize = 0;
const BEHIND: usize = 64;
/// The one that is killed.
const VICTIM: usize = 2;

pub(crate) fn names() -> Vec<&'static str> {
    vec![KILLED]
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    if name == RANK { Rank::new()?.outlive() } else { conduct(quick) }
}

/// What a rank says next that is not for the reader.
fn heard(rank: usize, child: &Child) -> Answer<String> {
    loop {
        match child.line(Duration::from_secs(10)) {
            Heard::Line(line) if line.contains('\t') => say(&format!("rank {rank}, {line}")),
            Heard::Line(line) => return Ok(line),
            Heard::Nothing => return Err(format!("rank {rank} says nothing")),
            Heard::End => return Err(format!("rank {rank} has ended")),
        }
    }
}

fn conduct(quick: bool) -> Answer {
    let (page, file) = Host::shared(PAGE)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let start = |_| Child::beside(&format!("kill\t{RANK}"));
    let mut ranks = (0..3).map(start).collect::<Answer<Vec<Child>>>()?;
    let mut handles = Vec::new();
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell(&format!("{rank} {path}"))?;
        handles.push(heard(rank, child)?);
    }
    for child in &mut ranks {
        child.tell(&handles.join(" "))?;
    }
    for (rank, child) in ranks.iter().enumerate() {
        heard(rank, child)?;
    }
    let mut victim = ranks.pop().ok_or("no rank")?;
    victim.kill();
    victim.ended()?;
    // What a driver does about it, it does soon or never.
    std::thread::sleep(Duration::from_millis(if quick { 10 } else { 300 }));
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell("it is dead")?;
        heard(rank, child)?;
    }
    page.word(FLAG)?.store(1, Ordering::Release);
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell("the flag is written")?;
        heard(rank, child)?;
    }
    Ok(())
}

struct Rank {
    page: Host,
    /// Which word its stream writes behind the wait.
    behind: usize,
    stream: CUstream,
    kernel: CUfunction,
    buffers: Vec<CUdeviceptr>,
    own: CUdeviceptr,
    out: CUdeviceptr,
}

impl Rank {
    /// Meets the others, and has all open.
    fn new() -> Answer<Self> {
        driver::open()?;
        let told_first = told()?;
        let (rank, path) = told_first.split_once(' ').ok_or("no path")?;
        let rank: usize = rank.parse().map_err(|_| "no rank")?;
        let file = File::options().read(true).write(true).open(path);
        let page = Host::map(&file.map_err(|error| format!("{path}: {error}"))?, PAGE)?;
        page.register()?;
        let (own, out) = (memory::memory(4 * WORDS)?, memory::zeroed(PAGE)?);
        memory::fill(own, 1_f32.to_bits(), WORDS)?;
        let (stream, kernel) = (driver::stream()?, driver::kernel("rr_fold_f32_sum")?);
        driver::finish()?;
        say(&memory::export(own)?);
        let mut buffers = Vec::new();
        for (of, handle) in told()?.split(' ').enumerate() {
            buffers.push(if of == rank { own } else { memory::import(handle)? });
        }
        Ok(Self { page, behind: BEHIND + rank, stream, kernel, buffers, own, out })
    }

    /// Folds these, each of ones, in a stream that must not wait.
    fn sum(&self, of: &[CUdeviceptr]) -> Answer<String> {
        let table = memory::table(&[of, &[self.out]].concat())?;
        driver::fold(self.kernel, self.stream, table, [of.len() as u64, 1], 1000)?;
        driver::settle(self.stream, Duration::from_secs(2))?;
        self.found(of.len() as f32)
    }

    fn found(&self, expected: f32) -> Answer<String> {
        let found = memory::first(self.out)?;
        Ok(if found == expected { "works".into() } else { format!("WRONG: {found}") })
    }

    fn outlive(self) -> Answer {
        tried("kernel over all, before", self.sum(&self.buffers));
        let at = self.page.device()?;
        driver::wait(self.stream, at + 4 * FLAG as u64, 1)?;
        driver::write(self.stream, at + 4 * self.behind as u64, 1)?;
        say("waiting");
        told()?;
        let state = |idle| if idle { "is over" } else { "waits on" };
        tried("stream after the death", driver::idle(self.stream).map(state));
        say("seen");
        told()?;
        tried("stream once the host wrote the flag", self.goes_on());
        tried("kernel over its own memory", self.sum(&[self.own]));
        let dead = *self.buffers.get(VICTIM).ok_or("no dead rank's memory")?;
        tried("copy of the dead one's memory", self.copy(dead));
        tried("kernel over all, after", self.sum(&self.buffers));
        tried("closing the dead one's memory", memory::close(dead).map(|()| "works"));
        tried("the context then", self.alive());
        say("over");
        Ok(())
    }

    fn goes_on(&self) -> Answer<&'static str> {
        driver::settle(self.stream, Duration::from_secs(3))?;
        let written = self.page.word(self.behind)?.load(Ordering::Acquire) == 1;
        Ok(if written { "goes on" } else { "is over, but its write is MISSING" })
    }

    fn copy(&self, from: CUdeviceptr) -> Answer<String> {
        memory::copy(from, self.out, 4, self.stream)?;
        driver::settle(self.stream, Duration::from_secs(2))?;
        self.found(1.0)
    }

    fn alive(&self) -> Answer<&'static str> {
        memory::free(memory::zeroed(PAGE)?)?;
        driver::finish()?;
        Ok("works")
    }
}
