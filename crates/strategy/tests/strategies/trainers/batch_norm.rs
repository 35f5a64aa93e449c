//! Batch normalization over ranks beside one rank that has the whole batch, and beside the
//! definition in plain `f64`.

use std::ops::Range;

use harness::on_ranks;
use ringreduce::{Communicator, ReduceOp};
use strategy::{BatchShape, SyncBatchNorm};

const CHANNELS: usize = 3;
const AREA: usize = 11;
const EPSILON: f64 = 1e-5;

/// A number from -1 to 1 that depends on another one.
fn noise(of: usize) -> f32 {
    ((of as f32 * 12.9898).sin() * 437.585).fract()
}

fn shape(samples: usize) -> BatchShape {
    BatchShape { samples, channels: CHANNELS, area: AREA }
}

/// The results, and the gradients of inputs, weights and biases.
type Results = [Vec<f32>; 4];

const WEIGHT: [f32; CHANNELS] = [1.5, -0.7, 0.3];
const BIAS: [f32; CHANNELS] = [0.1, 2.0, -0.4];

/// On ranks with these parts of a batch; gradients of weights and biases are added up.
fn synchronised(parts: &[Range<usize>], values: &[f32], gradient: &[f32]) -> Results {
    let ranks = on_ranks(parts.len(), |comm: &mut Communicator| {
        let part = parts[comm.rank()].clone();
        let place = part.start * CHANNELS * AREA..part.end * CHANNELS * AREA;
        let (values, gradient) = (&values[place.clone()], &gradient[place]);
        let shape = shape(part.len());
        let norm = SyncBatchNorm::new(comm.duplicate().unwrap(), EPSILON);
        let statistics = norm.statistics(values, shape).unwrap();
        let normalized = norm.normalize(values, shape, &statistics, [&WEIGHT, &BIAS]).unwrap();
        let gradients = norm.backward(values, shape, &statistics, &WEIGHT, gradient).unwrap();
        (statistics, normalized, gradients)
    });
    let mut all: Results = [vec![], vec![], vec![0.0; CHANNELS], vec![0.0; CHANNELS]];
    for (statistics, normalized, gradients) in &ranks {
        assert!(*statistics == ranks[0].0, "the same at all ranks, to the bit");
        all[0].extend(normalized);
        all[1].extend(&gradients.input);
        for (sums, mine) in all[2..].iter_mut().zip([&gradients.weight, &gradients.bias]) {
            sums.iter_mut().zip(mine).for_each(|(sum, it)| *sum += it);
        }
    }
    all
}

/// By the definition, in `f64`; the gradient of the inputs by finite differences of the loss
/// sum(gradient x result).
fn defined(samples: usize, values: &[f32], gradient: &[f32]) -> Results {
    let place = |channel: usize| {
        (0..samples).flat_map(move |sample| {
            let start = (sample * CHANNELS + channel) * AREA;
            start..start + AREA
        })
    };
    let normalized = |values: &[f64], channel: usize| -> Vec<(usize, f64)> {
        let count = (samples * AREA) as f64;
        let mean = place(channel).map(|at| values[at]).sum::<f64>() / count;
        let variance = place(channel).map(|at| (values[at] - mean).powi(2)).sum::<f64>() / count;
        let inverse = (variance + EPSILON).sqrt().recip();
        place(channel).map(|at| (at, (values[at] - mean) * inverse)).collect()
    };
    let values: Vec<f64> = values.iter().map(|it| f64::from(*it)).collect();
    let mut all: Results = [
        vec![0.0; values.len()],
        vec![0.0; values.len()],
        vec![0.0; CHANNELS],
        vec![0.0; CHANNELS],
    ];
    for channel in 0..CHANNELS {
        let (weight, bias) = (f64::from(WEIGHT[channel]), f64::from(BIAS[channel]));
        let (mut of_weight, mut of_bias) = (0.0, 0.0);
        for (at, it) in normalized(&values, channel) {
            all[0][at] = (it * weight + bias) as f32;
            of_weight += f64::from(gradient[at]) * it;
            of_bias += f64::from(gradient[at]);
        }
        (all[2][channel], all[3][channel]) = (of_weight as f32, of_bias as f32);
        let loss = |values: &[f64]| -> f64 {
            normalized(values, channel)
                .iter()
                .map(|(at, it)| f64::from(gradient[*at]) * (it * weight + bias))
                .sum()
        };
        for at in place(channel) {
            let moved = |by: f64| {
                let mut values = values.clone();
                values[at] += by;
                loss(&values)
            };
            all[1][at] = ((moved(1e-4) - moved(-1e-4)) / 2e-4) as f32;
        }
    }
    all
}

