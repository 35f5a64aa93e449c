//! How long a signal takes from a stream of one process to a stream of another one that shares the
//! device: the driver may let the processes take turns on it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::driver::{self, Answer};
use super::memory::{self, Host};
use super::process::{Child, Output, figure, next_line, report};

const REGISTERED: &str = "by registered memory";
const DEVICE: &str = "by device memory";
/// The other process.
const PEER: &str = "peer";
const READY: &str = "ready";

const PAGE: usize = 4096;
/// Bytes between the word that the peer waits for and the one that it writes.
const LINE: u64 = 256;

pub(crate) fn names() -> Vec<&'static str> {
    vec![REGISTERED, DEVICE]
}

pub(crate) fn run(name: &str, quick: bool) -> Answer {
    driver::open()?;
    if name == PEER {
        return answers();
    }
    let rounds: u32 = if quick { 10 } else { 100 };
    let (page, file) = Host::shared(PAGE)?;
    let (words, place) = if name == REGISTERED {
        page.register()?;
        (page.device()?, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    } else {
        let words = memory::zeroed(PAGE)?;
        driver::synchronize_context()?;
        (words, memory::export(words)?)
    };
    let mut peer = Child::beside(&format!("hops\t{PEER}"))?;
    peer.tell(&format!("{rounds} {place}"))?;
    match peer.line(Duration::from_secs(15)) {
        Output::Line(line) if line == READY => {}
        Output::Line(why) => return Err(format!("the peer: {}", why.trim())),
        Output::Timeout | Output::End => return Err("the peer printed nothing".into()),
    }
    let (stream, gate) = (driver::stream()?, Host::pinned(PAGE)?);
    let (from, to) = (driver::event(true)?, driver::event(true)?);
    driver::wait(stream, gate.device()?, 1)?;
    driver::record(from, stream)?;
    for value in 1..=rounds {
        driver::write(stream, words, value)?;
        driver::wait(stream, words + LINE, value)?;
    }
    driver::record(to, stream)?;
    gate.word(0)?.store(1, Ordering::Release);
    driver::wait_until_idle(stream, Duration::from_secs(10))?;
    let signal = driver::between(from, to)? * 1e6 / f64::from(2 * rounds);
    figure("signal to another process", signal, "us", "");
    Ok(())
}

/// Answers each signal, until the process that started this one ends.
fn answers() -> Answer {
    let line = next_line()?;
    let (rounds, place) = line.split_once(' ').ok_or("no place")?;
    let rounds: u32 = rounds.parse().map_err(|_| "no number of rounds")?;
    let words = if place.starts_with('/') {
        let file = File::options().read(true).write(true).open(place);
        let page = Host::map(&file.map_err(|error| format!("{place}: {error}"))?, PAGE)?;
        page.register()?;
        page.device()?
    } else {
        memory::import(place)?
    };
    let stream = driver::stream()?;
    driver::synchronize_context()?;
    for value in 1..=rounds {
        driver::wait(stream, words, value)?;
        driver::write(stream, words + LINE, value)?;
    }
    report(READY);
    // The input ends with the other process.
    let _ = next_line();
    Ok(())
}
