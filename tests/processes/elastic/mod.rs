//! Ranks are killed and restarted: the others shrink the communicator and grow it again. Every
//! result is checked, and no rank leaks a resource. `RINGREDUCE_CYCLES` sets the number of cycles.

pub(crate) mod deadline;
pub(crate) mod rank;
pub(crate) mod world;

use nix::sys::signal::Signal;
use world::World;

/// Cycles in a share of the tests, and in a full run.
const FEW: usize = 8;
const ALL: usize = 200;

/// Kills a rank and restarts it, `count` times.
fn cycles(n: usize, transport: &'static str, count: usize) {
    let mut world = World::start(n, transport);
    world.all_work();
    for cycle in 0..count {
        let rank = (cycle * 7 + cycle / n) % n;
        world.kill(rank);
        if cycle % 3 == 0 {
            // The others have shrunk before the rank restarts.
            world.all_work();
        }
        world.restart(rank);
        world.all_work();
    }
    world.end();
}

#[test]
fn killed_ranks_rejoin_in_every_cycle() {
    let set = std::env::var("RINGREDUCE_CYCLES").ok().map(|it| it.parse().unwrap());
    let count: usize = set.unwrap_or_else(|| harness::share::count(FEW, ALL));
    cycles(4, "shm", count - count / 4);
    cycles(3, "tcp", count / 4);
}

#[test]
fn a_world_shrinks_to_one_rank_and_grows_to_all_again() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start(3, transport);
        world.all_work();
        for rank in [0, 2] {
            world.kill(rank);
            world.all_work();
        }
        world.restart(0);
        world.restart(2);
        world.all_work();
        world.end();
    }
}

/// Members do not wait for a joiner that ends, whether or not they have invited it.
#[test]
fn a_joiner_that_ends_does_not_stop_the_members() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start(3, transport);
        world.all_work();
        world.kill(1);
        world.all_work();
        for _ in 0..3 {
            world.restart(1);
            world.waits_to_join(1);
            // A stopped joiner may be invited, but does not answer.
            world.signal(1, Signal::SIGSTOP);
            world.kill(1);
            world.all_work();
        }
        world.restart(1);
        world.all_work();
        world.end();
    }
}

#[test]
fn a_member_may_be_killed_while_a_joiner_is_let_in() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 2] {
            let mut world = World::start(4, transport);
            world.all_work();
            world.kill(1);
            world.all_work();
            world.restart(1);
            world.waits_to_join(1);
            world.signal(1, Signal::SIGSTOP);
            std::thread::sleep(std::time::Duration::from_millis(harness::share::random_range(
                0..40,
            )));
            world.kill(victim);
            world.signal(1, Signal::SIGCONT);
            world.all_work();
            world.restart(victim);
            world.all_work();
            world.end();
        }
    }
}

#[test]
fn a_joiner_whose_settings_differ_is_told_the_reason_and_members_go_on() {
    let mut world = World::start(2, "shm");
    world.all_work();
    world.kill(1);
    world.all_work();
    world.restart_with(1, ("RINGREDUCE_TRANSPORT", "tcp"));
    let lines = world.fails(1);
    assert!(lines.contains("RINGREDUCE_TRANSPORT") && lines.contains("rank 0"), "{lines}");
    world.restart(1);
    world.all_work();
    world.end();
}

#[test]
fn a_joiner_waits_beyond_the_timeout_and_says_for_what() {
    let mut world = World::start(2, "shm");
    world.all_work();
    world.kill(1);
    world.all_work();
    world.signal(0, Signal::SIGSTOP);
    // The first notice of a wait comes after 5 seconds.
    world.restart_with(1, ("RINGREDUCE_TIMEOUT", "3"));
    world.waits_for_grow(1);
    world.signal(0, Signal::SIGCONT);
    world.all_work();
    world.end();
}
