//! Laws of random programs in random orders of steps, with and without faults.

use std::thread;

use super::checks::{Tally, run};
use super::network::{Fault, Network};
use super::program::{Mix, Programs};
use harness::share;
use ringreduce::sim::Random;

/// Two short messages, four, and more than any program has.
const CREDITS: [u64; 3] = [2 * 68, 4 * 68, 1 << 20];

/// Names the seed of a run that breaks a law.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the run of seed {} breaks a law", self.0);
        }
    }
}

/// Runs random programs of `mix`, of two to four ranks, each in one random order.
fn run_all(
    runs: u64,
    mix: Mix,
    fault: impl Fn(&mut Random, u32) -> Fault,
    check: impl Fn(Network, &Programs, u64),
) -> Tally {
    let mut tally = Tally::default();
    let runs = share::count(runs, 20 * runs);
    for seed in share::seed() * runs..(share::seed() + 1) * runs {
        let _seed = Seed(seed);
        let random = &mut Random::new(seed);
        let ranks = 2 + random.below(3) as u32;
        let messages = 1 + random.below(mix.messages);
        let programs = Mix { ranks, messages, ..mix }.programs(random);
        let limits = (CREDITS[random.below(3)], 1 + random.below(3));
        let fault = (fault(random, ranks), random.below(40));
        let network = run(&programs, limits, fault, random, &mut tally);
        check(network, &programs, seed);
    }
    println!("{tally:?}");
    tally
}

const DIRECTED: Mix = Mix { ranks: 0, messages: 10, has_any_source: false, has_withdrawn: false };

fn nothing(_: &mut Random, _: u32) -> Fault {
    Fault::Nothing
}

#[test]
fn programs_with_named_sources_end_as_the_oracle_says() {
    let tally = run_all(6000, DIRECTED, nothing, |network, programs, _| {
        network.check_oracle(programs);
        network.check_credit_left();
    });
    let Tally { runs, whole, eager, rendezvous, beyond_credit, differing, .. } = tally;
    assert!(whole > runs / 3 && whole < runs - runs / 10, "{tally:?}");
    assert!(eager > runs && rendezvous > runs && beyond_credit > runs / 10, "{tally:?}");
    assert!(differing > runs / 4, "{tally:?}");
}

#[test]
fn receives_from_any_rank_meet_messages_in_their_order() {
    let mix = Mix { has_any_source: true, ..DIRECTED };
    let tally = run_all(6000, mix, nothing, |network, _, _| network.check_credit_left());
    assert!(tally.whole > tally.runs / 4, "{tally:?}");
}

#[test]
fn withdrawn_requests_leave_nothing_behind() {
    let mix = Mix { has_any_source: true, ..DIRECTED };
    let any = |_: &mut Random, _: u32| Fault::WithdrawsAny;
    let tally = run_all(6000, mix, any, |network, _, seed| match seed % 16 {
        0 => network.check_requests(),
        _ => network.check_credit_left(),
    });
    assert!(tally.withdrawn > tally.runs && tally.bereft > tally.runs / 20, "{tally:?}");
}

#[test]
fn withdrawn_requests_disturb_no_other_message() {
    let mix = Mix { has_withdrawn: true, ..DIRECTED };
    let tagged = |_: &mut Random, _: u32| Fault::WithdrawsTag;
    let tally = run_all(6000, mix, tagged, |network, programs, _| {
        network.check_oracle(programs);
        network.check_credit_left();
    });
    assert!(tally.withdrawn > tally.runs / 2 && tally.bereft > tally.runs / 100, "{tally:?}");
}

#[test]
fn a_lost_rank_ends_what_needs_it_and_nothing_else() {
    let dies = |random: &mut Random, ranks: u32| Fault::Dies(random.below(ranks as usize) as u32);
    let tally = run_all(6000, DIRECTED, dies, |network, programs, _| {
        network.check_oracle(programs);
        network.check_credit_left();
    });
    assert!(tally.lost > tally.runs, "{tally:?}");
    let mix = Mix { has_any_source: true, ..DIRECTED };
    run_all(6000, mix, dies, |network, _, _| network.check_credit_left());
}

#[test]
fn a_rank_that_breaks_the_protocol_disturbs_no_other_message() {
    let breaks =
        |random: &mut Random, ranks: u32| Fault::Breaks(random.below(ranks as usize) as u32);
    let tally = run_all(6000, DIRECTED, breaks, |network, programs, _| {
        network.check_oracle(programs);
        network.check_credit_left();
    });
    assert!(tally.violations > tally.runs, "{tally:?}");
}
