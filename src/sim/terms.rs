//! Expressions as numbers: a rank's own contribution, or a fold of two terms. May touch: nothing.
//! Law: each term is kept once, so equal numbers are equal expressions; no hash, no luck.

/// Terms by number: rank r's own contribution is r, what was in a buffer before is `garbage`.
pub(super) struct Terms {
    size: u32,
    all: Vec<Term>,
}

struct Term {
    weight: u32,
    /// For a fold: the left operand and the right one.
    of: Option<(u32, u32)>,
    /// If it reads, from left to right, the contributions of consecutive ranks: the first, and the
    /// one after the last.
    in_order: Option<(u32, u32)>,
    /// The latest fold of which this term is the left operand, and the fold before it of the same
    /// one: a list that rarely has a second member.
    latest: Option<u32>,
    before: Option<u32>,
}

impl Terms {
    pub(super) fn new(size: u32) -> Self {
        let leaf =
            |weight, in_order| Term { weight, of: None, in_order, latest: None, before: None };
        let own = (0..size).map(|rank| leaf(1, Some((rank, rank + 1))));
        let all = own.chain([leaf(0, None)]).collect();
        Self { size, all }
    }

    pub(super) fn garbage(&self) -> u32 {
        self.size
    }

    pub(super) fn fold(&mut self, left: u32, right: u32) -> u32 {
        let before = self.all[left as usize].latest;
        let mut known = before;
        while let Some(fold) = known {
            let term = &self.all[fold as usize];
            if term.of == Some((left, right)) {
                return fold;
            }
            known = term.before;
        }
        let new = self.all.len() as u32;
        let weight = self.weight(left).saturating_add(self.weight(right));
        let in_order = match (self.in_order(left), self.in_order(right)) {
            (Some((first, seam)), Some((next, end))) if seam == next => Some((first, end)),
            _ => None,
        };
        self.all.push(Term { weight, of: Some((left, right)), in_order, latest: None, before });
        self.all[left as usize].latest = Some(new);
        new
    }

    /// If the term reads, from left to right, the contributions of consecutive ranks: the first,
    /// and the one after the last.
    pub(super) fn in_order(&self, term: u32) -> Option<(u32, u32)> {
        self.all[term as usize].in_order
    }

    /// How many contributions it has, the same one counted as often as it is in there.
    pub(super) fn weight(&self, term: u32) -> u32 {
        self.all[term as usize].weight
    }

    /// As many contributions as there are ranks.
    pub(super) fn full(&self, term: u32) -> bool {
        self.weight(term) == self.size
    }

    /// Are the contributions of the first `ranks` in it, and no others? A term of that weight then
    /// has each once.
    pub(super) fn has_first(&self, term: u32, ranks: u32) -> bool {
        let mut seen = vec![false; self.all.len()];
        let mut todo = vec![term];
        while let Some(term) = todo.pop() {
            let again = core::mem::replace(&mut seen[term as usize], true);
            if let (false, Some((left, right))) = (again, self.all[term as usize].of) {
                todo.extend([left, right]);
            }
        }
        let mut own = seen.iter().take(self.size as usize).enumerate();
        own.all(|(rank, &seen)| seen == (rank < ranks as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::Terms;

    #[test]
    fn equal_numbers_are_equal_expressions() {
        let mut terms = Terms::new(4);
        let (ab, ac) = (terms.fold(0, 1), terms.fold(0, 2));
        let known = [ab, ac, terms.fold(1, 0), terms.fold(ab, 2), terms.fold(ac, 1)];
        for (number, term) in known.iter().enumerate() {
            assert!(!known[..number].contains(term));
        }
        let again = [(0, 1), (0, 2), (1, 0), (ab, 2), (ac, 1)];
        assert_eq!(again.map(|(left, right)| terms.fold(left, right)), known);
    }

    #[test]
    fn a_full_term_need_not_have_all() {
        let mut terms = Terms::new(3);
        let pair = terms.fold(0, 1);
        let (all, twice) = (terms.fold(pair, 2), terms.fold(pair, 0));
        assert!(!terms.full(pair) && terms.full(all) && terms.full(twice));
        assert!(terms.has_first(all, 3) && !terms.has_first(twice, 3));
        assert!(terms.has_first(pair, 2) && !terms.has_first(pair, 1));
        let garbage = terms.garbage();
        assert_eq!(terms.fold(garbage, 0), terms.fold(garbage, 0));
        let none = terms.fold(garbage, garbage);
        assert_eq!(terms.weight(none), 0);
    }
}
