//! The worlds of the table: options of builders, and what such worlds make and refuse.

use std::time::Duration;

use ringreduce::schedule::Ring;
use ringreduce::{Algorithm, Builder, Collective, DataType};

use super::rows::InForce;
use super::verbs::{Call, Verb};

/// Ranks whose builders have no option, one or two.
#[derive(Clone)]
pub(super) struct World {
    /// The options of the builder; empty where none is set.
    pub(super) options: [&'static str; 2],
    pub(super) ranks: usize,
    set: [fn(Builder) -> Builder; 2],
    pub(super) in_force: InForce,
    /// The largest world with links between all pairs.
    all_pairs: u32,
}

const PLAIN: InForce =
    InForce { deterministic: false, wide: false, wire: None, retry_safe: false, algorithm: None };

const fn world(option: &'static str, set: fn(Builder) -> Builder, in_force: InForce) -> World {
    World { options: [option, ""], ranks: 3, set: [set, |it| it], in_force, all_pairs: 32 }
}

/// Worlds of at most one option; each option of [`super::rows::Row::World`] has one.
pub(super) const WORLDS: [World; 10] = [
    World { ranks: 1, ..world("", |it| it, PLAIN) },
    World { ranks: 4, ..world("", |it| it, PLAIN) },
    world("deterministic", |it| it.deterministic(true), InForce { deterministic: true, ..PLAIN }),
    world("wide", |it| it.wide(true), InForce { wide: true, ..PLAIN }),
    world("wire", |it| it.wire(DataType::BF16), InForce { wire: Some(DataType::BF16), ..PLAIN }),
    world("retry_safe", |it| it.retry_safe(true), InForce { retry_safe: true, ..PLAIN }),
    world("timeout", |it| it.timeout(Duration::from_secs(200)), PLAIN),
    // A wish: calls that the algorithm does not make go by another one.
    world("algorithm", |it| it.algorithm(Algorithm::Ring), PLAIN),
    World { ranks: 6, all_pairs: 2, ..world("all_pairs", |it| it.all_pairs(2), PLAIN) },
    world("multiprocessors", |it| it.multiprocessors(1), PLAIN),
];

/// The answer that the documents promise for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Made,
    /// An argument error with all of these words.
    Refused(&'static [&'static str]),
    /// Made, or refused by the name of the algorithm: memory, length or peers decide.
    Either,
}

/// The worlds of each pair of options.
pub(super) fn pairs() -> Vec<World> {
    let of_one = || WORLDS.into_iter().filter(|world| !world.options[0].is_empty());
    let with = |(at, one): (usize, World)| {
        of_one().skip(at + 1).map(move |other| one_of_both(&one, &other))
    };
    of_one().enumerate().flat_map(with).collect()
}

fn one_of_both(one: &World, other: &World) -> World {
    let (a, b) = (&one.in_force, &other.in_force);
    World {
        options: [one.options[0], other.options[0]],
        ranks: one.ranks.max(other.ranks),
        set: [one.set[0], other.set[0]],
        in_force: InForce {
            deterministic: a.deterministic || b.deterministic,
            wide: a.wide || b.wide,
            wire: a.wire.or(b.wire),
            retry_safe: a.retry_safe || b.retry_safe,
            algorithm: None,
        },
        all_pairs: one.all_pairs.min(other.all_pairs),
    }
}

impl World {
    pub(super) fn builder(&self, builder: Builder) -> Builder {
        self.set.iter().fold(builder, |builder, set| set(builder))
    }

    /// The answer to a call with these settings; `shares_memory`: all ranks share a host's region.
    pub(super) fn answer(&self, call: &Call, in_force: &InForce, shares_memory: bool) -> Answer {
        let (verb, deterministic) = (call.verb, in_force.deterministic);
        if verb == Verb::RunReduction {
            let refused = Answer::Refused(&["run_reduction", "deterministic"]);
            return if deterministic { refused } else { Answer::Made };
        }
        if self.ranks == 1 || verb == Verb::SendRecv {
            return Answer::Made;
        }
        let ring = Ring::natural(self.ranks as u32).with_all_pairs(self.all_pairs);
        let is_in_order = verb == Verb::AllReduceByInOrder || deterministic && verb.reduces();
        if !ring.all_pairs() {
            match verb {
                Verb::GatherV | Verb::ScatterV | Verb::AllToAllV => {
                    return Answer::Refused(&["links between all pairs"]);
                }
                Verb::ReduceScatterV if is_in_order => {
                    return Answer::Refused(&["deterministic", "links between all pairs"]);
                }
                // Contributions are gathered, by any algorithm that gathers.
                Verb::AllReduceByInOrder => return Answer::Either,
                _ => {}
            }
        }
        let collective = verb.collective(call.root as u32);
        let Some(algorithm) = in_force.algorithm else { return Answer::Made };
        let makes = algorithm.makes(collective, &ring) && algorithm.reaches(&ring);
        let makes_uneven = matches!(algorithm, Algorithm::Ring | Algorithm::AllPairs) && makes;
        if !(if verb.is_uneven() { makes_uneven } else { makes }) {
            return Answer::Refused(&["algorithm is"]);
        }
        if is_in_order && !algorithm.folds_left(collective) {
            return Answer::Refused(&["algorithm is", "deterministic"]);
        }
        self.by_algorithm(algorithm, collective, call, shares_memory)
    }

    fn by_algorithm(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        call: &Call,
        shares_memory: bool,
    ) -> Answer {
        let is_short = call.count * self.ranks * size_of::<f64>() < 4 << 10;
        let is_broadcast = matches!(collective, Collective::Broadcast { .. });
        match algorithm {
            _ if !algorithm.is_in_shared_memory() => Answer::Made,
            _ if !shares_memory => Answer::Refused(&["algorithm is"]),
            Algorithm::Direct if is_short && !is_broadcast => Answer::Made,
            Algorithm::Staged => Answer::Made,
            _ => Answer::Either,
        }
    }
}
