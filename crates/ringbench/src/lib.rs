//! ringbench: nccl-tests for ringreduce. Every rank measures and checks; rank 0 reports. `cli`
//! reads the command line, `launch` makes the ranks, `measure` times and checks calls, `device` has
//! buffers on CUDA devices, `machine` describes the host, `limits` measures it, and `report` writes
//! tables and files.
#![deny(unsafe_code)]

mod cli;
mod device;
mod launch;
mod limits;
mod machine;
mod measure;
mod report;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand, error::ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use ringreduce::Communicator;
use tools::flags::np;
use tools::generate::Generate;

use cli::Cli;
use device::Gpu;
use launch::Launch;
use limits::{Bounds, Limits};
use machine::RankInfo;
use machine::probe::Probe;
use measure::Bench;
use report::files::{self, OutputClosed, ReportFiles};
use report::{Report, table};

/// The exit status of a program that SIGPIPE ends, 128 + 13.
const OUTPUT_CLOSED_STATUS: u8 = 128 + 13;

/// Runs the program with this process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if ringrun::is_own_process(&words) {
        return ringrun::main(words);
    }
    let program = std::iter::once("ringbench".into());
    let matches = command().get_matches_from(program.chain(words.into_iter().map(np)));
    if let Some(("limits", matches)) = matches.subcommand() {
        let limits = limits::Cli::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
        return limits::run(&limits).unwrap_or_else(|error| fail(&error));
    }
    if let Ok(page) = Generate::from_arg_matches(&matches) {
        return print(&page);
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.validate().unwrap_or_else(|error| usage(error));
    if cli.threads && cli.gpu.device.is_some() {
        device::set_hardware_queues(cli.launch_ranks());
    }
    let comms = match launch::plan(&cli) {
        Ok(Launch::Here(comms)) => comms,
        Ok(Launch::Ringrun(ranks)) => {
            cli.validate_for(ranks).unwrap_or_else(|error| usage(error));
            // Errors of the files are found before any rank starts; rank 0 opens them again.
            ReportFiles::open(&cli).map(drop).unwrap_or_else(|error| refuse(&error));
            return launch::run_ringrun(ranks).unwrap_or_else(|error| fail(&error));
        }
        Ok(Launch::OnHosts(options)) => {
            return launch::run_ringrun_with(options).unwrap_or_else(|error| fail(&error));
        }
        Err(error) => return fail(&error),
    };
    let (first, ranks) = comms.first().map_or((0, 1), |comm| (comm.rank(), comm.size()));
    cli.validate_for(ranks).unwrap_or_else(|error| usage(error));
    let files =
        (first == 0).then(|| ReportFiles::open(&cli).unwrap_or_else(|error| refuse(&error)));
    let files = Mutex::new(files);
    status(launch::run_ranks(comms, |comm| rank(comm, &cli, &files)))
}

/// The exit status for the errors that all ranks of this process counted.
fn status(errors: Result<u64>) -> ExitCode {
    match errors {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

fn command() -> Command {
    let measure = Cli::command().args_conflicts_with_subcommands(true);
    let measure = measure.subcommand_negates_reqs(true).disable_help_subcommand(true);
    let measure = measure.subcommand(limits::Cli::command().name("limits"));
    Generate::augment_subcommands(measure)
}

fn print(page: &Generate) -> ExitCode {
    let text = page.text(command()).map_err(anyhow::Error::msg);
    let printed = text.and_then(|text| files::say(&String::from_utf8_lossy(&text)));
    printed.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
}

/// Ends with one line and status 2, for a file that can't be used.
fn refuse(error: &str) -> ! {
    files::warn(error);
    std::process::exit(2)
}

/// Ends with clap's form of an error and status 2, for a wrong command line.
fn usage(error: String) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, error).exit()
}

fn fail(error: &anyhow::Error) -> ExitCode {
    if error.is::<OutputClosed>() {
        return ExitCode::from(OUTPUT_CLOSED_STATUS);
    }
    files::warn(&format!("{error:#}"));
    ExitCode::FAILURE
}

/// Runs one rank, and gives the number of errors. Rank 0 takes the files.
fn rank(mut comm: Communicator, cli: &Cli, files: &Mutex<Option<ReportFiles>>) -> Result<u64> {
    let me = comm.rank();
    let files = if me == 0 { files.lock().ok().and_then(|mut files| files.take()) } else { None };
    let errors = Gpu::open(&mut comm, &cli.gpu).and_then(|gpu| match files {
        Some(files) => measure_and_report(&mut comm, cli, gpu.as_ref(), files),
        None => measure_only(&mut comm, cli, gpu.as_ref()),
    });
    errors.with_context(|| format!("rank {me}"))
}

