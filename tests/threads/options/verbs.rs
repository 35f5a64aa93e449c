//! Every collective in every form and way: which buffers it has, how it is made, and its result.

use ringreduce::schedule::Schedule;
use ringreduce::{Algorithm, Collective, Communicator, FoldOrder, ReduceOp, Registered, Result};

use super::oracle::{Op, PERIOD, Sums, Want, bytes};

macro_rules! verbs {
    ($($verb:ident)*) => {
        /// A method of the communicator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Verb {
            $($verb,)*
        }

        impl Verb {
            pub(super) const ALL: &[Self] = &[$(Self::$verb,)*];
        }
    };
}

verbs! {
    AllReduce AllReduceInto AllReduceMany AllReduceBy AllReduceByInOrder Reduce ReduceInto
    ReduceScatter ReduceScatterInPlace ReduceScatterV Scan ScanInto Exscan ExscanInto RunReduction
    AllGather AllGatherInPlace AllGatherV Broadcast Gather GatherV Scatter ScatterV AllToAll
    AllToAllInPlace AllToAllV SendRecv Barrier
}

/// How a call is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Blocking,
    Group,
    Scope,
    Nonblocking,
}

impl Verb {
    pub(super) const fn collective(self, root: u32) -> Collective {
        match self {
            Self::AllReduce | Self::AllReduceInto | Self::AllReduceMany => Collective::AllReduce,
            Self::AllReduceBy | Self::AllReduceByInOrder | Self::RunReduction => {
                Collective::AllReduce
            }
            Self::Reduce | Self::ReduceInto => Collective::Reduce { root },
            Self::ReduceScatter | Self::ReduceScatterInPlace | Self::ReduceScatterV => {
                Collective::ReduceScatter
            }
            Self::Scan | Self::ScanInto => Collective::Scan,
            Self::Exscan | Self::ExscanInto => Collective::Exscan,
            Self::AllGather | Self::AllGatherInPlace | Self::AllGatherV => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast { root },
            Self::Gather | Self::GatherV => Collective::Gather { root },
            Self::Scatter | Self::ScatterV => Collective::Scatter { root },
            Self::AllToAll | Self::AllToAllInPlace | Self::AllToAllV | Self::SendRecv => {
                Collective::AllToAll
            }
            Self::Barrier => Collective::Barrier,
        }
    }

    pub(super) const fn is_uneven(self) -> bool {
        matches!(
            self,
            Self::ReduceScatterV
                | Self::AllGatherV
                | Self::GatherV
                | Self::ScatterV
                | Self::AllToAllV
        )
    }

    pub(super) const fn is_by_function(self) -> bool {
        matches!(self, Self::AllReduceBy | Self::AllReduceByInOrder)
    }

    /// True if an operation is given, so that options about numbers matter.
    pub(super) const fn reduces(self) -> bool {
        self.collective(0).reduces() && !matches!(self, Self::Barrier)
    }

    pub(super) const fn is_in_place(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::AllReduceMany
                | Self::Reduce
                | Self::ReduceScatterInPlace
                | Self::Scan
                | Self::Exscan
                | Self::AllGatherInPlace
                | Self::Broadcast
                | Self::AllToAllInPlace
                | Self::Barrier
        ) || self.is_by_function()
    }

    pub(super) const fn ways(self) -> &'static [Way] {
        match self {
            Self::AllReduceBy | Self::AllReduceByInOrder | Self::RunReduction => &[Way::Blocking],
            Self::SendRecv | Self::AllReduceMany => &[Way::Blocking, Way::Group],
            _ => &[Way::Blocking, Way::Group, Way::Scope, Way::Nonblocking],
        }
    }
}

/// One rank's call.
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) sums: Sums,
    pub(super) me: usize,
    pub(super) root: usize,
    /// Elements of a buffer, or of a block.
    pub(super) count: usize,
}

