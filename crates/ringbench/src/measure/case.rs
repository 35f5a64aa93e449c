//! The call that is measured: its collective, type, reduction and buffers. Sizes are those of
//! nccl-tests: of a buffer with a part for each rank they count all parts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use ringreduce::plan::Request;
use ringreduce::schedule::{ChunkResult, Collective};
use ringreduce::{Call, DataType, ReduceOp};
use tools::names::collective;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Of(Collective),
    /// Each rank sends to the next one, as in nccl-tests.
    SendRecv,
}

impl Verb {
    /// All verbs, with rank 0 as the root.
    pub(crate) fn all() -> Vec<Self> {
        Collective::all(1).into_iter().map(Self::Of).chain([Self::SendRecv]).collect()
    }

    pub(crate) fn with_root(self, root: usize) -> Self {
        self.collective().map_or(self, |it| Self::Of(it.with_root(root as u32)))
    }

    pub(crate) const fn collective(self) -> Option<Collective> {
        match self {
            Self::Of(collective) => Some(collective),
            Self::SendRecv => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.collective().map_or("send_recv", Collective::name)
    }

    pub(crate) fn is_barrier(self) -> bool {
        self == Self::Of(Collective::Barrier)
    }

    pub(crate) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces) && !self.is_barrier()
    }

    /// True if the verb can reduce by `op`. Prefixes have no averages.
    pub(crate) fn supports(self, op: ReduceOp) -> bool {
        !(self.is_prefix() && op == ReduceOp::Avg)
    }

    /// True if each rank's result is over a different number of ranks.
    pub(crate) fn is_prefix(self) -> bool {
        self.collective().is_some_and(Collective::is_prefix)
    }

    /// The numbers of parts of a rank's input and output.
    fn shape(self, ranks: usize) -> [usize; 2] {
        let shape = self.collective().map_or([1; 2], |it| it.shape(ranks as u32));
        shape.map(|parts| parts as usize)
    }

    /// busbw divided by algbw: the bytes on a rank's link per byte of the buffer.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::Of(Collective::AllReduce) => 2.0 * others,
            Self::Of(collective) if collective.has_blocks() => others,
            _ => 1.0,
        }
    }
}

impl FromStr for Verb {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::all();
        let names: Vec<_> = all.iter().map(|verb| verb.name()).collect();
        let meant = collective(name, &names)?;
        all.into_iter().find(|verb| verb.name() == meant).ok_or_else(|| name.to_owned())
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    OutOfPlace,
    InPlace,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) verb: Verb,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    /// Elements of the buffer, or of one rank's part if the buffer has a part for each rank.
    pub(crate) count: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) placement: Placement,
}

impl Case {
    /// The case with the number of elements that fit in `bytes`.
    pub(crate) fn of_size(self, bytes: usize) -> Self {
        let elements = bytes / self.dtype.size();
        let count = if self.verb.is_barrier() { 0 } else { elements / self.part_count() };
        Self { count, ..self }
    }

    /// The parts of the longer side of a call.
    fn part_count(&self) -> usize {
        let [input, output] = self.verb.shape(self.ranks);
        input.max(output)
    }

    fn part_bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Bytes of the whole buffer, as in the size column.
    pub(crate) fn bytes(&self) -> usize {
        self.part_bytes() * self.part_count()
    }

    fn root(&self) -> Option<usize> {
        self.verb.collective().and_then(Collective::root).map(|root| root as usize)
    }

    /// Out of place: bytes of the buffer that is read, and of the one that is written.
    pub(crate) fn side_bytes(&self) -> [usize; 2] {
        let (rank, ranks) = (self.rank as u32, self.ranks as u32);
        let sides = self.verb.collective().map_or([1; 2], |it| it.sides(rank, ranks));
        sides.map(|parts| parts * self.part_bytes())
    }

    fn my_part(&self) -> Range<usize> {
        self.rank * self.part_bytes()..(self.rank + 1) * self.part_bytes()
    }

    /// In place: the part of the buffer with this rank's input.
    pub(crate) fn input(&self) -> Range<usize> {
        let [input, output] = self.verb.shape(self.ranks);
        if input < output { self.my_part() } else { 0..self.bytes() }
    }

    /// In place: the part of the buffer with this rank's result.
    pub(crate) fn output(&self) -> Range<usize> {
        let [input, output] = self.verb.shape(self.ranks);
        if input > output { self.my_part() } else { 0..self.bytes() }
    }

