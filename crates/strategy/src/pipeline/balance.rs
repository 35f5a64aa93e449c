//! Which layers a stage has: a pure function.

use std::ops::Range;

/// Splits layers into `stages` runs of consecutive layers, so that the most costly run costs as
/// little as can be: the slowest stage sets the pace of a pipeline. `costs` are those of the
/// layers, in any unit, for instance the seconds of a forward and a backward pass. Each stage has
/// a layer; if there are fewer layers than stages, the first stages have one and the others none.
///
/// The optimum of the linear partition problem by dynamic programming, in time
/// layers^2 x stages (`PipeDream` splits in this way; Narayanan et al., 2019).
#[must_use]
pub fn balanced_stages(costs: &[f64], stages: usize) -> Vec<Range<usize>> {
    let layers = costs.len();
    let mut before = vec![0.0];
    for cost in costs {
        before.push(before[before.len() - 1] + cost);
    }
    let used = stages.min(layers);
    // The least cost of the most costly of some stages that have the first `end` layers, and
    // where the last of these stages begins.
    let mut best = vec![(f64::INFINITY, 0); layers + 1];
    best[0] = (0.0, 0);
    let mut starts = Vec::with_capacity(used);
    for stage in 0..used {
        let mut next = vec![(f64::INFINITY, 0); layers + 1];
        for end in stage + 1..=layers {
            for start in stage..end {
                let cost = best[start].0.max(before[end] - before[start]);
                if cost < next[end].0 {
                    next[end] = (cost, start);
                }
            }
        }
        starts.push(next.iter().map(|(_, start)| *start).collect::<Vec<_>>());
        best = next;
    }
    let mut runs = vec![layers..layers; stages];
    let mut end = layers;
    for stage in (0..used).rev() {
        let start = starts[stage][end];
        runs[stage] = start..end;
        end = start;
    }
    runs
}
