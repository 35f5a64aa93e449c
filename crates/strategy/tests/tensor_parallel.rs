//! Two linear layers, the first split by columns and the second by rows, beside one rank that has
//! the whole layers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{LinearPart, Mapping, Optimizer, TensorParallel, Updater};

const SAMPLES: usize = 6;
const STEPS: usize = 50;

/// A number from -1 to 1 that depends on another one.
fn noise(of: usize) -> f32 {
    ((of as f32 * 12.9898).sin() * 437.585).fract()
}

fn noises(start: usize, count: usize) -> Vec<f32> {
    (start..start + count).map(noise).collect()
}

#[test]
fn parts_of_a_weight_make_up_the_whole_and_differ_by_one_at_most() {
    for (inputs, outputs) in [(1, 1), (3, 5), (5, 3), (4, 8), (7, 7)] {
        let whole = noises(0, inputs * outputs);
        for size in 1..9 {
            for parts in [LinearPart::by_columns, LinearPart::by_rows] {
                let mut joined = vec![f32::NAN; whole.len()];
                let (mut inputs_of, mut outputs_of) = (Vec::new(), Vec::new());
                for rank in 0..size {
                    let part = parts(inputs, outputs, rank, size);
                    let weight = part.cut(&whole).unwrap();
                    assert_eq!(weight.len(), part.inputs.len() * part.outputs.len());
                    // A number of the part is where its input and output say.
                    for (row, output) in part.outputs.clone().enumerate() {
                        for (column, input) in part.inputs.clone().enumerate() {
                            let it = weight[row * part.inputs.len() + column];
                            assert_eq!(it, whole[output * inputs + input]);
                        }
                    }
                    part.put(&weight, &mut joined).unwrap();
                    inputs_of.push(part.inputs.len());
                    outputs_of.push(part.outputs.len());
                }
                assert_eq!(joined, whole);
                for sides in [inputs_of, outputs_of] {
                    let (least, most) = (sides.iter().min().unwrap(), sides.iter().max().unwrap());
                    assert!(most - least <= 1, "{inputs} x {outputs}, {size}: {sides:?}");
                }
                let part = parts(inputs, outputs, 0, size);
                assert!(part.put(&[0.0; 99], &mut joined).is_err());
                if !part.inputs.is_empty() && !part.outputs.is_empty() {
                    for rank in 0..size {
                        let part = parts(inputs, outputs, rank, size);
                        assert!(part.cut(&whole[1..]).is_err());
                        assert!(part.cut(&[&whole[..], &[0.0]].concat()).is_err());
                    }
                }
            }
        }
    }
}

/// y = x weight^T, for rows of `inputs`.
fn linear(x: &[f32], weight: &[f32], inputs: usize, outputs: usize, rows: usize) -> Vec<f32> {
    let mut y = vec![0.0; rows * outputs];
    for row in 0..rows {
        for output in 0..outputs {
            for input in 0..inputs {
                y[row * outputs + output] +=
                    x[row * inputs + input] * weight[output * inputs + input];
            }
        }
    }
    y
}

/// The gradients of the weight and of x.
fn linear_backward(
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    (inputs, outputs): (usize, usize),
) -> (Vec<f32>, Vec<f32>) {
    let (mut of_weight, mut of_x) = (vec![0.0; weight.len()], vec![0.0; x.len()]);
    for row in 0..SAMPLES {
        for output in 0..outputs {
            let gradient = gradient[row * outputs + output];
            for input in 0..inputs {
                of_weight[output * inputs + input] += gradient * x[row * inputs + input];
                of_x[row * inputs + input] += gradient * weight[output * inputs + input];
            }
        }
    }
    (of_weight, of_x)
}

/// The sum over rows.
fn column_sums(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).map(|column| values.iter().skip(column).step_by(columns).sum()).collect()
}

