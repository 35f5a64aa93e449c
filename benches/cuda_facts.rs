//! Facts of a device and its driver that no document promises, or that only a measurement tells:
//! which calls wait while a stream of the context does, what flags cost, and what a killed process
//! leaves behind. `cargo bench --bench cuda_facts [-- PART... --quick --json FILE]`. Each
//! experiment is a process of this program with a deadline: a failure or a hang stops no other.
//! **Not yet run on a GPU**: its tests run it on a stand-in, whose figures say nothing of a GPU.
#![allow(clippy::panic, reason = "a bench fails by panicking")]

pub(crate) mod cuda_facts {
    mod attrs;
    mod blocked;
    pub(crate) mod driver;
    mod flags;
    mod graph;
    mod hops;
    mod kill;
    #[allow(dead_code, reason = "the bench and the tests of kernels use the rest")]
    pub(crate) mod memory;
    mod pinned;
    mod process;
    mod queue;
    mod register;
    pub(crate) mod run;
}

use std::process::ExitCode;

use cuda_facts::run::{self, Options};

pub(crate) fn main() -> ExitCode {
    if run::is_experiment() {
        run::run_experiment();
        return ExitCode::SUCCESS;
    }
    // Cargo adds `--bench`.
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    match Options::read(words) {
        Ok(options) => {
            run::all(&options, &[]);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("cuda_facts: {why}");
            ExitCode::from(2)
        }
    }
}
