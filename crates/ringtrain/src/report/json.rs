//! Results as JSON.

use std::fs::File;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::cli::Settings;
use crate::error::{Error, Result};
use crate::run::{Job, Outcome};

/// The content of a training's file.
#[derive(Serialize)]
struct Document<'a> {
    data: &'a str,
    settings: &'a Settings,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

pub(super) fn training(file: File, path: &Path, job: &Job, outcome: &Outcome) -> Result<()> {
    let document = Document { data: &job.data.origin, settings: &job.settings, outcome };
    write(file, path, &document)
}

/// Writes a value to a file that is open.
pub(crate) fn write(file: File, path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from);
    let text = text.map_err(|source| Error::Output { what: path.display().to_string(), source })?;
    super::write_text(file, path, &format!("{text}\n"))
}
