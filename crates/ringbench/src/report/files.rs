//! Standard output and error, and the files of a report. Files are opened before anything is
//! measured, and removed again if nothing was written to them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringreduce::files::{OpenMode, open_for_writing, replace};

use crate::cli::Cli;
use crate::report::compare::EarlierReport;
use crate::report::{Line, Report, html};

/// The standard output has no reader any more, as behind `| head -1`, which is not reported.
#[derive(Debug, thiserror::Error)]
#[error("the standard output has no reader any more")]
pub(crate) struct OutputClosed;

pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        written => written.context("standard output"),
    }
}

/// Writes a message to the standard error. A closed one is ignored.
pub(crate) fn warn(what: &str) {
    let _ = io::stderr().write_all(format!("ringbench: {what}\n").as_bytes());
}

/// The files of a report, and the earlier report to compare it with.
pub(crate) struct ReportFiles {
    json: Option<Json>,
    html: Option<OutputFile>,
    earlier: Option<EarlierReport>,
    /// The number of files that could not be written to the end.
    cut_short: u64,
}

impl ReportFiles {
    pub(crate) fn open(cli: &Cli) -> Result<Self, String> {
        let earlier = cli.compare.as_deref().map(EarlierReport::read).transpose()?;
        let json = cli.json.as_deref().map(|path| OutputFile::open("--json", path)).transpose()?;
        let html = cli.html.as_deref().map(|path| OutputFile::open("--html", path)).transpose()?;
        Ok(Self { json: json.map(Json::new), html, earlier, cut_short: 0 })
    }

    pub(crate) fn begin(&mut self, report: &Report) -> Result<()> {
        self.json.as_mut().map_or(Ok(()), |json| json.add(&report.json_head()?, report))
    }

    pub(crate) fn row(&mut self, line: &Line, report: &Report) {
        self.add_json(|json| json.row(line, report));
    }

    /// Adds to the JSON file. If that fails, the file keeps the rows before, and the user is told
    /// now.
    fn add_json(&mut self, add: impl FnOnce(&mut Json) -> Result<()>) {
        if let Some(Err(error)) = self.json.as_mut().map(add) {
            let next = "it keeps the rows before and gets no more; make room and measure again";
            warn(&format!("--json {error:#}: {next}"));
            (self.json, self.cut_short) = (None, 1);
        }
    }

    pub(crate) fn comparison(&self, report: &Report) -> Result<String> {
        let text = self.earlier.as_ref().map(|earlier| earlier.text(report)).transpose()?;
        Ok(text.unwrap_or_default())
    }

    /// Writes all that is left, and gives the number of incomplete files.
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
    output: OutputFile,
    /// The document so far, without its end.
    text: String,
    rows: usize,
}

impl Json {
    const fn new(output: OutputFile) -> Self {
        Self { output, text: String::new(), rows: 0 }
    }

    fn row(&mut self, line: &Line, report: &Report) -> Result<()> {
        let comma = if self.rows == 0 { "" } else { "," };
        self.rows += 1;
        self.add(&format!("{comma}\n    {}", serde_json::to_string(line)?), report)
    }

    fn add(&mut self, text: &str, report: &Report) -> Result<()> {
        self.text += text;
        let document = format!("{}{}", self.text, report.json_tail()?);
        let path = self.output.path.display().to_string();
        if self.output.is_file() {
            self.output.replace(&document).context(path)?;
            self.output.is_new = false;
        } else if report.trailer.complete {
            self.output.file.write_all(document.as_bytes()).context(path)?;
        }
        Ok(())
    }
}

struct OutputFile {
    path: PathBuf,
    /// The path without links, under which a file is replaced.
    target: PathBuf,
    file: File,
    /// The file did not exist, and is still empty.
    is_new: bool,
}

impl OutputFile {
    /// Opens or creates a file without truncating it. The error names the flag.
    fn open(flag: &str, path: &Path) -> Result<Self, String> {
        let explain = |e: io::Error| format!("{flag} {}: {e}", path.display());
        let is_new = !path.exists();
        let file = open_for_writing(path, OpenMode::Keep).map_err(explain)?;
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path: path.to_owned(), target, file, is_new })
    }

    /// False for a pipe or a terminal, which has no length.
    fn is_file(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.is_file())
    }

    /// Replaces the file by another one with this text. Whoever reads it, whenever this process is
    /// killed, and if the disk is full, there is one of the two: a write may end in the middle.
    fn replace(&self, text: &str) -> io::Result<()> {
        let permissions = self.file.metadata()?.permissions();
        replace(&self.target, text, |part| part.set_permissions(permissions))
    }

    fn write(mut self, text: &str) -> Result<()> {
        let path = self.path.display().to_string();
        if self.is_file() {
            self.file.set_len(0).with_context(|| path.clone())?;
        }
        self.file.write_all(text.as_bytes()).with_context(|| path.clone())?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::report::tests::sample;
    use ringreduce::DataType;
    use serde_json::Value;

    #[test]
    fn an_unwritten_file_is_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        drop(OutputFile::open("--json", &path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "something long").unwrap();
        drop(OutputFile::open("--json", &path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "something long");
        OutputFile::open("--json", &path).unwrap().write("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }

    #[test]
    fn json_is_a_whole_document_after_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        fs::write(&path, "x".repeat(10_000)).unwrap();
        let output = OutputFile::open("--json", &path).unwrap();
        let mut json = Json::new(output);
        let mut report = sample(&[DataType::F32]);
        let rows: Vec<_> = report.rows.drain(..).collect();
        report.trailer.complete = false;
        json.add(&report.json_head().unwrap(), &report).unwrap();
        let seen = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
        for (at, row) in rows.into_iter().enumerate() {
            let (before, size) = (seen(), row.call.size);
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
    fn a_file_is_replaced_where_a_link_leads_and_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link] = ["out", "link"].map(|name| dir.path().join(name));
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        OutputFile::open("--json", &link).unwrap().replace("after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn an_error_names_flag_and_file() {
        let error = OutputFile::open("--html", Path::new("/nowhere/x.html")).err().unwrap();
        assert!(error.starts_with("--html /nowhere/x.html: No such file"), "{error}");
    }
}
