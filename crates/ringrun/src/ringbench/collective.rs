//! Which collective is measured, on what, and how many bytes of each buffer that takes.
//! May touch: the library's public verbs. Sizes are those of nccl-tests: where the buffer has a
//! part for each rank they count the whole of it.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use ringreduce::plan::Request;
use ringreduce::schedule::Collective as Known;
use ringreduce::{
    Communicator, Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64,
    ReduceOp, bf16, f16,
};

/// A collective, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Scan,
    Exscan,
    SendRecv,
    Barrier,
}

impl Collective {
    pub(crate) const ALL: [Self; 12] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Scan,
        Self::Exscan,
        Self::SendRecv,
        Self::Barrier,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::SendRecv => "send_recv",
            Self::Barrier => "barrier",
        }
    }

    /// Does it combine elements, so that the reduction matters?
    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce) || self.is_prefix()
    }

    /// Is each rank's result over another number of ranks?
    const fn is_prefix(self) -> bool {
        matches!(self, Self::Scan | Self::Exscan)
    }

    /// Can it reduce by this? Averages of prefixes there are none.
    pub(crate) fn takes(self, op: ReduceOp) -> bool {
        !(self.is_prefix() && op == ReduceOp::Avg)
    }

    /// Is one rank unlike the others?
    pub(crate) const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Has a buffer a part for each rank?
    const fn has_parts(self) -> bool {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(self, ReduceScatter | AllGather | Gather | Scatter | AllToAll)
    }

    /// Busbw over algbw: what a rank's link carries per byte of the buffer.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * others,
            _ if self.has_parts() => others,
            _ => 1.0,
        }
    }
}

impl FromStr for Collective {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let short = match name.strip_suffix("_perf").unwrap_or(name) {
            "alltoall" => "all_to_all",
            "sendrecv" => "send_recv",
            other => other,
        };
        Self::ALL.into_iter().find(|c| c.name() == short).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown collective `{name}`: one of {known}")
        })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Are input and output one buffer?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    OutOfPlace,
    InPlace,
}

/// One line of the table before it is measured, as one rank sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// Elements: of the buffer, or of one rank's part where it has one for each.
    pub(crate) count: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

impl Case {
    /// The same case with as many whole elements (per rank, where the buffer has a part for each)
    /// as fit in `bytes`.
    pub(crate) fn of_size(self, bytes: usize) -> Self {
        let elements = bytes / self.dtype.size();
        let count = match self.collective {
            Collective::Barrier => 0,
            parted if parted.has_parts() => elements / self.ranks,
            _ => elements,
        };
        Self { count, ..self }
    }

    /// Bytes of `count` elements.
    fn part(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Bytes of the whole buffer: what the size column says.
    pub(crate) fn bytes(&self) -> usize {
        if self.collective.has_parts() { self.part() * self.ranks } else { self.part() }
    }

    fn at_root(&self, bytes: usize) -> usize {
        if self.rank == self.root { bytes } else { 0 }
    }

    /// Out of place: bytes of the buffers that are read and written.
    pub(crate) fn send_bytes(&self) -> usize {
        match self.collective {
            Collective::AllGather | Collective::Gather => self.part(),
            Collective::Scatter => self.at_root(self.bytes()),
            _ => self.bytes(),
        }
    }

    pub(crate) fn recv_bytes(&self) -> usize {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter => self.part(),
            Collective::Reduce | Collective::Gather => self.at_root(self.bytes()),
            _ => self.bytes(),
        }
    }

    fn my_part(&self) -> Range<usize> {
        self.rank * self.part()..(self.rank + 1) * self.part()
    }

    /// In place: where in the buffer this rank's input lies.
    pub(crate) fn input(&self) -> Range<usize> {
        if self.collective == Collective::AllGather { self.my_part() } else { 0..self.bytes() }
    }

    /// In place: where in the buffer this rank finds its result.
    pub(crate) fn output(&self) -> Range<usize> {
        if self.collective == Collective::ReduceScatter { self.my_part() } else { 0..self.bytes() }
    }

