//! The shared memory of communicators that a program keeps, by what it calls on them.

use std::time::Duration;

use ringreduce::{Communicator, ReduceOp, Result};

use super::rank::{ENDED, LONG};
use harness::processes::{World, this_builder};

/// Communicators kept at once.
const KEPT: usize = 8;
const RANKS: usize = 4;
/// Measurements that are equal once no page comes any more: two in which each rank was waited for.
const SETTLED: usize = 2 * RANKS;
/// No link or stage has more slots.
const SLOTS: usize = 64;
/// The time for which ranks are waited for. It is the load, not a wait for an event.
const DELAY: Duration = Duration::from_millis(20);
/// Pages that may come with further calls of the world. The kept communicators take more after
/// calls of 8 bytes.
const CALLS_KIB: f64 = 64.0;

/// KiB of shared memory of this process, and its part of pages that others map too (Pss).
fn shared_kib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_shared = false;
    let mut sum = 0.0;
    for line in text.lines() {
        match line.strip_prefix("Pss:") {
            Some(kib) if is_shared => {
                sum += kib.trim().strip_suffix(" kB").unwrap().parse::<f64>().unwrap();
            }
            None if line.contains('-') => is_shared = line.contains("memfd:ringreduce"),
            _ => {}
        }
    }
    sum
}

/// KiB of shared memory of all ranks.
fn all_kib(world: &mut Communicator) -> Result<f64> {
    world.barrier()?;
    let mut sum = [shared_kib()];
    world.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// KiB of shared memory of all ranks, once all pages have come that come while ranks wait: a rank
/// that waits for long looks at the next slots of its links, of calls and of messages.
fn settled_kib(world: &mut Communicator) -> Result<f64> {
    let mut last = [0.0; SETTLED];
    for turn in 0.. {
        if turn % RANKS == world.rank() {
            std::thread::sleep(DELAY);
        }
        last[turn % SETTLED] = all_kib(world)?;
        if last.iter().all(|kib| *kib == last[0]) {
            break;
        }
    }
    Ok(last[0])
}

fn run() -> Result<()> {
    let Some((builder, ..)) = this_builder() else { panic!("no rank") };
    let mut world = builder.build()?;
    let rank = world.rank();
    // The world has its own memory by then, and the measurement is kept for the others.
    for bytes in [8, 1 << 20] {
        world.all_reduce(&mut vec![1_u8; bytes], ReduceOp::Sum)?;
    }
    // Each split takes the next slots of the world.
    for _ in 0..SLOTS {
        world.split(Some(0), rank as i64)?;
    }
    let before = settled_kib(&mut world)?;
    let mut kept = Vec::new();
    for _ in 0..KEPT {
        kept.extend(world.split(Some(0), rank as i64)?);
    }
    for (bytes, most) in [(0, 256.0), (8, 512.0), (1 << 10, 2048.0), (1 << 20, 8192.0)] {
        for comm in &mut kept {
            let mut buf = vec![1_u8; bytes];
            if bytes > 0 {
                comm.all_reduce(&mut buf, ReduceOp::Sum)?;
            }
            assert!(buf.iter().all(|&it| usize::from(it) == RANKS));
        }
        let each = (all_kib(&mut world)? - before) / KEPT as f64;
        eprintln!("after {bytes} bytes: {each:.0} KiB of a communicator");
        assert!(each <= most, "{each} KiB after {bytes} bytes");
    }
    drop(kept);
    let after = all_kib(&mut world)?;
    assert!(after <= before + CALLS_KIB, "{before} KiB, and {after} KiB with all dropped");
    Ok(())
}

/// A process: one rank.
pub(crate) fn rank() {
    nix::unistd::alarm::set(LONG);
    match run() {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}

#[test]
fn a_kept_communicator_has_the_shared_memory_that_its_calls_need() {
    let world = World::start("limits::communicators::rank", RANKS, "shm", |_| Vec::new());
    let ends = world.ends();
    eprintln!("{ends:?}");
    let is_well = |(well, lines): &(bool, String)| *well && lines.contains(&format!("{ENDED}well"));
    assert!(ends.iter().all(is_well), "{ends:?}");
}
