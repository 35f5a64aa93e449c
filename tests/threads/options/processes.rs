//! A smaller part of the table among processes: over shared memory, over TCP and encrypted; with
//! and without calls that end alike at all ranks. A share has one world.

use harness::processes::{World as Processes, this_builder};
use harness::share;

use super::walk::Walk;
use super::worlds::{self, WORLDS, World};

const BODY: &str = "options::processes::rank";
/// The variable that tells a process the number of its world.
const NUMBER: &str = "TEST_OPTIONS_WORLD";
/// One cell in so many of a world is made.
const SHARE: u64 = 983;
const RANKS: usize = 3;

/// Options of the builder, whether calls are uniform, and whether TCP is encrypted.
fn worlds() -> Vec<(World, bool, bool)> {
    let all = WORLDS.into_iter().chain(worlds::pairs());
    let worlds = all.filter(|world| world.ranks == RANKS);
    let uniform = worlds.flat_map(|world| [true, false].map(|uniform| (world.clone(), uniform)));
    let both =
        |(world, uniform): (World, bool)| [true, false].map(|it| (world.clone(), uniform, it));
    uniform.flat_map(both).collect()
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some((builder, size, transport)) = this_builder() else { return };
    let number: usize = std::env::var(NUMBER).unwrap().parse().unwrap();
    let (world, uniform, encrypts) = &worlds()[number];
    let builder = world.builder(builder).uniform(*uniform);
    let builder = if *encrypts { builder.secret(&[7; 32]).encrypt(true) } else { builder };
    let mut comm = builder.build().unwrap();
    assert_eq!((comm.size(), comm.transports()), (size, vec![&*transport]));
    Walk::new(&mut comm, world, transport == "shm", SHARE).every_cell();
}

/// Runs the worlds of the share.
fn over(transport: &str) {
    let all = worlds().len() as u64;
    for number in (0..all).filter(|&number| share::has(number, all)) {
        let settings = |_| vec![(NUMBER, number.to_string())];
        let world = Processes::start(BODY, RANKS, transport, settings);
        world.succeeds(&format!("world {number} over {transport}"));
    }
}

#[test]
fn over_shared_memory() {
    over("shm");
}

#[test]
fn over_tcp() {
    over("tcp");
}
