//! The reports of all ranks at the end of a step, and their common result: a pure function,
//! so all ranks come to the same loss, the same norm and the same culprit.

use super::run::PipelineTimes;

/// A rank's report; `all_gather` takes it as [`Report::LEN`] numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) loss: f64,
    /// The sum of squares of the stage's gradients: 0 in all replicas but the first.
    pub(super) square_sum: f64,
    /// Whether an output of the forward pass was not finite.
    pub(super) has_bad_output: bool,
    /// The last parameter whose gradient was not finite.
    pub(super) bad_gradient: Option<usize>,
    pub(super) times: PipelineTimes,
}

impl Report {
    pub(super) const LEN: usize = 6;

    pub(super) fn numbers(&self) -> [f64; Self::LEN] {
        let Self { loss, square_sum, has_bad_output, bad_gradient, times } = *self;
        // The number of a parameter is exact below 2^53.
        let bad_gradient = bad_gradient.map_or(-1.0, |at| at as f64);
        let (busy, idle) = (times.busy.as_secs_f64(), times.idle.as_secs_f64());
        [loss, square_sum, f64::from(u8::from(has_bad_output)), bad_gradient, busy, idle]
    }
}

/// The result of all ranks' reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Totals {
    pub(super) loss: f32,
    /// The norm of all gradients.
    pub(super) norm: f64,
    /// The share of the time in which stages waited, over all of them.
    pub(super) bubble: f64,
    /// The rank at which the first number that is not finite came up: the first stage with such an
    /// output, else the last stage with such a gradient, where the backward pass begins.
    pub(super) culprit: Option<usize>,
}

impl Totals {
    /// From the numbers of all ranks, each [`Report::LEN`]; the ranks of a replica are consecutive.
    pub(super) fn of(numbers: &[f64], stages: usize) -> Self {
        let reports = || numbers.as_chunks::<{ Report::LEN }>().0.iter();
        let sum = |at: usize| reports().map(|it| it[at]).sum::<f64>();
        let (busy, idle) = (sum(4), sum(5));
        let stage = |(rank, _): &(usize, &[f64; Report::LEN])| *rank % stages.max(1);
        let first = reports().enumerate().filter(|(_, it)| it[2] > 0.0).min_by_key(stage);
        let last = reports().enumerate().filter(|(_, it)| it[3] >= 0.0).max_by_key(stage);
        Self {
            loss: sum(0) as f32,
            norm: sum(1).sqrt(),
            bubble: idle / (busy + idle).max(f64::MIN_POSITIVE),
            culprit: first.or(last).map(|(rank, _)| rank),
        }
    }
}
