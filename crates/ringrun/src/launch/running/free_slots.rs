//! The ranks of a lost host that are started on another one, where a host has free slots.
//! Laws: no host gets more ranks than it has slots; a rank goes only where it can be started.

use super::Running;
use crate::cli::hosts::RankPlacement;
use crate::launch::message::name_ranks;
use crate::launch::restart_policy::HostState;

/// A free slot: the host's number, and a local rank that no rank has there.
type FreeSlot = (usize, usize);

impl Running<'_> {
    /// Gives the ranks that wait for a lost host the free slots of other ones, as far as these go.
    pub(super) fn use_free_slots(&mut self) {
        let Some(restarter) = &mut self.restarter else { return };
        let waiting = restarter.policy.awaiting_host();
        if waiting.is_empty() {
            return;
        }
        let has_place =
            |it: &&RankPlacement| !waiting.contains(&it.rank) && restarter.policy.may_run(it.rank);
        let placements = self.ranks.iter().map(|rank| &rank.placement).filter(has_place);
        let placements: Vec<_> = placements.collect();
        let free = free_slots(&self.request.slots, &placements, |host| !self.agents.is_lost(host));
        let moves: Vec<_> = waiting.into_iter().zip(free).collect();
        for moves in moves.chunk_by(|(_, one), (_, next)| one.0 == next.0) {
            let host_number = moves[0].1.0;
            let host = self.request.hosts[host_number].shown_name();
            for &(rank, (_, local_rank)) in moves {
                let placement = &mut self.ranks[rank].placement;
                placement.host.clone_from(&host);
                (placement.host_number, placement.local_rank) = (host_number, local_rank);
                restarter.policy.set_host(rank, HostState::Reached);
            }
            let ranks: Vec<_> = moves.iter().map(|(rank, _)| *rank).collect();
            let verb = if ranks.len() == 1 { "goes" } else { "go" };
            let ranks = name_ranks(&ranks);
            self.request.warn(&format!("{ranks} {verb} to free slots of host {host}"));
        }
    }
}

/// The free slots of the hosts that are reached: those of one host stand together, and the host
/// with the most comes first, so that ranks of one host stay together where that is possible.
fn free_slots(
    slots: &[usize],
    placements: &[&RankPlacement],
    is_reached: impl Fn(usize) -> bool,
) -> Vec<FreeSlot> {
    let of_host = |(host, &slots): (usize, &usize)| {
        let used: Vec<_> = placements.iter().filter(|it| it.host_number == host).collect();
        let is_free = |local_rank: &usize| used.iter().all(|it| it.local_rank != *local_rank);
        let free = slots.saturating_sub(used.len());
        let local_ranks = (0..).filter(is_free).take(free);
        local_ranks.map(|local_rank| (host, local_rank)).collect::<Vec<_>>()
    };
    let reached = slots.iter().enumerate().filter(|(host, _)| is_reached(*host));
    let mut hosts: Vec<_> = reached.map(of_host).collect();
    hosts.sort_by_key(|free| std::cmp::Reverse(free.len()));
    hosts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_of_the_emptiest_host_come_first() {
        let at = |(rank, &(host_number, local_rank)): (usize, &(usize, usize))| RankPlacement {
            rank,
            host: String::new(),
            host_number,
            local_rank,
            local_size: 0,
            program: 0,
        };
        let places = [(0, 0), (0, 2), (1, 0), (1, 1), (3, 0)];
        let placements: Vec<_> = places.iter().enumerate().map(at).collect();
        let placements: Vec<_> = placements.iter().collect();
        let free = |lost| free_slots(&[3, 2, 2, 4], &placements, |host| Some(host) != lost);
        assert_eq!(free(None), [(3, 1), (3, 2), (3, 3), (2, 0), (2, 1), (0, 1)]);
        assert_eq!(free(Some(3)), [(2, 0), (2, 1), (0, 1)]);
        // More ranks than slots, as with --oversubscribe.
        assert_eq!(free_slots(&[1], &placements, |_| true), []);
    }
}
