//! The comparison on a terminal.

use super::Row;
use crate::cli::name;
use crate::run::Job;

pub(super) fn head(job: &Job) -> String {
    let settings = &job.settings;
    format!(
        "{} on {}: {} images in batches of {}, {} epochs\n\
         strategy                       ranks  ms/step  exposed ms  hidden ms  images/s  accuracy  \
         sent/step: rank 0 (formula)   most (formula)",
        name(&settings.model),
        job.data.origin,
        job.data.train.len(),
        settings.batch,
        settings.epochs,
    )
}

/// The figures of a row, as texts.
pub(super) fn cells(row: &Row) -> [String; 11] {
    let first = |sent: &[u64]| bytes(sent.first().copied().unwrap_or_default());
    let most = |sent: &[u64]| bytes(sent.iter().copied().max().unwrap_or_default());
    [
        row.name.clone(),
        row.ranks.to_string(),
        format!("{:.2}", row.step),
        format!("{:.2}", row.exposed),
        format!("{:.2}", row.hidden),
        format!("{:.0}", row.images_per_second),
        format!("{:.2} %", row.accuracy * 100.0),
        first(&row.sent),
        first(&row.formula),
        most(&row.sent),
        most(&row.formula),
    ]
}

pub(super) fn line(row: &Row) -> String {
    let [name, ranks, step, exposed, hidden, images, accuracy, sent @ ..] = cells(row);
    let [first, first_formula, most, most_formula] = sent;
    let (first_formula, most_formula) = (format!("({first_formula})"), format!("({most_formula})"));
    format!(
        "{name:29}  {ranks:>5}  {step:>7}  {exposed:>10}  {hidden:>9}  {images:>8}  {accuracy:>8}  \
         {first:>16} {first_formula:>10}  {most:>9} {most_formula:>9}"
    )
}

/// `1.23 MB`.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.2} MB", bytes as f64 / 1e6),
    }
}
