//! Ranks that read each other's memory: one that is killed is named by its readers and by those
//! whose memory it reads, and a world in which a rank's memory can't be read does without.

use harness::processes::{World, this_builder};
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, geteuid, setuid};
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, Error, ReduceOp, Result};

use super::{LONG, PROMPTLY, Trial};

/// The task of ranks that make calls of single copy.
pub(super) const TASK: &str = "single copy";
/// The rank whose memory can't be read.
const HIDDEN: usize = 1;
/// The user id of nobody.
const NOBODY: u32 = 65_534;

fn by_single_copy() -> CallOptions {
    CallOptions::new().algorithm(Algorithm::SingleCopy)
}

/// Makes calls of several kinds and checks their results, until one fails.
pub(super) fn work(comm: &mut Communicator) -> Result<()> {
    let (n, me) = (comm.size(), comm.rank());
    let mut comm = comm.with(by_single_copy());
    for round in 0_usize.. {
        let len = [1, 1000, 300_000][round % 3];
        let root = round % n;
        // All bytes change in each round.
        let value = |rank: usize| (round * n + rank) as i64;
        let mine = vec![value(me); len];
        let mut all = vec![-1; n * len];
        comm.all_gather(&mine, &mut all)?;
        assert!(all.iter().enumerate().all(|(at, &it)| it == value(at / len)), "round {round}");
        comm.all_to_all(&vec![value(me); n * len], &mut all)?;
        assert!(all.iter().enumerate().all(|(at, &it)| it == value(at / len)), "round {round}");
        let mut buf = mine.clone();
        comm.broadcast(&mut buf, root)?;
        assert!(buf.iter().all(|&it| it == value(root)), "round {round}");
        let sum = (0..n).map(value).sum::<i64>();
        let mut buf = mine.clone();
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it == sum), "round {round}");
        comm.reduce_scatter(&vec![value(me); n * len], &mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it == sum), "round {round}");
    }
    Ok(())
}

#[test]
fn a_killed_reader_or_owner_is_named_by_every_peer() {
    for n in [2, 4] {
        for victim in [0, n - 1] {
            for _ in 0..3 {
                let trial = Trial { n, transport: "shm", victim, timeout: LONG };
                let latest = trial.kill(TASK, Signal::SIGKILL);
                assert!(latest < PROMPTLY, "{n} without {victim}: {latest:.1?}");
            }
        }
    }
}

/// A process: one rank, as a user without privileges; nobody may read the memory of one.
pub(crate) fn unreadable_rank() {
    let Some((builder, ..)) = this_builder() else { return };
    if geteuid().is_root() {
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    let mut comm = builder.build().unwrap();
    set_dumpable(comm.rank() != HIDDEN).unwrap();
    let (n, me) = (comm.size(), comm.rank());
    let (mine, mut all) = (vec![me as u32; 100_000], vec![9; n * 100_000]);
    comm.all_gather(&mine, &mut all).unwrap();
    assert!(all.iter().enumerate().all(|(at, &it)| it as usize == at / mine.len()));
    let refused = comm.with(by_single_copy()).all_gather(&mine, &mut all);
    assert!(matches!(refused, Err(Error::Argument { argument: "algorithm", .. })), "{refused:?}");
    let text = comm.explain(Collective::AllGather, mine.len(), DataType::U32).unwrap().to_string();
    let line = "single_copy          impossible: rank 0 can't read the memory of rank 1: ";
    assert!(text.contains(line), "{text}");
    comm.barrier().unwrap();
}

#[test]
fn ranks_whose_memory_cannot_be_read_do_without() {
    let world = World::start("faults::single_copy::unreadable_rank", 3, "shm", |_| Vec::new());
    world.succeeds("a rank that hides its memory");
}

/// A process: one rank whose memory could be read at first, and then not, as after a change of its
/// user; and again.
pub(crate) fn rank_that_hides_later() {
    let Some((builder, ..)) = this_builder() else { return };
    if geteuid().is_root() {
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    set_dumpable(true).unwrap();
    let mut comm = builder.build().unwrap();
    let (n, me) = (comm.size(), comm.rank());
    let mut comm = comm.with(by_single_copy());
    for round in 0..30 {
        set_dumpable(me != HIDDEN || round % 3 == 0).unwrap();
        let mine = vec![(round * n + me) as u32; 100_000];
        let mut all = vec![9; n * mine.len()];
        comm.all_gather(&mine, &mut all).unwrap();
        let from = |at: usize| (round * n + at / mine.len()) as u32;
        assert!(all.iter().enumerate().all(|(at, &it)| it == from(at)), "round {round}");
        let mut sum = vec![round as u32; 50_000];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|&it| it as usize == n * round), "round {round}");
        let mut buf = mine.clone();
        comm.broadcast(&mut buf, round % n).unwrap();
        assert!(buf.iter().all(|&it| it as usize == round * n + round % n), "round {round}");
    }
}

#[test]
fn a_rank_that_hides_its_memory_later_fails_no_call() {
    let world =
        World::start("faults::single_copy::rank_that_hides_later", 3, "shm", |_| Vec::new());
    world.succeeds("a rank that hides its memory later");
}
