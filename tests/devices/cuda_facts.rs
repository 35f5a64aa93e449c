//! The bench of a driver's facts, with the stand-in: every experiment reports, and the facts that
//! the stand-in promises are among the reports. Experiments are processes of the program that runs
//! this.

#[path = "../../benches/cuda_facts.rs"]
pub(crate) mod bench;

use super::standin::{self, DEPTH, DEVICES, on_standin, this_body, with_driver};
use bench::cuda_facts::run::{self, Fact, Options};
use cuda::harness::copy_library_without;

const LACKING: [&str; 1] = ["cuStreamBatchMemOp_v2"];

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn facts() {
        if run::is_experiment() {
            bench::main();
            return;
        }
        let file = std::env::temp_dir().join(format!("cuda_facts-{}.json", std::process::id()));
        let words = ["all", "--quick", "--json", file.to_str().unwrap()].map(str::to_owned);
        let options = Options::read(words).unwrap();
        let facts = run::all(&options, &[this_body!(facts)]);
        let json = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(json.matches("\"experiment\"").count(), facts.len());
        as_promised(&facts);
    }

    /// On a driver that lacks the symbols of [`LACKING`].
    pub(crate) fn without_batches() {
        if run::is_experiment() {
            bench::main();
            return;
        }
        let words = ["flags", "graph", "--quick"].map(str::to_owned);
        let facts = run::all(&Options::read(words).unwrap(), &[this_body!(without_batches)]);
        let of =
            |what: &str| -> Vec<&Fact> { facts.iter().filter(|fact| fact.what == what).collect() };
        for fact in [of("batch of 8"), of("signal, in batches")].concat() {
            assert_eq!(fact.note, format!("failed: {}: the driver has none", LACKING[0]));
        }
        assert!(of("signal").len() == 4 && of("signal").iter().all(|fact| fact.value > Some(0.0)));
        let graphs: Vec<_> = of("replayed").iter().map(|fact| fact.experiment).collect();
        assert_eq!(graphs, ["values one by one", "values one by one, kernel"]);
    }

    /// On a driver whose queues hold few operations.
    pub(crate) fn short_queue() {
        if run::is_experiment() {
            bench::main();
            return;
        }
        let words = ["queue", "--quick"].map(str::to_owned);
        let facts = run::all(&Options::read(words).unwrap(), &[this_body!(short_queue)]);
        let depths = facts.iter().filter(|fact| fact.note == "were added before one BLOCKED");
        let depths: Vec<_> = depths.map(|fact| fact.value).collect();
        assert!(depths.len() == 3 && depths.iter().all(|depth| *depth < Some(30.0)), "{facts:#?}");
        let blocked = facts.iter().filter(|fact| fact.note == "BLOCK too");
        assert_eq!(blocked.count(), 3, "{facts:#?}");
    }

    pub(crate) fn without_a_device() {
        let options = Options::read(std::iter::empty()).unwrap();
        assert!(run::all(&options, &[]).is_empty());
    }
}

/// The notes of an experiment's facts.
fn notes<'a>(facts: &'a [Fact], experiment: &str) -> Vec<&'a str> {
    let of = facts.iter().filter(|fact| fact.experiment == experiment);
    of.map(|fact| fact.note.as_str()).collect()
}

fn as_promised(facts: &[Fact]) {
    // The stand-in lacks this call alone.
    let lacks = |fact: &&Fact| fact.note.contains("cuFuncLoad");
    let failed: Vec<_> = facts.iter().filter(|fact| fact.note.starts_with("failed")).collect();
    assert!(failed.iter().all(lacks), "{failed:#?}");
    for part in
        ["attrs", "flags", "hops", "queue", "blocked", "kill", "graph", "pinned", "register"]
    {
        assert!(facts.iter().any(|fact| fact.part == part), "{part}");
    }
    for call in ["cuMemFree", "cuMemHostUnregister"] {
        let notes = notes(facts, call);
        assert!(notes.len() == 1 && notes[0].starts_with("BLOCKED until the flag"), "{notes:?}");
    }
    for call in ["cuEventCreate", "cuIpcGetMemHandle", "cuMemcpyDtoDAsync"] {
        assert_eq!(notes(facts, call), ["ok"], "{call}");
    }
    let signals =
        facts.iter().filter(|fact| fact.what.starts_with("signal") && fact.value > Some(0.0));
    assert_eq!(signals.count(), 10);
    let killed = notes(facts, "one of three");
    assert_eq!(killed.iter().filter(|note| **note == "goes on").count(), 2, "{killed:?}");
}

#[test]
fn a_missing_symbol_fails_no_other_experiment() {
    let folder = std::env::temp_dir().join(format!("cuda_facts-{}", std::process::id()));
    copy_library_without(&LACKING, &folder).unwrap();
    with_driver(&standin::name_of(module_path!(), "body::without_batches"), &folder, &[]);
    std::fs::remove_dir_all(&folder).unwrap();
}

on_standin! {
    (body::without_batches)

    every_experiment_reports: facts [];
    the_length_of_a_queue_is_found: short_queue [DEPTH = "20"];
    no_device_is_no_failure: without_a_device [DEVICES = "0"];
}
