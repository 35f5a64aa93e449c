//! Hundreds of communicators of the same processes: random calls on them in random order, a rank
//! that is killed in one of them, and what is left once all are dropped.

use std::os::unix::fs::MetadataExt;

use harness::hosts::Hosts;
use harness::processes::{World, this_rank};
use harness::resources::Resources;
use nix::sys::signal::{Signal, raise};
use nix::unistd::alarm;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Communicator, Error, ReduceOp, Result};

use super::super::storm::calls;
use super::rank::{ENDED, LONG};

const RANKS: usize = 4;
/// Communicators of each kind.
const GROUPS_PER_KIND: u32 = 180;
/// Calls on all of them.
const CALLS: usize = 1500;
/// The binary logarithm of the longest call's elements.
const MOST: u32 = 12;
/// The rank that is killed.
const KILLED: usize = 3;
const SEED: &str = "TEST_MANY_SEED";
const BODY: &str = "limits::many::rank";

/// A communicator, and the rank that the killed one has there, if it is a member.
struct Group {
    comm: Communicator,
    killed: Option<usize>,
}

/// Makes communicators of all ranks, of every other one, and of a part of a part.
fn make(world: &mut Communicator) -> Result<Vec<Group>> {
    let rank = world.rank();
    let mut groups = Vec::new();
    for at in 0..GROUPS_PER_KIND {
        // The key turns the order of the ranks round.
        let reversed = world.split(Some(at), -(rank as i64))?;
        let mut half = world.split(Some(rank as u32 % 2), 0)?;
        let copy = half.as_mut().map(Communicator::duplicate).transpose()?;
        let has_killed = rank % 2 == KILLED % 2;
        let kinds = [
            (reversed, Some(RANKS - 1 - KILLED)),
            (half, has_killed.then_some(KILLED / 2)),
            (copy, has_killed.then_some(KILLED / 2)),
        ];
        groups.extend(
            kinds.into_iter().filter_map(|(comm, killed)| Some(Group { comm: comm?, killed })),
        );
    }
    Ok(groups)
}

/// KiB of the memory files of this process.
fn file_kib() -> u64 {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = fds.filter(|fd| {
        let target = std::fs::read_link(fd.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:ringreduce")
    });
    let blocks = ours.filter_map(|fd| Some(std::fs::metadata(fd.path()).ok()?.blocks()));
    blocks.sum::<u64>() / 2
}

/// Calls that all must survive: every result is compared.
fn random_calls(groups: &mut [Group], random: &mut SmallRng) -> Result<()> {
    for _ in 0..CALLS {
        let at = random.random_range(0..groups.len());
        calls::one(&mut groups[at].comm, random, MOST)?;
    }
    Ok(())
}

/// Calls after the death of a rank: those of its communicators fail and name it, those of others
/// succeed.
fn calls_after_death(groups: &mut [Group]) {
    for Group { comm, killed } in groups {
        let done = comm.all_reduce(&mut vec![1_u32; 300], ReduceOp::Sum);
        match (done, *killed) {
            (Ok(()), None) => {}
            (Err(Error::PeerLost { peer, .. }), Some(killed)) if peer.rank == killed => {}
            (done, killed) => panic!("{done:?} where rank {killed:?} was killed"),
        }
    }
}

fn run(mut world: Communicator) -> Result<()> {
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let mut random = SmallRng::seed_from_u64(seed);
    // The first calls measure links, start what stays, and take memory of the world.
    for bytes in [8, 1 << 20] {
        world.all_reduce(&mut vec![1_u8; bytes], ReduceOp::Sum)?;
    }
    drop(world.duplicate()?);
    world.barrier()?;
    let (resources, kib) = (Resources::now(), file_kib());
    for round in 0..2 {
        let mut groups = make(&mut world)?;
        // Later on the thread for messages of dropped communicators may still have descriptors.
        if round == 0 {
            let count = |it: &Resources| it.descriptors().values().sum::<usize>();
            let [before, after] = [&resources, &Resources::now()].map(count);
            // The copies of the halves are made by calls of the halves, over a link each way.
            let is_far = world.transports().contains(&"tcp");
            let most = if is_far { 2 * GROUPS_PER_KIND as usize } else { 0 };
            assert!((before..=before + most).contains(&after), "idle groups: {before}, {after}");
            // Until all have counted no rank dials for the calls below.
            world.barrier()?;
        }
        random_calls(&mut groups, &mut random)?;
        if round == 1 {
            world.barrier()?;
            if world.rank() == KILLED {
                raise(Signal::SIGKILL).unwrap();
            }
            calls_after_death(&mut groups);
        }
        drop(groups);
        if round == 0 {
            world.barrier()?;
        }
        // Another rank may still unmap what it has dropped.
        let is_returned = || file_kib() <= kib;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !is_returned() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(is_returned(), "{} KiB are left, {kib} KiB were there", file_kib());
    }
    Ok(())
}

/// A process: one rank.
pub(crate) fn rank() {
    alarm::set(LONG);
    let Some(world) = this_rank() else { return };
    match run(world) {
        Ok(()) => eprintln!("{ENDED}well"),
        Err(error) => eprintln!("{ENDED}{error}"),
    }
}

/// Starts a world by `start` for these settings.
fn all_end_well(start: impl FnOnce(&dyn Fn(usize) -> Vec<(&'static str, String)>) -> World) {
    let seed = harness::share::seed();
    let world = start(&|_| vec![(SEED, seed.to_string())]);
    let ends = world.ends();
    let is_well =
        |(ended, lines): &(bool, String)| *ended && lines.contains(&format!("{ENDED}well"));
    let are_well = (0..RANKS).all(|rank| rank == KILLED || is_well(&ends[rank]));
    assert!(are_well, "seed {seed}: {ends:#?}");
}

#[test]
fn hundreds_of_communicators_make_right_calls_and_name_a_killed_rank() {
    if !harness::share::makes_test(3) {
        return;
    }
    for transport in ["shm", "tcp"] {
        all_end_well(|settings| World::start(BODY, RANKS, transport, settings));
    }
}

#[test]
fn communicators_over_two_hosts_make_right_calls_and_name_a_killed_rank() {
    if !harness::share::makes_test(3) {
        return;
    }
    let test = "limits::many::communicators_over_two_hosts_make_right_calls_and_name_a_killed_rank";
    match Hosts::new() {
        Ok(hosts) => {
            all_end_well(|settings| World::on((&hosts, 2), BODY, RANKS, "auto", settings));
        }
        Err(why) => harness::skip(test, &why),
    }
}
