//! ringrun's subcommands. Each has options and a help of its own; without one, ringrun launches.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches, Subcommand};

use crate::failure::Failure;
use crate::flight::status;
use crate::pages::Page;
use crate::spellings::np;
use crate::{cli, plan};

#[derive(Debug, Subcommand)]
enum Subcommands {
    Plan(Box<plan::Options>),
    Status(status::Options),
    #[command(flatten)]
    Page(Page),
}

/// The command line of a launch, with the subcommands.
pub(crate) fn add_to(launch: Command) -> Command {
    let launch = launch.args_conflicts_with_subcommands(true).subcommand_negates_reqs(true);
    Subcommands::augment_subcommands(launch)
}

/// Is the first word a subcommand? A program of that name is started by a path (`./plan`), or
/// behind an option.
pub(crate) fn begin(words: &[OsString]) -> bool {
    let program = cli::command();
    let first = words.first().and_then(|word| word.to_str());
    let named = |first| program.get_subcommands().any(|it| it.get_name() == first);
    first.is_some_and(|first| first == "help" || named(first))
}

/// Of a launch that says no number of ranks: perhaps its first word was meant for a subcommand.
pub(crate) fn no_ranks(first: Option<&OsString>) -> Failure {
    let first = first.and_then(|word| word.to_str()).unwrap_or_default();
    let launcher = cli::command();
    // One letter in three may be wrong; of three letters none, for many programs have such names.
    let distance = |name: &&str| strsim::damerau_levenshtein(name, first);
    let near = |name: &&str| name.len() > 3 && distance(name) <= name.len() / 3;
    let names = launcher.get_subcommands().map(Command::get_name);
    let meant = names.filter(near).min_by_key(distance);
    let meant = meant.map_or(String::new(), |name| format!("; or did you mean `ringrun {name}`?"));
    Failure::Usage(format!("how many ranks? Say so with -n N{meant}"))
}

/// Does what the words ask for, of which the first is a subcommand. Help ends the process.
///
/// # Errors
/// [`Failure::SubcommandUsage`] for what makes no sense, and those of the subcommand.
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
        Subcommands::Status(options) => status::run(&options),
        Subcommands::Page(page) => {
            let text = page.text(cli::command()).map_err(|wrong| Failure::usage(&name, &wrong))?;
            print(&text, "print the page")
        }
    }
}

/// Prints, and gives the exit code: that of a program which the system ends by SIGPIPE if nobody
/// reads, as behind `| head`, which is nothing to talk about.
pub(crate) fn print(text: &[u8], doing: &str) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(128 + 13),
        printed => printed.map_err(Failure::system(doing)).map(|()| 0),
    }
}
