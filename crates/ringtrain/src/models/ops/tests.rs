//! The operations beside plain loops, and their gradients beside differences.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor, Var};
use strategy::BatchStatistics;

use super::*;
use crate::models::batch_norm::BatchMoments;
use crate::models::parameter::{Parameter, Pass};

/// Values from -1 to 1 that look random.
fn noise(count: usize, salt: usize) -> Vec<f32> {
    let value = |at: usize| ((at * 7919 + salt * 104_729 + 13) as f32 * 12.9898).sin() * 437.585;
    (0..count).map(|at| value(at).fract()).collect()
}

fn var(shape: &[usize], salt: usize) -> Var {
    Var::from_vec(noise(shape.iter().product(), salt), shape, &Device::Cpu).unwrap()
}

fn target() -> super::super::parameter::Target {
    let var = Var::from_vec(vec![0_f32], 1, &Device::Cpu).unwrap();
    let parameter: Arc<Parameter> = Parameter::new("any".into(), 0, var);
    parameter.target(&Pass::training())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        assert!(error < 2e-4, "{what}, value {at}: {found}, expected {expected}");
    }
}

/// Compares the gradients of a weighted sum of the outputs with differences of it.
#[track_caller]
fn check_gradients(vars: &[&Var], forward: impl Fn() -> Tensor, what: &str) {
    let outputs = forward();
    let weights = Tensor::from_vec(noise(outputs.elem_count(), 99), outputs.shape(), &Device::Cpu);
    let weights = weights.unwrap();
    let sum = |outputs: Tensor| -> f64 {
        values(&outputs).iter().zip(values(&weights)).map(|(a, b)| f64::from(a * b)).sum()
    };
    let grads = (&outputs * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    for (place, var) in vars.iter().enumerate() {
        let gradient = values(grads.get(var).unwrap());
        let before = values(var);
        let step = 1e-2;
        for at in (0..before.len()).step_by(before.len() / 40 + 1) {
            let moved = |by: f32| {
                let mut values = before.clone();
                values[at] += by;
                var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
                sum(forward())
            };
            let slope = ((moved(step) - moved(-step)) / f64::from(2.0 * step)) as f32;
            let error = (slope - gradient[at]).abs() / slope.abs().max(1.0);
            assert!(error < 2e-2, "{what}, var {place}, {at}: {}, slope {slope}", gradient[at]);
        }
        var.set(&Tensor::from_vec(before, var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
}

fn conv(x: &Tensor, w: &Tensor, b: Option<&Tensor>, stride: usize, padding: usize) -> Tensor {
    let bias = b.map(|_| target());
    let activation = Activation::Identity;
    let operation = Conv { stride, padding, activation, weight: target(), bias };
    biased(x, w, b.cloned(), operation).unwrap()
}

#[test]
fn convolutions_equal_plain_loops() {
    for (n, c, h, w, o, k, stride, padding) in [
        (3, 2, 9, 7, 4, 3, 1, 1),
        (3, 2, 9, 8, 4, 3, 2, 1),
        (2, 3, 8, 8, 5, 5, 1, 0),
        (1, 1, 5, 5, 1, 5, 1, 0),
        (7, 6, 4, 4, 3, 1, 1, 0),
        (2, 6, 5, 4, 3, 1, 2, 0),
        (2, 3, 70, 66, 2, 1, 1, 0),
        (2, 2, 70, 66, 2, 3, 2, 1),
        (1, 1, 1, 1, 2, 3, 1, 1),
    ] {
        let (x, kernel, bias) = (var(&[n, c, h, w], 1), var(&[o, c, k, k], 2), var(&[o], 3));
        let found = conv(&x, &kernel, Some(&bias), stride, padding);
        let (oh, ow) = ((h + 2 * padding - k) / stride + 1, (w + 2 * padding - k) / stride + 1);
        assert_eq!(found.dims(), [n, o, oh, ow]);
        let (xs, ks, bs) = (values(&x), values(&kernel), values(&bias));
        let mut expected = Vec::new();
        for place in 0..n * o * oh * ow {
            let (image, plane) = (place / (o * oh * ow), place / (oh * ow) % o);
            let (y, x) = (place / ow % oh, place % ow);
            let mut sum = bs[plane];
            for at in 0..c * k * k {
                let (channel, ky, kx) = (at / (k * k), at / k % k, at % k);
                let (iy, ix) = (y * stride + ky, x * stride + kx);
                if (padding..h + padding).contains(&iy) && (padding..w + padding).contains(&ix) {
                    let pixel = ((image * c + channel) * h + iy - padding) * w + ix - padding;
                    sum += xs[pixel] * ks[plane * c * k * k + at];
                }
            }
            expected.push(sum);
        }
        let what = format!("{n}x{c}x{h}x{w}, {o} of {k}x{k}, stride {stride}");
        close(&values(&found), &expected, &what);
        let vars = [&x, &kernel, &bias];
        check_gradients(&vars, || conv(&x, &kernel, Some(&bias), stride, padding), &what);
        check_gradients(&vars[..2], || conv(&x, &kernel, None, stride, padding), &what);
    }
}

#[test]
fn dense_layers_equal_plain_loops() {
    let (x, w, b) = (var(&[4, 2, 3], 1), var(&[5, 6], 2), var(&[5], 3));
    let forward = || {
        let activation = Activation::Identity;
        let operation = Linear { activation, weight: target(), bias: Some(target()) };
        x.apply_op3(&w, &b, operation).unwrap()
    };
    let (xs, ws, bs) = (values(&x), values(&w), values(&b));
    let dot = |n: usize, o: usize| (0..6).map(|i| xs[n * 6 + i] * ws[o * 6 + i]).sum::<f32>();
    let expected: Vec<f32> = (0..20).map(|at| bs[at % 5] + dot(at / 5, at % 5)).collect();
    close(&values(&forward()), &expected, "linear");
    check_gradients(&[&x, &w, &b], forward, "linear");
}

#[test]
fn a_pool_takes_the_largest_and_gives_its_gradient_back() {
    let image = [1., 2., 0., 4., 9., 3., -1., -2., 8., 7., 0., 0., 5., 6., 0.];
    let x = Var::from_slice(&image, (1, 1, 3, 5), &Device::Cpu).unwrap().to_dtype(DType::F32);
    let x = Var::from_tensor(&x.unwrap()).unwrap();
    let pooled = x.apply_op1(MaxPool).unwrap();
    assert_eq!(pooled.dims(), [1, 1, 1, 2]);
    assert_eq!(values(&pooled), [3., 8.]);
    let x = var(&[2, 3, 6, 4], 5);
    check_gradients(&[&x], || x.apply_op1(MaxPool).unwrap(), "pool");
}

fn depthwise(x: &Tensor, w: &Tensor, stride: usize) -> Tensor {
    x.apply_op2(w, Depthwise { stride, weight: target() }).unwrap()
}

#[test]
fn depthwise_convolutions_equal_plain_loops() {
    let sides = [(1, 1), (1, 2), (2, 1), (4, 4), (5, 7), (8, 6), (17, 16)];
    for ((rows, columns), stride) in sides.into_iter().flat_map(|it| [(it, 1), (it, 2)]) {
        let (x, kernel) = (var(&[2, 3, rows, columns], 1), var(&[3, 1, 3, 3], 2));
        let found = depthwise(&x, &kernel, stride);
        let (out_rows, out_columns) = (rows.div_ceil(stride), columns.div_ceil(stride));
        assert_eq!(found.dims(), [2, 3, out_rows, out_columns]);
        let (pixels, weights) = (values(&x), values(&kernel));
        let mut expected = Vec::new();
        for place in 0..6 * out_rows * out_columns {
            let plane = place / (out_rows * out_columns);
            let (y, x) = (place / out_columns % out_rows, place % out_columns);
            let mut sum = 0.0;
            for tap in 0..9 {
                let (iy, ix) = (y * stride + tap / 3, x * stride + tap % 3);
                if (1..=rows).contains(&iy) && (1..=columns).contains(&ix) {
                    let pixel = (plane * rows + iy - 1) * columns + ix - 1;
                    sum += pixels[pixel] * weights[plane % 3 * 9 + tap];
                }
            }
            expected.push(sum);
        }
        let what = format!("{rows}x{columns}, stride {stride}");
        close(&values(&found), &expected, &what);
        check_gradients(&[&x, &kernel], || depthwise(&x, &kernel, stride), &what);
    }
}

/// Batch norm in training; with `ranks` as if that many had the same images.
fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    ranks: Option<Arc<dyn BatchMoments>>,
) -> Tensor {
    let mut sums = sums(x).unwrap();
    if let Some(ranks) = &ranks {
        ranks.add_up(&mut sums).unwrap();
    }
    let (statistics, activation) = (BatchStatistics::from_sums(&sums), Activation::Identity);
    let operation = Norm { activation, statistics, ranks, weight: target(), bias: target() };
    x.apply_op3(weight, bias, operation).unwrap()
}

/// Two ranks with the same images.
struct Twice;

impl BatchMoments for Twice {
    fn add_up(&self, sums: &mut [f64]) -> Result<()> {
        sums.iter_mut().for_each(|sum| *sum *= 2.0);
        Ok(())
    }
}

#[test]
fn batch_norm_has_mean_0_and_variance_1_and_its_gradients() {
    let (x, weight, bias) = (var(&[3, 2, 3, 5], 1), var(&[2], 2), var(&[2], 3));
    let outputs = norm(&x, &weight, &bias, None);
    let (scales, shifts, all) = (values(&weight), values(&bias), values(&outputs));
    for channel in 0..2 {
        let planes = all.chunks(15).enumerate().filter(|(plane, _)| plane % 2 == channel);
        let normal: Vec<f32> = planes
            .flat_map(|(_, plane)| plane.to_vec())
            .map(|value| (value - shifts[channel]) / scales[channel])
            .collect();
        let mean = normal.iter().sum::<f32>() / 45.0;
        let variance = normal.iter().map(|it| it * it).sum::<f32>() / 45.0;
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-3, "{mean}, {variance}");
    }
    check_gradients(&[&x, &weight, &bias], || norm(&x, &weight, &bias, None), "norm");
    // The moments of twice the same images are those of the images, and so are the gradients.
    let twice: Arc<dyn BatchMoments> = Arc::new(Twice);
    let double = norm(&x, &weight, &bias, Some(twice.clone()));
    close(&values(&double), &all, "two ranks");
    let gradient = |outputs: Tensor| {
        let weights = Tensor::from_vec(noise(90, 4), outputs.shape(), &Device::Cpu).unwrap();
        let grads = (outputs * weights).unwrap().sum_all().unwrap().backward().unwrap();
        values(grads.get(&x).unwrap())
    };
    let alone = gradient(norm(&x, &weight, &bias, None));
    close(&gradient(norm(&x, &weight, &bias, Some(twice))), &alone, "two ranks, gradient");
}

/// Ranks that are threads.
struct Ranks(Mutex<ringreduce::Communicator>);

impl BatchMoments for Ranks {
    fn add_up(&self, sums: &mut [f64]) -> Result<()> {
        let mut comm = self.0.lock().unwrap();
        comm.all_reduce(sums, ringreduce::ReduceOp::Sum).map_err(Error::wrap)
    }
}

#[test]
fn batch_norm_over_ranks_is_that_of_one_rank_with_all_images() {
    let (all, weight, bias) = (noise(5 * 2 * 6, 1), noise(2, 2), noise(2, 3));
    let outside = noise(all.len(), 4);
    // Outputs, and the gradients of images, weight and bias, for the images in a range.
    let run = |range: std::ops::Range<usize>, ranks: Option<Arc<dyn BatchMoments>>| {
        let (count, part) = (range.len(), range.start * 12..range.end * 12);
        let of =
            |values: &[f32], shape: &[usize]| Var::from_slice(values, shape, &Device::Cpu).unwrap();
        let x = of(&all[part.clone()], &[count, 2, 3, 2]);
        let (weight, bias) = (of(&weight, &[2]), of(&bias, &[2]));
        let outputs = norm(&x, &weight, &bias, ranks);
        let outside = of(&outside[part], &[count, 2, 3, 2]);
        let grads =
            (&outputs * outside.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = |var: &Var| values(grads.get(var).unwrap());
        [values(&outputs), gradient(&x), gradient(&weight), gradient(&bias)]
    };
    let alone = run(0..5, None);
    // The last rank has no images.
    let ranges = [0..2, 2..5, 5..5];
    let parts: Vec<[Vec<f32>; 4]> = std::thread::scope(|scope| {
        let comms = ringreduce::Communicator::local(3).unwrap();
        let run = &run;
        let ranks: Vec<_> = comms
            .into_iter()
            .zip(ranges)
            .map(|(comm, range)| {
                scope.spawn(move || run(range, Some(Arc::new(Ranks(Mutex::new(comm))))))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for what in 0..2 {
        let joined: Vec<f32> = parts.iter().flat_map(|part| part[what].clone()).collect();
        close(&joined, &alone[what], "outputs or their gradient");
    }
    for what in 2..4 {
        let sum = |place: usize| parts.iter().map(|part| part[what][place]).sum::<f32>();
        close(&[sum(0), sum(1)], &alone[what], "weight or bias");
    }
}

#[test]
fn a_value_that_is_no_number_is_not_hidden() {
    let x = Tensor::from_slice(&[1., f32::NAN, -2., 3.], (1, 1, 2, 2), &Device::Cpu).unwrap();
    assert!(values(&x.apply_op1(MaxPool).unwrap())[0].is_nan());
    for activation in [Activation::Relu, Activation::Relu6] {
        let mut outputs = [f32::NAN, -1.0, 2.0, 7.0];
        activation.apply(&mut outputs);
        let largest = if activation == Activation::Relu { 7.0 } else { 6.0 };
        assert!(outputs[0].is_nan() && outputs[1..] == [0.0, 2.0, largest]);
    }
}

#[test]
fn the_gradient_of_a_rectifier_is_that_of_its_line() {
    let of = |values: &[f32]| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
    let (outputs, gradient) = (of(&[0.0, 2.0, 6.0]), of(&[1.0, 2.0, 3.0]));
    let backward = |it: Activation| values(&it.backward(&outputs, &gradient).unwrap());
    assert_eq!(backward(Activation::Identity), [1.0, 2.0, 3.0]);
    assert_eq!(backward(Activation::Relu), [0.0, 2.0, 3.0]);
    assert_eq!(backward(Activation::Relu6), [0.0, 2.0, 0.0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let (x, w, b) = (var(&[2, 3, 4, 4], 1), var(&[5, 2, 3, 3], 2), var(&[5], 3));
    let activation = Activation::Identity;
    let operation = Conv { stride: 1, padding: 1, activation, weight: target(), bias: None };
    let error = biased(&x, &w, None, operation).unwrap_err().to_string();
    assert!(error.contains("3 channels, weights are for 2"), "{error}");
    let operation = Linear { activation, weight: target(), bias: Some(target()) };
    let error = x.apply_op3(&var(&[5, 7], 1), &b, operation).unwrap_err().to_string();
    assert!(error.contains("not 7 values each"), "{error}");
}
