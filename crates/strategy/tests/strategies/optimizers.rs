//! Four steps of each optimizer beside the formulas of its paper, in `f64` and element by element.

use std::convert::Infallible;

use ringreduce::Communicator;
use strategy::{
    CrossDeviceOp, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy, Trainer, Updater,
};

const STEPS: usize = 4;
const RATE: f64 = 0.1;
/// The parameters before the first step. The norm of one is 0, where a ratio of norms counts as 1.
const FIRST: [[f64; 3]; 3] = [[0.5, -0.25, 0.75], [-0.125, 0.0, 0.25], [0.0; 3]];
/// The gradients of the first step.
const GRADIENTS: [[f64; 3]; 3] = [[0.25, -0.5, 0.125], [-0.75, 0.375, 0.0], [0.5, -0.125, 0.25]];

/// The gradients of a step, from 1: they change their sizes and some of their signs.
fn gradients(step: usize) -> [[f64; 3]; 3] {
    let factors = [1.0, -0.5, 2.0, 0.25];
    let factor = |at: usize| factors[(step - 1 + at) % STEPS];
    std::array::from_fn(|row| std::array::from_fn(|at| GRADIENTS[row][at] * factor(at)))
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|it| it * it).sum::<f64>().sqrt()
}

/// The ratio of two norms, 1 if one of them is 0.
fn ratio(norm: f64, of: f64) -> f64 {
    if norm == 0.0 || of == 0.0 { 1.0 } else { norm / of }
}

/// PyTorch's SGD: b = momentum b + (g + decay w); w = w - rate b.
fn sgd(momentum: f64, decay: f64) -> [[f64; 3]; 3] {
    let mut w = FIRST;
    let mut b = [[0.0; 3]; 3];
    for step in 1..=STEPS {
        let g = gradients(step);
        for (row, at) in places() {
            b[row][at] = momentum * b[row][at] + g[row][at] + decay * w[row][at];
            w[row][at] -= RATE * b[row][at];
        }
    }
    w
}

/// Algorithm 1 of Kingma and Ba, with the decay that algorithm 2 of Loshchilov and Hutter takes
/// out of the gradient: m and v are moving averages, and begin at 0, which a division by
/// 1 - beta^step makes up for.
fn adam((beta1, beta2): (f64, f64), epsilon: f64, decay: f64) -> [[f64; 3]; 3] {
    let mut w = FIRST;
    let (mut m, mut v) = ([[0.0; 3]; 3], [[0.0; 3]; 3]);
    for step in 1..=STEPS {
        let g = gradients(step);
        for (row, at) in places() {
            m[row][at] = beta1 * m[row][at] + (1.0 - beta1) * g[row][at];
            v[row][at] = beta2 * v[row][at] + (1.0 - beta2) * g[row][at] * g[row][at];
            let first = m[row][at] / (1.0 - beta1.powi(step as i32));
            let second = v[row][at] / (1.0 - beta2.powi(step as i32));
            w[row][at] -= RATE * (first / (second.sqrt() + epsilon) + decay * w[row][at]);
        }
    }
    w
}

/// Algorithm 1 of You, Gitman and Ginsburg: the local rate of a parameter is
/// trust |w| / (|g| + decay |w|); v = momentum v + rate local (g + decay w); w = w - v.
fn lars(momentum: f64, decay: f64, trust: f64) -> [[f64; 3]; 3] {
    let mut w = FIRST;
    let mut v = [[0.0; 3]; 3];
    for step in 1..=STEPS {
        let g = gradients(step);
        for row in 0..w.len() {
            let local = ratio(trust * norm(&w[row]), norm(&g[row]) + decay * norm(&w[row]));
            for at in 0..w[row].len() {
                let change = RATE * local * (g[row][at] + decay * w[row][at]);
                v[row][at] = momentum * v[row][at] + change;
                w[row][at] -= v[row][at];
            }
        }
    }
    w
}

/// Algorithm 2 of You et al., 2020: r is the update of Adam; w = w - rate |w| / |r + decay w|
/// (r + decay w), with the norms of a parameter.
fn lamb((beta1, beta2): (f64, f64), epsilon: f64, decay: f64) -> [[f64; 3]; 3] {
    let mut w = FIRST;
    let (mut m, mut v) = ([[0.0; 3]; 3], [[0.0; 3]; 3]);
    for step in 1..=STEPS {
        let g = gradients(step);
        for row in 0..w.len() {
            let mut update = [0.0; 3];
            for at in 0..w[row].len() {
                m[row][at] = beta1 * m[row][at] + (1.0 - beta1) * g[row][at];
                v[row][at] = beta2 * v[row][at] + (1.0 - beta2) * g[row][at] * g[row][at];
                let first = m[row][at] / (1.0 - beta1.powi(step as i32));
                let second = v[row][at] / (1.0 - beta2.powi(step as i32));
                update[at] = first / (second.sqrt() + epsilon) + decay * w[row][at];
            }
            let local = ratio(norm(&w[row]), norm(&update));
            for (w, update) in w[row].iter_mut().zip(update) {
                *w -= RATE * local * update;
            }
        }
    }
    w
}

