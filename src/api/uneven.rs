//! Checks of the arguments of collectives whose parts differ in length. The parts follow each other
//! in the order of ranks; `counts` has the number of elements of each.

use super::Communicator;
use super::call::Call;
use crate::engine::linked_up_to;
use crate::error::{Result, argument_error};
use crate::schedule::{Collective, Ring};

/// The name of a collective's method on parts that differ in length; an error if it has none.
pub(super) fn name(call: &Call<'_>, collective: Collective) -> Result<&'static str> {
    let [input, output] = collective.shape(2);
    if input != output {
        return Ok(call.name());
    }
    let expected = "none: all_gather, reduce_scatter, gather and scatter alone have parts whose \
                    lengths all ranks pass";
    argument_error(call.name(), "counts", "given", expected)
}

/// Checks the counts of an all-to-all, one for each rank, against buffers of these lengths in
/// elements.
pub(crate) fn check_pairs(
    comm: &Communicator,
    call: &'static str,
    collective: Collective,
    [send, recv]: [&[usize]; 2],
    [send_len, recv_len]: [usize; 2],
) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    if collective != Collective::AllToAll {
        let expected = "none for pairs of ranks: all_to_all alone has parts between two ranks";
        return argument_error(call, "counts", "given", expected);
    }
    check_rank_count(call, "send_counts", send, size)?;
    check_rank_count(call, "recv_counts", recv, size)?;
    check_total(call, "send_counts", send, "send", send_len)?;
    check_total(call, "recv_counts", recv, "recv", recv_len)?;
    if send[rank] == recv[rank] {
        return Ok(());
    }
    let given = format!("{} for this rank itself", recv[rank]);
    argument_error(call, "recv_counts", given, format!("{}, as send_counts", send[rank]))
}

/// Refuses a ring without links between all pairs of ranks.
pub(super) fn check_links(call: &'static str, ring: &Ring) -> Result<()> {
    if ring.all_pairs() {
        return Ok(());
    }
    let expected = format!("at most {}: {}", ring.most_pairs(), linked_up_to(ring.most_pairs()));
    argument_error(call, "size", ring.size(), expected)
}

fn check_rank_count(
    call: &'static str,
    argument: &'static str,
    counts: &[usize],
    size: usize,
) -> Result<()> {
    if counts.len() == size {
        return Ok(());
    }
    let given = format!("{} numbers long", counts.len());
    argument_error(call, argument, given, format!("{size}, one for each rank"))
}

/// This rank's entry of `counts`, which must be the length of its buffer.
pub(super) fn own_count<'a>(
    call: &'static str,
    counts: &'a [usize],
    (rank, size): (usize, usize),
    argument: &'static str,
    len: usize,
) -> Result<&'a [usize]> {
    check_rank_count(call, "counts", counts, size)?;
    let mine = counts[rank];
    if mine == len {
        return Ok(&counts[rank..=rank]);
    }
    let expected = format!("{mine}, the entry of rank {rank} in counts");
    argument_error(call, argument, format!("{len} elements long"), expected)
}

/// Checks that so many elements of `size` bytes fit into memory.
pub(super) fn check_sum(call: &'static str, counts: &[usize], size: usize) -> Result<()> {
    let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
    let most = isize::MAX as usize / size;
    if sum.is_some_and(|sum| sum <= most) {
        return Ok(());
    }
    let given = "more elements than the address space has";
    argument_error(call, "counts", given, format!("at most {most} elements in all"))
}

/// Checks that `counts` add up to the length of a buffer.
pub(super) fn check_total(
    call: &'static str,
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
    argument_error(call, argument, given, format!("{len}, the length of {buffer}"))
}