    /// The type, "none" where there are no elements.
    pub(crate) fn type_name(&self) -> &'static str {
        if self.collective == Collective::Barrier { "none" } else { self.dtype.name() }
    }

    /// The reduction, "none" where nothing is reduced.
    pub(crate) fn op_name(&self) -> &'static str {
        if self.collective.reduces() { self.op.name() } else { "none" }
    }

    /// The root, -1 where there is none.
    pub(crate) fn root_column(&self) -> i64 {
        if self.collective.has_root() { self.root as i64 } else { -1 }
    }

    /// The call as the library's plans know it; none for messages between two ranks.
    pub(crate) fn request(&self) -> Option<Request> {
        let root = self.root as u32;
        let collective = match self.collective {
            Collective::AllReduce => Known::AllReduce,
            Collective::ReduceScatter => Known::ReduceScatter,
            Collective::AllGather => Known::AllGather,
            Collective::Broadcast => Known::Broadcast { root },
            Collective::Reduce => Known::Reduce { root },
            Collective::Gather => Known::Gather { root },
            Collective::Scatter => Known::Scatter { root },
            Collective::AllToAll => Known::AllToAll,
            Collective::Scan => Known::Scan,
            Collective::Exscan => Known::Exscan,
            Collective::Barrier => Known::Barrier,
            Collective::SendRecv => return None,
        };
        let (count, dtype, op) = match self.collective {
            Collective::Barrier => (1, DataType::U8, Some(ReduceOp::Max.into())),
            reduces if reduces.reduces() => (self.count, self.dtype, Some(self.op.into())),
            _ => (self.part(), DataType::U8, None),
        };
        Some(Request { collective, count, dtype, op })
    }

    /// Out of place: does the result stay as it is?
    pub(crate) fn gets_nothing(&self) -> bool {
        self.collective == Collective::Exscan && self.rank == 0
    }

    /// Is there such a call? A barrier, which has no buffers, is measured as if in place.
    pub(crate) fn has(&self, form: Form) -> bool {
        use Collective::{Barrier, Gather, Scatter, SendRecv};
        match form {
            Form::OutOfPlace => self.collective != Barrier,
            Form::InPlace => !matches!(self.collective, Gather | Scatter | SendRecv),
        }
    }

    /// Calls the collective once with two buffers.
    pub(crate) fn call_apart(
        &self,
        comm: &mut Communicator,
        send: &[u8],
        recv: &mut [u8],
    ) -> ringreduce::Result<()> {
        let Self { dtype, op, root, rank, ranks, .. } = *self;
        match self.collective {
            Collective::AllReduce => comm.all_reduce_into_bytes(send, recv, dtype, op),
            Collective::ReduceScatter => comm.reduce_scatter_bytes(send, recv, dtype, op),
            Collective::Reduce => comm.reduce_into_bytes(send, recv, dtype, op, root),
            Collective::Scan => comm.scan_into_bytes(send, recv, dtype, op),
            Collective::Exscan => comm.exscan_into_bytes(send, recv, dtype, op),
            Collective::Gather => comm.gather(send, recv, root),
            Collective::Scatter => comm.scatter(send, recv, root),
            Collective::AllToAll => comm.all_to_all(send, recv),
            // In a circle, as nccl-tests does it.
            Collective::SendRecv => {
                comm.send_recv(send, (rank + 1) % ranks, recv, (rank + ranks - 1) % ranks)
            }
            Collective::AllGather => comm.all_gather(send, recv),
            // As NCCL's, whose root copies its input to its output: our broadcast has one buffer.
            Collective::Broadcast => {
                if rank == root {
                    recv.copy_from_slice(send);
                }
                comm.broadcast(recv, root)
            }
            Collective::Barrier => comm.barrier(),
        }
    }

    /// Calls the collective once with one buffer.
    pub(crate) fn call_in_place(&self, comm: &mut Communicator, buf: &mut [u8]) -> Result<()> {
        match self.collective {
            Collective::AllReduce => comm.all_reduce_bytes(buf, self.dtype, self.op)?,
            Collective::ReduceScatter => self.scatter_in_place(comm, buf)?,
            Collective::AllGather => comm.all_gather_in_place(buf)?,
            Collective::Broadcast => comm.broadcast(buf, self.root)?,
            Collective::Reduce => comm.reduce_bytes(buf, self.dtype, self.op, self.root)?,
            Collective::AllToAll => comm.all_to_all_in_place(buf)?,
            Collective::Scan => comm.scan_bytes(buf, self.dtype, self.op)?,
            Collective::Exscan => comm.exscan_bytes(buf, self.dtype, self.op)?,
            Collective::Barrier => comm.barrier()?,
            Collective::Gather | Collective::Scatter | Collective::SendRecv => {
                bail!("{} has no form in place", self.collective)
            }
        }
        Ok(())
    }

    fn scatter_in_place(&self, comm: &mut Communicator, buf: &mut [u8]) -> Result<()> {
        let op = self.op;
        match self.dtype {
            DataType::I8 => comm.reduce_scatter_in_place(typed::<i8>(buf)?, op)?,
            DataType::U8 => comm.reduce_scatter_in_place(typed::<u8>(buf)?, op)?,
            DataType::I16 => comm.reduce_scatter_in_place(typed::<i16>(buf)?, op)?,
            DataType::U16 => comm.reduce_scatter_in_place(typed::<u16>(buf)?, op)?,
            DataType::I32 => comm.reduce_scatter_in_place(typed::<i32>(buf)?, op)?,
            DataType::U32 => comm.reduce_scatter_in_place(typed::<u32>(buf)?, op)?,
            DataType::I64 => comm.reduce_scatter_in_place(typed::<i64>(buf)?, op)?,
            DataType::U64 => comm.reduce_scatter_in_place(typed::<u64>(buf)?, op)?,
            DataType::F16 => comm.reduce_scatter_in_place(typed::<f16>(buf)?, op)?,
            DataType::BF16 => comm.reduce_scatter_in_place(typed::<bf16>(buf)?, op)?,
            DataType::F32 => comm.reduce_scatter_in_place(typed::<f32>(buf)?, op)?,
            DataType::F64 => comm.reduce_scatter_in_place(typed::<f64>(buf)?, op)?,
            DataType::F8E4M3 => comm.reduce_scatter_in_place(typed::<F8E4M3>(buf)?, op)?,
            DataType::F8E5M2 => comm.reduce_scatter_in_place(typed::<F8E5M2>(buf)?, op)?,
            DataType::C64 => comm.reduce_scatter_in_place(typed::<Complex<f32>>(buf)?, op)?,
            DataType::C128 => comm.reduce_scatter_in_place(typed::<Complex<f64>>(buf)?, op)?,
            DataType::LocF32 => comm.reduce_scatter_in_place(typed::<LocF32>(buf)?, op)?,
            DataType::LocF64 => comm.reduce_scatter_in_place(typed::<LocF64>(buf)?, op)?,
            DataType::LocI32 => comm.reduce_scatter_in_place(typed::<LocI32>(buf)?, op)?,
            DataType::LocI64 => comm.reduce_scatter_in_place(typed::<LocI64>(buf)?, op)?,
        }
        Ok(())
    }
}

