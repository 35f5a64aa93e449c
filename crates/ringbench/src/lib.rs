//! ringbench: nccl-tests for ringreduce. Every rank measures and checks; rank 0 reports.
//! cli > launch > run (collective, expect, verify, buffer, device, stats) > report (regret) >
//! table or compact, compare, html (chart).
#![deny(unsafe_code)]

mod buffer;
mod chart;
mod cli;
mod collective;
mod compact;
mod compare;
mod device;
mod expect;
mod help;
mod html;
mod launch;
mod machine;
mod nccl;
mod output;
mod probe;
mod regret;
mod report;
mod run;
mod settings;
mod stats;
mod table;
mod verify;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand, error::ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use ringreduce::Communicator;
use ringrun::pages::Page;
use ringrun::sizes;
use ringrun::spellings::np;

use cli::Cli;
use device::Gpu;
use launch::Launch;
use machine::Seat;
use output::{Files, Unread};
use probe::Probe;
use report::Report;
use run::Bench;

/// The status of a program that the system ends for writing to nobody: 128 + SIGPIPE.
const UNREAD: u8 = 128 + 13;

/// Does what the program does, by this process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if ringrun::is_watcher(&words) {
        return ringrun::main(words);
    }
    let program = std::iter::once("ringbench".into());
    let matches = command().get_matches_from(program.chain(words.into_iter().map(np)));
    if let Ok(page) = Page::from_arg_matches(&matches) {
        return print(&page);
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.validate().unwrap_or_else(|error| usage(error));
    if cli.threads && cli.gpu.device.is_some() {
        device::make_queues(cli.launches());
    }
    let comms = match launch::plan(&cli) {
        Ok(Launch::Here(comms)) => comms,
        Ok(Launch::Ringrun(ranks)) => {
            cli.validate_for(ranks).unwrap_or_else(|error| usage(error));
            // Before anything starts; rank 0 opens them for good.
            Files::open(&cli).map(drop).unwrap_or_else(|error| refuse(&error));
            return launch::be_ringrun(ranks).unwrap_or_else(|error| fail(&error));
        }
        Err(error) => return fail(&error),
    };
    let (first, ranks) = comms.first().map_or((0, 1), |comm| (comm.rank(), comm.size()));
    cli.validate_for(ranks).unwrap_or_else(|error| usage(error));
    let files = (first == 0).then(|| Files::open(&cli).unwrap_or_else(|error| refuse(&error)));
    let files = Mutex::new(files);
    status(launch::each(comms, |comm| rank(comm, &cli, &files)))
}

/// What all ranks of this process found wrong, as its exit status.
fn status(found: Result<u64>) -> ExitCode {
    match found {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

/// The whole command line, subcommands and all.
fn command() -> Command {
    let measure = Cli::command().args_conflicts_with_subcommands(true);
    let measure = measure.subcommand_negates_reqs(true).disable_help_subcommand(true);
    Page::augment_subcommands(measure)
}

fn print(page: &Page) -> ExitCode {
    let text = page.text(command()).map_err(anyhow::Error::msg);
    let printed = text.and_then(|text| output::say(&String::from_utf8_lossy(&text)));
    printed.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
}

/// A file that can't be used: one line, and status 2.
fn refuse(error: &str) -> ! {
    output::complain(error);
    std::process::exit(2)
}

/// A command line that makes no sense: status 2.
fn usage(error: String) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, error).exit()
}

fn fail(error: &anyhow::Error) -> ExitCode {
    if error.is::<Unread>() {
        return ExitCode::from(UNREAD);
    }
    output::complain(&format!("{error:#}"));
    ExitCode::FAILURE
}

/// One rank, from the first collective to the last. How much was wrong? The one that reports takes
/// the files.
fn rank(mut comm: Communicator, cli: &Cli, files: &Mutex<Option<Files>>) -> Result<u64> {
    let me = comm.rank();
    let files = if me == 0 { files.lock().ok().and_then(|mut files| files.take()) } else { None };
    let found = Gpu::open(&mut comm, &cli.gpu).and_then(|gpu| match files {
        Some(files) => lead(&mut comm, cli, gpu.as_ref(), files),
        None => follow(&mut comm, cli, gpu.as_ref()),
    });
    found.with_context(|| format!("rank {me}"))
}

/// Every rank but 0: the same collectives, no report.
fn follow(comm: &mut Communicator, cli: &Cli, gpu: Option<&Gpu>) -> Result<u64> {
    Seat::gather(comm, gpu.map(|gpu| &gpu.seated))?;
    machine::transports(comm)?;
    comm.barrier()?;
    let mut bench = Bench::new(comm, cli, gpu)?;
    let mut wrong = 0;
    bench.run(|line| {
        wrong += line.wrong();
        true
    })?;
    let stray = bench.out_of_bounds;
    comm.barrier()?;
    Ok(wrong + stray)
}

/// Rank 0. While it probes the machine the others sleep in a barrier, and nobody leaves before
/// the report is written: a launcher may end the job as soon as one rank finds something wrong.
fn lead(comm: &mut Communicator, cli: &Cli, gpu: Option<&Gpu>, mut files: Files) -> Result<u64> {
    let seats = Seat::gather(comm, gpu.map(|gpu| &gpu.seated))?;
    let transport = machine::transports(comm)?;
    let cpus = machine::pair(&seats);
    let before = cpus.and_then(Probe::of);
    let mut report = Report::new(cli, comm.host(), seats, transport, before);
    report.device = gpu.map(|gpu| gpu.software.clone());
    comm.barrier()?;
    let progress = progress(cli);
    say(&progress, &table::head(cli, &report))?;
    files.begin(&report)?;
    let mut bench = Bench::new(comm, cli, gpu)?;
    let mut said = Ok(());
    bench.run(|line| {
        progress.inc(1);
        said = say(&progress, &table::line(cli, &line));
        if said.is_ok() {
            progress.suspend(|| files.row(&line, &report));
        }
        report.push(line);
        said.is_ok()
    })?;
    if said.is_err() {
        // Without it the others would take rank 0 for lost.
        comm.barrier()?;
        return said.map(|()| 0);
    }
    let stray = bench.out_of_bounds;
    progress.finish_and_clear();
    report.finish(cpus.and_then(Probe::of), stray);
    say(&progress, &table::foot(cli, &report))?;
    say(&progress, &files.comparison(&report)?)?;
    let cut_short = files.finish(&report)?;
    comm.barrier()?;
    Ok(report.errors() + cut_short)
}

/// A bar on standard error, if that is a terminal.
fn progress(cli: &Cli) -> ProgressBar {
    let rows = cli.kinds().len() * cli.sizes().len();
    let bar = ProgressBar::new(rows as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rows, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Prints, with the bar out of the way.
fn say(progress: &ProgressBar, text: &str) -> Result<()> {
    progress.suspend(|| output::say(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_element_is_a_failure() {
        assert_eq!(status(Ok(0)), ExitCode::SUCCESS);
        assert_eq!(status(Ok(1)), ExitCode::FAILURE);
        assert_eq!(status(Err(anyhow::anyhow!("lost"))), ExitCode::FAILURE);
        let unread = anyhow::Error::from(Unread).context("rank 0");
        assert_eq!(status(Err(unread)), ExitCode::from(UNREAD));
    }
}