fn add_bias(values: &mut [f32], bias: &[f32]) {
    for row in values.chunks_exact_mut(bias.len().max(1)) {
        row.iter_mut().zip(bias).for_each(|(it, bias)| *it += bias);
    }
}

/// The whole parameters after [`STEPS`] steps of a first layer (scaling each input), a layer by
/// columns, tanh and a layer by rows; and the last loss.
fn trained(n: usize, inputs: usize, hidden: usize, outputs: usize) -> (Vec<Vec<f32>>, f32) {
    let whole = [
        noises(1, inputs),
        noises(100, inputs * hidden),
        noises(400, hidden),
        noises(500, hidden * outputs),
        noises(900, outputs),
    ];
    let ranks = on_ranks(n, |comm: &mut Communicator| {
        let mut group = TensorParallel::new(comm.duplicate().unwrap());
        let (rank, size) = (group.rank(), group.size());
        let columns = LinearPart::by_columns(inputs, hidden, rank, size);
        let rows = LinearPart::by_rows(hidden, outputs, rank, size);
        let width = columns.outputs.len();
        assert_eq!(columns.outputs, rows.inputs);
        let mut parameters = [
            whole[0].clone(),
            columns.cut(&whole[1]).unwrap(),
            whole[2][columns.outputs.clone()].to_vec(),
            rows.cut(&whole[3]).unwrap(),
            whole[4].clone(),
        ];
        let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.001 };
        let mut updater = Updater::new(optimizer, &parameters.each_ref().map(Vec::len));
        let samples = noises(2000, SAMPLES * inputs);
        let wanted = noises(3000, SAMPLES * outputs);
        let mut loss = 0.0;
        for _ in 0..STEPS {
            let [scale, first, first_bias, second, second_bias] = &parameters;
            let scaled: Vec<f32> =
                samples.iter().enumerate().map(|(at, it)| it * scale[at % inputs]).collect();
            let x = group.forward(Mapping::Copy, scaled).unwrap();
            let mut inner = linear(&x, first, inputs, width, SAMPLES);
            add_bias(&mut inner, first_bias);
            let inner: Vec<f32> = inner.iter().map(|it| it.tanh()).collect();
            let contributions = linear(&inner, second, width, outputs, SAMPLES);
            let mut y = group.forward(Mapping::Reduce, contributions).unwrap();
            add_bias(&mut y, second_bias);
            let errors: Vec<f32> = y.iter().zip(&wanted).map(|(y, it)| y - it).collect();
            loss = errors.iter().map(|it| it * it).sum::<f32>() / SAMPLES as f32;
            let gradient: Vec<f32> = errors.iter().map(|it| 2.0 * it / SAMPLES as f32).collect();
            let of_second_bias = column_sums(&gradient, outputs);
            let gradient = group.backward(Mapping::Reduce, gradient).unwrap();
            let (of_second, of_inner) =
                linear_backward(&inner, second, &gradient, (width, outputs));
            let of_inner: Vec<f32> =
                of_inner.iter().zip(&inner).map(|(it, inner)| it * (1.0 - inner * inner)).collect();
            let of_first_bias = column_sums(&of_inner, width);
            let (of_first, of_x) = linear_backward(&x, first, &of_inner, (inputs, width));
            let of_x = group.backward(Mapping::Copy, of_x).unwrap();
            let of_scaled: Vec<f32> = of_x.iter().zip(&samples).map(|(it, x)| it * x).collect();
            let of_scale = column_sums(&of_scaled, inputs);
            let gradients = [of_scale, of_first, of_first_bias, of_second, of_second_bias];
            updater.step(0.02, &mut parameters, &gradients).unwrap();
        }
        (columns, rows, parameters, loss)
    });
    let mut joined = whole.clone();
    for (columns, rows, parameters, loss) in &ranks {
        // What all ranks have is the same at all, to the bit.
        assert!(parameters[0] == ranks[0].2[0] && parameters[4] == ranks[0].2[4]);
        assert_eq!(loss, &ranks[0].3);
        columns.put(&parameters[1], &mut joined[1]).unwrap();
        joined[2][columns.outputs.clone()].copy_from_slice(&parameters[2]);
        rows.put(&parameters[3], &mut joined[3]).unwrap();
    }
    (joined[0], joined[4]) = (ranks[0].2[0].clone(), ranks[0].2[4].clone());
    assert!(joined.iter().zip(&whole).all(|(after, before)| after != before));
    (joined.into(), ranks[0].3)
}