/// In-place reduce_scatter exists for typed slices only, and those are aligned.
fn typed<T: Element>(buf: &mut [u8]) -> Result<&mut [T]> {
    bytemuck::try_cast_slice_mut(buf).ok().with_context(|| {
        format!("in-place reduce_scatter of {} takes aligned buffers only", T::DTYPE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds() {
        assert_eq!("all_reduce".parse(), Ok(Collective::AllReduce));
        assert_eq!("reduce_scatter_perf".parse(), Ok(Collective::ReduceScatter));
        let error = "allreduce".parse::<Collective>().unwrap_err();
        assert!(error.contains("`allreduce`") && error.contains("send_recv, barrier"), "{error}");
        assert_eq!("alltoall_perf".parse(), Ok(Collective::AllToAll));
        assert_eq!("sendrecv_perf".parse(), Ok(Collective::SendRecv));
    }

    #[test]
    fn sizes_hold_whole_elements_of_every_rank() {
        let case = Case {
            collective: Collective::AllGather,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            count: 0,
            rank: 1,
            ranks: 3,
        };
        let gather = case.of_size(100);
        assert_eq!((gather.count, gather.bytes()), (8, 96));
        assert_eq!((gather.send_bytes(), gather.recv_bytes()), (32, 96));
        assert_eq!((gather.input(), gather.output()), (32..64, 0..96));
        let scatter = Case { collective: Collective::ReduceScatter, ..case }.of_size(100);
        assert_eq!((scatter.send_bytes(), scatter.recv_bytes()), (96, 32));
        assert_eq!((scatter.input(), scatter.output()), (0..96, 32..64));
        let root = Case { collective: Collective::Gather, root: 1, ..case }.of_size(100);
        let other = Case { root: 0, ..root };
        assert_eq!((root.send_bytes(), root.recv_bytes()), (32, 96));
        assert_eq!((other.send_bytes(), other.recv_bytes()), (32, 0));
        let [root, other] = [root, other].map(|c| Case { collective: Collective::Scatter, ..c });
        assert_eq!((root.send_bytes(), root.recv_bytes()), (96, 32));
        assert_eq!((other.send_bytes(), other.recv_bytes()), (0, 32));
        let reduce = Case { collective: Collective::AllReduce, ..case }.of_size(103);
        assert_eq!((reduce.count, reduce.bytes()), (25, 100));
    }

    #[test]
    fn bus_factors() {
        assert_eq!(Collective::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Collective::AllGather.bus_factor(4), 0.75);
        for whole in [Collective::Broadcast, Collective::Reduce, Collective::SendRecv] {
            assert_eq!(whole.bus_factor(4), 1.0);
        }
        for parted in [Collective::Gather, Collective::Scatter, Collective::AllToAll] {
            assert_eq!(parted.bus_factor(4), 0.75);
        }
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }
}
