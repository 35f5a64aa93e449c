//! PMI-1, by which programs of the MPICH family start as one world: each rank inherits a socket on
//! which it asks for its world's name, passes short texts to the other ranks and waits for them.
//! `world` answers the requests and has no input or output, `fields` takes a line apart, and
//! `connection` moves the bytes of one rank; `running::pmi` is the part of the launcher's loop.
//! Law: no rank can make the launcher wait, allocate without bound or end; a rank that sends
//! anything else than PMI-1 loses its connection, and no other rank does.
//!
//! Source: the wire protocol as MPICH's `src/pmi/maint/pmi-1.1.txt` lists it, and Flux's RFC 13.

pub(crate) mod connection;
mod fields;
mod mapping;
pub(crate) mod world;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::cli::hosts::RankPlacement;

/// The variables that ringrun sets for programs of MPICH.
pub(crate) const VARIABLES: [&str; 5] =
    ["PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
/// Variables of an outer launcher that name another connection, or another kind of start.
const OF_OTHERS: [&str; 3] = ["PMI_PORT", "PMI_ID", "PMI_SPAWNED"];

/// Sets the variables of one of `ranks` ranks, which inherits `socket`.
pub(super) fn set(
    command: &mut Command,
    placement: &RankPlacement,
    ranks: usize,
    socket: &UnixStream,
) {
    let RankPlacement { rank, local_rank, local_size, .. } = *placement;
    let socket = socket.as_raw_fd().to_string();
    let numbers = [rank, ranks, local_rank, local_size].map(|number| number.to_string());
    command.envs(VARIABLES.into_iter().zip([socket].into_iter().chain(numbers)));
    for name in OF_OTHERS {
        command.env_remove(name);
    }
}
