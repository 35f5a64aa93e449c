//! The code of an operation: its name, type, reduction, algorithm and root, in one word.
//! Law: every word can be decoded; an unknown part is decoded as `?`.

use crate::element::{ReduceOp, Reduction, ReductionKind, Wire};
use crate::plan::Request;
use crate::schedule::Algorithm;

/// The names by number: see [`Collective::number`](crate::schedule::Collective::number). The last
/// four are messages, which have no schedule of their own.
const NAMES: [&str; 16] = [
    "?",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "scan",
    "exscan",
    "barrier",
    "send",
    "recv",
    "send_recv",
    "group",
];
pub(super) const KINDS: usize = NAMES.len();
/// Instead of a [`ReduceOp`]: `premul_sum`, and a function of the user.
const SCALED: u8 = 254;
const FUNCTION: u8 = 255;
/// The first bit of the algorithm.
const ALGORITHM: u32 = 32;
const ROOT: u32 = 40;
const UNEVEN: u64 = 1 << 60;

/// The code of an operation: what one word says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCode(u64);

impl OperationCode {
    /// The code of operation `name`; `uneven` if its blocks differ in length. `request` is `None`
    /// for messages.
    #[inline]
    pub(super) fn of((name, uneven): (&str, bool), request: Option<&Request>) -> Self {
        let Some(request) = request else {
            let kind = NAMES.iter().position(|known| *known == name).unwrap_or(0);
            return Self((kind as u64) << 8);
        };
        let op = match request.op.map(Reduction::kind) {
            None => 0,
            Some(ReductionKind::Plain(op) | ReductionKind::Blocks(_, op)) => op as u8 + 1,
            Some(ReductionKind::PreMulSum(..)) => SCALED,
            Some(ReductionKind::User(..)) => FUNCTION,
        };
        let root = u64::from(request.collective.root().unwrap_or(0));
        let word = request.collective.number() << 8
            | request.wire().number() << 16
            | u64::from(op) << 24
            | (root & 0xf_ffff) << ROOT;
        Self(if uneven { word | UNEVEN } else { word })
    }

    /// The code in a word of a record.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) const fn word(self) -> u64 {
        self.0
    }

    /// The code with this algorithm instead of the one that it had.
    #[inline]
    pub(super) const fn by(self, algorithm: Algorithm) -> Self {
        Self(self.0 & !(0xff << ALGORITHM) | (algorithm as u64 + 1) << ALGORITHM)
    }

    /// The index of its name.
    #[inline]
    pub(super) const fn kind(self) -> usize {
        (self.0 >> 8) as usize % KINDS
    }

    /// The name of the method that was called, without the suffix of uneven forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        name(self.kind())
    }

    /// The name of the element type, if the operation has one.
    #[must_use]
    pub fn dtype(self) -> Option<&'static str> {
        let number = self.byte(16);
        (number > 0).then(|| Wire::by_number(number.into()).map_or("?", Wire::name))
    }

    /// The name of the reduction, if the operation reduces.
    #[must_use]
    pub fn op(self) -> Option<&'static str> {
        match self.byte(24) {
            0 => None,
            SCALED => Some("premul_sum"),
            FUNCTION => Some("a function"),
            op => Some(ReduceOp::ALL.get(usize::from(op) - 1).map_or("?", |op| op.name())),
        }
    }

    /// The name of the algorithm, once it is chosen.
    #[must_use]
    pub fn algorithm(self) -> Option<&'static str> {
        let found = Algorithm::ALL.get(usize::from(self.byte(ALGORITHM)).checked_sub(1)?);
        Some(found.map_or("?", |algorithm| algorithm.name()))
    }

    /// The root, if the operation has one.
    #[must_use]
    pub fn root(self) -> Option<u64> {
        let rooted = matches!(self.name(), "broadcast" | "reduce" | "gather" | "scatter");
        rooted.then_some(self.0 >> ROOT & 0xf_ffff)
    }

    /// True if its blocks differ in length.
    #[must_use]
    pub fn is_uneven(self) -> bool {
        self.0 & UNEVEN != 0
    }

    const fn byte(self, at: u32) -> u8 {
        (self.0 >> at) as u8
    }
}

pub(super) fn name(kind: usize) -> &'static str {
    NAMES[kind % KINDS]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::DataType;
    use crate::schedule::Collective;

    #[test]
    fn codes_are_decoded() {
        let of = |collective, op: Option<ReduceOp>, dtype| Request {
            collective,
            count: 1,
            dtype,
            op: op.map(Into::into),
        };
        for dtype in DataType::ALL {
            let request = of(Collective::AllReduce, Some(ReduceOp::Max), dtype);
            let planned = OperationCode::of(("all_reduce", false), Some(&request));
            // A planned call is made by another algorithm if its memory is registered.
            let what = planned.by(Algorithm::Ring).by(Algorithm::Direct);
            assert_eq!((what.name(), what.dtype()), ("all_reduce", Some(dtype.name())));
            assert_eq!((what.op(), what.algorithm()), (Some("max"), Some("direct")));
            assert_eq!((what.root(), what.is_uneven()), (None, false));
        }
        let request = of(Collective::Gather { root: 0xf_fffe }, None, DataType::U8);
        let what = OperationCode::of(("gather_v", true), Some(&request));
        assert_eq!((what.root(), what.is_uneven(), what.op()), (Some(0xf_fffe), true, None));
        assert_eq!(OperationCode::of(("recv", false), None).name(), "recv");
    }
}