    /// The result of this rank in each part of its output.
    pub(crate) fn results(&self) -> impl Iterator<Item = ChunkResult> {
        let Self { verb, rank, ranks, .. } = *self;
        let sender = ((rank + ranks - 1) % ranks) as u32;
        (0..verb.shape(ranks)[1] as u32).map(move |chunk| match verb.collective() {
            Some(_) if verb.is_barrier() => ChunkResult::Untouched,
            Some(collective) => collective.result(rank as u32, chunk),
            None => ChunkResult::Copy { rank: sender, chunk },
        })
    }

    /// The type, "none" where there are no elements.
    pub(crate) fn type_name(&self) -> &'static str {
        if self.verb.is_barrier() { "none" } else { self.dtype.name() }
    }

    /// The reduction, "none" where nothing is reduced.
    pub(crate) fn op_name(&self) -> &'static str {
        if self.verb.reduces() { self.op.name() } else { "none" }
    }

    /// The root, -1 where there is none.
    pub(crate) fn root_column(&self) -> i64 {
        self.root().map_or(-1, |root| root as i64)
    }

    /// The call as a request of the library's planner; none for messages between two ranks.
    pub(crate) fn request(&self) -> Option<Request> {
        let collective = self.verb.collective()?;
        if self.verb.is_barrier() {
            return Some(Request::barrier());
        }
        let (count, dtype, op) = match self.verb.reduces() {
            true => (self.count, self.dtype, Some(self.op.into())),
            false => (self.part_bytes(), DataType::U8, None),
        };
        Some(Request { collective, count, dtype, op })
    }

    /// Out of place: true if the call writes no result.
    pub(crate) fn keeps_output(&self) -> bool {
        self.results().all(|result| result == ChunkResult::Untouched)
    }

    /// True if the verb can be called in this placement. A barrier, which has no buffers, counts as
    /// in place.
    pub(crate) fn exists(&self) -> bool {
        let is_possible = |it: Collective| it.root().is_none() || !it.has_blocks();
        match self.placement {
            Placement::OutOfPlace => !self.verb.is_barrier(),
            Placement::InPlace => self.verb.collective().is_some_and(is_possible),
        }
    }

    /// The call as a value. A call that only moves data moves bytes, whatever the type.
    pub(crate) fn call(&self) -> Call<'static> {
        let Self { verb, dtype, op, rank, ranks, .. } = *self;
        let dtype = if verb.reduces() { dtype } else { DataType::U8 };
        let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let exchange = ringreduce::Verb::SendRecv { to, from };
        let verb = verb.collective().map_or(exchange, Into::into);
        Call::of(verb, dtype).by(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_collectives_and_of_nccl_tests() {
        assert_eq!("alltoall_perf".parse(), Ok(Verb::Of(Collective::AllToAll)));
        assert_eq!("sendrecv_perf".parse(), Ok(Verb::SendRecv));
        let error = "allredcue".parse::<Verb>().unwrap_err();
        assert!(error.contains("scatter, send_recv"), "{error}");
    }

    #[test]
    fn sizes_hold_whole_elements_of_every_rank() {
        let case = Case {
            verb: Verb::Of(Collective::AllGather),
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            count: 0,
            rank: 1,
            ranks: 3,
            placement: Placement::InPlace,
        };
        let gather = case.of_size(100);
        assert_eq!((gather.count, gather.bytes()), (8, 96));
        assert_eq!(gather.side_bytes(), [32, 96]);
        assert_eq!((gather.input(), gather.output()), (32..64, 0..96));
        let of = |collective| Case { verb: Verb::Of(collective), ..case }.of_size(100);
        let scatter = of(Collective::ReduceScatter);
        assert_eq!(scatter.side_bytes(), [96, 32]);
        assert_eq!((scatter.input(), scatter.output()), (0..96, 32..64));
        let [root, other] = [1, 0].map(|root| of(Collective::Gather { root }));
        assert_eq!(root.side_bytes(), [32, 96]);
        assert_eq!(other.side_bytes(), [32, 0]);
        let [root, other] = [1, 0].map(|root| of(Collective::Scatter { root }));
        assert_eq!(root.side_bytes(), [96, 32]);
        assert_eq!(other.side_bytes(), [0, 32]);
        let reduce = Case { verb: Verb::Of(Collective::AllReduce), ..case }.of_size(103);
        assert_eq!((reduce.count, reduce.bytes()), (25, 100));
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for verb in Verb::all() {
            let expected = match verb.name() {
                "all_reduce" => 1.5,
                "reduce_scatter" | "all_gather" | "gather" | "scatter" | "all_to_all" => 0.75,
                _ => 1.0,
            };
            assert_eq!(verb.bus_factor(4), expected, "{verb}");
        }
        assert_eq!(Verb::Of(Collective::AllReduce).bus_factor(1), 0.0);
    }
}
