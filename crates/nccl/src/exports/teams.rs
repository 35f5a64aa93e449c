//! Teams: the ranks that kernels of the caller's would reach in the same way.

use core::ffi::c_int;

use super::export_plain;
use crate::abi::{Comm, Team};
use crate::handle::Handle;

/// The communicator's rank and size; 0 and 0 if there is none.
///
/// # Safety
/// `comm` is what [`Handle::of`] asks for.
unsafe fn place(comm: Comm) -> (c_int, c_int) {
    // SAFETY: as above.
    let handle = unsafe { Handle::of(comm) };
    let ready = handle.and_then(Handle::ready);
    ready.map_or((0, 0), |ready| (ready.rank as c_int, ready.size as c_int))
}

/// This rank alone: no kernel reaches another rank's memory.
const ALONE: Team = Team { ranks: 1, rank: 0, stride: 1 };

export_plain! {
    /// All ranks of the communicator.
    fn ncclTeamWorld(comm: Comm) -> Team {
        // SAFETY: the caller passes a communicator.
        let (rank, ranks) = unsafe { place(comm) };
        Team { ranks, rank, stride: 1 }
    }

    /// The ranks that reach each other's memory by loads and stores.
    fn ncclTeamLsa(_comm: Comm) -> Team {
        ALONE
    }

    /// The ranks in the same place of their teams of loads and stores: all.
    fn ncclTeamRail(comm: Comm) -> Team {
        // SAFETY: the caller passes a communicator.
        unsafe { ncclTeamWorld(comm) }
    }

    /// As [`ncclTeamLsa`].
    fn ncclTeamCft(_comm: Comm, _mode: c_int) -> Team {
        ALONE
    }

    /// As [`ncclTeamLsa`].
    fn ncclTeamCftMultimem(_comm: Comm) -> Team {
        ALONE
    }

    /// The communicator's rank of a team's rank.
    fn ncclTeamRankToWorld(comm: Comm, team: Team, rank: c_int) -> c_int {
        // SAFETY: the caller passes a communicator.
        unsafe { place(comm) }.0 + (rank - team.rank) * team.stride
    }

    /// The rank of [`ncclTeamLsa`] of a team's rank.
    fn ncclTeamRankToLsa(_comm: Comm, team: Team, rank: c_int) -> c_int {
        (rank - team.rank) * team.stride
    }
}
