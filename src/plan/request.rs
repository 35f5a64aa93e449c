//! What a call asks for, and the digest by which ranks tell one from another. May touch: element,
//! schedule.

#[cfg(feature = "host")]
use super::fingerprint::{self, How};
use crate::element::{DataType, Kind, Reduction};
use crate::schedule::Collective;

/// A call, as its arguments describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is called.
    pub collective: Collective,
    /// Elements of the buffer; for reduce-scatter and all-gather, of one rank's chunk.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// How they reduce, if they do.
    pub op: Option<Reduction>,
}

impl Request {
    /// Bytes of one element, which is of the user's making if the reduction is.
    #[must_use]
    pub fn element_size(&self) -> usize {
        match self.op.map(Reduction::kind) {
            Some(Kind::User(_, size)) => size,
            _ => self.dtype.size(),
        }
    }

    /// Bytes of the longer one of a rank's input and output, among so many ranks.
    #[must_use]
    pub fn longest(&self, size: u32) -> usize {
        self.count * self.element_size() * self.collective.blocks(size) as usize
    }

    /// Does every rank that gets a result get its own contribution folded into it?
    #[must_use]
    pub fn folds(&self) -> bool {
        let never = matches!(self.collective, Collective::Exscan | Collective::Barrier);
        self.op.is_some() && self.collective.reduces() && !never
    }

    /// Equal on two ranks only if all of this is.
    #[cfg(feature = "host")]
    pub(crate) fn digest(&self) -> u64 {
        let how = How { algorithm: None, in_order: false, part: false, uneven: false };
        mix(fingerprint::of(self, &how, 0))
    }
}

/// The blocks of an uneven call, in elements; one follows the other.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Of each chunk of the input.
    pub input: &'a [usize],
    /// Of each chunk of the output.
    pub output: &'a [usize],
    /// The counts that all ranks must pass alike.
    pub agreed: &'a [usize],
    /// Of each block, the elements from the first to before the second are called for.
    pub window: (usize, usize),
}

impl<'a> Blocks<'a> {
    /// All of the blocks.
    #[must_use]
    pub fn new(input: &'a [usize], output: &'a [usize], agreed: &'a [usize]) -> Self {
        Self { input, output, agreed, window: (0, usize::MAX) }
    }
}

/// A message to a rank or from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// To it?
    pub outgoing: bool,
    /// The other rank.
    pub peer: u32,
    /// The bytes of the input, or of the output, from the first to before the second.
    pub range: (usize, usize),
    /// The type of its elements.
    pub dtype: DataType,
}

/// A digest of bytes: the same on every machine.
#[must_use]
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |digest, &byte| mix(digest ^ u64::from(byte)))
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every bit in moves half of those
/// out.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