#[test]
fn two_layers_end_with_the_parameters_of_one_rank() {
    // 8 is divisible by 1, 2 and 4; 7 by none; with 3 a rank of 4 has no part.
    for hidden in [8, 7, 3] {
        let (alone, loss) = trained(1, 5, hidden, 3);
        for n in 2..=4 {
            let (split, other) = trained(n, 5, hidden, 3);
            let square = |it: f32| f64::from(it).powi(2);
            let pairs = || alone.iter().flatten().zip(split.iter().flatten());
            let apart = pairs().map(|(one, other)| square(one - other)).sum::<f64>();
            let distance = (apart / pairs().map(|(one, _)| square(*one)).sum::<f64>()).sqrt();
            assert!(distance < 1e-5, "{n} ranks, {hidden} hidden: {distance:e}");
            assert!((loss - other).abs() < 1e-4 * loss);
        }
    }
}

#[test]
fn columns_are_gathered_and_scattered() {
    for n in 1..=4 {
        for columns in [1, 3, 4, 7] {
            let rows = 3;
            let whole = noises(0, rows * columns);
            on_ranks(n, |comm: &mut Communicator| {
                let mut group = TensorParallel::new(comm.duplicate().unwrap());
                let mapping = Mapping::Gather { columns };
                let place = LinearPart::by_columns(1, columns, group.rank(), n).outputs;
                let mine: Vec<f32> =
                    whole.chunks(columns).flat_map(|row| row[place.clone()].to_vec()).collect();
                assert_eq!(group.forward(mapping, mine.clone()).unwrap(), whole);
                assert_eq!(group.backward(mapping, whole.clone()).unwrap(), mine);
                let scatter = Mapping::Scatter { columns };
                assert_eq!(group.forward(scatter, whole.clone()).unwrap(), mine);
                assert_eq!(group.backward(scatter, mine).unwrap(), whole);
                let mut numbers = [1.0, group.rank() as f64];
                group.add_up(&mut numbers).unwrap();
                assert_eq!(numbers, [n as f64, (n * (n - 1) / 2) as f64]);
            });
        }
    }
}

#[test]
fn activations_that_are_no_whole_rows_are_refused() {
    let mut group = TensorParallel::new(Communicator::local(1).unwrap().remove(0));
    for columns in [0, 3] {
        for mapping in [Mapping::Scatter { columns }, Mapping::Gather { columns }] {
            let error = group.forward(mapping, vec![0.0; 4]).unwrap_err().to_string();
            assert!(error.contains("a number that divides the 4 activations"), "{error}");
        }
    }
}

#[test]
fn bytes_of_a_border_are_those_of_a_ring() {
    assert_eq!(Mapping::Reduce.sent_bytes(1200, 4), 1800);
    assert_eq!(Mapping::Gather { columns: 3 }.sent_bytes(1200, 4), 900);
    for mapping in [Mapping::Copy, Mapping::Reduce, Mapping::Scatter { columns: 1 }] {
        assert_eq!(mapping.sent_bytes(1200, 1), 0);
        assert_eq!(mapping.conjugate().conjugate(), mapping);
        // One of the two directions communicates.
        let both = [mapping, mapping.conjugate()].map(|it| it.sent_bytes(1200, 3));
        assert!(both.contains(&0) && both.iter().any(|bytes| *bytes > 0));
    }
}
