//! Three processes, each with memory that the others have opened. One is killed while streams of
//! the others wait for it: do these go on once the host writes the flag, and what still works?

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::{Child, Output, fact_of, next_line, report};

const KILLED: &str = "one of three";
const RANK: &str = "rank";
const PAGE: usize = 4096;
const WORDS: usize = 1 << 20;
/// The word that the killed rank's stream would have written, and the first of the words, one for
/// each rank, that streams write behind the wait.
const FLAG: usize = 0;
const BEHIND: usize = 64;
/// The rank that is killed.
const VICTIM: usize = 2;

pub(crate) fn names() -> Vec<&'static str> {
    vec![KILLED]
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    if name == RANK { Rank::new()?.outlive() } else { run_ranks(quick) }
}

/// The next line of a rank that is no fact; facts before it are reported.
fn line_of(rank: usize, child: &Child) -> Answer<String> {
    loop {
        match child.line(Duration::from_secs(10)) {
            Output::Line(line) if line.contains('\t') => report(&format!("rank {rank}, {line}")),
            Output::Line(line) => return Ok(line),
            Output::Timeout => return Err(format!("rank {rank} prints nothing")),
            Output::End => return Err(format!("rank {rank} has ended")),
        }
    }
}

fn run_ranks(quick: bool) -> Answer {
    let (page, file) = Host::shared(PAGE)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let start = |_| Child::beside(&format!("kill\t{RANK}"));
    let mut ranks = (0..3).map(start).collect::<Answer<Vec<Child>>>()?;
    let mut handles = Vec::new();
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell(&format!("{rank} {path}"))?;
        handles.push(line_of(rank, child)?);
    }
    for child in &mut ranks {
        child.tell(&handles.join(" "))?;
    }
    for (rank, child) in ranks.iter().enumerate() {
        line_of(rank, child)?;
    }
    let mut victim = ranks.pop().ok_or("no rank")?;
    victim.kill();
    victim.ended()?;
    // A driver that reacts to the death does so soon, or never.
    std::thread::sleep(Duration::from_millis(if quick { 10 } else { 300 }));
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell("it is dead")?;
        line_of(rank, child)?;
    }
    page.word(FLAG)?.store(1, Ordering::Release);
    for (rank, child) in ranks.iter_mut().enumerate() {
        child.tell("the flag is written")?;
        line_of(rank, child)?;
    }
    Ok(())
}

struct Rank {
    page: Host,
    /// The word that the rank's stream writes behind the wait.
    behind: usize,
    stream: CUstream,
    kernel: CUfunction,
    buffers: Vec<CUdeviceptr>,
    own: CUdeviceptr,
    out: CUdeviceptr,
}

impl Rank {
    /// Opens the memory of all ranks.
    fn new() -> Answer<Self> {
        driver::open()?;
        let first = next_line()?;
        let (rank, path) = first.split_once(' ').ok_or("no path")?;
        let rank: usize = rank.parse().map_err(|_| "no rank")?;
        let file = File::options().read(true).write(true).open(path);
        let page = Host::map(&file.map_err(|error| format!("{path}: {error}"))?, PAGE)?;
        page.register()?;
        let (own, out) = (memory::allocate(4 * WORDS)?, memory::zeroed(PAGE)?);
        memory::fill(own, 1_f32.to_bits(), WORDS)?;
        let (stream, kernel) = (driver::stream()?, driver::kernel("rr_fold_f32_sum")?);
        driver::synchronize_context()?;
        report(&memory::export(own)?);
        let mut buffers = Vec::new();
        for (of, handle) in next_line()?.split(' ').enumerate() {
            buffers.push(if of == rank { own } else { memory::import(handle)? });
        }
        Ok(Self { page, behind: BEHIND + rank, stream, kernel, buffers, own, out })
    }

    /// Folds buffers of ones, in a stream that must not wait.
    fn sum(&self, of: &[CUdeviceptr]) -> Answer<String> {
        let table = memory::table(&[of, &[self.out]].concat())?;
        driver::fold(self.kernel, self.stream, 1, table, [of.len() as u64, 1], 1000)?;
        driver::wait_until_idle(self.stream, Duration::from_secs(2))?;
        self.found(of.len() as f32)
    }

    fn found(&self, expected: f32) -> Answer<String> {
        let found = memory::first_float(self.out)?;
        Ok(if found == expected { "works".into() } else { format!("WRONG: {found}") })
    }

    fn outlive(self) -> Answer {
        fact_of("kernel over all, before", self.sum(&self.buffers));
        let at = self.page.device()?;
        driver::wait(self.stream, at + 4 * FLAG as u64, 1)?;
        driver::write(self.stream, at + 4 * self.behind as u64, 1)?;
        report("waiting");
        next_line()?;
        let state = |idle| if idle { "is over" } else { "waits on" };
        fact_of("stream after the death", driver::is_idle(self.stream).map(state));
        report("seen");
        next_line()?;
        fact_of("stream once the host wrote the flag", self.goes_on());
        fact_of("kernel over its own memory", self.sum(&[self.own]));
        let dead = *self.buffers.get(VICTIM).ok_or("no dead rank's memory")?;
        fact_of("copy of the dead one's memory", self.copy(dead));
        fact_of("kernel over all, after", self.sum(&self.buffers));
        fact_of("closing the dead one's memory", memory::close(dead).map(|()| "works"));
        fact_of("the context then", self.alive());
        report("over");
        Ok(())
    }

    fn goes_on(&self) -> Answer<&'static str> {
        driver::wait_until_idle(self.stream, Duration::from_secs(3))?;
        let written = self.page.word(self.behind)?.load(Ordering::Acquire) == 1;
        Ok(if written { "goes on" } else { "is over, but its write is MISSING" })
    }

    fn copy(&self, from: CUdeviceptr) -> Answer<String> {
        memory::copy(from, self.out, 4, self.stream)?;
        driver::wait_until_idle(self.stream, Duration::from_secs(2))?;
        self.found(1.0)
    }

    fn alive(&self) -> Answer<&'static str> {
        memory::free(memory::zeroed(PAGE)?)?;
        driver::synchronize_context()?;
        Ok("works")
    }
}
