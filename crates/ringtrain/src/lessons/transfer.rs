//! Lesson 5: transfer learning on a folder of images: a VGG-like network, first trained as a whole,
//! then with frozen convolutions, so that only the dense layers are communicated.

use super::{Checks, job};
use crate::cli::{LessonArgs, Settings};
use crate::data::Generated;
use crate::error::Result;
use crate::models::ModelKind;
use crate::report::print;
use crate::run::{Links, in_threads};

/// The side to which images are resized.
const SIDE: usize = 32;
const RANKS: usize = 2;

pub(super) fn run(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let images = if args.quick { 256 } else { 2_000 };
    let generated = Generated { is_colour: true, train: images, test: 200 };
    let mut sent = Vec::new();
    for freeze in [vec![], vec!["features".to_owned()]] {
        let settings = Settings {
            model: ModelKind::Vgg,
            batch: 32,
            epochs: if args.quick { 1 } else { 5 },
            lr: Some(0.002),
            freeze: freeze.clone(),
            ..Settings::default()
        };
        let job = job(args, generated, (images, Some(SIDE)), settings)?;
        let ranks = in_threads(&job, RANKS, Links::CountedRings)?;
        let outcome = &ranks[0];
        let bytes = outcome.sent_bytes.unwrap_or_default() / outcome.steps.max(1);
        let what = if freeze.is_empty() { "all layers" } else { "dense layers only" };
        for epoch in &outcome.epochs {
            print(&format!(
                "        {what}, epoch {}: loss {:.4}, accuracy {:.2} %, {:.1} s",
                epoch.epoch,
                epoch.loss(),
                epoch.accuracy * 100.0,
                epoch.seconds
            ))?;
        }
        // S (n-1)/n 2 bytes of gradients; the loss and what fills up a bucket are a little more.
        let formula = 4 * outcome.parameters as u64 * 2 * (RANKS as u64 - 1) / RANKS as u64;
        let name = format!("bytes that a rank sends in a step, {what}");
        checks.near(&name, formula as f64, bytes as f64, 0.01)?;
        sent.push(bytes as f64);
    }
    checks.at_least("bytes without frozen layers over bytes with", 1.5, sent[0] / sent[1])
}
