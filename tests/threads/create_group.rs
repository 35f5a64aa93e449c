//! Communicators that their members alone make, on several threads at once, while calls of the
//! parent are under way.

use std::time::{Duration, Instant};

use harness::hosts::Hosts;
use harness::processes::{World, run, this_rank};
use harness::ranks::on_ranks;
use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, GroupCreator, Result};

use super::SUM;

const RANKS: usize = 4;
/// The most time that the loss of a member may take to be found, where the timeout is minutes.
const MAX_LOSS_DELAY: Duration = Duration::from_secs(20);

/// Makes a group and calls in it: its ranks are in the order that was given.
fn make(creator: &GroupCreator, me: usize, ranks: &[usize], tag: u64) -> Result<Communicator> {
    let mut group = creator.create(ranks, tag)?;
    assert_eq!((group.size(), ranks[group.rank()]), (ranks.len(), me));
    let mut names = vec![0_u64; ranks.len()];
    group.all_gather(&[me as u64], &mut names)?;
    assert!(names.iter().zip(ranks).all(|(&name, &rank)| name == rank as u64));
    let mut sum = vec![1_u32; 3000];
    group.all_reduce(&mut sum, SUM)?;
    assert!(sum.iter().all(|&total| total as usize == ranks.len()));
    Ok(group)
}

/// All ways in which members make groups.
fn all_ways(comm: &mut Communicator) {
    let me = comm.rank();
    comm.set_name("all").unwrap();
    let creator = comm.group_creator().unwrap();
    let mut groups: Vec<Communicator> = Vec::new();
    // Groups of the same ranks may have the same tag, one after the other.
    for round in 0..3 {
        for ranks in [&[0, 1, 2, 3][..], &[3, 1], &[2, 0, 3], &[2]] {
            if ranks.contains(&me) {
                let tag = [5, 5, round][ranks.len() % 3];
                groups.push(make(&creator, me, ranks, tag).unwrap());
            }
        }
    }
    assert!(groups.iter().all(|group| group.name().as_deref() == Some("all/group")));
    comm.barrier().unwrap();
    // Two threads make groups of the same ranks in different orders.
    let both = std::thread::scope(|scope| {
        let start = |tags: [u64; 2]| {
            let creator = creator.clone();
            scope.spawn(move || tags.map(|tag| make(&creator, me, &[1, 2, 0, 3], tag).unwrap()))
        };
        let threads = if me.is_multiple_of(2) { [[1, 2], [3, 4]] } else { [[3, 4], [1, 2]] };
        threads.map(start).map(|thread| thread.join().unwrap())
    });
    drop(both);
    // A call of the parent is under way that ends only after the group was made.
    let sum = (me != 1).then(|| comm.nonblocking().all_reduce(vec![1_u32; 10], SUM));
    let group = make(&creator, me, &[0, 1, 2, 3], 9).unwrap();
    let sum = sum.unwrap_or_else(|| comm.nonblocking().all_reduce(vec![1_u32; 10], SUM));
    assert_eq!(sum.wait().unwrap(), [RANKS as u32; 10]);
    // A group makes further ones.
    let mut group = group;
    let inner = group.group_creator().unwrap();
    if me > 1 {
        make(&inner, me, &[3, 2], 0).unwrap();
    }
    comm.barrier().unwrap();
}

fn wrong_arguments(comm: &mut Communicator) {
    let creator = comm.group_creator().unwrap();
    let me = comm.rank();
    for ranks in [&[][..], &[RANKS, me], &[me, me], &[(me + 1) % RANKS]] {
        assert_eq!(creator.can_create(ranks), ranks == [(me + 1) % RANKS]);
        let error = creator.create(ranks, 0).unwrap_err();
        assert!(matches!(&error, Error::Argument { argument: "ranks", .. }), "{error}");
    }
    // Ranks that give up leave nothing behind: the next attempt meets the other's first one.
    let short = creator.clone().with_timeout(Duration::from_millis(50));
    for (alone, absent) in [(2, 1), (1, 2)] {
        if me == alone {
            let error = short.create(&[1, 2], 0).unwrap_err().to_string();
            let parts = [&*format!("handshake with rank {absent} (host "), "within 50"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        comm.barrier().unwrap();
        if [1, 2].contains(&me) {
            (0..2).for_each(|_| drop(make(&creator, me, &[1, 2], 0).unwrap()));
        }
    }
    comm.barrier().unwrap();
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    all_ways(&mut comm);
    wrong_arguments(&mut comm);
}

#[test]
fn members_alone_make_groups() {
    on_ranks(RANKS, all_ways);
    on_ranks(RANKS, wrong_arguments);
    run("create_group::rank", RANKS, "shm");
    run("create_group::rank", RANKS, "tcp");
}

#[test]
fn members_on_two_hosts_make_groups() {
    let test = "create_group::members_on_two_hosts_make_groups";
    match Hosts::new() {
        Ok(hosts) => {
            let world = World::on((&hosts, 2), "create_group::rank", RANKS, "auto", |_| Vec::new());
            for (rank, (ended, lines)) in world.ends().into_iter().enumerate() {
                assert!(ended, "rank {rank}: {lines}");
            }
        }
        Err(why) => harness::skip(test, &why),
    }
}

/// A process: rank 1 dies before a group, and rank 2 has failed calls of the parent by then.
pub(crate) fn survivor() {
    let Some(mut comm) = this_rank() else { return };
    let me = comm.rank();
    let creator = comm.group_creator().unwrap();
    let mut all = make(&creator, me, &[0, 1, 2, 3], 1).unwrap();
    comm.barrier().unwrap();
    if me == 1 {
        raise(Signal::SIGKILL).unwrap();
    }
    let began = Instant::now();
    let error = creator.create(&[0, 1, 2, 3], 0).unwrap_err().to_string();
    // Rank 0 waits for rank 1, and tells the others that have come by then.
    let is_refused = me > 0 && error.contains("handshake with rank 0 (");
    assert!(is_refused || error.contains("handshake with rank 1 (host "), "{error}");
    assert!(comm.barrier().is_err());
    let mut group = make(&creator, me, &[3, 2, 0], 0).unwrap();
    group.barrier().unwrap();
    // A group recovers as any communicator, and makes further ones then.
    assert!(all.barrier().is_err());
    let mut rest = all.shrink(MAX_LOSS_DELAY).unwrap();
    assert_eq!((rest.size(), rest.duplicate().unwrap().size()), (3, 3));
    let creator = rest.group_creator().unwrap();
    make(&creator, rest.rank(), &[2, 0, 1], 1).unwrap();
    assert!(began.elapsed() < MAX_LOSS_DELAY);
}

#[test]
fn a_member_that_died_is_named_and_the_others_make_their_group() {
    let world = World::start("create_group::survivor", RANKS, "shm", |_| Vec::new());
    for (rank, (ended, lines)) in world.ends().into_iter().enumerate() {
        assert!(ended || rank == 1, "rank {rank}: {lines}");
    }
}
