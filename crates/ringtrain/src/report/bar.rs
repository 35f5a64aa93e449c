//! The progress of an epoch on a terminal. Law: nothing is drawn in a pipe.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::run::History;

pub(crate) struct Bar {
    bar: ProgressBar,
    begun: Instant,
}

impl Bar {
    /// A bar for `steps` steps, of which `done` are done.
    pub(super) fn new(is_shown: bool, message: String, steps: usize, done: usize) -> Self {
        let begun = Instant::now();
        if !is_shown {
            return Self { bar: ProgressBar::hidden(), begun };
        }
        let style = ProgressStyle::with_template(
            "{prefix} {wide_bar} {pos}/{len} steps, {msg}, {eta} left",
        );
        let bar = ProgressBar::new(steps as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_prefix(message)
            .with_position(done as u64);
        Self { bar, begun }
    }

    /// A step is done; `images` were seen since the bar began.
    pub(crate) fn step(&self, history: &History, images: usize) {
        if self.bar.is_hidden() {
            return;
        }
        let loss = history.losses.last().copied().unwrap_or_default();
        let speed = images as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
        self.bar.set_message(format!("loss {loss:.4}, {speed:.0} images/s"));
        self.bar.inc(1);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
