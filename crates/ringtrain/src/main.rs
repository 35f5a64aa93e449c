//! `ringtrain`: see `ringtrain --help`. The command line, the number of threads and the exit code.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> ExitCode {
    let args = ringtrain::Args::parse();
    if std::env::var_os(THREADS).is_none() {
        restart_with_one_thread();
    }
    match ringtrain::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringtrain: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ranks use cores better than threads do. candle reads its number of threads from the environment,
/// which a program can change safely only for a process that it starts. If that fails, the function
/// returns, and the training is slower but gives the same result.
fn restart_with_one_thread() {
    let mut command = std::env::args_os();
    if let (Some(_), Ok(program)) = (command.next(), std::env::current_exe()) {
        let _reason = Command::new(program).args(command).env(THREADS, "1").exec();
    }
}
