//! A set of ranks, as a bit mask of fixed size, so that messages have a fixed size too.
//! Law: no rank of [`Ranks::CAPACITY`] or above is ever in a set.

use core::fmt;
use core::ops::{BitAnd, BitOr, Sub};

const WORDS: usize = 4;

/// A set of ranks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ranks([u64; WORDS]);

impl Ranks {
    /// Ranks are below this number, which is above the most ranks with links between all pairs.
    pub const CAPACITY: u32 = 64 * WORDS as u32;

    /// The empty set.
    pub const NONE: Self = Self([0; WORDS]);

    /// The ranks from 0 up to, but without, `count`; `None` above the capacity.
    #[must_use]
    pub fn first(count: u32) -> Option<Self> {
        (count <= Self::CAPACITY).then(|| (0..count).collect())
    }

    /// Adds `rank`, unless it is above the capacity; true if it was not in the set before.
    pub fn insert(&mut self, rank: u32) -> bool {
        let fresh = rank < Self::CAPACITY && !self.contains(rank);
        if let Some(word) = self.0.get_mut((rank / 64) as usize) {
            *word |= 1 << (rank % 64);
        }
        fresh
    }

    /// True if `rank` is in the set.
    #[must_use]
    pub fn contains(self, rank: u32) -> bool {
        self.0.get((rank / 64) as usize).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// The number of ranks in the set.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// The lowest rank.
    #[must_use]
    pub fn lowest(self) -> Option<u32> {
        self.iter().next()
    }

    /// The set without `rank`.
    #[must_use]
    pub fn without(self, rank: u32) -> Self {
        self - Self::from_iter([rank])
    }

    /// All ranks, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..).zip(self.0).flat_map(|(at, word): (u32, u64)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    64 * at + bit
                })
            })
        })
    }

    /// The set as words, with rank 0 in the lowest bit of the first.
    #[must_use]
    pub const fn words(self) -> [u64; WORDS] {
        self.0
    }

    /// The set of these words.
    #[must_use]
    pub const fn of_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }
}

impl BitOr for Ranks {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] | other.0[at]))
    }
}

impl BitAnd for Ranks {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & other.0[at]))
    }
}

impl Sub for Ranks {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = Self::NONE;
        for rank in ranks {
            set.insert(rank);
        }
        set
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.iter()).finish()
    }
}
