//! ringrun's subcommands, each with options and help of its own. Without one, ringrun launches a
//! job.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches, Subcommand};

use crate::cli;
use crate::doctor;
use crate::failure::Failure;
use crate::launch::sys;
use crate::plan;
use crate::secret;
use crate::status::command;
use crate::topo;
use tools::flags::np;
use tools::generate::Generate;

#[derive(Debug, Subcommand)]
enum Subcommands {
    Plan(Box<plan::Options>),
    Secret(secret::Options),
    Status(command::Options),
    Doctor(doctor::Options),
    Topo(topo::Options),
    #[command(flatten)]
    Generate(Generate),
}

pub(crate) fn add_to(launch: Command) -> Command {
    let launch = launch.args_conflicts_with_subcommands(true).subcommand_negates_reqs(true);
    Subcommands::augment_subcommands(launch)
}

/// True if the first word is a subcommand. A program of that name is started by its path, as
/// `./plan`, or after a flag.
pub(crate) fn begins_with_subcommand(words: &[OsString]) -> bool {
    let program = cli::command();
    let first = words.first().and_then(|word| word.to_str());
    let named = |first| program.get_subcommands().any(|it| it.get_name() == first);
    first.is_some_and(|first| first == "help" || named(first))
}

/// The error of a launch without a number of ranks. Its first word may be a misspelt subcommand.
pub(crate) fn no_ranks(first: Option<&OsString>) -> Failure {
    let first = first.and_then(|word| word.to_str()).unwrap_or_default();
    let launcher = cli::command();
    // One letter in three may be wrong. Names of three letters are too common among programs.
    let distance = |name: &&str| strsim::damerau_levenshtein(name, first);
    let near = |name: &&str| name.len() > 3 && distance(name) <= name.len() / 3;
    let names = launcher.get_subcommands().map(Command::get_name);
    let meant = names.filter(near).min_by_key(distance);
    let meant = meant.map_or(String::new(), |name| format!("; or did you mean `ringrun {name}`?"));
    Failure::Usage(format!("how many ranks? Say so with -n N{meant}"))
}

/// Runs the subcommand that the first word names. Help ends the process.
pub(crate) fn run(words: Vec<OsString>) -> Result<u8, Failure> {
    let name = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let program = std::iter::once(OsString::from("ringrun"));
    let parsed = cli::command().try_get_matches_from(program.chain(words.into_iter().map(np)));
    let parsed = parsed.and_then(|matches| Subcommands::from_arg_matches(&matches));
    let asked = parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        _ => Failure::usage(&name, &cli::message(&error)),
    })?;
    match asked {
        Subcommands::Plan(options) => plan::run(&options),
        Subcommands::Secret(options) => secret::run(&options),
        Subcommands::Status(options) => command::run(&options),
        Subcommands::Doctor(options) => doctor::run(&options),
        Subcommands::Topo(options) => topo::run(&options),
        Subcommands::Generate(page) => {
            let text = page.text(cli::command()).map_err(|wrong| Failure::usage(&name, &wrong))?;
            print(&text, "print the page")
        }
    }
}

/// Prints, and gives the exit code. Without a reader, as behind `| head`, that is the code of a
/// program ended by SIGPIPE, and no error.
pub(crate) fn print(text: &[u8], doing: &str) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    match sys::check_stdout().and_then(|()| out.write_all(text)).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(128 + 13),
        printed => printed.map_err(Failure::system(doing)).map(|()| 0),
    }
}
