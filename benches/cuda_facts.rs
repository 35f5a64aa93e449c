//! What a device and its driver do that no document promises, or that only a measurement tells:
//! which calls wait while a stream of the context does, what flags cost, and what a process leaves
//! behind that is killed. `cargo bench --bench cuda_facts [-- PART... --quick --json FILE]`.
//! Each experiment is this program again, with a deadline: one that fails or hangs stops no other.
//! **Not yet run on a GPU**: its tests run it on a stand-in, whose figures are none of a GPU.
#![allow(clippy::panic, reason = "a bench fails by panicking")]

pub(crate) mod cuda_facts {
    mod attrs;
    mod blocked;
    mod driver;
    mod flags;
    mod graph;
    mod kill;
    mod memory;
    mod pinned;
    mod process;
    mod register;
    pub(crate) mod run;
}

use std::process::ExitCode;

use cuda_facts::run::{self, Options};

pub(crate) fn main() -> ExitCode {
    if run::is_told() {
        run::as_told();
        return ExitCode::SUCCESS;
    }
    // The first is what cargo says.
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
