//! What flows between the ranks of a strategy: ranks as boxes, arrows between them. A pure
//! function.

use crate::cli::StrategyName;

/// The picture of a strategy on four ranks, in a square of 200 x 200.
pub(super) struct Flow {
    pub(super) boxes: Vec<Node>,
    pub(super) arrows: Vec<Arrow>,
    /// One line about what flows.
    pub(super) caption: &'static str,
}

pub(super) struct Node {
    pub(super) centre: (i32, i32),
    pub(super) text: String,
    /// Whether it keeps parameters that others ask for.
    pub(super) is_store: bool,
}

pub(super) struct Arrow {
    /// Numbers of boxes.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Gradients,
    Parameters,
    Activations,
}

const SQUARE: [(i32, i32); 4] = [(45, 50), (155, 50), (155, 150), (45, 150)];
const ROW: [(i32, i32); 4] = [(25, 100), (75, 100), (125, 100), (175, 100)];
const STAR: [(i32, i32); 4] = [(100, 45), (30, 150), (100, 150), (170, 150)];

fn ranks(places: [(i32, i32); 4], store: Option<usize>) -> Vec<Node> {
    let rank = |(rank, centre): (usize, (i32, i32))| {
        let is_store = store == Some(rank);
        Node { centre, text: rank.to_string(), is_store }
    };
    places.into_iter().enumerate().map(rank).collect()
}

fn arrows(pairs: &[(usize, usize)], what: What) -> impl Iterator<Item = Arrow> {
    pairs.iter().map(move |&(from, to)| Arrow { from, to, what })
}

/// Arrows of what goes to a place, and of what comes back.
fn and_back(pairs: &[(usize, usize)], there: What, back: What) -> Vec<Arrow> {
    let returns: Vec<_> = pairs.iter().map(|&(from, to)| (to, from)).collect();
    arrows(pairs, there).chain(arrows(&returns, back)).collect()
}

/// The picture of a strategy.
pub(super) fn flow(strategy: StrategyName) -> Flow {
    use What::{Activations, Gradients, Parameters};
    let ring = [(0, 1), (1, 2), (2, 3), (3, 0)];
    let star = [(1, 0), (2, 0), (3, 0)];
    let chain = [(0, 1), (1, 2), (2, 3)];
    let around = |what| arrows(&ring, what).collect::<Vec<_>>();
    let (boxes, arrows, caption) = match strategy {
        StrategyName::Mirrored => {
            (ranks(SQUARE, None), around(Gradients), "gradients go round a ring; all update")
        }
        StrategyName::MirroredHierarchicalCopy => {
            let tree = [(1, 0), (3, 2), (2, 0)];
            let boxes = ranks([(100, 40), (40, 100), (150, 100), (150, 160)], None);
            (boxes, and_back(&tree, Gradients, Gradients), "sums go up a tree and come back")
        }
        StrategyName::MirroredOneDevice => {
            (ranks(STAR, None), and_back(&star, Gradients, Gradients), "rank 0 sums and broadcasts")
        }
        StrategyName::CentralStorage => {
            let arrows = and_back(&star, Gradients, Parameters);
            (ranks(STAR, Some(0)), arrows, "rank 0 updates; variables come back")
        }
        StrategyName::Naive => {
            let arrows = and_back(&star, Gradients, Gradients);
            (ranks(STAR, None), arrows, "copies to rank 0, copies of the sum back")
        }
        StrategyName::ShardedOptimizer => {
            let mut arrows = around(Gradients);
            arrows.extend(around(Parameters));
            (ranks(SQUARE, None), arrows, "each rank updates a part, then shares it")
        }
        StrategyName::ShardedGradients => {
            let mut arrows = around(Gradients);
            arrows.extend(around(Parameters));
            (ranks(SQUARE, None), arrows, "each rank keeps the gradients of its part only")
        }
        StrategyName::ParameterServer => {
            let mut boxes = ranks(STAR, Some(0));
            boxes[0].text = "server".into();
            (boxes, and_back(&star, Gradients, Parameters), "workers push and pull")
        }
        StrategyName::Pipeline => {
            let arrows = and_back(&chain, Activations, Gradients);
            (ranks(ROW, None), arrows, "layers by rank; micro-batches follow each other")
        }
        StrategyName::ModelParallel => {
            let arrows = and_back(&chain, Activations, Gradients);
            (ranks(ROW, None), arrows, "layers by rank; one computes at a time")
        }
        StrategyName::TensorParallel => {
            let mut arrows = around(Activations);
            arrows.extend(around(Gradients));
            (ranks(SQUARE, None), arrows, "layers are split; activations are summed")
        }
    };
    Flow { boxes, arrows, caption }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn arrows_of_every_strategy_go_from_box_to_box_inside_the_picture() {
        for strategy in StrategyName::value_variants() {
            let Flow { boxes, arrows, .. } = flow(*strategy);
            assert_eq!(boxes.len(), 4);
            for Node { centre: (x, y), .. } in &boxes {
                assert!((20..=180).contains(x) && (20..=180).contains(y), "{strategy:?}");
            }
            for Arrow { from, to, .. } in arrows {
                assert!(from != to && from < 4 && to < 4, "{strategy:?}");
            }
        }
    }
}
