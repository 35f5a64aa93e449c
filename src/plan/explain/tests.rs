//! Explanations: their reasons, their sizes and their text.

use super::super::{Distance, Planner, Request, Rules, Slots, Source, Speeds};
use super::Choice;
use crate::element::{DataType, ReduceOp};
use crate::schedule::{Algorithm, Collective, Ring};
use crate::sim::Speed;

const SPEED: Speed = Speed { latency: 1e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };

fn planner(size: u32) -> Planner {
    Planner::new(Ring::natural(size), 0, Slots::of(Distance::Memory, size as usize, true), 256)
}

fn all_reduce(count: usize) -> Request {
    let (collective, dtype) = (Collective::AllReduce, DataType::F32);
    Request { collective, count, dtype, op: Some(ReduceOp::Sum.into()) }
}

#[test]
fn an_explanation_is_of_the_plan_and_gives_the_reason() {
    let mut planner = planner(4);
    let before = planner.explain(&all_reduce(1 << 20));
    assert_eq!((before.choice, before.algorithm), (Choice::Unmeasured, Algorithm::Ring));
    assert_eq!(before.links, [(1, 6 << 20)]);
    planner.set_speeds(Speeds::uniform(SPEED, Source::Measured));
    let after = planner.explain(&all_reduce(2));
    assert_eq!(after.algorithm, planner.plan(&all_reduce(2)).algorithm);
    assert_eq!(after.choice, Choice::Cheapest);
    let least = after.candidates.iter().filter_map(|one| one.seconds).fold(1.0, f64::min);
    assert_eq!(after.seconds, Some(least));
    planner.set_rules(Rules { forced: Some(Algorithm::Ring), ..Rules::default() });
    let forced = planner.explain(&all_reduce(2));
    assert_eq!((forced.choice, forced.hops), (Choice::Forced, Some(6.0)));
    let scan = Request { collective: Collective::Scan, ..all_reduce(2) };
    assert_eq!(planner.explain(&scan).choice, Choice::Forced);
    planner.set_rules(Rules { forced: Some(Algorithm::Bruck), ..Rules::default() });
    let why = planner.explain(&scan).why();
    assert!(why.starts_with("bruck can't make it; "), "{why}");
    planner.set_rules(Rules::default());
    assert_eq!(planner.explain(&scan).choice, Choice::Only);
    let text = after.to_string();
    for part in ["all_reduce of 2 x float (8 bytes)", "measured", "sends", after.algorithm.name()] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_explanation_shows_the_ring_host_by_host() {
    let hosts = [vec![0, 3, 5, 6, 7], vec![1, 4], vec![2]];
    let ring = Ring::through(&hosts).unwrap();
    let mut planner = Planner::new(ring, 0, Slots::of(Distance::Tcp, 8, true), 256);
    let explained = planner.explain(&all_reduce(2));
    assert_eq!(explained.ring, hosts);
    let text = explained.to_string();
    assert!(text.contains("\n  ring        by host: 0 3 5-7 | 1 4 | 2\n"), "{text}");
    let dealt: Vec<Vec<u32>> =
        (0..2).map(|host| (0..40).map(|at| 2 * at + host).collect()).collect();
    let ring = Ring::through(&dealt).unwrap();
    let mut planner = Planner::new(ring, 0, Slots::of(Distance::Tcp, 80, true), 256);
    let text = planner.explain(&all_reduce(2)).to_string();
    assert!(text.contains(" 28 30 .. | 1 3 "), "{text}");
}

#[test]
fn an_explanation_says_from_which_length_on_registered_memory_counts() {
    for (size, least) in [(2, 4 << 10), (3, 6 << 10), (8, 16 << 10), (64, 16 << 10)] {
        let mut planner = planner(size);
        assert_eq!(planner.explain(&all_reduce(1000)).least_registered, None, "no region");
        planner.share_host();
        let explained = [least - 4, least].map(|bytes| planner.explain(&all_reduce(bytes / 4)));
        let [short, long] = explained.map(|it| (it.least_registered, it.to_string()));
        assert_eq!([short.0, long.0], [Some(least); 2]);
        assert!(short.1.contains(&format!("registered  the same: less than {least} bytes")));
        assert!(long.1.contains(&format!("registered  direct: {least} bytes or more")));
        let scan = Request { collective: Collective::Scan, ..all_reduce(1 << 20) };
        assert_eq!(planner.explain(&scan).least_registered, None);
        planner.set_rules(Rules { forced: Some(Algorithm::Ring), ..Rules::default() });
        assert_eq!(planner.explain(&all_reduce(1 << 20)).least_registered, None);
    }
}

/// A rank holds the steps and links of its own, and none of other ranks.
#[test]
fn a_plan_among_65536_ranks_is_small() {
    let hosts: Vec<Vec<u32>> = (0..8192).map(|host| (host * 8..host * 8 + 8).collect()).collect();
    let ring = Ring::through(&hosts).unwrap();
    let mut planner = Planner::new(ring, 7, Slots::of(Distance::Tcp, 65_536, false), 4096);
    let far = Speed { latency: 20e-6, ..SPEED };
    planner.set_speeds(Speeds { near: SPEED, far, source: Source::Stated });
    assert!(planner.peers().len() <= 2 * 16 + 2 + 4);
    for power in 3..=30 {
        let request = all_reduce((1 << power) / 4);
        assert!(planner.explain(&request).seconds.is_some());
        let steps = planner.plan(&request).schedule.steps.len();
        assert!(steps <= 3 * 65_536, "{steps} steps");
    }
    assert!(planner.schedules.len() <= Algorithm::ALL.len());
}
