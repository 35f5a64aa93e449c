//! Ranks some of whose devices reach each other: such islands reduce among themselves, one rank of
//! each goes by way of the host for all, and gives the others the result.
//! May touch: as `comm`. Law: each part is a call of a communicator of its own, in the order of the
//! same stream.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::{CudaContext, CudaStream};

use super::{DeviceRef, OnStream, Side, Sides};
use crate::comm::options::Settings;
use crate::comm::{Communicator, worker};
use crate::device::cuda::copy;
use crate::element::{Element, Kind, ReduceOp, Reduction};
use crate::error::{Error, Result};
use crate::plan::Request;
use crate::schedule::Collective;

/// The communicators of the parts.
#[derive(Debug)]
pub(super) struct Islands {
    /// Of those whose devices reach each other.
    pub(super) island: Communicator,
    /// Of the first ranks of all islands, if this is one.
    leaders: Option<Communicator>,
    /// Which island each rank is in, as its first rank has it.
    of: Vec<usize>,
}

impl Islands {
    /// The first failure that nobody was told of.
    pub(super) fn check(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.island.on_stream(stream).check()?;
        self.leaders.as_mut().map_or(Ok(()), |leaders| leaders.on_stream(stream).check())
    }

    /// A rank's number among those of its island, and the number of the island.
    fn place(&self, rank: usize) -> (usize, usize) {
        let first = self.of[rank];
        let among = (first..rank).filter(|&other| self.of[other] == first).count();
        (among, (0..first).filter(|&other| self.of[other] == other).count())
    }
}

impl Communicator {
    /// This rank's island begins with rank `first`.
    pub(super) fn make_islands(&mut self, context: &Arc<CudaContext>, first: usize) -> Result<()> {
        let (me, size) = (self.rank(), self.size());
        let of = self.tell_words("use_device", &[first as u64])?;
        let of = of.into_iter().map(|first| first as usize).collect();
        let island = self.split(Some(first as u32), me as i64)?;
        let mut leaders = self.split((first == me).then_some(0), me as i64)?;
        let Some(mut island) = island else { return Err(worker::lost("use_device")) };
        island.heed(&self.abort);
        if let Some(leaders) = &mut leaders {
            leaders.settings.averages = Some(size);
            leaders.heed(&self.abort);
        }
        let used = island.use_device(context);
        let fine = self.tell_words("use_device", &[u64::from(used.is_ok())])?;
        used?;
        self.all_are_fine("use_device", fine.into_iter())?;
        if let (Some(leaders), Some(direct)) = (&mut leaders, &island.streams.direct) {
            leaders.streams.stands_for = Some(Arc::clone(direct.watch()));
        }
        self.streams.islands = Some(Box::new(Islands { island, leaders, of }));
        Ok(())
    }

    /// An abort of the whole is one of its parts.
    fn heed(&mut self, abort: &Arc<AtomicBool>) {
        self.abort = Arc::clone(abort);
        if let Some(engine) = &mut self.engine {
            engine.abort = Arc::clone(abort);
        }
    }

    /// The others of the island do not get what this rank was to bring.
    fn fail_streams(&self, error: &Error) {
        if let Some(direct) = &self.streams.direct {
            direct.watch().refuse(error.to_string());
        }
    }

    /// Does a call go by islands? Where the order of ranks is promised it can't.
    pub(super) fn goes_by_islands(&self, request: &Request) -> bool {
        let possible = matches!(
            (request.collective, request.op.map(Reduction::kind)),
            (Collective::AllReduce, Some(Kind::Plain(_) | Kind::PreMulSum(..)))
                | (Collective::Broadcast { .. }, None)
        );
        possible && self.streams.islands.is_some() && !self.settings.numbers.deterministic
    }
}

impl OnStream<'_> {
    /// Puts a call on the stream that goes by islands. The context is current.
    pub(super) fn put_by_islands<T: Element>(
        &mut self,
        request: &Request,
        Sides { sides, block, .. }: Sides,
    ) -> Result<()> {
        let stream = self.stream;
        let [Side { device: from, writes: in_place, .. }, other] = sides;
        let to = if in_place { from } else { other.device };
        if !in_place {
            copy(stream.cu_stream(), to, from, block)?;
        }
        let mut buf = DeviceRef::<T>::of_call(to, request.count, stream);
        let Some(islands) = &mut self.comm.streams.islands else {
            return Err(worker::lost(request.collective.name()));
        };
        let root = match request.collective {
            Collective::Broadcast { root } => Some(islands.place(root as usize)),
            _ => None,
        };
        let (_, here) = islands.place(self.comm.seat.rank);
        let Islands { island, leaders, .. } = &mut **islands;
        let Settings { timeout, tag, numbers, .. } = self.comm.settings.clone();
        let heeded =
            |own: &Settings| Settings { timeout, tag: tag.clone(), numbers, ..own.clone() };
        island.settings = heeded(&island.settings);
        if let Some(leaders) = leaders {
            leaders.settings = heeded(&leaders.settings);
        }
        match (root, request.op) {
            (None, Some(op)) => {
                let (within, between) = parts(op);
                island.on_stream(stream).reduce(&mut buf, within, 0)?;
                if let Some(leaders) = leaders {
                    let done = leaders.on_stream(stream).all_reduce(&mut buf, between);
                    done.inspect_err(|error| island.fail_streams(error))?;
                }
            }
            (Some((rank, its)), _) => {
                if its == here {
                    island.on_stream(stream).broadcast(&mut buf, rank)?;
                }
                if let Some(leaders) = leaders {
                    let done = leaders.on_stream(stream).broadcast(&mut buf, its);
                    done.inspect_err(|error| island.fail_streams(error))?;
                }
                if its == here {
                    return Ok(());
                }
            }
            (None, None) => return Ok(()),
        }
        island.on_stream(stream).broadcast(&mut buf, 0)
    }
}

/// What a reduction is within islands, and between them, where an average is divided by all ranks.
fn parts(op: Reduction) -> (Reduction, Reduction) {
    match op.kind() {
        Kind::Plain(ReduceOp::Avg) => (ReduceOp::Sum.into(), op),
        Kind::PreMulSum(..) => (op, ReduceOp::Sum.into()),
        _ => (op, op),
    }
}
