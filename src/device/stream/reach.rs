//! A trial of the devices and their drivers: which rank reaches whose memory, and what a driver
//! refuses. The ranks tell each other what they found. May touch: as `comm`.
//! Law: all ranks come to the same conclusion, and one of them warns of what is missing.

use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::attach::{NAME, Said};
use crate::api::Communicator;
use crate::device::cuda::{
    Driver, HANDLE, HANDLES, MOST_RANKS, Neighbour, OPERATIONS, REGISTRATION, SelfTest, names_of,
    reaches,
};
use crate::error::{Result, warn};
use crate::plan::{DeviceSeat, Reach};

impl Communicator {
    /// Tries which devices reach each other and what the drivers refuse; every rank gets the same
    /// answer. The context is current.
    pub(super) fn find_reach(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
        all: &[Said],
    ) -> Result<Reach> {
        let is_foreign =
            |(rank, said): (usize, &Said)| self.is_on_my_host(rank) && !said.is_beside();
        let exports = all.iter().enumerate().any(is_foreign);
        let tested = SelfTest::run(driver, context, exports);
        let (missing, handle) =
            tested.as_ref().map_or((0, [0; HANDLE]), |tested| (tested.missing, tested.handle));
        let mut words = vec![u64::from(tested.is_ok()), missing];
        words.extend(handle);
        let told = self.tell_words(NAME, &words)?;
        // The memory stays until all have said what they reach, for they have closed it then.
        let tested = tested?;
        self.all_are_fine(NAME, told.iter().step_by(words.len()).copied())?;
        let (mut missing, mut reached) = (missing, Vec::new());
        for (rank, words) in told.chunks_exact(words.len()).enumerate() {
            let (uuid, beside) = (all[rank].uuid, all[rank].is_beside());
            let handle = std::array::from_fn(|at| words[2 + at]);
            let exported = beside || words[1] & HANDLES == 0;
            let neighbour = Neighbour { uuid, handle: (!beside).then_some(handle) };
            reached.push(
                exported && self.is_on_my_host(rank) && {
                    reaches(context, neighbour).unwrap_or_else(|error| {
                        tracing::info!("{}: {error}", self.peers()[rank]);
                        missing |= HANDLES;
                        false
                    })
                },
            );
        }
        let reach = self.tell_reach(all, &reached, missing);
        // To free waits for streams: no rank's stream waits for this rank before all have done so.
        drop(tested);
        self.tell_words(NAME, &[1])?;
        reach
    }

    /// Tells the other ranks what this one has found, and draws the conclusion from all of it.
    fn tell_reach(&mut self, all: &[Said], reached: &[bool], missing: u64) -> Result<Reach> {
        let bits =
            |ranks: &[bool]| ranks.iter().rev().fold(0, |bits, &it| bits << 1 | u64::from(it));
        let shares = self.seat.shares || self.size() == 1;
        let mut words = vec![u64::from(shares), missing];
        words.extend(reached.chunks(64).map(bits));
        let told = self.tell_words(NAME, &words)?;
        let missing: Vec<_> = told.chunks_exact(words.len()).map(|words| words[1]).collect();
        self.warn_of(&missing);
        if missing.iter().any(|missing| missing & (OPERATIONS | REGISTRATION) != 0) {
            return Ok(Reach::Nobody);
        }
        let host = |rank: usize| {
            let same = |other: &usize| self.seat.peers[*other].host == self.seat.peers[rank].host;
            (0..all.len()).find(same).unwrap_or(rank)
        };
        let seat = |(rank, words): (usize, &[u64])| DeviceSeat {
            host: host(rank),
            device: all[rank].uuid,
            reaches: (0..all.len()).map(|at| words[2 + at / 64] >> (at % 64) & 1 == 1).collect(),
        };
        let seats: Vec<_> = told.chunks_exact(words.len()).enumerate().map(seat).collect();
        let all_share = told.iter().step_by(words.len()).all(|&shares| shares == 1);
        Ok(Reach::of(&seats, if all_share { MOST_RANKS } else { 0 }))
    }

    /// Rank 0 warns of what is missing at any rank; not again in the groups that it makes of them.
    fn warn_of(&self, missing: &[u64]) {
        let lacking = || (0..missing.len()).filter(|&rank| missing[rank] != 0);
        let Some(first) = lacking().next() else { return };
        if self.rank() != 0 || self.streams.world.is_some() {
            return;
        }
        let names = names_of(missing.iter().fold(0, |all, missing| all | missing));
        let others = match lacking().count() - 1 {
            0 => String::new(),
            1 => " and 1 other".into(),
            others => format!(" and {others} others"),
        };
        let at = &self.peers()[first];
        warn(&format!(
            "{NAME}: the driver refuses {names} at {at}{others}; calls on device buffers that need \
             that go by way of the host"
        ));
    }
}