#[track_caller]
fn close(one: &Results, other: &Results, bound: f64, what: &str) {
    for (at, (one, other)) in one.iter().zip(other).enumerate() {
        assert_eq!(one.len(), other.len());
        let square = |it: f32| f64::from(it).powi(2);
        let apart = one.iter().zip(other).map(|(one, other)| square(one - other)).sum::<f64>();
        let distance = (apart / one.iter().map(|it| square(*it)).sum::<f64>()).sqrt();
        assert!(distance < bound, "{what}, result {at}: {distance:e}");
    }
}

#[test]
fn any_parts_of_a_batch_give_the_results_of_the_whole() {
    let samples = 6;
    let len = samples * CHANNELS * AREA;
    let gradient: Vec<f32> = (0..len).map(|at| noise(at + 7000)).collect();
    // Means near 0, and far above the deviation: where sums of squares in f32 would have no digit.
    for (mean, bound) in [(0.5, 1e-6), (1e3, 2e-5)] {
        let values: Vec<f32> =
            (0..len).map(|at| noise(at) + mean * (1 + at / AREA % CHANNELS) as f32).collect();
        let whole = 0..samples;
        let alone = synchronised(std::slice::from_ref(&whole), &values, &gradient);
        close(&defined(samples, &values, &gradient), &alone, bound, "the definition");
        for cuts in [&[0, 3, 6][..], &[0, 5, 6], &[0, 1, 3, 6], &[0, 4, 4, 6], &[0, 1, 2, 4, 6]] {
            let parts: Vec<_> = cuts.windows(2).map(|it| it[0]..it[1]).collect();
            close(&alone, &synchronised(&parts, &values, &gradient), 1e-6, &format!("{cuts:?}"));
        }
    }
}

/// The parameters after 50 steps of SGD of tanh(batch norm(A x)) . b, on these parts of a batch: A,
/// the weights and biases of the batch norm, b.
fn trained(parts: &[Range<usize>]) -> [Vec<f32>; 4] {
    const INPUTS: usize = 4;
    let samples = parts[parts.len() - 1].end;
    let ends = on_ranks(parts.len(), |comm: &mut Communicator| {
        let part = parts[comm.rank()].clone();
        let norm = SyncBatchNorm::new(comm.duplicate().unwrap(), EPSILON);
        let shape = BatchShape { samples: part.len(), channels: CHANNELS, area: 1 };
        let matrix = (0..CHANNELS * INPUTS).map(noise).collect();
        let mut parameters = [matrix, WEIGHT.to_vec(), BIAS.to_vec(), vec![0.5; CHANNELS]];
        for _ in 0..50 {
            let [matrix, weight, bias, last] = &parameters;
            let input = |sample: usize, i: usize| noise(sample * INPUTS + i + 300);
            let dot = |sample: usize, channel: usize| -> f32 {
                (0..INPUTS).map(|i| matrix[channel * INPUTS + i] * input(sample, i)).sum()
            };
            let inner: Vec<f32> = part
                .clone()
                .flat_map(|it| (0..CHANNELS).map(move |c| (it, c)))
                .map(|(it, c)| dot(it, c))
                .collect();
            let statistics = norm.statistics(&inner, shape).unwrap();
            let normalized = norm.normalize(&inner, shape, &statistics, [weight, bias]).unwrap();
            let active: Vec<f32> = normalized.iter().map(|it| it.tanh()).collect();
            let mut gradients = parameters.clone().map(|it| vec![0.0; it.len()]);
            let mut gradient = vec![0.0; active.len()];
            for (at, sample) in part.clone().enumerate() {
                let row = at * CHANNELS..(at + 1) * CHANNELS;
                let output: f32 = active[row.clone()].iter().zip(last).map(|(it, b)| it * b).sum();
                let error = 2.0 * (output - noise(sample + 900)) / samples as f32;
                for (channel, at) in row.enumerate() {
                    gradients[3][channel] += error * active[at];
                    gradient[at] = error * last[channel] * (1.0 - active[at] * active[at]);
                }
            }
            let below = norm.backward(&inner, shape, &statistics, weight, &gradient).unwrap();
            for (at, sample) in part.clone().enumerate() {
                for channel in 0..CHANNELS {
                    for i in 0..INPUTS {
                        let gradient = below.input[at * CHANNELS + channel];
                        gradients[0][channel * INPUTS + i] += gradient * input(sample, i);
                    }
                }
            }
            (gradients[1], gradients[2]) = (below.weight, below.bias);
            for (parameter, mut gradient) in parameters.iter_mut().zip(gradients) {
                comm.all_reduce(&mut gradient, ReduceOp::Sum).unwrap();
                parameter.iter_mut().zip(&gradient).for_each(|(it, by)| *it -= 0.1 * by);
            }
        }
        parameters
    });
    ends.into_iter().next().unwrap()
}

