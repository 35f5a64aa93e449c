//! `train`: see `train --help`. It touches the command line, the number of threads and the exit
//! code, nothing else.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> ExitCode {
    let args = train::Args::parse();
    if std::env::var_os(THREADS).is_none() {
        restart_with_one_thread();
    }
    match train::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::FAILURE
        }
    }
}

/// More ranks use more cores better than more threads do. candle takes its number of threads from
/// the environment only, which a program can change safely for its successor alone. Returns if
/// there can't be one; then the training is slower, and otherwise the same.
fn restart_with_one_thread() {
    let mut command = std::env::args_os();
    if let (Some(_), Ok(program)) = (command.next(), std::env::current_exe()) {
        let _reason = Command::new(program).args(command).env(THREADS, "1").exec();
    }
}
