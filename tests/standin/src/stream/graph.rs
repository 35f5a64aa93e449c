//! Graphs: captured work, and launching it again and again. Law: what does not depend on each
//! other runs side by side as far as the hardware queues let it; two launches of one graph do not.

use std::sync::{Arc, Mutex};

use super::{Kind, Mark, Objects, Stream, Work};
use crate::code::Done;
use crate::context::Context;
use crate::registry::{Registry, lock};

pub(crate) static GRAPHS: Registry<Graph> = Registry::new();
pub(crate) static EXECS: Registry<Exec> = Registry::new();

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Nodes that come before this one.
    pub(crate) deps: Vec<usize>,
    pub(crate) work: Work,
}

/// Nodes, each after those that it depends on.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) objects: Objects,
}

/// A graph with streams to run in: lane 0 is the stream that it is launched in.
pub(crate) struct Exec {
    graph: Graph,
    /// Lane of each node.
    lanes: Vec<usize>,
    inner: Vec<Arc<Stream>>,
    last: Mutex<Arc<Mark>>,
}

impl Exec {
    pub(crate) fn new(graph: Graph, context: &Arc<Context>) -> Done<Self> {
        let lanes = lanes(&graph.nodes);
        let count = lanes.iter().copied().max().unwrap_or(0);
        let inner =
            (0..count).map(|_| super::create(context, Kind::Inner, 0)).collect::<Done<_>>()?;
        Ok(Self { graph, lanes, inner, last: Mutex::new(Mark::finished()) })
    }

    pub(crate) fn launch(&self, stream: &Arc<Stream>) -> Done {
        let mut last = lock(&self.last);
        let begin = stream.enqueue(Work::Nothing, vec![last.clone()])?;
        let mut marks: Vec<Arc<Mark>> = Vec::new();
        for (node, &lane) in self.graph.nodes.iter().zip(&self.lanes) {
            let lane = match lane {
                0 => stream,
                lane => &self.inner[lane - 1],
            };
            let mut deps: Vec<_> = node.deps.iter().map(|&dep| marks[dep].clone()).collect();
            deps.push(begin.clone());
            marks.push(lane.enqueue(node.work.clone(), deps)?);
        }
        *last = stream.enqueue(Work::Keep(self.graph.objects.clone()), marks)?;
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

/// A node runs in the lane of one before it if it is the first to come after that one there.
fn lanes(nodes: &[Node]) -> Vec<usize> {
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
    use super::{Node, Work, lanes};

    #[test]
    fn branches_have_lanes_of_their_own() {
        let node = |deps: &[usize]| Node { deps: deps.to_vec(), work: Work::Nothing };
        let fork = [node(&[]), node(&[0]), node(&[0]), node(&[2]), node(&[1, 3])];
        assert_eq!(lanes(&fork), [0, 0, 1, 1, 0]);
    }
}
