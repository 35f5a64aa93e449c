//! The arguments of a call, and the digest by which ranks compare them.

#[cfg(feature = "host")]
use super::fingerprint::{self, Variant};
use crate::element::{DataType, Reduction, ReductionKind, Wire};
use crate::schedule::Collective;

/// A call, as its arguments describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// Number of elements: of the buffer, or of one rank's block if the collective has blocks
    /// (reduce-scatter, all-gather, gather, scatter, all-to-all). Elements that share a scale count
    /// as one.
    pub count: usize,
    /// Type of the elements.
    pub dtype: DataType,
    /// The reduction, if the collective reduces.
    pub op: Option<Reduction>,
}

impl Request {
    /// A barrier: no bytes of the user's, and no reduction.
    #[must_use]
    pub const fn barrier() -> Self {
        Self { collective: Collective::Barrier, count: 1, dtype: DataType::U8, op: None }
    }

    /// Bytes of one element, or of those that share a scale. A reduction by the user's function has
    /// an element size of its own.
    #[must_use]
    pub fn element_size(&self) -> usize {
        match self.op.map(Reduction::kind) {
            Some(ReductionKind::User(_, size)) => size,
            _ => self.wire().bytes(),
        }
    }

    /// The form in which the elements travel.
    pub(crate) fn wire(&self) -> Wire {
        Wire::of(self.dtype, self.op)
    }

    /// Bytes of the longer one of a rank's input and output, among `size` ranks.
    #[must_use]
    pub fn longest(&self, size: u32) -> usize {
        self.count * self.element_size() * self.collective.blocks(size) as usize
    }

    /// True if every result includes the contribution of the rank that gets it.
    #[must_use]
    pub fn folds(&self) -> bool {
        let never = matches!(self.collective, Collective::Exscan | Collective::Barrier);
        self.op.is_some() && self.collective.reduces() && !never
    }

    /// A digest that is equal on two ranks only if all of this is.
    #[cfg(feature = "host")]
    pub(crate) fn digest(&self) -> u64 {
        let how = Variant { algorithm: None, in_order: false, part: false, uneven: false };
        mix(fingerprint::of(self, &how, 0))
    }
}

/// The blocks of an uneven call, counted in elements and placed one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Elements of each chunk of the input.
    pub input: &'a [usize],
    /// Elements of each chunk of the output.
    pub output: &'a [usize],
    /// The counts that must be equal on all ranks.
    pub agreed: &'a [usize],
    /// The call is on elements `window.0..window.1` of each block.
    pub window: (usize, usize),
}

impl<'a> Blocks<'a> {
    /// The blocks, all elements of each.
    #[must_use]
    pub fn new(input: &'a [usize], output: &'a [usize], agreed: &'a [usize]) -> Self {
        Self { input, output, agreed, window: (0, usize::MAX) }
    }
}

/// A digest of bytes, equal on every machine.
#[must_use]
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |digest, &byte| mix(digest ^ u64::from(byte)))
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): each input bit flips half of the
/// output bits on average.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
