//! Copies of the optimizer's state at other ranks, and which state the ranks that are left have.
//! Law: the state of a step that a rank has completed outlives any one rank.
//!
//! Where each rank has the moments of a part of the parameters, the next rank keeps a copy of them,
//! from before and after the update until the step is completed. So a lost rank's part is there,
//! of the very step that the parameters of some rank that is left are of.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bytemuck::cast_slice_mut;
use ringreduce::{Communicator, Error as RankError, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::Trainer;
use crate::strategy::Owner;
use crate::trainer::Values;

/// The moments of a part of a bucket after some step.
#[derive(Clone, Debug)]
pub(crate) struct HeldMoments {
    pub(crate) steps: u64,
    pub(crate) bucket: usize,
    pub(crate) range: Range<usize>,
    pub(crate) moments: Vec<Vec<f32>>,
}

impl HeldMoments {
    pub(crate) fn elements(&self) -> usize {
        self.moments.iter().map(Vec::len).sum()
    }

    /// Takes this part of the moments of the whole bucket.
    pub(crate) fn take(&mut self, all: &[f32]) {
        self.moments.push(all[self.range.clone()].to_vec());
    }
}

/// The values that a rank can give to the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RecoveryOffer {
    pub(crate) sizes: Option<(usize, usize)>,
    /// The steps that its parameters are of.
    pub(crate) steps: Option<u64>,
    pub(crate) is_state_lost: bool,
    /// The steps, bucket and elements of its moments.
    pub(crate) moments: Vec<(u64, usize, Range<usize>)>,
}

/// The newest step whose parameters a rank has, and whose moments are all there; and the first rank
/// with its parameters. `lens` are the elements of the buckets that have moments. Moments are zero
/// before the first step.
pub(crate) fn newest(offers: &[RecoveryOffer], lens: &[usize]) -> Option<(u64, usize)> {
    let is_whole = |steps: u64| {
        steps == 0 || lens.iter().enumerate().all(|(at, len)| covers(offers, (steps, at), *len))
    };
    let with_steps = |(rank, offer): (usize, &RecoveryOffer)| Some((offer.steps?, rank));
    let known = offers.iter().enumerate().filter_map(with_steps);
    let whole = known.filter(|(steps, _)| is_whole(*steps));
    whole.max_by_key(|(steps, rank)| (*steps, std::cmp::Reverse(*rank)))
}

/// Whether the moments of a bucket after these steps are all there.
fn covers(offers: &[RecoveryOffer], of: (u64, usize), len: usize) -> bool {
    let all = offers.iter().flat_map(|offer| &offer.moments);
    let mut ranges: Vec<_> =
        all.filter(|(steps, bucket, _)| (*steps, *bucket) == of).map(|(.., range)| range).collect();
    ranges.sort_by_key(|range| range.start);
    let reach = |end: usize, range: &&Range<usize>| {
        if range.start > end { end } else { end.max(range.end) }
    };
    ranges.iter().fold(0, reach) >= len
}

impl Trainer {
    /// The place for the copy that this rank keeps of another one's moments.
    pub(crate) fn copy_of(
        &self,
        comm: &Communicator,
        steps: u64,
        bucket: usize,
        len: usize,
    ) -> HeldMoments {
        let range = if self.elastic.keeps_copies {
            self.settings.strategy.copied(comm.rank(), comm.size(), len)
        } else {
            0..0
        };
        HeldMoments { steps, bucket, range, moments: Vec::new() }
    }

    /// A moment of a whole bucket, from all ranks. Copies of an element have the same bits, which
    /// are at least those of zero.
    pub(crate) fn collect(
        &self,
        comm: &mut Communicator,
        (steps, bucket, moment): (u64, usize, usize),
        all: &mut [f32],
    ) -> Result<(), RankError> {
        let held = self.elastic.held.iter();
        for part in held.filter(|it| (it.steps, it.bucket) == (steps, bucket)) {
            // Another number of ranks means other zeros behind the last parameter.
            let end = part.range.end.min(all.len());
            let range = part.range.start.min(end)..end;
            let len = range.len();
            all[range].copy_from_slice(&part.moments[moment][..len]);
        }
        comm.all_reduce(cast_slice_mut::<f32, u32>(all), ReduceOp::Max)
    }

    /// Keeps the moments from before an update.
    pub(crate) fn keep_moments(&mut self) {
        if !self.elastic.keeps_copies {
            return;
        }
        let steps = self.steps;
        let hold = |(bucket, it): (usize, &Values)| HeldMoments {
            steps,
            bucket,
            range: it.owned.clone(),
            moments: it.moments.clone(),
        };
        self.elastic.held.extend(self.values.iter().enumerate().map(hold));
    }

