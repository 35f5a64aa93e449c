//! `ringtrain`: see `ringtrain --help`. The command line, the number of threads and the exit code.

use std::os::unix::process::CommandExt;
use std::process::{Command as Process, ExitCode};

use ringtrain::{Cli, Command, Result, STOPPED, THREADS};

fn main() -> ExitCode {
    if std::env::var_os(THREADS).is_none() {
        restart_with_one_thread();
    }
    match Cli::read().and_then(run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("ringtrain: stopped; --resume goes on from the last checkpoint");
            STOPPED.into()
        }
        Err(error) => {
            eprintln!("ringtrain: {error}");
            if error.is_stop() { STOPPED.into() } else { ExitCode::FAILURE }
        }
    }
}

/// False if the user has ended a training.
fn run(cli: Cli) -> Result<bool> {
    match cli.command.unwrap_or(Command::Train(cli.train)) {
        Command::Train(args) => {
            let outcomes = ringtrain::train(&args)?;
            Ok(outcomes.iter().all(|outcome| !outcome.is_stopped))
        }
        Command::Compare(args) => ringtrain::compare(&args).map(|()| true),
        Command::Lesson(args) => ringtrain::lesson(&args).map(|()| true),
    }
}

/// Ranks use cores better than threads do. candle reads its number of threads from the environment,
/// which a program can change safely only for a process that it starts. If that fails, the function
/// returns, and the training is slower but gives the same result.
fn restart_with_one_thread() {
    let mut command = std::env::args_os();
    if let (Some(_), Ok(program)) = (command.next(), std::env::current_exe()) {
        let _reason = Process::new(program).args(command).env(THREADS, "1").exec();
    }
}