/// The rows and columns of all elements.
fn places() -> impl Iterator<Item = (usize, usize)> {
    (0..FIRST.len()).flat_map(|row| (0..FIRST[row].len()).map(move |at| (row, at)))
}

fn narrowed(values: [[f64; 3]; 3]) -> Vec<Vec<f32>> {
    values.iter().map(|row| row.iter().map(|it| *it as f32).collect()).collect()
}

/// A model whose gradients are those of the step.
struct Known {
    values: Vec<Vec<f32>>,
    step: usize,
}

impl Parameters for Known {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.values.iter().map(|values| (String::new(), values.len())).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.values[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.values[parameter].copy_from_slice(from);
        Ok(())
    }
}

impl Model for Known {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Infallible> {
        self.step += 1;
        let gradients = narrowed(gradients(self.step));
        (0..gradients.len()).rev().for_each(|at| sink(at, &gradients[at]));
        Ok(1.0)
    }
}

fn by_updater(optimizer: Optimizer) -> Vec<Vec<f32>> {
    let mut values = narrowed(FIRST);
    let mut updater = Updater::new(optimizer, &[3; 3]);
    for step in 1..=STEPS {
        updater.step(RATE as f32, &mut values, &narrowed(gradients(step))).unwrap();
    }
    values
}

fn by_trainer(optimizer: Optimizer) -> Vec<Vec<f32>> {
    let strategy = Strategy::Mirrored(CrossDeviceOp::AllReduce);
    let settings = Settings { strategy, optimizer, clip_norm: None, buckets: None };
    let mut model = Known { values: narrowed(FIRST), step: 0 };
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut trainer = Trainer::new(comm, &mut model, settings).unwrap();
    for _ in 0..STEPS {
        let part = Part { batch: Some(()), total: 1 };
        trainer.step(&mut model, &[part], RATE as f32).unwrap();
    }
    model.values
}

#[test]
fn steps_are_those_of_the_papers() {
    let (betas, wide) = ((0.8, 0.95), (0.8, 0.95));
    let cases = [
        (Optimizer::SGD, sgd(0.0, 0.0)),
        (Optimizer::Sgd { momentum: 0.0, weight_decay: 0.3 }, sgd(0.0, 0.3)),
        (Optimizer::Sgd { momentum: 0.9, weight_decay: 0.3 }, sgd(0.9, 0.3)),
        (Optimizer::ADAM, adam((0.9, 0.999), 1e-8, 0.0)),
        (Optimizer::Adam { betas, epsilon: 0.01, weight_decay: 0.3 }, adam(wide, 0.01, 0.3)),
        (Optimizer::Lars { momentum: 0.9, weight_decay: 0.3, trust: 0.25 }, lars(0.9, 0.3, 0.25)),
        (Optimizer::Lamb { betas, epsilon: 0.01, weight_decay: 0.3 }, lamb(wide, 0.01, 0.3)),
    ];
    for (optimizer, expected) in cases {
        for (what, found) in
            [("updater", by_updater(optimizer)), ("trainer", by_trainer(optimizer))]
        {
            for (row, at) in places() {
                let (found, expected) = (f64::from(found[row][at]), expected[row][at]);
                let apart = (found - expected).abs();
                assert!(apart < 1e-6, "{optimizer:?}, {what}: {found}, not {expected}");
            }
        }
    }
}

/// The first steps of PyTorch's `SGD(lr=0.1, momentum=0.9)` and `AdamW(lr=0.1, eps=1e-8,
/// weight_decay=0.3)` from 1 with a gradient of 0.5, by hand.
#[test]
fn first_steps_are_those_of_pytorch() {
    let after = |optimizer, steps: usize| {
        let mut updater = Updater::new(optimizer, &[1]);
        let mut values = [vec![1.0]];
        (0..steps).for_each(|_| updater.step(0.1, &mut values, &[vec![0.5]]).unwrap());
        values[0][0]
    };
    let momentum = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
    // 1 - 0.1 0.5; then less 0.1 (0.45 + 0.5); then less 0.1 (0.855 + 0.5).
    for (steps, expected) in [(1, 0.95), (2, 0.855), (3, 0.7195)] {
        assert!((after(momentum, steps) - expected as f32).abs() < 1e-6, "{steps} steps");
    }
    // With equal gradients Adam's update is 1: 1 - 0.1 (1 + 0.3), and so on.
    let adam = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.3 };
    for (steps, expected) in [(1, 0.87), (2, 0.7439), (3, 0.621_583)] {
        assert!((after(adam, steps) - expected as f32).abs() < 1e-6, "{steps} steps");
    }
}
