//! The data that flows between the ranks of a way of training: ranks as boxes, arrows between them.

/// The picture of a way of training on four ranks, in a square of 200 x 200.
pub(crate) struct Flow {
    /// The centres of the boxes.
    pub(crate) places: [(i32, i32); 4],
    /// The text of the first box, if it keeps parameters that others ask for.
    pub(crate) store: Option<&'static str>,
    /// Numbers of boxes: from, to.
    edges: &'static [(usize, usize)],
    /// The data that goes along these edges.
    there: &'static [What],
    /// The data that comes back along them.
    back: Option<What>,
    /// One line about what flows.
    pub(crate) caption: &'static str,
}

pub(crate) struct Arrow {
    /// Numbers of boxes.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Gradients,
    Parameters,
    Activations,
}

impl Flow {
    /// The data that goes round a ring.
    pub(super) const fn ring(there: &'static [What], caption: &'static str) -> Self {
        let places = [(45, 50), (155, 50), (155, 150), (45, 150)];
        let edges = &[(0, 1), (1, 2), (2, 3), (3, 0)];
        Self { places, store: None, edges, there, back: None, caption }
    }

    /// Gradients go to the first box, and something comes back.
    pub(super) const fn star(
        store: Option<&'static str>,
        back: What,
        caption: &'static str,
    ) -> Self {
        let places = [(100, 45), (30, 150), (100, 150), (170, 150)];
        let edges = &[(1, 0), (2, 0), (3, 0)];
        Self { places, store, edges, there: &[What::Gradients], back: Some(back), caption }
    }

    /// Gradients go up a tree and come back.
    pub(super) const fn tree(caption: &'static str) -> Self {
        let places = [(100, 40), (40, 100), (150, 100), (150, 160)];
        let edges = &[(1, 0), (3, 2), (2, 0)];
        Self { places, edges, ..Self::star(None, What::Gradients, caption) }
    }

    /// Activations go along a row, and their gradients come back.
    pub(super) const fn row(caption: &'static str) -> Self {
        let places = [(25, 100), (75, 100), (125, 100), (175, 100)];
        let edges = &[(0, 1), (1, 2), (2, 3)];
        let there = &[What::Activations];
        Self { places, edges, there, ..Self::star(None, What::Gradients, caption) }
    }

    pub(crate) fn arrows(&self) -> Vec<Arrow> {
        let there = self
            .there
            .iter()
            .flat_map(|what| self.edges.iter().map(|&(from, to)| Arrow { from, to, what: *what }));
        let back = self
            .back
            .iter()
            .flat_map(|what| self.edges.iter().map(|&(to, from)| Arrow { from, to, what: *what }));
        there.chain(back).collect()
    }
}
