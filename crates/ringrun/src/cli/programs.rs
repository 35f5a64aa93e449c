//! The programs of a job: one, or several as `-n 1 PROGRAM : -n 3 PROGRAM`, which MPI's launchers
//! call MPMD. What stands before the first program holds for all; a later one may add to it, and
//! have hosts of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};
use serde::{Deserialize, Serialize};

use super::environment::{self, Variables};
use super::hosts::ProgramHosts;
use super::python::Python;
use super::{aliases, message, path_bytes};
use crate::failure::Failure;

/// The word between two programs.
const SEPARATOR: &str = ":";
/// The beginning of ringreduce's variables, in which all ranks have to agree.
const SETTINGS: &[u8] = b"RINGREDUCE_";

/// A program of a job: the ranks say by its number that they run it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) name: OsString,
    pub(crate) arguments: Vec<OsString>,
    #[serde(with = "path_bytes")]
    pub(crate) directory: PathBuf,
    /// The PATH of the ranks, in which the program is searched.
    pub(crate) path: OsString,
    /// The variables of these ranks beside those of all.
    pub(crate) variables: Variables,
}

/// The options of one program.
#[derive(Debug, Args)]
pub(super) struct ProgramOptions {
    /// Set a variable: VAR=value, VAR (as it is here) or PRE* (all that begin so)
    ///
    /// The ranks inherit the whole environment in any case. The last one wins.
    #[arg(short = 'x', value_name = "VAR[=VAL]", help_heading = "Environment")]
    export: Vec<OsString>,

    /// Set a variable, as Hydra spells it
    #[arg(long, value_names = ["VAR", "VAL"], num_args = 2, alias = "env")]
    #[arg(help_heading = "Environment")]
    genv: Vec<OsString>,

    /// Start the ranks in this directory
    #[arg(long, value_name = "DIR", aliases = ["wd"], help_heading = "Environment")]
    wdir: Option<PathBuf>,

    #[command(flatten)]
    python: Python,

    /// The program and its arguments; ":" and options for another program may follow
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub(super) program: Vec<OsString>,
}

/// The words after a ":", up to the next one.
#[derive(Debug, Parser)]
#[command(name = "ringrun", disable_help_flag = true)]
pub(super) struct LaterProgram {
    #[command(flatten)]
    hosts: ProgramHosts,

    #[command(flatten)]
    options: ProgramOptions,
}

/// The facts that all programs share.
pub(super) struct Shared<'a> {
    /// The variables of all ranks.
    pub(super) variables: &'a Variables,
    /// The directory in which ringrun itself runs.
    pub(super) here: &'a Path,
}

impl ProgramOptions {
    /// Takes the later programs out of the arguments of the first one, each with its ranks and
    /// hosts.
    pub(super) fn take_later(
        &mut self,
        warnings: &mut Vec<String>,
    ) -> Result<(Vec<ProgramHosts>, Vec<Self>), Failure> {
        let mut parts = self.program.split(|word| word == SEPARATOR);
        let first = parts.next().unwrap_or_default().to_vec();
        let parts: Vec<_> =
            parts.map(|part| LaterProgram::read(part, warnings)).collect::<Result<_, _>>()?;
        self.program = first;
        if self.program.is_empty() && !parts.is_empty() {
            return Err(Failure::Usage("no PROGRAM was given before ':'".into()));
        }
        Ok(parts.into_iter().map(|LaterProgram { hosts, options }| (hosts, options)).unzip())
    }

    /// All programs of the job.
    pub(super) fn programs(
        self,
        later: Vec<Self>,
        shared: &Shared<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Program>, Failure> {
        let directory = directory(self.wdir.as_deref(), shared.here)?;
        let python = self.python.clone();
        let mut programs = vec![self.program((directory.clone(), vec![]), shared.variables)?];
        for mut options in later {
            let variables = options.variables(warnings)?;
            let is_setting = |name: &OsStr| name.as_bytes().starts_with(SETTINGS);
            if let Some((name, _)) = variables.iter().find(|(name, _)| is_setting(name)) {
                return Err(Failure::Usage(format!(
                    "-x {} behind ':': the settings of ringreduce hold for all ranks; set it \
                     before the first program",
                    name.to_string_lossy()
                )));
            }
            let directory = match &options.wdir {
                None => directory.clone(),
                Some(given) => self::directory(Some(given), shared.here)?,
            };
            options.python.inherit(&python);
            let set = (directory, variables);
            programs.push(options.program(set, shared.variables)?);
        }
        Ok(programs)
    }

    fn program(
        self,
        (directory, variables): (PathBuf, Variables),
        of_all: &Variables,
    ) -> Result<Program, Failure> {
        let mut words = self.python.command(self.program, &directory)?.into_iter();
        let name = words.next().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Failure::Usage("PROGRAM is empty".into()))?;
        let path = of_all.iter().chain(&variables).rfind(|(name, _)| name == "PATH");
        let path = path.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("PATH"));
        Ok(Program {
            name,
            arguments: words.collect(),
            directory,
            path: path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            variables,
        })
    }

    /// The variables that these options set.
    pub(super) fn variables(&self, warnings: &mut Vec<String>) -> Result<Variables, Failure> {
        let here: Variables = std::env::vars_os().collect();
        let mut variables = vec![];
        for pair in self.genv.chunks_exact(2) {
            variables.push(environment::set(&pair[0], &pair[1]).map_err(Failure::Usage)?);
        }
        for word in &self.export {
            let (more, warning) = environment::export(word, &here).map_err(Failure::Usage)?;
            variables.extend(more);
            warnings.extend(warning);
        }
        Ok(variables)
    }
}

impl LaterProgram {
    fn read(words: &[OsString], warnings: &mut Vec<String>) -> Result<Self, Failure> {
        let (words, more) = aliases::translate(words.to_vec(), &Self::command())?;
        warnings.extend(more);
        let name = std::iter::once(OsString::from("ringrun"));
        Self::try_parse_from(name.chain(words)).map_err(|error| {
            Failure::Usage(match error.kind() {
                ErrorKind::MissingRequiredArgument => {
                    "no PROGRAM was given behind ':' (this word alone ends a program)".into()
                }
                ErrorKind::UnknownArgument => format!(
                    "{} behind ':': there are -n, -N, -H, --hostfile, -x, --genv, --wdir, \
                     --python, --module and --no-python; all other options hold for the whole job \
                     and stand before the first program",
                    message(&error).lines().next().unwrap_or_default()
                ),
                _ => message(&error),
            })
        })
    }
}

fn directory(wdir: Option<&Path>, here: &Path) -> Result<PathBuf, Failure> {
    let directory = wdir.map_or_else(|| here.to_owned(), |wdir| here.join(wdir));
    match directory.is_dir() {
        true => Ok(directory),
        false => Err(Failure::Usage(format!("--wdir {}: no such directory", directory.display()))),
    }
}
