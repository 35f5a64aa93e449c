//! Spellings of flags that clap does not read.

use std::ffi::OsString;

/// `-np` as clap reads it, with two dashes. For command lines on which no other flag begins with
/// `-n` and the value of `-n` is a number: those of ringrun's subcommands and of ringbench.
#[must_use]
pub fn np(word: OsString) -> OsString {
    match word.to_str() {
        Some(text) if text == "-np" || text.starts_with("-np=") => format!("-{text}").into(),
        _ => word,
    }
}