#[test]
fn fifty_steps_on_any_parts_of_a_batch_end_as_those_of_the_whole() {
    let whole = 0..12;
    let alone = trained(std::slice::from_ref(&whole));
    for cuts in [&[0, 5, 12][..], &[0, 2, 2, 12], &[0, 1, 4, 9, 12]] {
        let parts: Vec<_> = cuts.windows(2).map(|it| it[0]..it[1]).collect();
        close(&alone, &trained(&parts), 1e-5, &format!("{cuts:?}"));
    }
}

#[test]
fn a_channel_without_variance_is_its_bias() {
    let norm = SyncBatchNorm::new(Communicator::local(1).unwrap().remove(0), EPSILON);
    let shape = BatchShape { samples: 1, channels: 1, area: 1 };
    let statistics = norm.statistics(&[7.0], shape).unwrap();
    assert_eq!((statistics.mean[0], statistics.variance[0]), (7.0, 0.0));
    assert_eq!(statistics.unbiased_variance(), [0.0]);
    assert_eq!(norm.normalize(&[7.0], shape, &statistics, [&[3.0], &[2.0]]).unwrap(), [2.0]);
}

/// The loss shows it, and no running average hides it.
#[test]
fn a_variance_that_is_not_a_number_stays_so() {
    let norm = SyncBatchNorm::new(Communicator::local(1).unwrap().remove(0), EPSILON);
    let shape = BatchShape { samples: 2, channels: 1, area: 1 };
    let statistics = norm.statistics(&[1.0, f32::NAN], shape).unwrap();
    assert!(statistics.mean[0].is_nan() && statistics.variance[0].is_nan(), "{statistics:?}");
}

#[test]
fn running_averages_get_the_variance_without_bias() {
    let norm = SyncBatchNorm::new(Communicator::local(1).unwrap().remove(0), EPSILON);
    let shape = BatchShape { samples: 2, channels: 1, area: 2 };
    let statistics = norm.statistics(&[1.0, 2.0, 3.0, 4.0], shape).unwrap();
    assert_eq!((statistics.variance[0], statistics.count), (1.25, 4.0));
    assert!((statistics.unbiased_variance()[0] - 5.0 / 3.0).abs() < 1e-12);
}

#[test]
fn values_of_another_shape_are_refused() {
    let norm = SyncBatchNorm::new(Communicator::local(1).unwrap().remove(0), EPSILON);
    let error = norm.statistics(&[0.0; 5], shape(1)).unwrap_err().to_string();
    assert!(error.contains("5 values"), "{error}");
    let values = vec![0.0; CHANNELS * AREA];
    let statistics = norm.statistics(&values, shape(1)).unwrap();
    assert!(norm.normalize(&values, shape(1), &statistics, [&WEIGHT[1..], &BIAS]).is_err());
    assert!(norm.backward(&values, shape(1), &statistics, &WEIGHT, &values[1..]).is_err());
}
