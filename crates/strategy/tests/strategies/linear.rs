//! Two linear layers in plain loops, the first split by columns and the second by rows.

use ringreduce::Communicator;
use strategy::{LinearPart, Mapping, Optimizer, TensorParallel, Updater};

pub(crate) const SAMPLES: usize = 6;

/// A number from -1 to 1 that depends on another one.
fn noise(of: usize) -> f32 {
    ((of as f32 * 12.9898).sin() * 437.585).fract()
}

pub(crate) fn noises(start: usize, count: usize) -> Vec<f32> {
    (start..start + count).map(noise).collect()
}

/// y = x weight^T, for rows of `inputs`.
pub(crate) fn linear(
    x: &[f32],
    weight: &[f32],
    inputs: usize,
    outputs: usize,
    rows: usize,
) -> Vec<f32> {
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
pub(crate) fn linear_backward(
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

/// The whole parameters before a training.
pub(crate) fn whole([inputs, hidden, outputs]: [usize; 3]) -> [Vec<f32>; 5] {
    [
        noises(1, inputs),
        noises(100, inputs * hidden),
        noises(400, hidden),
        noises(500, hidden * outputs),
        noises(900, outputs),
    ]
}

/// A rank's parameters after so many steps of a first layer (scaling each input), a layer by
/// columns, tanh and a layer by rows; and the last loss.
pub(crate) fn trained_part(
    comm: Communicator,
    widths: [usize; 3],
    steps: usize,
) -> ([Vec<f32>; 5], f32) {
    let ([inputs, hidden, outputs], whole) = (widths, whole(widths));
    let mut group = TensorParallel::new(comm);
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
    for _ in 0..steps {
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
        let (of_second, of_inner) = linear_backward(&inner, second, &gradient, (width, outputs));
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
    (parameters, loss)
}
