//! The table of options: every pair of options, of builders and of calls, with every collective, in
//! every way and on both kinds of memory. Each cell is made and compared with the oracle, or
//! refused by an error that names the options. Rows come from the library's own lists
//! (`rows::every_option_has_a_row`).
//!
//! A world has up to two options of its builder, and its calls have up to two options and an
//! algorithm each. So all options meet in pairs, and each pair meets each algorithm. The way, the
//! memory and the length
//! follow from the number of the cell. A share has one cell in so many.

mod alone;
mod oracle;
pub(crate) mod processes;
mod refusals;
mod rows;
mod verbs;
mod walk;
mod worlds;

use std::collections::BTreeSet;

use harness::{ranks, share, turn};
use ringreduce::Communicator;

use rows::{BUILDER_ROWS, CallRow, Row};
use verbs::Verb;
use walk::{Walk, Walked};
use worlds::WORLDS;

/// One cell in so many of each world is made, in a share and in a full run.
const SHARES: [u64; 2] = [239, 13];
/// And one pair of options of builders in so many.
const PAIRS_SHARE: u64 = 9;

/// Every cell of every world of threads.
#[test]
fn every_pair_of_options_keeps_its_promises_or_is_refused() {
    if !share::makes_test(3) {
        return;
    }
    let _turn = turn();
    let (mut walked, mut cells) = (Walked::new(), 0);
    let pairs = (0..).zip(worlds::pairs()).filter(|&(number, _)| share::has(number, PAIRS_SHARE));
    for world in WORLDS.into_iter().chain(pairs.map(|(_, world)| world)) {
        let builder = world.builder(Communicator::builder());
        let all = ranks::on(builder.local(world.ranks).unwrap(), |comm| {
            let mut walk = Walk::new(comm, &world, true, share::count(SHARES[0], SHARES[1]));
            walk.every_cell();
            (walk.walked, walk.cells)
        });
        cells += all[0].1;
        walked.extend(all.into_iter().flat_map(|(walked, _)| walked));
    }
    assert!(cells > 2000, "{cells} cells only");
    if !share::is_all() {
        return;
    }
    for &verb in Verb::ALL {
        for row in CallRow::ALL {
            for &way in verb.ways() {
                for registered in [false, true] {
                    let cell = (verb, row, way, registered);
                    assert!(walked.contains(&cell), "no cell of {cell:?} was made or refused");
                }
            }
        }
    }
}

/// Each option of worlds has a world.
#[test]
fn every_option_of_worlds_has_a_world() {
    let rows = BUILDER_ROWS.iter().filter(|(_, row)| *row == Row::World).map(|(name, _)| *name);
    let worlds = WORLDS.iter().map(|world| world.options[0]).filter(|option| !option.is_empty());
    assert_eq!(rows.collect::<BTreeSet<_>>(), worlds.collect());
}
