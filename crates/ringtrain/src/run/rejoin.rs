//! How ranks that have parts of a model begin, and begin again: a lost rank takes its part with it,
//! so the others wait until ringrun has started it again, and all go back to the last checkpoint.
//! Law: a training goes on with as many ranks as it began with, or ends; it ends well if it is
//! complete.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error as Failure, ReduceOp, launched};
use strategy::JobConfig;

use super::Extras;
use super::job::Job;
use super::stop::Stop;
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};

/// The time between two questions to the launcher whether a rank waits to join.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The job and its settings, with which ranks begin, and begin again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejoin<'a> {
    pub(crate) job: &'a Job,
    config: &'a JobConfig,
    stop: Option<&'a Stop>,
    checkpoints: Option<&'a Checkpoints>,
    /// The ranks of the whole job; none where lost ranks are not started again.
    ranks: Option<usize>,
    /// Whether this rank has agreed on the settings with others, which joiners have not.
    has_agreed: bool,
}

/// How the wait for lost ranks ends.
enum Gathered {
    All,
    TooFew,
    /// All steps are made, and the last checkpoint is saved.
    Complete,
    /// The user has ended the training.
    Stopped,
}

impl<'a> Rejoin<'a> {
    pub(crate) fn new(job: &'a Job, config: &'a JobConfig, extras: &Extras<'a>) -> Self {
        let ranks = launched().ok().filter(|_| extras.is_elastic()).map(|it| it.size);
        let Extras { stop, checkpoints, .. } = *extras;
        Self { job, config, stop, checkpoints, ranks, has_agreed: false }
    }

    /// The communicator of all ranks, and what `make` makes on it. All ranks call this: at the
    /// beginning, and after a loss with the error of the call that has failed and the steps that
    /// this rank has made.
    ///
    /// # Errors
    /// This error if lost ranks are not started again; [`Error::Complete`] if the training has
    /// nothing left to do; [`Error::NotBack`] if they don't join in time; those of `make`.
    pub(crate) fn begin<P>(
        &mut self,
        mut comm: Communicator,
        lost: Option<(Failure, u64)>,
        make: impl Fn(&mut Communicator, &Job) -> Result<P>,
    ) -> Result<(Communicator, P)> {
        let mut missing: Vec<String> = Vec::new();
        let (mut lost, steps) = lost.map_or((None, 0), |(lost, steps)| (Some(lost), steps));
        loop {
            if let Some(lost) = &lost {
                let left = self.survivors(&mut comm, lost)?;
                let members = left.recovery().map_or(&[][..], |it| &it.members);
                let peers = comm.peers().iter().filter(|it| !members.contains(&it.rank));
                missing.extend(peers.map(ToString::to_string));
                comm = left;
            }
            let made_steps = lost.as_ref().map(|_| steps);
            let made = match self.gather(&mut comm, &missing.join(", "), made_steps) {
                Ok(Gathered::All) => {
                    missing.clear();
                    self.agree(&mut comm).and_then(|()| make(&mut comm, self.job))
                }
                Ok(Gathered::Complete) => return Err(Error::Complete),
                Ok(Gathered::TooFew) => {
                    return Err(Error::NotBack { missing: missing.join(", "), lost });
                }
                Ok(Gathered::Stopped) => return Err(Error::Stopped(missing.join(", "))),
                Err(error) => Err(error.into()),
            };
            match made {
                Err(Error::Collective(again)) if self.ranks.is_some() => lost = Some(again),
                made => return made.map(|made| (comm, made)),
            }
        }
    }

    /// The communicator of the ranks that are left after the loss of others.
    fn survivors(&self, comm: &mut Communicator, lost: &Failure) -> Result<Communicator> {
        use Failure::{Argument, Stalled, Timeout};
        // Stages wait for each other's messages, by calls that know no other rank's state.
        let is_late = matches!(lost, Stalled { .. } | Timeout { .. });
        let may_be_lost = is_late || lost.is_lost_rank();
        let ranks = self.ranks.filter(|_| may_be_lost).ok_or_else(|| lost.clone())?;
        match comm.evict(comm.timeout()) {
            // No rank is lost where all have come: a step takes longer than a call may wait.
            Ok(left) if is_late && left.size() == ranks => Err(lost.clone().into()),
            Err(Argument { .. }) => Err(lost.clone().into()),
            left => Ok(left?),
        }
    }

    /// Waits until all lost ranks have joined, the time is over, or the user of one rank has ended
    /// the training; not if the training, of which this rank has made these steps, is complete.
    fn gather(
        &self,
        comm: &mut Communicator,
        missing: &str,
        steps: Option<u64>,
    ) -> ringreduce::Result<Gathered> {
        if let Some(steps) = steps {
            // Ranks may have ended with what others do not know yet.
            let is_saved =
                steps == self.job.steps() && self.checkpoints.is_some_and(|it| it.has(steps));
            let mut is_complete = [u8::from(is_saved)];
            comm.all_reduce(&mut is_complete, ReduceOp::Max)?;
            if is_complete == [1] {
                return Ok(Gathered::Complete);
            }
        }
        let ranks = self.ranks.unwrap_or(comm.size());
        let (patience, began) = (self.job.settings.patience, Instant::now());
        let patience = patience.map_or(comm.timeout(), |it| Duration::from_secs(it as u64));
        if comm.size() < ranks && comm.rank() == 0 {
            eprintln!(
                "ringtrain: {} of {ranks} ranks wait up to {patience:?} for the parts of the model \
                 that {missing} had",
                comm.size()
            );
        }
        while comm.size() < ranks {
            let is_over = began.elapsed() > patience;
            let is_stopped = self.stop.is_some_and(Stop::is_wanted);
            let mut ends = [is_over, is_stopped].map(u8::from);
            comm.all_reduce(&mut ends, ReduceOp::Max)?;
            match ends {
                [_, 1] => return Ok(Gathered::Stopped),
                [1, _] => return Ok(Gathered::TooFew),
                _ => {}
            }
            match comm.grow(comm.timeout())? {
                Some(larger) => *comm = larger,
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(Gathered::All)
    }

    /// Compares the settings of all ranks.
    fn agree(&mut self, comm: &mut Communicator) -> Result<()> {
        self.config.agree(comm, self.has_agreed)?;
        self.has_agreed = true;
        Ok(())
    }
}