/// Every rank but 0: makes the same collectives as rank 0.
fn measure_only(comm: &mut Communicator, cli: &Cli, gpu: Option<&Gpu>) -> Result<u64> {
    RankInfo::gather(comm, gpu.map(|gpu| &gpu.device_info))?;
    machine::transports(comm)?;
    comm.barrier()?;
    let mut bench = Bench::new(comm, cli, gpu)?;
    let mut wrong = 0;
    bench.run(|line| {
        wrong += line.wrong();
        true
    })?;
    let out_of_bounds = bench.out_of_bounds;
    comm.barrier()?;
    Ok(wrong + out_of_bounds)
}

/// Rank 0. While it probes the machine the others sleep in a barrier. A second barrier keeps all
/// ranks until the report is written: a launcher may end the job once a rank exits with a failure.
fn measure_and_report(
    comm: &mut Communicator,
    cli: &Cli,
    gpu: Option<&Gpu>,
    mut files: ReportFiles,
) -> Result<u64> {
    let infos = RankInfo::gather(comm, gpu.map(|gpu| &gpu.device_info))?;
    let transport = machine::transports(comm)?;
    let cpus = machine::probed_cpus(&infos);
    let before = cpus.and_then(Probe::of);
    let mut report = Report::new(cli, comm.host(), infos, transport, before);
    report.device = gpu.map(|gpu| gpu.software.clone());
    let bounds = Bounds {
        verb: cli.collective,
        ranks: report.ranks,
        is_tcp: report.transport.contains("tcp"),
        stays_in_caches: cli.stays_in_caches(),
    };
    report.limits = limits_of(cli, &report, &bounds)?;
    comm.barrier()?;
    let progress = progress(cli);
    say(&progress, &table::header(cli, &report))?;
    files.begin(&report)?;
    let mut bench = Bench::new(comm, cli, gpu)?;
    let mut printed = Ok(());
    bench.run(|mut line| {
        progress.inc(1);
        report.set_limit(&mut line, &bounds);
        printed = say(&progress, &table::line(cli, &line));
        if printed.is_ok() {
            progress.suspend(|| files.row(&line, &report));
        }
        report.push(line);
        printed.is_ok()
    })?;
    if printed.is_err() {
        // Without this barrier the other ranks would report rank 0 as lost.
        comm.barrier()?;
        return printed.map(|()| 0);
    }
    let out_of_bounds = bench.out_of_bounds;
    progress.finish_and_clear();
    report.finish(cpus.and_then(Probe::of), out_of_bounds);
    say(&progress, &table::footer(cli, &report))?;
    say(&progress, &files.comparison(&report)?)?;
    let cut_short = files.finish(&report)?;
    comm.barrier()?;
    Ok(report.errors() + cut_short)
}

/// The rates that bound calls, if they are asked for and known: those of one host's memory.
fn limits_of(cli: &Cli, report: &Report, bounds: &Bounds) -> Result<Option<Limits>> {
    let mut hosts = report.rank_infos.iter().map(|rank| &rank.host);
    let first = hosts.next();
    if !cli.limits || report.device.is_some() || hosts.any(|host| Some(host) != first) {
        return Ok(None);
    }
    let cpus = machine::cpus_of_ranks(&report.rank_infos);
    Limits::of_calls(&cpus, bounds.is_tcp).map(Some)
}

/// A progress bar on the standard error, if that is a terminal.
fn progress(cli: &Cli) -> ProgressBar {
    let rows = cli.kinds().len() * cli.sizes().len();
    let bar = ProgressBar::new(rows as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rows, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Prints, while the progress bar is hidden.
fn say(progress: &ProgressBar, text: &str) -> Result<()> {
    progress.suspend(|| files::say(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_element_is_a_failure() {
        assert_eq!(status(Ok(0)), ExitCode::SUCCESS);
        assert_eq!(status(Ok(1)), ExitCode::FAILURE);
        assert_eq!(status(Err(anyhow::anyhow!("lost"))), ExitCode::FAILURE);
        let unread = anyhow::Error::from(OutputClosed).context("rank 0");
        assert_eq!(status(Err(unread)), ExitCode::from(OUTPUT_CLOSED_STATUS));
    }
}
