//! Expressions as numbers: a rank's own contribution, or a fold of two terms. May touch: nothing.
//! Law: each term is kept once, so equal numbers are equal expressions; no hash, no luck.

/// Terms by number: rank r's own contribution is r, what was in a buffer before is `garbage`.
pub(super) struct Terms {
    size: u32,
    all: Vec<Term>,
}

struct Term {
    weight: u32,
    /// For a fold: what came in, and what it met there.
    of: Option<(u32, u32)>,
    /// The latest fold in which this term came in, and the fold before it of the same incoming
    /// term: a list that rarely has a second member.
    latest: Option<u32>,
    before: Option<u32>,
}

impl Terms {
    pub(super) fn new(size: u32) -> Self {
        let leaf = |weight| Term { weight, of: None, latest: None, before: None };
        let all = (0..size).map(|_| leaf(1)).chain([leaf(0)]).collect();
        Self { size, all }
    }

    pub(super) fn garbage(&self) -> u32 {
        self.size
    }

    pub(super) fn fold(&mut self, incoming: u32, mine: u32) -> u32 {
        let before = self.all[incoming as usize].latest;
        let mut known = before;
        while let Some(fold) = known {
            let term = &self.all[fold as usize];
            if term.of == Some((incoming, mine)) {
                return fold;
            }
            known = term.before;
        }
        let new = self.all.len() as u32;
        let weights = [incoming, mine].map(|term| self.weight(term));
        let weight = weights[0].saturating_add(weights[1]);
        self.all.push(Term { weight, of: Some((incoming, mine)), latest: None, before });
        self.all[incoming as usize].latest = Some(new);
        new
    }

    /// How many contributions it has, the same one counted as often as it is in there.
    pub(super) fn weight(&self, term: u32) -> u32 {
        self.all[term as usize].weight
    }

    /// As many contributions as there are ranks.
    pub(super) fn full(&self, term: u32) -> bool {
        self.weight(term) == self.size
    }

    /// For a full term: every contribution, hence each once.
    pub(super) fn has_all(&self, term: u32) -> bool {
        let mut seen = vec![false; self.size as usize];
        let mut todo = vec![term];
        while let Some(term) = todo.pop() {
            if let Some(seen) = seen.get_mut(term as usize) {
                *seen = true;
            } else if let Some((incoming, mine)) = self.all[term as usize].of {
                todo.extend([incoming, mine]);
            }
        }
        seen.iter().all(|&seen| seen)
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
        assert_eq!(again.map(|(incoming, mine)| terms.fold(incoming, mine)), known);
    }

    #[test]
    fn a_full_term_need_not_have_all() {
        let mut terms = Terms::new(3);
        let pair = terms.fold(0, 1);
        let (all, twice) = (terms.fold(pair, 2), terms.fold(pair, 0));
        assert!(!terms.full(pair) && terms.full(all) && terms.full(twice));
        assert!(terms.has_all(all) && !terms.has_all(twice));
        let garbage = terms.garbage();
        assert_eq!(terms.fold(garbage, 0), terms.fold(garbage, 0));
        let none = terms.fold(garbage, garbage);
        assert_eq!(terms.weight(none), 0);
    }
}
