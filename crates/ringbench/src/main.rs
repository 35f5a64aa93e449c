//! The program ringbench; all it does is in the library of its name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ringbench::main()
}
