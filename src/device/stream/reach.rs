//! Discovery of peer access: every rank tries which other ranks' memory its device can access and
//! what its driver refuses, and tells the others.
//! Law: all ranks come to the same conclusion, and rank 0 warns of what is missing.

use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::attach::{CALL, RankDevice};
use crate::api::Communicator;
use crate::device::cuda::{
    DAMAGED_READS, Driver, HANDLE_WORDS, MAX_RANKS, NO_HANDLES, NO_MEMORY_OPS, NO_REGISTRATION,
    PeerAccess, PeerDevice, SelfTest, can_reach, missing_names,
};
use crate::error::{Result, warn};
use crate::plan::{DeviceReach, Topology};

impl Communicator {
    /// Tries peer access between devices and the abilities of drivers; every rank gets the same
    /// answer. The context is current.
    pub(super) fn find_reach(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
        all: &[RankDevice],
    ) -> Result<Topology> {
        let is_foreign = |(rank, device): (usize, &RankDevice)| {
            self.is_on_my_host(rank) && !device.is_same_process()
        };
        let exports = all.iter().enumerate().any(is_foreign);
        let tested = SelfTest::run(driver, context, self.rank(), exports);
        let (missing, start, handle) =
            tested.as_ref().map_or((0, 0, [0; HANDLE_WORDS]), |tested| {
                (tested.missing, tested.pattern_start(), tested.handle)
            });
        let mut words = vec![u64::from(tested.is_ok()), missing, start];
        words.extend(handle);
        let answers = self.all_gather_words(CALL, &words)?;
        // The exported memory stays until all ranks have told what they reach, and so have closed
        // it.
        let mut tested = tested?;
        self.all_are_fine(CALL, answers.iter().step_by(words.len()).copied())?;
        let (mut missing, mut reached) = (missing, Vec::new());
        for (rank, words) in answers.chunks_exact(words.len()).enumerate() {
            let (uuid, same_process) = (all[rank].uuid, all[rank].is_same_process());
            let handle = std::array::from_fn(|at| words[3 + at]);
            let exported = same_process || words[1] & NO_HANDLES == 0;
            let handle = (!same_process).then_some(handle);
            let neighbour = PeerDevice { uuid, pattern_start: words[2], handle };
            let access = if exported && self.is_on_my_host(rank) {
                let arrives = |from| tested.pattern_arrives(from, rank);
                can_reach(context, neighbour, arrives).unwrap_or_else(|error| {
                    tracing::info!("{}: {error}", self.peers()[rank]);
                    missing |= NO_HANDLES;
                    PeerAccess::Refused
                })
            } else {
                PeerAccess::Refused
            };
            if access == PeerAccess::Damaged {
                missing |= DAMAGED_READS;
            }
            reached.push(access == PeerAccess::Works);
        }
        let reach = self.tell_reach(all, &reached, missing);
        // To free waits for streams, so that no stream may wait for this rank before all ranks have
        // freed.
        tested.end();
        self.all_gather_words(CALL, &[1])?;
        reach
    }

    /// Tells the other ranks what this one has found, and concludes from what all have told.
    fn tell_reach(
        &mut self,
        all: &[RankDevice],
        reached: &[bool],
        missing: u64,
    ) -> Result<Topology> {
        let bits =
            |ranks: &[bool]| ranks.iter().rev().fold(0, |bits, &it| bits << 1 | u64::from(it));
        let shares = self.rank_info.shares_memory || self.size() == 1;
        let mut words = vec![u64::from(shares), missing];
        words.extend(reached.chunks(64).map(bits));
        let answers = self.all_gather_words(CALL, &words)?;
        let missing: Vec<_> = answers.chunks_exact(words.len()).map(|words| words[1]).collect();
        self.warn_of(&missing);
        if missing.iter().any(|missing| missing & (NO_MEMORY_OPS | NO_REGISTRATION) != 0) {
            return Ok(Topology::Disconnected);
        }
        let host = |rank: usize| {
            let same = |other: &usize| {
                self.rank_info.peers[*other].host == self.rank_info.peers[rank].host
            };
            (0..all.len()).find(same).unwrap_or(rank)
        };
        let device_reach = |(rank, words): (usize, &[u64])| DeviceReach {
            host: host(rank),
            device: all[rank].uuid,
            reaches: (0..all.len()).map(|at| words[2 + at / 64] >> (at % 64) & 1 == 1).collect(),
        };
        let devices: Vec<_> =
            answers.chunks_exact(words.len()).enumerate().map(device_reach).collect();
        let all_share = answers.iter().step_by(words.len()).all(|&shares| shares == 1);
        Ok(Topology::of(&devices, if all_share { MAX_RANKS } else { 0 }))
    }

    /// Warns, at rank 0 of the world, of abilities that a driver refuses at any rank, and of ranks
    /// whose devices read other bytes than were written.
    fn warn_of(&self, missing: &[u64]) {
        if self.rank() != 0 || self.streams.world_peers.is_some() {
            return;
        }
        if let Some(ranks) = self.ranks_with(!DAMAGED_READS, missing) {
            let names = missing_names(missing.iter().fold(0, |all, missing| all | missing));
            warn(&format!(
                "{CALL}: the driver refuses {names} at {ranks}; calls on device buffers that need \
                 that go by way of the host"
            ));
        }
        if let Some(ranks) = self.ranks_with(DAMAGED_READS, missing) {
            warn(&format!(
                "{CALL}: the driver grants peer access between devices, but what was written to \
                 one arrives changed at {ranks}, so that calls on device buffers do not use that \
                 access; an IOMMU often does this: turn it off in the BIOS or boot with \
                 iommu=pt, and turn off PCIe's ACS on the bridges between the devices"
            ));
        }
    }

    /// The first rank that has one of these bits, and how many others have one.
    fn ranks_with(&self, bits: u64, missing: &[u64]) -> Option<String> {
        let lacking = || (0..missing.len()).filter(|&rank| missing[rank] & bits != 0);
        let first = lacking().next()?;
        let others = match lacking().count() - 1 {
            0 => String::new(),
            1 => " and 1 other".into(),
            others => format!(" and {others} others"),
        };
        Some(format!("{}{others}", self.peers()[first]))
    }
}
