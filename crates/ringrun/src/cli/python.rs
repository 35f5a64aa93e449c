//! Programs that are Python's: a script is started by the Python that `--python` names, and so is
//! a module. `python -m ringreduce.run` passes its own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;

#[derive(Clone, Debug, Args)]
pub(super) struct Python {
    /// If PROGRAM is a file whose name ends with .py, start it by this Python
    #[arg(long, value_name = "PYTHON", help_heading = "Program")]
    python: Option<PathBuf>,

    /// PROGRAM is the name of a module, for --python to start
    #[arg(short, long, conflicts_with = "no_python", help_heading = "Program")]
    module: bool,

    /// Start PROGRAM itself, whatever its name is
    #[arg(long, help_heading = "Program")]
    no_python: bool,
}

/// True if these words of a command line name a Python.
pub(super) fn is_named(words: &[OsString]) -> bool {
    words.iter().any(|word| word == "--python" || word.as_bytes().starts_with(b"--python="))
}

/// The error of an option that ringrun does not have, where it may be Python's.
pub(super) fn own_option(unknown: &str) -> Failure {
    let unknown = unknown.lines().next().unwrap_or_default();
    Failure::Usage(format!(
        "{unknown}\n  Python's own options belong into a command of Python: ringrun -n N python3 \
         -X utf8 SCRIPT (--python itself sets -u alone)"
    ))
}

impl Python {
    /// Takes the Python and `--no-python` of the first program where this one says nothing.
    pub(super) fn inherit(&mut self, first: &Self) {
        self.no_python |= first.no_python && !self.module;
        self.python = self.python.take().or_else(|| first.python.clone());
    }

    /// The command of a rank that starts in `directory`. Python writes what it prints at once, as
    /// under torchrun: a rank that is killed would lose what it keeps back.
    pub(super) fn command(
        self,
        program: Vec<OsString>,
        directory: &Path,
    ) -> Result<Vec<OsString>, Failure> {
        let is_script = program.first().is_some_and(|name| {
            name.as_bytes().ends_with(b".py") && directory.join(name).is_file()
        });
        let options: &[&str] = match self.python {
            None if self.module => {
                let advice = "-m is not supported: say: ringrun ... python3 -m MODULE";
                return Err(Failure::Usage(advice.into()));
            }
            Some(_) if self.module => &["-u", "-m"],
            Some(_) if is_script && !self.no_python => &["-u"],
            _ => return Ok(program),
        };
        let python = self.python.into_iter().map(PathBuf::into_os_string);
        Ok(python.chain(options.iter().map(OsString::from)).chain(program).collect())
    }
}
