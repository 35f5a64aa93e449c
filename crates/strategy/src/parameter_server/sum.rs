//! The sum of the gradients of an update at a server.
//! Law: in the deterministic mode the sum is that in the order of ranks, in whichever order
//! gradients come.

use std::collections::BTreeMap;

use super::roles::Roles;

/// The sum of gradients, each times its samples, and how many samples there are.
#[derive(Debug, Default)]
pub(super) struct GradientSum {
    values: Vec<f32>,
    pub(super) samples: u64,
    /// The samples of the last gradient of each rank that has pushed one.
    last: BTreeMap<usize, u64>,
    /// In the deterministic mode the gradients that have come before those of lower ranks, with
    /// their samples.
    held: Option<BTreeMap<usize, (u64, Vec<f32>)>>,
    /// Memory for further gradients.
    spare: Vec<Vec<f32>>,
}

impl GradientSum {
    pub(super) fn new(is_deterministic: bool) -> Self {
        Self { held: is_deterministic.then(BTreeMap::new), ..Self::default() }
    }

    /// Makes memory for gradients of so many elements.
    pub(super) fn allocate(&mut self, elements: usize) {
        self.discard();
        self.values = vec![0.0; elements];
        self.spare.clear();
    }

    /// Adds the mean gradient of these samples at a rank. No rank below `lowest_absent` has another
    /// gradient for this update. Leaves memory of the same length in place of the gradient.
    pub(super) fn add(
        &mut self,
        (rank, lowest_absent): (usize, usize),
        samples: u64,
        gradient: &mut Vec<f32>,
    ) {
        self.last.insert(rank, samples);
        let Some(held) = &mut self.held else { return self.fold(samples, gradient) };
        if rank > lowest_absent {
            let spare = self.spare.pop().unwrap_or_else(|| vec![0.0; gradient.len()]);
            held.insert(rank, (samples, std::mem::replace(gradient, spare)));
        } else {
            self.fold(samples, gradient);
            self.fold_held(lowest_absent);
        }
    }

    fn fold(&mut self, samples: u64, gradient: &[f32]) {
        let weight = samples as f32;
        self.values.iter_mut().zip(gradient).for_each(|(sum, it)| *sum += weight * it);
        self.samples += samples;
    }

    /// Adds the gradients that are held of the ranks below this one.
    fn fold_held(&mut self, below: usize) {
        while let Some(first) = self.held.as_mut().and_then(BTreeMap::first_entry)
            && *first.key() < below
        {
            let (samples, gradient) = first.remove();
            self.fold(samples, &gradient);
            self.spare.push(gradient);
        }
    }

    /// The mean over all samples; `None` if there are none.
    pub(super) fn mean(&mut self) -> Option<&mut [f32]> {
        self.fold_held(usize::MAX);
        let samples = self.samples as f32;
        self.values.iter_mut().for_each(|sum| *sum /= samples.max(1.0));
        (self.samples > 0).then_some(&mut self.values)
    }

    /// The samples of a step of all workers, as far as is known: the groups that have pushed no
    /// gradient yet have as many for each worker as the mean of the others.
    pub(super) fn samples_of_step(&self, roles: &Roles) -> f64 {
        let known = self.last.keys().map(|rank| roles.group(*rank).count()).sum::<usize>();
        let samples = self.last.values().sum::<u64>();
        samples as f64 * roles.workers.len() as f64 / known.max(1) as f64
    }

    /// Forgets how many samples ranks have pushed, as they get other numbers.
    pub(super) fn forget_ranks(&mut self) {
        self.last.clear();
    }

    /// Forgets all gradients.
    pub(super) fn discard(&mut self) {
        if let Some(held) = &mut self.held {
            self.spare.extend(std::mem::take(held).into_values().map(|(_, gradient)| gradient));
        }
        self.values.fill(0.0);
        self.samples = 0;
    }
}
