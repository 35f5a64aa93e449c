//! Goes on when ranks are lost or join: all ranks take over one state.
//! Law: an update that a rank has completed is made by all ranks that are left, or repeated by all.
//!
//! Where each rank has the moments of a part of the parameters, the next rank keeps a copy of them,
//! from before and after the update until the step is completed. So a lost rank's part is there,
//! of the very step that the parameters of some rank that is left are of.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bytemuck::cast_slice_mut;
use gradients::BucketSizes;
use ringreduce::{Communicator, Error as RankError, ReduceOp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exchange::{copied, owned};
use crate::trainer::Values;
use crate::{Error, Model, Settings, Strategy, Trainer, buckets};

/// The moments of a part of a bucket after some step.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    steps: u64,
    bucket: usize,
    range: Range<usize>,
    moments: Vec<Vec<f32>>,
}

impl Held {
    pub(crate) fn elements(&self) -> usize {
        self.moments.iter().map(Vec::len).sum()
    }
}

/// What a rank brings into a recovery.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Whether the model's parameters are those of the training.
    has_state: bool,
    pub(crate) is_state_lost: bool,
    sizes: Option<BucketSizes>,
    /// The step that the moments are of.
    pub(crate) updated: u64,
    pub(crate) held: Vec<Held>,
    /// Whether the next rank keeps copies of this rank's moments.
    keeps_copies: bool,
}

impl Progress {
    pub(crate) fn new(has_state: bool, sizes: Option<BucketSizes>) -> Self {
        let (is_state_lost, updated, held, keeps_copies) = (false, 0, Vec::new(), false);
        Self { has_state, is_state_lost, sizes, updated, held, keeps_copies }
    }
}

/// Which state all ranks take over.
#[derive(Clone, Copy, Debug)]
struct Source {
    steps: u64,
    /// The first rank with its parameters.
    root: usize,
    /// Whether ranks have its moments; otherwise they are zero.
    has_moments: bool,
}

/// What a rank can give to the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Offer {
    sizes: Option<(usize, usize)>,
    /// The steps that its parameters are of.
    steps: Option<u64>,
    is_state_lost: bool,
    /// The steps, bucket and elements of its moments.
    moments: Vec<(u64, usize, Range<usize>)>,
}

/// The newest step whose parameters a rank has, and whose moments are all there; and the first rank
/// with its parameters. `lens` are the elements of the buckets that have moments. Moments are zero
/// before the first step.
fn newest(offers: &[Offer], lens: &[usize]) -> Option<(u64, usize)> {
    let is_whole = |steps: u64| {
        steps == 0 || lens.iter().enumerate().all(|(at, len)| covers(offers, (steps, at), *len))
    };
    let with_steps = |(rank, offer): (usize, &Offer)| Some((offer.steps?, rank));
    let known = offers.iter().enumerate().filter_map(with_steps);
    let whole = known.filter(|(steps, _)| is_whole(*steps));
    whole.max_by_key(|(steps, rank)| (*steps, std::cmp::Reverse(*rank)))
}

/// Whether the moments of a bucket after these steps are all there.
fn covers(offers: &[Offer], of: (u64, usize), len: usize) -> bool {
    let all = offers.iter().flat_map(|offer| &offer.moments);
    let mut ranges: Vec<_> =
        all.filter(|(steps, bucket, _)| (*steps, *bucket) == of).map(|(.., range)| range).collect();
    ranges.sort_by_key(|range| range.start);
    let reach = |end: usize, range: &&Range<usize>| {
        if range.start > end { end } else { end.max(range.end) }
    };
    ranges.iter().fold(0, reach) >= len
}

impl<M> Error<M> {
    /// Whether [`Trainer::recover`] can go on: a rank is lost, silent, or has ended the call.
    #[must_use]
    pub fn is_lost_rank(&self) -> bool {
        use RankError::{Aborted, PeerLost, Stalled};
        matches!(self, Self::Ranks(PeerLost { .. } | Stalled { .. } | Aborted { .. }))
    }
}

impl Trainer {
    /// As [`Self::new`], for ranks that go on when others are lost or join: also a rank that joins
    /// calls this, and gets the state of the others. `record` is what the program knows of the
    /// training, such as its losses: all ranks take over that of the rank whose parameters they
    /// take over.
    ///
    /// Sharded and central strategies keep a copy of each rank's moments at the next rank, which
    /// receives it in each step. Where both are lost at a time, see [`Self::is_state_lost`].
    ///
    /// # Errors
    /// As [`Self::new`], but for lost ranks.
    pub fn elastic<M: Model, R: Serialize + DeserializeOwned>(
        comm: Communicator,
        model: &mut M,
        settings: Settings,
        record: &mut R,
    ) -> Result<Self, Error<M::Error>> {
        let mut trainer = Self::without_state(comm, model, settings)?;
        let has_parts =
            settings.strategy == Strategy::CentralStorage || settings.strategy.is_sharded();
        trainer.elastic.keeps_copies = has_parts && settings.optimizer.moments() > 0;
        if let Err(error) = trainer.settle(model, record) {
            trainer.recover(error, model, record)?;
        }
        Ok(trainer)
    }

