//! The closed forms by which algorithms are chosen, beside those of the literature: latencies (a),
//! and how often all M bytes are moved (b) and reduced (g), among 8 to 65,536 ranks. The model is
//! Hockney's, "The communication challenge for MPP", Parallel Computing 20 (1994): a message of m
//! bytes takes a + mb. The forms are those of Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), of
//! Patarasuk and Yuan, JPDC 69 (2009), and of Hensgen, Finkel and Manber (1988).
//! The model of this library adds that the first move of a message keeps its sender busy.

use std::fmt::Write;

use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::sim::Speed;

/// Latencies, times that M bytes are moved, and times that they are reduced.
type Terms = [f64; 3];

struct Form {
    algorithm: Algorithm,
    collective: Collective,
    /// The literature's terms among p = 2^l ranks, and what ours are more.
    literature: fn(p: f64, l: f64) -> Terms,
    more: fn(p: f64, l: f64) -> Terms,
}

const BROADCAST: Collective = Collective::Broadcast { root: 0 };
const REDUCE: Collective = Collective::Reduce { root: 0 };

/// A rank that halves and doubles waits for each other chunk, where the literature's sends half of
/// what it has as one message: more latencies, for bytes that are forwarded at once. Bruck's chunks
/// are messages of their own, four of them at a time, which a rank sends before it receives.
const FORMS: [Form; 10] = [
    Form {
        algorithm: Algorithm::Ring,
        collective: Collective::AllReduce,
        literature: |p, _| [2.0 * (p - 1.0), 2.0 * (p - 1.0) / p, (p - 1.0) / p],
        more: |p, _| [0.0, 1.0 / p, 0.0],
    },
    Form {
        algorithm: Algorithm::Ring,
        collective: Collective::AllGather,
        literature: |p, _| [p - 1.0, (p - 1.0) / p, 0.0],
        more: |p, _| [0.0, 1.0 / p, 0.0],
    },
    Form {
        algorithm: Algorithm::RecursiveDoubling,
        collective: Collective::AllReduce,
        literature: |_, l| [l; 3],
        more: |_, _| [0.0, 1.0, 0.0],
    },
    Form {
        algorithm: Algorithm::HalvingDoubling,
        collective: Collective::AllReduce,
        literature: |p, l| [2.0 * l, 2.0 * (p - 1.0) / p, (p - 1.0) / p],
        more: |p, l| [p - 2.0 * l, (p - 1.0) / p, 0.0],
    },
    Form {
        algorithm: Algorithm::HalvingDoubling,
        collective: Collective::ReduceScatter,
        literature: |p, l| [l, (p - 1.0) / p, (p - 1.0) / p],
        more: |p, l| [p / 2.0 - l, 0.5, 0.0],
    },
    Form {
        algorithm: Algorithm::Binomial,
        collective: BROADCAST,
        literature: |_, l| [l, l, 0.0],
        more: |_, _| [0.0, 1.0, 0.0],
    },
    Form {
        algorithm: Algorithm::Binomial,
        collective: REDUCE,
        literature: |_, l| [l; 3],
        more: |_, _| [0.0, 1.0, 0.0],
    },
    Form {
        algorithm: Algorithm::Binomial,
        collective: Collective::AllReduce,
        literature: |_, l| [2.0 * l, 2.0 * l, l],
        more: |_, _| [0.0, 1.0, 0.0],
    },
    Form {
        algorithm: Algorithm::Bruck,
        collective: Collective::AllGather,
        literature: |p, l| [l, (p - 1.0) / p, 0.0],
        more: |p, l| [(p / 4.0 + 1.0) - l, (p - 1.0) / p, 0.0],
    },
    Form {
        algorithm: Algorithm::Dissemination,
        collective: Collective::Barrier,
        literature: |_, l| [l, 0.0, 0.0],
        // Its token is a byte.
        more: |_, l| [0.0, l + 1.0, l],
    },
];

impl Form {
    /// The terms of our closed form: its times where one term alone counts.
    fn terms(&self, ranks: u32) -> Terms {
        let nothing = Speed { latency: 0.0, step: 0.0, byte: 0.0, reduce: 0.0 };
        let terms = [
            Speed { latency: 1.0, ..nothing },
            Speed { byte: 1.0, ..nothing },
            Speed { reduce: 1.0, ..nothing },
        ];
        terms.map(|speed| self.cost(ranks, 1.0, &speed))
    }

    fn cost(&self, ranks: u32, bytes: f64, speed: &Speed) -> f64 {
        self.algorithm.cost(self.collective, &Ring::natural(ranks), bytes, speed).unwrap()
    }
}

fn powers() -> impl Iterator<Item = (u32, f64)> {
    (3..=16).map(|log: u32| (1 << log, f64::from(log)))
}

#[test]
fn the_closed_forms_are_those_of_the_literature_and_stated_terms() {
    for form in &FORMS {
        for (ranks, log) in powers() {
            let p = f64::from(ranks);
            let [literature, more] = [form.literature, form.more].map(|terms| terms(p, log));
            for (at, ours) in form.terms(ranks).into_iter().enumerate() {
                let wanted = literature[at] + more[at];
                let name = format!("{} {:?}", form.algorithm, form.collective);
                assert!((ours - wanted).abs() < 1e-6, "{name} {ranks} {at}: {ours} {wanted}");
            }
        }
    }
}

/// No time is below what any algorithm takes: a latency for each doubling of those who know, and
/// the bytes that each rank has to receive (Chan et al., 2007).
#[test]
fn no_closed_form_is_below_the_lower_bounds() {
    let speed = Speed { latency: 2e-6, step: 0.0, byte: 0.1e-9, reduce: 0.05e-9 };
    for algorithm in Algorithm::ALL {
        for (ranks, log) in powers() {
            let p = f64::from(ranks);
            for bytes in [8.0, 64e3, 64e6] {
                let ring = Ring::natural(ranks);
                let time = algorithm.cost(Collective::AllReduce, &ring, bytes, &speed);
                let Some(time) = time else { continue };
                // Ranks that send to all others at once are as many ports as messages.
                let hops = if algorithm.hops(Collective::AllReduce, &ring) < Some(log) {
                    1.0
                } else {
                    log
                };
                let moved = 2.0 * (p - 1.0) / p * bytes * speed.byte;
                let least = (hops * speed.latency).max(moved);
                assert!(
                    time >= least * (1.0 - 1e-9),
                    "{algorithm} {ranks} {bytes}: {time} {least}"
                );
            }
        }
    }
}

/// The table in docs/collectives.md.
#[test]
fn the_manual_has_the_terms() {
    let mut table = String::new();
    for form in &FORMS {
        let (name, collective) = (form.algorithm.name(), form.collective.name());
        let _ = write!(table, "| `{name}` | `{collective}` |");
        for log in [3, 10, 16] {
            let ranks = 1 << log;
            let literature = (form.literature)(f64::from(ranks), f64::from(log));
            let [ours, theirs] = [form.terms(ranks), literature].map(|terms| {
                let [a, b, g] = terms;
                format!("{a:.0}, {b:.2}, {g:.2}")
            });
            let _ = write!(table, " {ours} ({theirs}) |");
        }
        table += "\n";
    }
    let manual = include_str!("../../docs/collectives.md");
    assert!(manual.contains(&table), "docs/collectives.md has not this table:\n{table}");
}
