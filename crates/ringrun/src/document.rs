//! The results of subcommands, printed or written to files: text, or the same as JSON.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use ringreduce::files::{OpenMode, open_for_writing};
use serde::Serialize;

use crate::cli::subcommands::print;
use crate::failure::Failure;

/// The option for JSON of a subcommand that prints a table or a tree.
#[derive(Debug, Args)]
pub(crate) struct JsonOption {
    /// Also write the same as JSON; `-` prints JSON instead of text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl JsonOption {
    /// Prints `text`, and writes `document` where the user wants it. Gives the exit code of
    /// [`print`].
    pub(crate) fn show<T: Serialize>(
        &self,
        document: &T,
        text: &str,
        doing: &str,
    ) -> Result<u8, Failure> {
        let Some(file) = &self.json else { return print(text.as_bytes(), doing) };
        let json = serde_json::to_string_pretty(document).map_err(Failure::system("make JSON"))?;
        let json = json + "\n";
        if file == Path::new("-") {
            return print(json.as_bytes(), doing);
        }
        write(file, &json)?;
        print(text.as_bytes(), doing)
    }
}

/// Writes a file that the user has named.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let opened = open_for_writing(file, OpenMode::Truncate);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
    written.map_err(Failure::system(format!("write {}", file.display())))
}
