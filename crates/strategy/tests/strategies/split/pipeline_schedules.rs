//! Schedules of pipelines beside the formula, and layers split beside all splits.

use std::collections::HashMap;

use strategy::{PipelineSchedule, Work, balanced_stages, bubble};

const SCHEDULES: [PipelineSchedule; 2] =
    [PipelineSchedule::FillDrain, PipelineSchedule::OneForwardOneBackward];

/// The seconds of a step, with forward passes of 1 s and backward passes of 2 s, and no time for
/// messages; and the most activations that the first stage holds. `None` if stages wait for ever.
fn simulated(schedule: PipelineSchedule, stages: usize, count: usize) -> Option<(usize, usize)> {
    let work: Vec<_> = (0..stages).map(|stage| schedule.work(stage, stages, count)).collect();
    let (mut next, mut clocks) = (vec![0; stages], vec![0; stages]);
    let mut done: HashMap<(usize, Work), usize> = HashMap::new();
    let (mut held, mut most_held) = (0, 0_usize);
    loop {
        let mut has_moved = false;
        for stage in 0..stages {
            let Some(work) = work[stage].get(next[stage]) else { continue };
            let (needed, seconds) = match work {
                Work::Forward(_) if stage == 0 => (Some(0), 1),
                Work::Forward(_) => (done.get(&(stage - 1, *work)).copied(), 1),
                Work::Backward(at) if stage + 1 == stages => {
                    (done.get(&(stage, Work::Forward(*at))).copied(), 2)
                }
                Work::Backward(_) => (done.get(&(stage + 1, *work)).copied(), 2),
            };
            let Some(needed) = needed else { continue };
            if stage == 0 {
                match work {
                    Work::Forward(_) => held += 1,
                    Work::Backward(_) => held -= 1,
                }
                most_held = most_held.max(held);
            }
            clocks[stage] = clocks[stage].max(needed) + seconds;
            done.insert((stage, *work), clocks[stage]);
            next[stage] += 1;
            has_moved = true;
        }
        if !has_moved {
            let is_done = done.len() == 2 * stages * count;
            return is_done.then(|| (clocks.into_iter().max().unwrap_or(0), most_held));
        }
    }
}

#[test]
fn schedules_end_and_wait_as_long_as_the_formula_says() {
    for schedule in SCHEDULES {
        for stages in 1..7 {
            for count in 1..12 {
                let (seconds, held) = simulated(schedule, stages, count).unwrap();
                let share = 1.0 - 3.0 * count as f64 / seconds as f64;
                let formula = bubble(stages, count);
                assert!((share - formula).abs() < 1e-9, "{schedule:?}, {stages}, {count}: {share}");
                let most = match schedule {
                    PipelineSchedule::FillDrain => count,
                    PipelineSchedule::OneForwardOneBackward => stages.min(count),
                };
                assert_eq!(held, most, "{schedule:?}, {stages} stages, {count} micro-batches");
            }
        }
    }
}

/// The cost of the most costly run, by trying all splits.
fn least_cost(costs: &[f64], stages: usize) -> f64 {
    if stages == 1 {
        return costs.iter().sum();
    }
    let split =
        |end: usize| costs[..end].iter().sum::<f64>().max(least_cost(&costs[end..], stages - 1));
    (1..=costs.len() + 1 - stages).map(split).fold(f64::INFINITY, f64::min)
}

#[test]
fn layers_are_split_as_well_as_can_be() {
    for layers in 1..8_usize {
        for seed in 0..10 {
            let cost = |at: usize| ((at * 7 + seed * 13) % 11) as f64;
            let costs: Vec<f64> = (0..layers).map(cost).collect();
            for stages in 1..=layers {
                let runs = balanced_stages(&costs, stages);
                assert!(runs.iter().all(|run| !run.is_empty()), "{costs:?}: {runs:?}");
                assert!(runs.iter().cloned().flatten().eq(0..layers), "{costs:?}: {runs:?}");
                let worst =
                    runs.iter().map(|run| costs[run.clone()].iter().sum()).fold(0.0, f64::max);
                assert_eq!(worst, least_cost(&costs, stages), "{costs:?}: {runs:?}");
            }
        }
    }
    assert_eq!(balanced_stages(&[1.0, 2.0], 4), [0..1, 1..2, 2..2, 2..2]);
    assert_eq!(balanced_stages(&[], 2), [0..0, 0..0]);
}
