//! The program ringrun; all it does is in the library of its name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ringrun::main(std::env::args_os().skip(1).collect())
}
