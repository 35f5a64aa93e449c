//! Expressions as numbers (hash-consing without hashes): a rank's own contribution, or a fold of
//! two terms. Law: each term is stored once, so equal numbers are equal expressions.

use core::ops::Range;

/// The terms by number: r is the contribution of rank r, `garbage` undefined contents.
pub(super) struct Terms {
    size: u32,
    all: Vec<Term>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Operands {
    left: u32,
    right: u32,
}

struct Term {
    weight: u32,
    /// The operands of a fold.
    operands: Option<Operands>,
    /// The ranks, if the term reads the contributions of consecutive ranks from left to right.
    rank_range: Option<Range<u32>>,
    /// The latest fold whose left operand is this term, and the previous fold with the same left
    /// operand as this fold: a linked list, rarely longer than one.
    latest: Option<u32>,
    before: Option<u32>,
}

impl Terms {
    pub(super) fn new(size: u32) -> Self {
        let leaf = |weight, rank_range| Term {
            weight,
            operands: None,
            rank_range,
            latest: None,
            before: None,
        };
        let own = (0..size).map(|rank| leaf(1, Some(rank..rank + 1)));
        let all = own.chain([leaf(0, None)]).collect();
        Self { size, all }
    }

    pub(super) fn garbage(&self) -> u32 {
        self.size
    }

    pub(super) fn fold(&mut self, left: u32, right: u32) -> u32 {
        let operands = Some(Operands { left, right });
        let before = self.all[left as usize].latest;
        let mut next = before;
        while let Some(fold) = next {
            let term = &self.all[fold as usize];
            if term.operands == operands {
                return fold;
            }
            next = term.before;
        }
        let new = self.all.len() as u32;
        let weight = self.weight(left).saturating_add(self.weight(right));
        let rank_range = match (self.rank_range(left), self.rank_range(right)) {
            (Some(first), Some(next)) if first.end == next.start => Some(first.start..next.end),
            _ => None,
        };
        self.all.push(Term { weight, operands, rank_range, latest: None, before });
        self.all[left as usize].latest = Some(new);
        new
    }

    /// The ranks, if the term reads the contributions of consecutive ranks from left to right.
    pub(super) fn rank_range(&self, term: u32) -> Option<&Range<u32>> {
        self.all[term as usize].rank_range.as_ref()
    }

    /// The number of contributions in the term, counted with multiplicity.
    pub(super) fn weight(&self, term: u32) -> u32 {
        self.all[term as usize].weight
    }

    /// True if the term has as many contributions as there are ranks.
    pub(super) fn is_full(&self, term: u32) -> bool {
        self.weight(term) == self.size
    }

    /// True if exactly the contributions of the first `ranks` are in the term. If its weight is
    /// `ranks` too, it has each once.
    pub(super) fn has_first(&self, term: u32, ranks: u32) -> bool {
        let mut seen = vec![false; self.all.len()];
        let mut todo = vec![term];
        while let Some(term) = todo.pop() {
            let again = core::mem::replace(&mut seen[term as usize], true);
            if let (false, Some(Operands { left, right })) =
                (again, self.all[term as usize].operands)
            {
                todo.extend([left, right]);
            }
        }
        let mut own = seen.iter().take(self.size as usize).enumerate();
        own.all(|(rank, &seen)| seen == (rank < ranks as usize))
    }
}
