//! All ranks of a call decide alike whether it is direct, in every order of their reads and writes;
//! and the simulator notices ranks that look too little.

mod simulator;

use simulator::{OfferViolation, OfferedCall, Offers};

/// All programs of so many calls among `size` ranks: which of them have registered memory in each
/// call, and which one does not wait.
fn programs(size: usize, calls: usize) -> Vec<Vec<OfferedCall>> {
    let one = || {
        (0..1_usize << size).flat_map(move |ranks| {
            [None, Some(0), Some(size - 1)].map(|root| {
                let registered = (0..size).map(|rank| ranks >> rank & 1 == 1).collect();
                OfferedCall { registered, root }
            })
        })
    };
    (0..calls).fold(vec![Vec::new()], |before, _| {
        let with = |calls: &Vec<OfferedCall>| {
            let calls = calls.clone();
            one().map(move |call| calls.iter().cloned().chain([call]).collect())
        };
        before.iter().flat_map(with).collect()
    })
}

#[test]
fn all_ranks_decide_alike_in_every_order() {
    let mut states = 0;
    for (size, calls) in [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)] {
        for program in programs(size, calls) {
            for has_edges in [false, true] {
                let done = Offers::new(program.clone(), has_edges).walk();
                states += done.unwrap_or_else(|why| panic!("{why:?} in {program:?}"));
            }
        }
    }
    assert!(states > 100_000, "{states} states only");
}

#[test]
fn a_rank_that_looks_at_blocks_alone_is_noticed() {
    let registered = vec![true; 2];
    let calls = vec![OfferedCall { registered, root: None }];
    let done = Offers::new(calls.clone(), true).looking_once().walk();
    assert!(matches!(done, Err(OfferViolation::Decision { .. })), "{done:?}");
    // Where direct calls hand no blocks over, a block tells enough.
    assert!(Offers::new(calls, false).looking_once().walk().is_ok());
}