/// Memory of a call.
pub(super) enum Memory {
    Plain(Vec<u8>),
    Registered(Registered<'static, u8>),
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Plain(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

/// Makes a call in place of `$to`: a communicator, a group or a queue.
macro_rules! in_place {
    ($to:expr, $call:expr, $buf:expr) => {{
        let (to, call, buf) = ($to, $call, $buf);
        let (by, dtype, root) = (call.by(), call.sums.dtype, call.root);
        match call.verb {
            Verb::AllReduce => to.all_reduce_bytes(buf, dtype, by),
            Verb::Reduce => to.reduce_bytes(buf, dtype, by, root),
            Verb::ReduceScatterInPlace => to.reduce_scatter_in_place_bytes(buf, dtype, by),
            Verb::Scan => to.scan_bytes(buf, dtype, by),
            Verb::Exscan => to.exscan_bytes(buf, dtype, by),
            Verb::AllGatherInPlace => to.all_gather_in_place_bytes(buf, dtype),
            Verb::Broadcast => to.broadcast_bytes(buf, dtype, root),
            Verb::AllToAllInPlace => to.all_to_all_in_place_bytes(buf, dtype),
            other => panic!("{other:?} is not in place"),
        }
    }};
}

/// Makes a call between two buffers; `$counts` are the blocks' lengths of this rank, and of it and
/// others.
macro_rules! apart {
    ($to:expr, $call:expr, $send:expr, $recv:expr, $counts:expr) => {{
        let (to, call, send, recv) = ($to, $call, $send, $recv);
        let (by, dtype, root) = (call.by(), call.sums.dtype, call.root);
        match call.verb {
            Verb::AllReduceInto => to.all_reduce_into_bytes(send, recv, dtype, by),
            Verb::ReduceInto => to.reduce_into_bytes(send, recv, dtype, by, root),
            Verb::ReduceScatter => to.reduce_scatter_bytes(send, recv, dtype, by),
            Verb::ReduceScatterV => to.reduce_scatter_v_bytes(send, recv, $counts, dtype, by),
            Verb::ScanInto => to.scan_into_bytes(send, recv, dtype, by),
            Verb::ExscanInto => to.exscan_into_bytes(send, recv, dtype, by),
            Verb::AllGather => to.all_gather_bytes(send, recv, dtype),
            Verb::AllGatherV => to.all_gather_v_bytes(send, recv, $counts, dtype),
            Verb::Gather => to.gather_bytes(send, recv, dtype, root),
            Verb::GatherV => to.gather_v_bytes(send, recv, $counts, dtype, root),
            Verb::Scatter => to.scatter_bytes(send, recv, dtype, root),
            Verb::ScatterV => to.scatter_v_bytes(send, recv, $counts, dtype, root),
            Verb::AllToAll => to.all_to_all_bytes(send, recv, dtype),
            Verb::AllToAllV => to.all_to_all_v_bytes(send, $counts, recv, $counts, dtype),
            other => panic!("{other:?} has one buffer"),
        }
    }};
}

impl Call {
    fn by(&self) -> ringreduce::Reduction {
        self.sums.op.reduction(self.sums.dtype, self.sums.is_exact())
    }

    /// The lengths of the parts of an uneven call, the same at all ranks; a part of an exchange has
    /// the same length at both ends.
    fn counts(&self) -> Vec<usize> {
        let ranks = 0..self.sums.ranks;
        match self.verb {
            Verb::AllToAllV => ranks.map(|rank| self.count * ((rank + self.me) % 3) / 2).collect(),
            _ => ranks.map(|rank| self.count * (rank % 3) / 2).collect(),
        }
    }

    /// Contributions of `rank`, from a place on.
    fn of(&self, rank: usize, from: usize, count: usize) -> Vec<u8> {
        let period: Vec<_> =
            (0..PERIOD).map(|place| bytes(self.sums.dtype, self.sums.value(rank, place))).collect();
        (from..from + count).flat_map(|place| period[place % PERIOD].iter().copied()).collect()
    }

    /// The input and the output before the call; in place the output alone.
    pub(super) fn buffers(&self) -> [Vec<u8>; 2] {
        let (n, count, is_root) = (self.sums.ranks, self.count, self.me == self.root);
        let (mine, all) = (|| self.of(self.me, 0, count), || self.of(self.me, 0, n * count));
        let nothing = |count: usize| vec![0x55; count * self.sums.dtype.size()];
        let counts = self.counts();
        let (total, own) = (counts.iter().sum(), counts[self.me]);
        match self.verb {
            Verb::Barrier => [vec![], vec![]],
            Verb::AllToAllInPlace | Verb::ReduceScatterInPlace => [vec![], all()],
            Verb::AllGatherInPlace => {
                let (mut buf, part) = (nothing(n * count), mine());
                buf[self.me * part.len()..][..part.len()].copy_from_slice(&part);
                [vec![], buf]
            }
            verb if verb.is_in_place() => [vec![], mine()],
            Verb::ReduceInto => [mine(), nothing(if is_root { count } else { 0 })],
            Verb::ReduceScatter => [all(), nothing(count)],
            Verb::AllGather => [mine(), nothing(n * count)],
            Verb::Gather => [mine(), nothing(if is_root { n * count } else { 0 })],
            Verb::Scatter => [if is_root { all() } else { vec![] }, nothing(count)],
            Verb::AllToAll => [all(), nothing(n * count)],
            Verb::ReduceScatterV => [self.of(self.me, 0, total), nothing(own)],
            Verb::AllGatherV => [self.of(self.me, 0, own), nothing(total)],
            Verb::GatherV => [self.of(self.me, 0, own), nothing(if is_root { total } else { 0 })],
            Verb::ScatterV => [self.of(self.me, 0, if is_root { total } else { 0 }), nothing(own)],
            Verb::AllToAllV => [self.of(self.me, 0, total), nothing(total)],
            _ => [mine(), nothing(count)],
        }
    }

    /// The conditions of the elements of the output, from the byte where they begin.
    pub(super) fn wants(&self) -> (usize, Vec<Want>) {
        let (n, count, me) = (self.sums.ranks, self.count, self.me);
        let size = self.sums.dtype.size();
        let counts = self.counts();
        let place = |rank: usize| counts[..rank].iter().sum::<usize>();
        let reduced = |ranks: usize, from: usize, count: usize| -> Vec<Want> {
            let period: Vec<_> = (0..PERIOD).map(|place| self.sums.want(ranks, place)).collect();
            (from..from + count).map(|place| period[place % PERIOD].clone()).collect()
        };
        let copied = |bytes: Vec<u8>| -> Vec<Want> {
            bytes.chunks(size).map(|element| Want::Bits(element.to_vec())).collect()
        };
        let is_root = me == self.root;
        let each = |part: &dyn Fn(usize) -> Vec<u8>| copied((0..n).flat_map(part).collect());
        match self.verb {
            Verb::AllReduce | Verb::AllReduceInto | Verb::AllReduceMany | Verb::RunReduction => {
                (0, reduced(n, 0, count))
            }
            // The function takes the left one of two: any one, unless the order is promised.
            Verb::AllReduceByInOrder => (0, copied(self.of(0, 0, count))),
            Verb::AllReduceBy if self.sums.in_force.deterministic => {
                (0, copied(self.of(0, 0, count)))
            }
            Verb::Reduce | Verb::ReduceInto if is_root => (0, reduced(n, 0, count)),
            Verb::ReduceScatter => (0, reduced(n, me * count, count)),
            Verb::ReduceScatterInPlace => (me * count * size, reduced(n, me * count, count)),
            Verb::ReduceScatterV => (0, reduced(n, place(me), counts[me])),
            Verb::Scan | Verb::ScanInto => (0, reduced(me + 1, 0, count)),
            Verb::Exscan | Verb::ExscanInto if me > 0 => (0, reduced(me, 0, count)),
            Verb::AllGather | Verb::AllGatherInPlace => (0, each(&|rank| self.of(rank, 0, count))),
            Verb::Gather if is_root => (0, each(&|rank| self.of(rank, 0, count))),
            Verb::AllGatherV => (0, each(&|rank| self.of(rank, 0, counts[rank]))),
            Verb::GatherV if is_root => (0, each(&|rank| self.of(rank, 0, counts[rank]))),
            Verb::Broadcast => (0, copied(self.of(self.root, 0, count))),
            Verb::Scatter => (0, copied(self.of(self.root, me * count, count))),
            Verb::ScatterV => (0, copied(self.of(self.root, place(me), counts[me]))),
            Verb::AllToAll | Verb::AllToAllInPlace => {
                (0, each(&|rank| self.of(rank, me * count, count)))
            }
            Verb::AllToAllV => (0, each(&|rank| self.part_from(rank, counts[rank]))),
            Verb::SendRecv => (0, copied(self.of((me + n - 1) % n, 0, count))),
            _ => (0, vec![]),
        }
    }

    /// The part of an uneven exchange that `rank` sends to this one.
    fn part_from(&self, rank: usize, count: usize) -> Vec<u8> {
        let before = (0..self.me).map(|to| self.count * ((to + rank) % 3) / 2).sum();
        self.of(rank, before, count)
    }

    /// Makes the call, which leaves its result in `recv`.
    pub(super) fn make(
        &self,
        comm: &mut Communicator,
        way: Way,
        send: Memory,
        recv: &mut Memory,
    ) -> Result<()> {
        let (is_in_place, counts) = (self.verb.is_in_place(), self.counts());
        match (way, self.verb) {
            (Way::Scope, Verb::Barrier) => comm.scope(|queue| queue.barrier().wait()),
            (Way::Nonblocking, Verb::Barrier) => comm.nonblocking().barrier().wait(),
            (Way::Blocking, _) => self.blocking(comm, send.as_ref(), recv.as_mut()),
            (Way::Group, _) => self.in_group(comm, send.as_ref(), recv.as_mut(), &counts),
            (Way::Scope, _) if is_in_place => {
                comm.scope(|queue| in_place!(queue, self, recv.as_mut()).wait().map(drop))
            }
            (Way::Scope, _) => {
                let (send, recv) = (send.as_ref(), recv.as_mut());
                comm.scope(|queue| apart!(queue, self, send, recv, &counts[..]).wait().map(drop))
            }
            (Way::Nonblocking, _) => {
                let own = std::mem::replace(recv, Memory::Plain(Vec::new()));
                let mut queue = comm.nonblocking();
                *recv = match is_in_place {
                    true => in_place!(&mut queue, self, own).wait()?,
                    false => apart!(&mut queue, self, send, own, counts.clone()).wait()?.1,
                };
                Ok(())
            }
        }
    }

    fn blocking(&self, comm: &mut Communicator, send: &[u8], recv: &mut [u8]) -> Result<()> {
        let (by, dtype, n) = (self.by(), self.sums.dtype, self.sums.ranks);
        let (half, counts) = (recv.len() / 2 / dtype.size() * dtype.size(), &self.counts()[..]);
        match self.verb {
            Verb::Barrier => comm.barrier(),
            Verb::AllReduceMany => {
                let (one, other) = recv.split_at_mut(half);
                comm.all_reduce_many_bytes(&mut [one, other], dtype, by)
            }
            Verb::AllReduceBy | Verb::AllReduceByInOrder => {
                let is_any = self.verb == Verb::AllReduceBy;
                let order = if is_any { FoldOrder::Any } else { FoldOrder::Ranks };
                comm.all_reduce_by(recv, order, |left, _| *left)
            }
            Verb::SendRecv => {
                let (next, before) = ((self.me + 1) % n, (self.me + n - 1) % n);
                comm.send_recv_bytes(send, next, recv, before, dtype)
            }
            Verb::RunReduction => {
                let ring = ringreduce::schedule::Ring::natural(n as u32);
                let schedule = |me| -> Schedule {
                    Algorithm::Ring.schedule(Collective::AllReduce, &ring, me).unwrap()
                };
                let proven = comm.prove(Collective::AllReduce, schedule).unwrap();
                comm.run_reduction_bytes(&proven, send, recv, dtype, by)
            }
            verb if verb.is_in_place() => in_place!(comm, self, recv),
            _ => apart!(comm, self, send, recv, counts),
        }
    }

    fn in_group(
        &self,
        comm: &mut Communicator,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
    ) -> Result<()> {
        let (by, dtype, n) = (self.by(), self.sums.dtype, self.sums.ranks);
        let half = recv.len() / 2 / dtype.size() * dtype.size();
        match self.verb {
            Verb::Barrier => comm.group(|group| group.barrier()),
            Verb::AllReduceMany => {
                let (one, other) = recv.split_at_mut(half);
                let mut both = [one, other];
                comm.group(|group| group.all_reduce_many_bytes(&mut both, dtype, by))
            }
            Verb::SendRecv => {
                let (next, before) = ((self.me + 1) % n, (self.me + n - 1) % n);
                comm.group(|group| group.send_recv_bytes(send, next, recv, before, dtype))
            }
            verb if verb.is_in_place() => comm.group(|group| in_place!(group, self, recv)),
            _ => comm.group(|group| apart!(group, self, send, recv, counts)),
        }
    }
}

/// True if the operation is none for this verb or type, or leaves nothing to choose.
pub(super) fn is_left_out(verb: Verb, op: Op, dtype: ringreduce::DataType) -> bool {
    let is_first = op == Op::Plain(ReduceOp::Sum);
    let is_prefix = matches!(verb, Verb::Scan | Verb::ScanInto | Verb::Exscan | Verb::ExscanInto);
    match verb {
        _ if !verb.reduces() => !is_first,
        _ if verb.is_by_function() => !is_first || dtype.size() > 1,
        _ => is_prefix && op == Op::Plain(ReduceOp::Avg),
    }
}
