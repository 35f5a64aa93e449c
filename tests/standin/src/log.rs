//! The log of misuse, in the file that `STANDIN_CUDA_LOG` names. May touch that file. Law: each
//! line begins with the number of the process.

use std::fs::OpenOptions;
use std::io::Write;

use crate::settings;

/// Logs a misuse, if a file is named.
pub(crate) fn misuse(what: &str) {
    let Some(path) = &settings::get().log else { return };
    let line = format!("{}: {what}\n", std::process::id());
    // One write, so that lines of several processes do not mix.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("stand-in CUDA driver: {path}: {error}; {what}");
    }
}
