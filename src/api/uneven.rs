//! Checks of the arguments of collectives whose parts differ in length. The parts follow each other
//! in the order of ranks; `counts` has the number of elements of each.

use super::Communicator;
use super::verb::argument_error;
use crate::element::{DataType, Reduction};
use crate::engine::linked_up_to;
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::{Collective, Ring};

/// A collective whose parts differ in length, and the name of its method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uneven {
    pub(super) collective: Collective,
    pub(crate) name: &'static str,
}

impl Uneven {
    pub(crate) fn of(collective: Collective) -> Self {
        let name = match collective {
            Collective::AllGather => "all_gather_v",
            Collective::ReduceScatter => "reduce_scatter_v",
            Collective::Gather { .. } => "gather_v",
            Collective::Scatter { .. } => "scatter_v",
            _ => "all_to_all_v",
        };
        Self { collective, name }
    }

    /// True if `send` has all parts and `recv` one of them; else it is the other way round.
    pub(crate) fn scatters(&self) -> bool {
        matches!(self.collective, Collective::ReduceScatter | Collective::Scatter { .. })
    }

    /// Checks the counts of an all-to-all, one for each rank, against buffers of these lengths in
    /// elements.
    pub(crate) fn check_all_to_all(
        &self,
        comm: &Communicator,
        [send, recv]: [&[usize]; 2],
        [send_len, recv_len]: [usize; 2],
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        self.check_rank_count("send_counts", send, size)?;
        self.check_rank_count("recv_counts", recv, size)?;
        self.check_total("send_counts", send, "send", send_len)?;
        self.check_total("recv_counts", recv, "recv", recv_len)?;
        if send[rank] == recv[rank] {
            return Ok(());
        }
        let given = format!("{} for this rank itself", recv[rank]);
        argument_error(self.name, "recv_counts", given, format!("{}, as send_counts", send[rank]))
    }

    pub(crate) fn request(&self, dtype: DataType, op: Option<Reduction>) -> Request {
        Request { collective: self.collective, count: 0, dtype, op }
    }

    pub(super) fn check_links(&self, ring: &Ring) -> Result<()> {
        if ring.all_pairs() {
            return Ok(());
        }
        let expected =
            format!("at most {}: {}", ring.most_pairs(), linked_up_to(ring.most_pairs()));
        argument_error(self.name, "size", ring.size(), expected)
    }

    fn check_rank_count(
        &self,
        argument: &'static str,
        counts: &[usize],
        size: usize,
    ) -> Result<()> {
        if counts.len() == size {
            return Ok(());
        }
        let given = format!("{} numbers long", counts.len());
        argument_error(self.name, argument, given, format!("{size}, one for each rank"))
    }

    /// This rank's entry of `counts`, which must be the length of its buffer.
    pub(super) fn own_count<'a>(
        &self,
        counts: &'a [usize],
        size: usize,
        rank: usize,
        argument: &'static str,
        len: usize,
    ) -> Result<&'a [usize]> {
        self.check_rank_count("counts", counts, size)?;
        let mine = counts[rank];
        if mine == len {
            return Ok(&counts[rank..=rank]);
        }
        let expected = format!("{mine}, the entry of rank {rank} in counts");
        argument_error(self.name, argument, format!("{len} elements long"), expected)
    }

    /// Checks that `counts` add up to the length of a buffer.
    pub(super) fn check_total(
        &self,
        argument: &'static str,
        counts: &[usize],
        buffer: &'static str,
        len: usize,
    ) -> Result<()> {
        let total = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        if total == Some(len) {
            return Ok(());
        }
        let given = total.map_or("more elements than the address space has".into(), |sum| {
            format!("{sum} elements in all")
        });
        argument_error(self.name, argument, given, format!("{len}, the length of {buffer}"))
    }
}
