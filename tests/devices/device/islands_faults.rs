//! Ranks that are killed or stopped in calls by islands: all others are told, by the names that
//! ranks have in the whole, and nobody takes what a failed island brings for a result.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, ReduceOp, Result};

use super::super::standin::on_standin;
use super::finish;
use super::islands::{LAYOUTS, SEPARATE, attached};
use harness::processes::{Process, World, this_rank};

/// What a rank is told: its layout, and how long it waits.
const LAYOUT: &str = "TEST_ISLANDS_LAYOUT";
const TIMEOUT: &str = "TEST_ISLANDS_TIMEOUT";
/// What it says when it has an error.
const TOLD: &str = "told: ";
const VERBS: [&str; 7] =
    ["all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "scatter"];

/// Makes calls of all kinds, and looks at what comes out, until one fails.
fn work(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let (n, rank, len) = (comm.size(), comm.rank(), 1000);
    let mut short = stream.clone_htod(&vec![1_i64; len]).unwrap();
    let mut long = stream.clone_htod(&vec![1_i64; n * len]).unwrap();
    comm.barrier()?;
    for round in 0.. {
        let (root, mut on) = (round % n, comm.on_stream(stream));
        on.all_reduce(&mut short, ReduceOp::Sum)?;
        on.all_gather(&short, &mut long)?;
        on.reduce_scatter(&long, &mut short, ReduceOp::Avg)?;
        on.reduce(&mut short, ReduceOp::Sum, root)?;
        on.broadcast(&mut short, root)?;
        on.gather(&short, &mut long, root)?;
        on.scatter(&long, &mut short, root)?;
        finish(comm, stream)?;
        let found = stream.clone_dtoh(&short).unwrap();
        let wanted = (n * n) as i64;
        assert!(found.into_iter().all(|it| it == wanted), "rank {rank}, round {round}");
        stream.memcpy_htod(&vec![1_i64; len], &mut short).unwrap();
        if round == 2 * n {
            Process::works();
        }
    }
    Ok(())
}

/// A rank that works until it is told of an error.
fn until_told(mut comm: Communicator) {
    let said = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    comm.set_timeout(Duration::from_millis(said(TIMEOUT) as u64));
    let stream = attached(&mut comm, LAYOUTS[said(LAYOUT)]);
    let error = work(&mut comm, &stream).unwrap_err();
    eprintln!("{TOLD}{error}");
    stream.synchronize().unwrap();
    // It stays so, and nothing waits.
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    assert!(again.and_then(|()| comm.on_stream(&stream).check()).is_err());
    stream.synchronize().unwrap();
    drop(comm);
    assert_eq!(stream.clone_dtoh(&buf).unwrap().len(), 10);
}

/// Whom a rank names, which is to say who it is and what it was called for.
fn named(rank: usize, told: &str, pids: &[u32]) -> usize {
    let (me, rest) = told.split_once(" in ").unwrap_or_else(|| panic!("{rank}: {told}"));
    assert!(me.starts_with(&format!("rank {rank} (host ")), "{rank}: {told}");
    let (verb, rest) = rest.split_once(" #").unwrap();
    assert!(VERBS.contains(&verb), "{rank}: {told}");
    let number = rest.split(',').next().unwrap();
    assert!(number.parse::<u64>().is_ok_and(|number| number > 0), "{rank}: {told}");
    let what = [": lost rank ", ": nothing from rank "];
    let who = what.iter().find_map(|what| Some(rest.split_once(what)?.1));
    let who = who.unwrap_or_else(|| panic!("{rank}: {told}"));
    let digits: String = who.chars().take_while(char::is_ascii_digit).collect();
    let peer: usize = digits.parse().unwrap();
    assert!(who.contains(&format!("pid {})", pids[peer])), "{rank}: {told}, of {pids:?}");
    peer
}

/// Each survivor names whom it waited for, up to the victim, whom those of its island name at once.
fn all_lead_to(victim: usize, layout: &[usize], world: World, is_killed: bool) {
    let pids: Vec<_> = world.0.iter().map(|rank| rank.pid()).collect();
    let mut peers = Vec::new();
    for (rank, one) in world.0.into_iter().enumerate() {
        let (well, says) = one.end();
        if rank == victim {
            peers.push(victim);
            continue;
        }
        let of = format!("rank {rank} of {layout:?}, without {victim}");
        assert!(well, "{of}: {says}");
        let told = says.lines().find_map(|line| line.strip_prefix(TOLD));
        let told = told.unwrap_or_else(|| panic!("{of}: {says}"));
        eprintln!("{of}: {told}");
        peers.push(named(rank, told, &pids));
    }
    for rank in 0..layout.len() {
        let at = (0..layout.len()).fold(rank, |at, _| peers[at]);
        assert_eq!(at, victim, "rank {rank} of {layout:?}: {peers:?}");
        let beside = layout[rank] == layout[victim];
        assert!(!is_killed || !beside || peers[rank] == victim, "{layout:?}: {peers:?}");
    }
}

fn worlds(body: &str, timeout: u32, victims: &[(usize, usize)], signal: Signal) {
    if let Some(comm) = this_rank() {
        return until_told(comm);
    }
    for &(at, victim) in victims {
        let settings = |_| vec![(LAYOUT, at.to_string()), (TIMEOUT, timeout.to_string())];
        let mut world = World::start(body, LAYOUTS[at].len(), "shm", settings);
        world.is_at_work();
        world.0[victim].signal(signal);
        if signal != Signal::SIGKILL {
            let others = world.0.iter_mut().enumerate().filter(|(rank, _)| *rank != victim);
            for (_, rank) in others {
                rank.says(TOLD);
            }
            world.0[victim].kill();
        }
        all_lead_to(victim, LAYOUTS[at], world, signal == Signal::SIGKILL);
    }
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    /// Leaders, others, and who is alone.
    pub(crate) fn killed() {
        let victims = [(0, 0), (0, 1), (0, 2), (4, 0), (4, 3)];
        worlds("device::islands_faults::body::killed", 20_000, &victims, Signal::SIGKILL);
    }

    pub(crate) fn silent() {
        let victims = [(0, 1), (4, 0)];
        // No call takes so long by itself, also where CPUs are few.
        worlds("device::islands_faults::body::silent", 3000, &victims, Signal::SIGSTOP);
    }
}

#[test]
fn who_is_killed_is_named_as_in_the_whole() {
    on_standin("device::islands_faults::body::killed", &SEPARATE);
}

#[test]
fn who_is_silent_is_named_as_in_the_whole() {
    on_standin("device::islands_faults::body::silent", &SEPARATE);
}
