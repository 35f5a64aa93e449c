//! A set of ranks, as a bit mask that is as long as its highest rank needs.
//! Law: no rank of [`Ranks::CAPACITY`] or above is ever in a set; the last word of a set is not 0.

use core::fmt;
use core::ops::{BitAnd, BitOr, Sub};

use smallvec::SmallVec;

/// A set of up to 256 ranks needs no memory of its own.
type Words = SmallVec<[u64; 4]>;

/// A set of ranks.
#[allow(unnameable_types, reason = "the operators of references make it reachable to the lint")]
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Ranks(Words);

impl Ranks {
    /// Ranks are below this number, which bounds the memory of a set to 128 KiB.
    pub const CAPACITY: u32 = 1 << 20;

    /// The empty set.
    pub const NONE: Self = Self(SmallVec::new_const());

    /// The ranks from 0 up to, but without, `count`; `None` above the capacity.
    #[must_use]
    pub fn first(count: u32) -> Option<Self> {
        (count <= Self::CAPACITY).then(|| (0..count).collect())
    }

    /// The set of `rank` alone.
    #[must_use]
    pub fn only(rank: u32) -> Self {
        [rank].into_iter().collect()
    }

    /// Adds `rank`, unless it is above the capacity; true if it was not in the set before.
    pub fn insert(&mut self, rank: u32) -> bool {
        if rank >= Self::CAPACITY || self.contains(rank) {
            return false;
        }
        let at = (rank / 64) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (rank % 64);
        true
    }

    /// True if `rank` is in the set.
    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.0.get((rank / 64) as usize).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// The number of ranks in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all ranks of the set are in `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        (0..self.0.len()).all(|at| self.0[at] & !other.word(at) == 0)
    }

    /// True if no rank of the set is in `other`.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(ours, theirs)| ours & theirs == 0)
    }

    /// The lowest rank.
    #[must_use]
    pub fn lowest(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest rank.
    #[must_use]
    pub fn highest(&self) -> Option<u32> {
        let last = self.0.last()?;
        Some(64 * self.0.len() as u32 - 1 - last.leading_zeros())
    }

    /// The first rank of the set from `rank` on, or else from 0 on.
    #[must_use]
    pub fn next(&self, rank: u32) -> Option<u32> {
        self.from(rank).next().or_else(|| self.lowest())
    }

    /// The set without `rank`.
    #[must_use]
    pub fn without(&self, rank: u32) -> Self {
        let mut rest = self.clone();
        rest.remove(rank);
        rest
    }

    /// Takes `rank` out of the set.
    pub fn remove(&mut self, rank: u32) {
        if let Some(word) = self.0.get_mut((rank / 64) as usize) {
            *word &= !(1 << (rank % 64));
            self.trim();
        }
    }

    /// All ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.from(0)
    }

    /// The ranks from `first` on, ascending.
    fn from(&self, first: u32) -> impl Iterator<Item = u32> {
        let start = (first / 64) as usize;
        let mask = move |at| if at == start { u64::MAX << (first % 64) } else { u64::MAX };
        let words = self.0.iter().enumerate().skip(start);
        words.flat_map(move |(at, &word)| {
            let mut left = word & mask(at);
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    64 * at as u32 + bit
                })
            })
        })
    }

    /// The set as words, with rank 0 in the lowest bit of the first, up to the last one that is
    /// not 0.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// The set of these words, of which those above the capacity are left out.
    #[must_use]
    pub fn of_words(words: &[u64]) -> Self {
        let most = words.len().min((Self::CAPACITY / 64) as usize);
        let mut set = Self(Words::from_slice(&words[..most]));
        set.trim();
        set
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn combine(&self, other: &Self, words: usize, by: impl Fn(u64, u64) -> u64) -> Self {
        let mut set = Self((0..words).map(|at| by(self.word(at), other.word(at))).collect());
        set.trim();
        set
    }
}

impl BitOr for &Ranks {
    type Output = Ranks;
    fn bitor(self, other: Self) -> Ranks {
        self.combine(other, self.0.len().max(other.0.len()), |ours, theirs| ours | theirs)
    }
}

impl BitAnd for &Ranks {
    type Output = Ranks;
    fn bitand(self, other: Self) -> Ranks {
        self.combine(other, self.0.len().min(other.0.len()), |ours, theirs| ours & theirs)
    }
}

impl Sub for &Ranks {
    type Output = Ranks;
    fn sub(self, other: Self) -> Ranks {
        self.combine(other, self.0.len(), |ours, theirs| ours & !theirs)
    }
}

impl Extend<u32> for Ranks {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, ranks: I) {
        for rank in ranks {
            self.insert(rank);
        }
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = Self::NONE;
        set.extend(ranks);
        set
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.iter()).finish()
    }
}
