//! Where the report and complaints go. A file is known to be writable before anything is measured,
//! and leaves nothing behind if nothing is ever written to it; a pipe may lose its reader.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cli::Cli;
use crate::compare::Earlier;
use crate::html;
use crate::report::{Line, Report};

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

/// Where the report goes besides standard output, and the earlier report to compare it with.
pub(crate) struct Files {
    json: Option<Json>,
    html: Option<Output>,
    earlier: Option<Earlier>,
    /// How many could not be written to the end.
    cut_short: u64,
}

impl Files {
    /// Opens what was asked for.
    pub(crate) fn open(cli: &Cli) -> Result<Self, String> {
        let earlier = cli.compare.as_deref().map(Earlier::read).transpose()?;
        let json = cli.json.as_deref().map(|path| Output::open("--json", path)).transpose()?;
        let html = cli.html.as_deref().map(|path| Output::open("--html", path)).transpose()?;
        Ok(Self { json: json.map(Json::new), html, earlier, cut_short: 0 })
    }

    /// Before the first row.
    pub(crate) fn begin(&mut self, report: &Report) -> Result<()> {
        self.json.as_mut().map_or(Ok(()), |json| json.add(&report.head()?, report))
    }

    /// One row more.
    pub(crate) fn row(&mut self, line: &Line, report: &Report) {
        self.add_json(|json| json.row(line, report));
    }

    /// A file that takes no more keeps the rows before. That is said at once, not after hours.
    fn add_json(&mut self, add: impl FnOnce(&mut Json) -> Result<()>) {
        if let Some(Err(error)) = self.json.as_mut().map(add) {
            let next = "it keeps the rows before and gets no more; make room and measure again";
            complain(&format!("--json {error:#}: {next}"));
            (self.json, self.cut_short) = (None, 1);
        }
    }

    /// The earlier report beside this one.
    pub(crate) fn comparison(&self, report: &Report) -> Result<String> {
        let text = self.earlier.as_ref().map(|earlier| earlier.text(report)).transpose()?;
        Ok(text.unwrap_or_default())
    }

    /// All that there is to write. How many files lack something that the user has heard of?
    pub(crate) fn finish(mut self, report: &Report) -> Result<u64> {
        self.add_json(|json| json.add("", report));
        if let Some(html) = self.html {
            html.write(&html::render(report))?;
        }
        Ok(self.cut_short)
    }
}

/// The report as JSON. A file is a whole document after every row; a pipe gets it at the end.
struct Json {
    output: Output,
    /// Text for a pipe, written at the end.
    text: String,
    /// Where in the file the next row begins, and what stands there.
    end: u64,
    tail: String,
    rows: usize,
}

impl Json {
    const fn new(output: Output) -> Self {
        Self { output, text: String::new(), end: 0, tail: String::new(), rows: 0 }
    }

    fn row(&mut self, line: &Line, report: &Report) -> Result<()> {
        let comma = if self.rows == 0 { "" } else { "," };
        self.rows += 1;
        self.add(&format!("{comma}\n    {}", serde_json::to_string(line)?), report)
    }

    /// Adds text before the end of the document, by one write of both. On a full disk a part of
    /// that is written; then the document gets back the end that it had, for which there is room.
    fn add(&mut self, text: &str, report: &Report) -> Result<()> {
        let tail = report.tail()?;
        let path = self.output.path.display().to_string();
        if self.output.is_file() {
            if let Err(error) = self.output.end_with(&format!("{text}{tail}"), self.end) {
                let _ = self.output.end_with(&self.tail, self.end);
                return Err(error).context(path);
            }
            self.end += text.len() as u64;
            (self.tail, self.output.fresh) = (tail, false);
            return Ok(());
        }
        self.text += text;
        if report.complete {
            let whole = format!("{}{tail}", self.text);
            self.output.file.write_all(whole.as_bytes()).context(path)?;
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

    /// Only files have a length: a pipe or a terminal takes the text as it is.
    fn is_file(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.is_file())
    }

    /// The file goes on with this from there, and ends with it.
    fn end_with(&self, text: &str, from: u64) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), from)?;
        self.file.set_len(from + text.len() as u64)
    }

    /// Replaces what was there.
    fn write(mut self, text: &str) -> Result<()> {
        let path = self.path.display().to_string();
        if self.is_file() {
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
    use crate::report::tests::sample;
    use ringreduce::DataType;
    use serde_json::Value;

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
    fn json_is_a_whole_document_after_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        fs::write(&path, "x".repeat(10_000)).unwrap();
        let output = Output::open("--json", &path).unwrap();
        let mut json = Json::new(output);
        let mut report = sample(&[DataType::F32]);
        let rows: Vec<_> = report.rows.drain(..).collect();
        report.complete = false;
        json.add(&report.head().unwrap(), &report).unwrap();
        let seen = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
        for (at, row) in rows.into_iter().enumerate() {
            let (before, size) = (seen(), row.size);
            assert_eq!(before["rows"].as_array().unwrap().len(), at);
            assert_eq!(before["complete"], false);
            json.row(&Line::Row(row), &report).unwrap();
            assert_eq!(seen()["rows"][at]["size"], size);
        }
        report.finish(None, 0);
        json.add("", &report).unwrap();
        assert_eq!((&seen()["complete"], &seen()["format"]), (&true.into(), &2.into()));
        assert!(seen()["rows"][3]["in_place"]["mean_us"].is_f64());
    }

    #[test]
    fn names_flag_and_file() {
        let error = Output::open("--html", Path::new("/nowhere/x.html")).err().unwrap();
        assert!(error.starts_with("--html /nowhere/x.html: No such file"), "{error}");
    }
}
