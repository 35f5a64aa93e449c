//! Where the report and complaints go. A file is known to be writable before anything is measured,
//! and leaves nothing behind if nothing is ever written to it; a pipe may lose its reader.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cli::Cli;
use crate::html;
use crate::report::Report;

/// Standard output without a reader, as behind `| head -1`: nothing to talk about.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the standard output any more")]
pub(crate) struct Unread;

/// Writes to standard output.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Unread.into()),
        written => written.context("standard output"),
    }
}

/// Says what the user should know. A closed standard error is nothing to fail for.
pub(crate) fn complain(what: &str) {
    let _ = io::stderr().write_all(format!("ringbench: {what}\n").as_bytes());
}

/// What the report goes to besides standard output.
pub(crate) struct Files {
    json: Option<Output>,
    html: Option<Output>,
}

impl Files {
    /// Opens what was asked for.
    pub(crate) fn open(cli: &Cli) -> Result<Self, String> {
        let json = cli.json.as_deref().map(|path| Output::open("--json", path)).transpose()?;
        let html = cli.html.as_deref().map(|path| Output::open("--html", path)).transpose()?;
        Ok(Self { json, html })
    }

    /// Writes all of it.
    pub(crate) fn write(self, report: &Report) -> Result<()> {
        if let Some(json) = self.json {
            json.write(&(serde_json::to_string_pretty(report)? + "\n"))?;
        }
        if let Some(html) = self.html {
            html.write(&html::render(report))?;
        }
        Ok(())
    }
}

/// An opened, still untouched file.
struct Output {
    path: PathBuf,
    file: File,
    /// It did not exist, and holds nothing yet.
    fresh: bool,
}

impl Output {
    /// Opens it, creating but not truncating; says which flag asked for it.
    fn open(flag: &str, path: &Path) -> Result<Self, String> {
        let explain = |e: io::Error| format!("{flag} {}: {e}", path.display());
        let fresh = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        Ok(Self { path: path.to_owned(), file: file.map_err(explain)?, fresh })
    }

    /// Replaces what was there.
    fn write(mut self, text: &str) -> Result<()> {
        let path = self.path.display().to_string();
        // Only files have a length: a pipe or a terminal takes the text as it is.
        if self.file.metadata().is_ok_and(|data| data.is_file()) {
            self.file.set_len(0).with_context(|| path.clone())?;
        }
        self.file.write_all(text.as_bytes()).with_context(|| path.clone())?;
        self.fresh = false;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.fresh {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_nothing_unless_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        drop(Output::open("--json", &path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "something long").unwrap();
        drop(Output::open("--json", &path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "something long");
        Output::open("--json", &path).unwrap().write("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }

    #[test]
    fn names_flag_and_file() {
        let error = Output::open("--html", Path::new("/nowhere/x.html")).err().unwrap();
        assert!(error.starts_with("--html /nowhere/x.html: No such file"), "{error}");
    }
}
