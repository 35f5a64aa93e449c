//! The loop over epochs and steps, the same for all ways of training.
//! Law: an update that some ranks have made is made by all; one that no rank has made is repeated.

use std::time::Instant;

use ringreduce::{Communicator, ReduceOp};
use strategy::epoch_order;

use super::Outcome;
use super::batches::Batches;
use super::engine::{Division, Done, Engine, Tested};
use super::history::History;
use super::job::Job;
use super::stop::Stop;
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::report::Report;

/// One rank's part of a training.
pub(crate) struct Training<'a, E> {
    pub(crate) job: &'a Job,
    pub(crate) engine: E,
    pub(crate) history: History,
    pub(crate) report: &'a mut Report,
    pub(crate) checkpoints: Option<&'a Checkpoints>,
    pub(crate) stop: Option<&'a Stop>,
    /// The step, from 1, in which the last rank is lost. The number of steps plus one stands for
    /// the time in which the last checkpoint is saved.
    pub(crate) lose: Option<usize>,
    /// Whether ranks may join.
    pub(crate) may_grow: bool,
    /// Whether the job has begun to train, so that all checkpoints in its folder are its own.
    pub(crate) has_begun: bool,
    /// The bytes that steps have sent, if they are counted.
    pub(crate) sent: Option<u64>,
    /// The end of the last step, or of tests that came after it.
    pub(crate) counted: Instant,
}

/// The steps after which the launcher is asked whether ranks want to join, which is a broadcast.
const STEPS_TO_JOIN: u64 = 10;

/// The images of one test batch, which bounds the memory.
const TEST_BATCH: usize = 250;

/// How an epoch goes on.
enum Next {
    /// The loop runs once more: the epoch goes on with other ranks, or is over.
    Again,
    /// The training is over, or the user has ended it.
    End { is_stopped: bool },
}

