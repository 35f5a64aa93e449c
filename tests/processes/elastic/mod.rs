//! Ranks that are killed and come back: the others go on without them and let them in again; every
//! answer is looked at, and nobody is left with anything. `RINGREDUCE_CYCLES` says how often.

pub(crate) mod rank;
pub(crate) mod world;

use nix::sys::signal::Signal;
use world::World;

/// Cycles in a share of the tests, and in a run of all.
const FEW: usize = 8;
const ALL: usize = 200;

/// A rank is killed and comes back, so often.
fn cycles(n: usize, transport: &'static str, count: usize) {
    let mut world = World::start(n, transport);
    world.all_work();
    for cycle in 0..count {
        let seat = (cycle * 7 + cycle / n) % n;
        world.kill(seat);
        if cycle % 3 == 0 {
            // Not while they agree to go on without it.
            world.all_work();
        }
        world.comes_back(seat);
        world.all_work();
    }
    world.end();
}

#[test]
fn killed_ranks_come_back_over_and_over() {
    let told = std::env::var("RINGREDUCE_CYCLES").ok().map(|it| it.parse().unwrap());
    let count: usize = told.unwrap_or_else(|| harness::share::count(FEW, ALL));
    cycles(4, "shm", count - count / 4);
    cycles(3, "tcp", count / 4);
}

/// Down to one rank, and up again with all others at once.
#[test]
fn one_is_left_and_all_come_back() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start(3, transport);
        world.all_work();
        for seat in [0, 2] {
            world.kill(seat);
            world.all_work();
        }
        world.comes_back(0);
        world.comes_back(2);
        world.all_work();
        world.end();
    }
}

/// Who ends while it waits outside is not waited for, whether members have seen it or not.
#[test]
fn newcomers_that_end_disturb_nobody() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start(3, transport);
        world.all_work();
        world.kill(1);
        world.all_work();
        for _ in 0..3 {
            world.comes_back(1);
            world.waits_outside(1);
            // Stopped it may be invited, but does not come.
            world.signal(1, Signal::SIGSTOP);
            world.kill(1);
            world.all_work();
        }
        world.comes_back(1);
        world.all_work();
        world.end();
    }
}

/// A member dies while others let somebody in: those that are left go on, and then let it in.
#[test]
fn members_that_end_while_others_join() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 2] {
            let mut world = World::start(4, transport);
            world.all_work();
            world.kill(1);
            world.all_work();
            world.comes_back(1);
            world.waits_outside(1);
            world.signal(1, Signal::SIGSTOP);
            std::thread::sleep(std::time::Duration::from_millis(harness::share::random_range(
                0..40,
            )));
            world.kill(victim);
            world.signal(1, Signal::SIGCONT);
            world.all_work();
            world.comes_back(victim);
            world.all_work();
            world.end();
        }
    }
}

/// Who does not fit in is told why, and the others do not even notice.
#[test]
fn who_does_not_fit_in_is_told() {
    let mut world = World::start(2, "shm");
    world.all_work();
    world.kill(1);
    world.all_work();
    world.comes_back_with(1, ("RINGREDUCE_TRANSPORT", "tcp"));
    let said = world.fails(1);
    assert!(said.contains("RINGREDUCE_TRANSPORT") && said.contains("rank 0"), "{said}");
    world.comes_back(1);
    world.all_work();
    world.end();
}

/// Nobody lets it in: it says what to do.
#[test]
fn who_is_let_in_by_nobody_says_so() {
    let mut world = World::empty(2, "shm");
    world.comes_back_with(1, ("RINGREDUCE_TIMEOUT", "2"));
    let said = world.fails(1);
    assert!(said.contains("`grow`") && said.contains("RINGREDUCE_TIMEOUT"), "{said}");
}
