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

pub(super) fn line(row: &Row) -> String {
    let most = |sent: &[u64]| sent.iter().copied().max().unwrap_or_default();
    let first = |sent: &[u64]| sent.first().copied().unwrap_or_default();
    format!(
        "{:29}  {:>5}  {:>7.2}  {:>10.2}  {:>9.2}  {:>8.0}  {:>6.2} %  {:>16} {:>10}  {:>9} {:>9}",
        row.name,
        row.ranks,
        row.step,
        row.exposed,
        row.hidden,
        row.images_per_second,
        row.accuracy * 100.0,
        bytes(first(&row.sent)),
        format!("({})", bytes(first(&row.formula))),
        bytes(most(&row.sent)),
        format!("({})", bytes(most(&row.formula))),
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