impl<E: Engine> Training<'_, E> {
    /// Trains until all epochs are over, or the user ends it.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        let mut has_state = self.engine.has_state();
        // Whether the last checkpoint may be missing: a rank was lost since the last epoch ended.
        let mut may_lack_save = false;
        loop {
            let done = match has_state && !self.engine.is_state_lost() {
                false => self.resume(),
                true if self.engine.is_stopping() => Ok(Next::End { is_stopped: true }),
                true if self.is_over() => self.end(may_lack_save),
                true => self.epoch(),
            };
            match done {
                Ok(Next::Again) => {
                    (has_state, may_lack_save) = (true, false);
                    self.history.catch_up(self.engine.steps(), self.job.steps_per_epoch());
                }
                Ok(Next::End { is_stopped }) => return self.finish(is_stopped),
                Err(Error::Collective(lost)) => {
                    // Ranks that have parts of a model lose their state as they begin again.
                    let is_in_parts = self.engine.division() == Division::Whole;
                    let complete = (is_in_parts && self.is_over()).then(|| self.outcome(false));
                    let (complete, cause) = (complete.transpose()?, lost.to_string());
                    self.engine = match (self.engine.recover(lost, &mut self.history), complete) {
                        (Err(Error::Complete), Some(complete)) => {
                            self.report.end(self.job, &complete)?;
                            return Ok(complete);
                        }
                        (recovered, _) => recovered?,
                    };
                    self.has_recovered(&cause)?;
                    (has_state, may_lack_save) = (self.engine.has_state(), true);
                }
                Err(error) => return Err(self.explained(error)),
            }
        }
    }

    /// Ends this rank's part, and reports.
    fn finish(mut self, is_stopped: bool) -> Result<Outcome> {
        let mut outcome = self.outcome(is_stopped)?;
        // A launcher may end this rank once another one has ended with the code of a stop.
        let reported = is_stopped.then(|| self.report.end(self.job, &outcome));
        let ended = self.engine.end();
        outcome.is_stopped |= matches!(ended, Ok(true));
        reported.unwrap_or_else(|| self.report.end(self.job, &outcome))?;
        ended.map(|_| outcome)
    }

    /// Whether ranks make the same steps; else the first one tests and saves for all.
    fn are_in_step(&mut self) -> bool {
        self.engine.call(|_| ()).is_some()
    }

    /// An error with the last good checkpoint, if the training has diverged.
    fn explained(&mut self, error: Error) -> Error {
        let is_first = self.engine.place().0 == 0;
        let checkpoints = self.checkpoints.filter(|_| is_first || self.are_in_step());
        error.with_last_good(|finite| {
            Some(checkpoints?.last_good(self.engine.proven(finite), &self.history, is_first))
        })
    }

    fn is_over(&self) -> bool {
        self.history.epochs.len() >= self.job.settings.epochs
    }

    /// Ends a training whose epochs are all over: saves a missing checkpoint, and compares weights.
    fn end(&mut self, may_lack_save: bool) -> Result<Next> {
        if may_lack_save {
            self.save()?;
        }
        self.compare_weights()?;
        Ok(Next::End { is_stopped: false })
    }

    /// An error at all ranks if they have not the same weights.
    fn compare_weights(&mut self) -> Result<()> {
        if self.engine.division() == Division::ByRank {
            let weights = self.engine.digest()?;
            let mut ends = [weights, !weights];
            self.engine.call(|comm| comm.all_reduce(&mut ends, ReduceOp::Max)).transpose()?;
            if ends[0] != !ends[1] {
                return Err(Error::WeightsDiffer(self.engine.steps()));
            }
        }
        Ok(())
    }

    fn outcome(&mut self, is_stopped: bool) -> Result<Outcome> {
        let weights = self.engine.digest()?;
        Ok(Outcome {
            ranks: self.engine.ranks(),
            is_stopped,
            steps: self.engine.steps(),
            parameters: self.engine.parameters(),
            epochs: self.history.epochs.clone(),
            weights: format!("{weights:016x}"),
            sent_bytes: self.sent,
            pipeline: self.engine.pipeline(),
            notes: self.engine.notes(),
        })
    }

    /// Lets ranks join that were started again; true if there are some.
    fn grow(&mut self) -> Result<bool> {
        if !self.may_grow {
            return Ok(false);
        }
        match self.engine.grow(&mut self.history) {
            // The launcher does not answer: no rank can join, and all ranks know that.
            Err(Error::Collective(silent @ ringreduce::Error::Store { .. })) => {
                if self.engine.place().0 == 0 {
                    eprintln!("ringtrain: {silent}; no rank can join");
                }
                self.may_grow = false;
                Ok(false)
            }
            grown => grown,
        }
    }

    /// Says that the ranks go on after a loss.
    fn has_recovered(&mut self, cause: &str) -> Result<()> {
        let (rank, size) = self.engine.place();
        self.report.lead(rank)?;
        if rank == 0 {
            eprintln!("ringtrain: {cause}; {size} ranks go on");
        }
        Ok(())
    }

    /// Loads the newest checkpoint: at the beginning if the user wants that, else after the loss of
    /// ranks whose parts no other has. Without one, the training begins with its first parameters.
    fn resume(&mut self) -> Result<Next> {
        let mut has_begun = [u8::from(self.has_begun)];
        // A rank that has joined does not know it.
        self.engine.call(|comm| comm.all_reduce(&mut has_begun, ReduceOp::Max)).transpose()?;
        self.has_begun = has_begun[0] > 0;
        let is_loaded = self.load()?;
        if !is_loaded && self.engine.is_state_lost() {
            return Err(Error::StateLost(self.engine.steps()));
        }
        if !is_loaded && self.has_begun {
            self.report.begun_anew()?;
        }
        self.has_begun = true;
        self.counted = Instant::now();
        Ok(Next::Again)
    }

    /// Loads the newest checkpoint, if there is one.
    fn load(&mut self) -> Result<bool> {
        let Some(checkpoints) = self.checkpoints else { return Ok(false) };
        let read = match self.engine.place().0 {
            0 if self.has_begun => checkpoints.last(self.job),
            0 => checkpoints.load(self.job),
            _ => Ok(None),
        };
        let mut problem = read.as_ref().err().map(ToString::to_string);
        let mut history = match &read {
            Ok(Some((_, history))) => Some(history.clone()),
            _ => None,
        };
        let shared = self.engine.call(|comm| {
            comm.broadcast_object(&mut problem, 0)?;
            comm.broadcast_object(&mut history, 0)
        });
        shared.transpose()?;
        if let Some(problem) = problem {
            read?;
            return Err(Error::Elsewhere { rank: 0, problem });
        }
        let (Some(history), snapshot) = (history, read?) else { return Ok(false) };
        self.history = history;
        self.engine.load(snapshot.as_ref().map(|(snapshot, _)| snapshot))?;
        let rows = if self.has_begun { &[] } else { &self.history.epochs[..] };
        self.report.resumed(rows, self.engine.steps(), self.job)?;
        Ok(true)
    }

    /// The rest of an epoch, as long as the ranks are the same.
    fn epoch(&mut self) -> Result<Next> {
        let (number, steps) = (self.history.epochs.len(), self.job.steps_per_epoch());
        let (count, batch) = (self.job.data.train.len(), self.job.settings.batch);
        let order = epoch_order(count, self.job.settings.seed, number as u64);
        let place = self.engine.place();
        let first = self.history.losses.len();
        let how = (self.engine.division(), self.engine.pieces(self.job));
        let mut batches = Batches::new(self.job, &order, first, how, place)?;
        let bar = self.report.bar(number + 1, &self.job.settings, steps, first);
        for at in first..steps {
            let has_changed = self.step(&mut batches)?;
            bar.step(&self.history, (batch * (at + 1)).min(count) - batch * first);
            if self.may_stop()? {
                bar.end();
                self.save()?;
                self.compare_weights()?;
                return Ok(Next::End { is_stopped: true });
            }
            if let Some(checkpoints) = self.checkpoints
                && checkpoints.is_due(self.engine.steps())
                && at + 1 < steps
            {
                self.save()?;
            }
            if has_changed {
                self.report.lead(self.engine.place().0)?;
                if at + 1 < steps {
                    return Ok(Next::Again);
                }
            }
            // Ranks join only here, where all have made the same steps.
            let is_due = self.engine.steps().is_multiple_of(STEPS_TO_JOIN) || at + 1 == steps;
            if is_due && self.grow()? {
                return Ok(Next::Again);
            }
        }
        bar.end();
        self.count_time();
        let accuracy = self.accuracy()?;
        self.counted = Instant::now();
        self.history.end_epoch(accuracy, count);
        if let Some(epoch) = self.history.epochs.last() {
            self.report.epoch(epoch)?;
        }
        self.save()?;
        Ok(Next::Again)
    }

    /// A step; true if it has changed the membership.
    fn step(&mut self, batches: &mut Batches) -> Result<bool> {
        let pieces = batches.next()?;
        self.lose_rank_in(self.engine.steps() + 1);
        let rate = self.engine.rate(self.job);
        let before = self.sent.map(|_| self.engine.sent_bytes());
        let Done { loss, exposed, hidden, has_changed } = self.engine.step(pieces, rate)?;
        if let (Some(sent), Some(before)) = (&mut self.sent, before) {
            *sent += self.engine.sent_bytes() - before;
        }
        self.history.losses.push(loss);
        self.history.spent.exposed += exposed;
        self.history.spent.hidden += hidden;
        self.report.step(self.engine.steps(), loss, rate)?;
        self.count_time();
        Ok(has_changed)
    }

    /// Aborts the process of the last rank if the user wants to see its loss in this step.
    fn lose_rank_in(&mut self, step: u64) {
        let is_last = |comm: &mut Communicator| comm.epoch() == 0 && comm.rank() + 1 == comm.size();
        if self.lose.is_some_and(|lose| lose as u64 == step)
            && self.engine.call(is_last) == Some(true)
        {
            std::process::abort();
        }
    }

    /// Counts the time since it was counted last: what comes between two steps is a part of the
    /// training, too.
    fn count_time(&mut self) {
        let now = Instant::now();
        self.history.spent.all += now - self.counted;
        self.counted = now;
    }

    /// True at all ranks if the user of one has ended the training.
    fn may_stop(&mut self) -> Result<bool> {
        let Some(stop) = self.stop else { return Ok(false) };
        let (mut wanted, start) = ([u8::from(stop.is_wanted())], Instant::now());
        let agreed = self.engine.call(|comm| comm.all_reduce(&mut wanted, ReduceOp::Max));
        if agreed.transpose()?.is_none() {
            return Ok(self.engine.is_stopping());
        }
        self.history.spent.exposed += start.elapsed();
        Ok(wanted[0] > 0)
    }

    /// Saves a checkpoint, if the user wants any. All ranks learn of a failure.
    fn save(&mut self) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        let (ranks, is_over) = (self.engine.ranks(), self.is_over());
        let snapshot = self.engine.snapshot()?;
        if is_over {
            self.lose_rank_in(self.engine.steps() + 1);
        }
        let saved = match snapshot {
            Some(snapshot) => {
                // The tests after the last step are as good as the loss of one more.
                let proven = self.engine.proven(snapshot.state.steps + u64::from(is_over));
                checkpoints.save(&snapshot, self.job, ranks, (&self.history, proven))
            }
            None => Ok(()),
        };
        let mut problem = saved.as_ref().err().map(ToString::to_string);
        self.engine.call(|comm| comm.broadcast_object(&mut problem, 0)).transpose()?;
        saved?;
        problem.map_or(Ok(()), |problem| Err(Error::Elsewhere { rank: 0, problem }))
    }

    /// The share of test images that are classified right, not a number where another rank tests.
    /// An error if the loss of some batches was not finite.
    fn accuracy(&mut self) -> Result<f64> {
        self.engine.prepare_tests()?;
        let (rank, size) = self.engine.place();
        if rank > 0 && !self.are_in_step() {
            return Ok(f64::NAN);
        }
        let (test, division) = (&self.job.data.test, self.engine.test_division());
        let mine: Vec<usize> = match division {
            Division::ByRank => (rank..test.len()).step_by(size).collect(),
            Division::Whole => (0..test.len()).collect(),
        };
        let mut total = [0, 0];
        for places in mine.chunks(TEST_BATCH) {
            let Tested { right, diverged } = self.engine.test(&test.batch(places)?)?;
            total = [total[0] + right, total[1] + diverged];
        }
        if division == Division::ByRank {
            self.engine.call(|comm| comm.all_reduce(&mut total, ReduceOp::Sum)).transpose()?;
        }
        let [right, diverged] = total;
        if diverged > 0 {
            let (step, what) = (self.engine.steps(), "the loss of test images is".into());
            return Err(Error::Unusable { step, what, good: None });
        }
        Ok(right as f64 / test.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests;