    /// Gives the next rank a copy of the new moments, before any rank can complete the step.
    pub(crate) fn keep_copies(&mut self) -> Result<(), RankError> {
        let shared = Arc::clone(&self.sums);
        let mut sums = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = sums.reducer.communicator();
        let (rank, size) = (comm.rank(), comm.size());
        if !self.elastic.keeps_copies || size == 1 {
            return Ok(());
        }
        let is_central = self.settings.strategy.owner() == Owner::Root;
        for (bucket, values) in self.values.iter().enumerate() {
            let mut copy = self.copy_of(comm, self.steps + 1, bucket, values.memory.len());
            for moment in &values.moments {
                let mut theirs = vec![0.0; copy.range.len()];
                match rank {
                    0 if is_central => comm.send(moment, 1)?,
                    1 if is_central => comm.recv(&mut theirs, 0)?,
                    _ if is_central => {}
                    _ => {
                        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
                        comm.send_recv(moment, next, &mut theirs, last)?;
                    }
                }
                copy.moments.push(theirs);
            }
            self.elastic.held.push(copy);
        }
        // Rank 0 must not publish what rank 1 has no copy of.
        match rank {
            0 if is_central => comm.recv(&mut [0_u8], 1),
            1 if is_central => comm.send(&[0_u8], 0),
            _ => Ok(()),
        }
    }

    /// Forgets what is older than the completed step.
    pub(crate) fn forget_copies(&mut self) {
        let steps = self.steps;
        self.elastic.held.retain(|it| it.steps == steps && !it.range.is_empty());
    }

    /// Replaces the copies by those of a state that was loaded.
    pub(crate) fn replace_copies(&mut self, copies: Vec<HeldMoments>) {
        self.elastic.held = if self.elastic.keeps_copies { copies } else { Vec::new() };
        self.elastic.updated = self.steps;
        self.elastic.is_state_lost = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{RecoveryOffer, newest};

    /// How far a rank is in step 6: before its update, after it, with the copy of the rank before
    /// it, or through.
    const PHASES: u32 = 4;

    /// The offer of a rank whose part is this one of `n` elements, a rank's part each.
    fn offer(rank: usize, n: usize, phase: u32) -> RecoveryOffer {
        let before = (rank + n - 1) % n;
        let part = |steps: u64, rank: usize| (steps, 0, rank..rank + 1);
        let moments = match phase {
            0 => vec![part(5, before), part(5, rank)],
            1 => vec![part(5, before), part(5, rank), part(6, rank)],
            2 => vec![part(5, before), part(5, rank), part(6, before), part(6, rank)],
            _ => vec![part(6, before), part(6, rank)],
        };
        let steps = Some(if phase == 3 { 6 } else { 5 });
        RecoveryOffer { steps, moments, ..RecoveryOffer::default() }
    }

    #[test]
    fn a_completed_step_is_completed_for_all_whichever_rank_is_lost_and_when() {
        let mut cases = 0;
        for n in 2..=5_usize {
            for code in 0..PHASES.pow(n as u32) {
                let phases: Vec<u32> =
                    (0..n as u32).map(|rank| code / PHASES.pow(rank) % PHASES).collect();
                // A copy comes from a rank that has made its update, and a step is completed by
                // parts of ranks that have their copies.
                let has_copy = |rank: usize| phases[rank] < 2 || phases[(rank + n - 1) % n] > 0;
                let is_through = phases.contains(&3);
                if !(0..n).all(has_copy) || is_through && phases.iter().any(|it| *it < 2) {
                    continue;
                }
                for lost in 0..n {
                    let left = (0..n).filter(|rank| *rank != lost);
                    let offers: Vec<RecoveryOffer> =
                        left.clone().map(|rank| offer(rank, n, phases[rank])).collect();
                    let most = offers.iter().filter_map(|offer| offer.steps).max().unwrap_or(0);
                    let root = offers.iter().position(|offer| offer.steps == Some(most));
                    let found = newest(&offers, &[n]);
                    assert_eq!(found, root.map(|root| (most, root)), "{phases:?} without {lost}");
                    cases += 1;
                }
            }
        }
        assert!(cases > 1000, "{cases}");
    }

    #[test]
    fn an_older_state_is_taken_where_the_newest_one_has_gaps() {
        // Rank 0 of a central strategy is lost, rank 1 has no copy yet, and rank 2 is through.
        let central = |steps: u64, moments| RecoveryOffer {
            steps: Some(steps),
            moments,
            ..RecoveryOffer::default()
        };
        let copy = vec![(5, 0, 0..9)];
        assert_eq!(newest(&[central(5, copy), central(6, vec![])], &[9]), Some((5, 0)));
        // A rank is lost together with its copy; a rank that joins has nothing.
        let offers = [offer(0, 4, 3), offer(3, 4, 3), RecoveryOffer::default()];
        assert_eq!(newest(&offers, &[4]), None);
        assert_eq!(newest(&offers, &[]), Some((6, 0)));
        // Moments are zero before the first step.
        assert_eq!(newest(&[RecoveryOffer::default(), central(0, vec![])], &[9]), Some((0, 1)));
    }
}