    /// Goes on without the lost ranks after `error`, from whichever call. All ranks that are left
    /// call this, since all calls fail then. [`Self::steps`] may have changed, and the rank and the
    /// size too: the program computes the next part of a batch from these alone, and so an update
    /// that no rank has completed is repeated. A rank that does not come within the communicator's
    /// timeout is left behind.
    ///
    /// # Errors
    /// `error`, if no rank was lost, or the ranks are threads. Those of
    /// [`evict`](Communicator::evict) and of the model.
    pub fn recover<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        mut error: Error<M::Error>,
        model: &mut M,
        record: &mut R,
    ) -> Result<(), Error<M::Error>> {
        while error.is_lost_rank() {
            let smaller = self.with_communicator(|comm| comm.evict(comm.timeout()));
            match smaller {
                Ok(smaller) => self.take_over(smaller),
                Err(RankError::Argument { .. }) => return Err(error),
                Err(other) => return Err(other.into()),
            }
            match self.settle(model, record) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    /// Lets ranks join that were started again; true if there were some. All ranks call this,
    /// between two steps. It costs a question to the launcher and a broadcast, so a program may
    /// call it every some steps.
    ///
    /// # Errors
    /// Those of [`grow`](Communicator::grow): after a lost rank [`Self::recover`] can go on, and
    /// where the launcher does not answer this value still works. Those of the model.
    pub fn grow<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        model: &mut M,
        record: &mut R,
    ) -> Result<bool, Error<M::Error>> {
        let larger = self.with_communicator(|comm| comm.grow(comm.timeout()))?;
        let Some(larger) = larger else { return Ok(false) };
        self.take_over(larger);
        if let Err(error) = self.settle(model, record) {
            self.recover(error, model, record)?;
        }
        Ok(true)
    }

    /// Whether the optimizer's state was lost, because a rank and the one that kept its copy were.
    /// All ranks know it. A step is an error then, until a checkpoint is loaded by
    /// [`Self::load_state`]. The parameters are those of [`Self::steps`].
    #[must_use]
    pub fn is_state_lost(&self) -> bool {
        self.elastic.is_state_lost
    }

    /// Goes on with other ranks, once [`Self::settle`] has given them one state.
    fn take_over(&mut self, comm: Communicator) {
        let steps = self.elastic.updated;
        let hold = |(bucket, values): (usize, Values)| Held {
            steps,
            bucket,
            range: values.owned,
            moments: values.moments,
        };
        let own = std::mem::take(&mut self.values).into_iter().enumerate().map(hold);
        if self.elastic.is_state_lost {
            self.elastic.held.clear();
        } else {
            self.elastic.held.extend(own);
        }
        self.sums().replace_communicator(comm);
    }

    fn offer(&self) -> Offer {
        let Progress { has_state, is_state_lost, sizes, ref held, .. } = self.elastic;
        let moments = |it: &Held| (it.steps, it.bucket, it.range.clone());
        Offer {
            sizes: sizes.map(|it| (it.first, it.others)),
            steps: has_state.then_some(self.steps),
            is_state_lost,
            moments: held.iter().map(moments).collect(),
        }
    }

    /// Gives all ranks the state of the one with most progress. All ranks call this, on a
    /// communicator that is new.
    pub(crate) fn settle<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        model: &mut M,
        record: &mut R,
    ) -> Result<(), Error<M::Error>> {
        let shared = Arc::clone(&self.sums);
        let mut sums = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let reducer = &mut sums.reducer;
        let offers = reducer.communicator().all_gather_object(&self.offer())?;
        let sizes = match offers.iter().find_map(|offer| offer.sizes) {
            Some((first, others)) => BucketSizes { first, others },
            None => buckets::measured(reducer.communicator())?,
        };
        self.elastic.sizes = Some(sizes);
        reducer.assign(sizes)?;
        let places: Vec<Vec<_>> = reducer.places().into_iter().map(Into::into).collect();
        let len = |places: &Vec<(usize, Range<usize>)>| places.last().map_or(0, |it| it.1.end / 4);
        let lens: Vec<usize> = places.iter().map(len).collect();
        let had_all = !offers.iter().any(|offer| offer.is_state_lost);
        let needed = if self.settings.optimizer.moments() > 0 { &lens[..] } else { &[] };
        let whole = newest(&offers, needed).filter(|_| had_all);
        let (steps, root) = whole.or_else(|| newest(&offers, &[])).unwrap_or_default();
        let source = Source { steps, root, has_moments: whole.is_some() && steps > 0 };
        let (mut values, mut copies) = (Vec::new(), Vec::new());
        for (bucket, places) in places.into_iter().enumerate() {
            let len = reducer.memory_len(bucket) / 4;
            let comm = reducer.communicator();
            let (these, copy) = self.restore(comm, model, source, (bucket, len), places)?;
            values.push(these);
            copies.push(copy);
        }
        reducer.communicator().broadcast_object(record, root)?;
        sums.set_owned(values.iter().map(|it| it.owned.clone()));
        self.values = values;
        self.steps = steps;
        self.write(model)?;
        self.elastic.has_state = true;
        self.elastic.updated = steps;
        self.elastic.is_state_lost = whole.is_none() && steps > 0;
        // All ranks have this state now, or the older ones are still needed.
        sums.reducer.communicator().barrier()?;
        self.elastic.held = if self.elastic.keeps_copies { copies } else { Vec::new() };
        Ok(())
    }

    /// The values of a bucket of `len` elements, and the copy that this rank keeps of another one's
    /// moments.
    fn restore<M: Model>(
        &self,
        comm: &mut Communicator,
        model: &M,
        Source { steps, root, has_moments }: Source,
        (bucket, len): (usize, usize),
        places: Vec<(usize, Range<usize>)>,
    ) -> Result<(Values, Held), Error<M::Error>> {
        let (rank, size) = (comm.rank(), comm.size());
        let elements = |place: Range<usize>| place.start / 4..place.end / 4;
        let places = places.into_iter().map(|(at, place)| (at, elements(place))).collect();
        let owned = owned(self.settings.strategy, rank, size, len);
        let mut values = Values { memory: comm.alloc(len)?, owned, moments: Vec::new(), places };
        if rank == root {
            for (parameter, place) in values.model_places() {
                model.read(parameter, &mut values.memory[place]).map_err(Error::Model)?;
            }
        }
        comm.broadcast(&mut values.memory, root)?;
        let mut copy = self.copy_of(comm, steps, bucket, len);
        for moment in 0..self.settings.optimizer.moments() {
            let mut all = vec![0.0; len];
            if has_moments {
                self.collect(comm, (steps, bucket, moment), &mut all)?;
            }
            values.moments.push(all[values.owned.clone()].to_vec());
            copy.take(&all);
        }
        Ok((values, copy))
    }

    /// The place for the copy that this rank keeps of another one's moments.
    pub(crate) fn copy_of(
        &self,
        comm: &Communicator,
        steps: u64,
        bucket: usize,
        len: usize,
    ) -> Held {
        let range = if self.elastic.keeps_copies {
            copied(self.settings.strategy, comm.rank(), comm.size(), len)
        } else {
            0..0
        };
        Held { steps, bucket, range, moments: Vec::new() }
    }

    /// A moment of a whole bucket, from all ranks. Copies of an element have the same bits, which
    /// are at least those of zero.
    fn collect(
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
        let hold = |(bucket, it): (usize, &Values)| Held {
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
        let is_central = self.settings.strategy == Strategy::CentralStorage;
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
    pub(crate) fn replace_copies(&mut self, copies: Vec<Held>) {
        self.elastic.held = if self.elastic.keeps_copies { copies } else { Vec::new() };
        self.elastic.updated = self.steps;
        self.elastic.is_state_lost = false;
    }
}

impl Held {
    /// Takes this part of the moments of the whole bucket.
    pub(crate) fn take(&mut self, all: &[f32]) {
        self.moments.push(all[self.range.clone()].to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::{Offer, newest};

    /// How far a rank is in step 6: before its update, after it, with the copy of the rank before
    /// it, or through.
    const PHASES: u32 = 4;

    /// What a rank offers whose part is this one of `n` elements, a rank's part each.
    fn offer(rank: usize, n: usize, phase: u32) -> Offer {
        let before = (rank + n - 1) % n;
        let part = |steps: u64, rank: usize| (steps, 0, rank..rank + 1);
        let moments = match phase {
            0 => vec![part(5, before), part(5, rank)],
            1 => vec![part(5, before), part(5, rank), part(6, rank)],
            2 => vec![part(5, before), part(5, rank), part(6, before), part(6, rank)],
            _ => vec![part(6, before), part(6, rank)],
        };
        let steps = Some(if phase == 3 { 6 } else { 5 });
        Offer { steps, moments, ..Offer::default() }
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
                    let offers: Vec<Offer> =
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
        let central =
            |steps: u64, moments| Offer { steps: Some(steps), moments, ..Offer::default() };
        let copy = vec![(5, 0, 0..9)];
        assert_eq!(newest(&[central(5, copy), central(6, vec![])], &[9]), Some((5, 0)));
        // A rank is lost together with its copy; a rank that joins has nothing.
        let offers = [offer(0, 4, 3), offer(3, 4, 3), Offer::default()];
        assert_eq!(newest(&offers, &[4]), None);
        assert_eq!(newest(&offers, &[]), Some((6, 0)));
        // Moments are zero before the first step.
        assert_eq!(newest(&[Offer::default(), central(0, vec![])], &[9]), Some((0, 1)));
    }
}
