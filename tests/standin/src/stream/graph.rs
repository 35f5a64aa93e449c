//! Graphs: captured work that is launched again and again. Law: independent nodes run side by side
//! as far as the hardware queues allow; two launches of one graph do not.

use std::sync::{Arc, Mutex};

use super::{Completion, Kind, Objects, Stream, Work};
use crate::code::Done;
use crate::context::Context;
use crate::registry::{Registry, lock};

pub(crate) static GRAPHS: Registry<Graph> = Registry::new();
pub(crate) static EXECS: Registry<Exec> = Registry::new();

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Nodes that this one waits for.
    pub(crate) deps: Vec<usize>,
    pub(crate) work: Work,
}

/// Nodes, each behind its dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) objects: Objects,
}

/// A graph with streams to run in. Lane 0 is the stream of the launch.
pub(crate) struct Exec {
    graph: Graph,
    /// The lane of each node.
    lane_of: Vec<usize>,
    inner: Vec<Arc<Stream>>,
    last: Mutex<Arc<Completion>>,
}

impl Exec {
    pub(crate) fn new(graph: Graph, context: &Arc<Context>) -> Done<Self> {
        let lane_of = assign_lanes(&graph.nodes);
        let count = lane_of.iter().copied().max().unwrap_or(0);
        let inner = (0..count).map(|_| super::create(context, Kind::Inner)).collect::<Done<_>>()?;
        Ok(Self { graph, lane_of, inner, last: Mutex::new(Completion::completed()) })
    }

    pub(crate) fn launch(&self, stream: &Arc<Stream>) -> Done {
        let mut last = lock(&self.last);
        let begin = stream.enqueue(Work::Nothing, vec![last.clone()])?;
        let mut ends: Vec<Arc<Completion>> = Vec::new();
        for (node, &lane) in self.graph.nodes.iter().zip(&self.lane_of) {
            let lane = match lane {
                0 => stream,
                lane => &self.inner[lane - 1],
            };
            let mut deps: Vec<_> = node.deps.iter().map(|&dep| ends[dep].clone()).collect();
            deps.push(begin.clone());
            ends.push(lane.enqueue_part(node.work.clone(), deps)?);
        }
        *last = stream.enqueue_part(Work::Keep(self.graph.objects.clone()), ends)?;
        Ok(())
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        for stream in &self.inner {
            stream.context.streams.forget(stream.handle);
        }
    }
}

/// A node gets the lane of a dependency, if it is the first node behind it in that lane.
fn assign_lanes(nodes: &[Node]) -> Vec<usize> {
    let (mut lanes, mut ends) = (Vec::new(), Vec::new());
    for (at, node) in nodes.iter().enumerate() {
        let free = |end: &Option<usize>| end.is_none_or(|end| node.deps.contains(&end));
        let lane = ends.iter().position(free).unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(None);
        }
        ends[lane] = Some(at);
        lanes.push(lane);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::{Node, Work, assign_lanes};

    #[test]
    fn branches_have_lanes_of_their_own() {
        let node = |deps: &[usize]| Node { deps: deps.to_vec(), work: Work::Nothing };
        let fork = [node(&[]), node(&[0]), node(&[0]), node(&[2]), node(&[1, 3])];
        assert_eq!(assign_lanes(&fork), [0, 0, 1, 1, 0]);
    }
}
