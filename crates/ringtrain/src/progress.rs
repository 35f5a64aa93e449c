//! The progress of the ranks, and the recovery when ranks are lost or join: all ranks then take
//! over the state of the one with the most progress. Law: an update that some ranks made is made by
//! all; one that no rank has made is repeated.

use ringreduce::Error as Lost;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::report::EpochReport;
use crate::trainer::Trainer;

/// The progress of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The completed epochs.
    pub(crate) epochs: Vec<EpochReport>,
    /// The losses of the completed steps of the current epoch.
    pub(crate) losses: Vec<f32>,
}

impl Trainer {
    /// Repeats `work` until no rank is lost in it.
    pub(crate) fn persist(&mut self, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        while self.persist_once(&mut work)?.is_none() {}
        Ok(())
    }

    /// Does `work` once; gives none if a rank was lost, and shrinks the group then.
    pub(crate) fn persist_once<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match work(self) {
            Err(Error::Collective(
                lost @ (Lost::PeerLost { .. } | Lost::Stalled { .. } | Lost::Aborted { .. }),
            )) => {
                self.is_level = false;
                self.group.shrink()?;
                if self.group.rank() == 0 {
                    eprintln!("ringtrain: {lost}; {} ranks go on", self.group.size());
                }
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Lets restarted ranks join.
    pub(crate) fn let_in(&mut self) -> Result<()> {
        if self.group.grow()? {
            self.is_level = false;
        }
        Ok(())
    }

    /// Gives all ranks the state of the lowest rank with the most progress.
    pub(crate) fn level(&mut self) -> Result<()> {
        if self.is_level {
            return Ok(());
        }
        let done = self.progress.as_ref().map_or(0, |progress| {
            let epochs = progress.epochs.len() * (self.steps_per_epoch() + 1);
            (epochs + progress.losses.len() + 1) as u64
        });
        let is_furthest = self.group.most(done)? == done;
        let mine = (self.group.size() - self.group.rank()) as u64;
        let from = self.group.most(if is_furthest { mine } else { 0 })?;
        let root = self.group.size() - from as usize;
        let mut account = serde_json::to_vec(&self.progress).map_err(Error::Progress)?;
        let mut length = [account.len() as u64];
        self.group.broadcast(&mut length, root)?;
        account.resize(length[0] as usize, 0);
        self.group.broadcast(&mut account, root)?;
        // The state is taken over as a whole, since half of a step would be wrong.
        let (mut parameters, mut velocity) = (self.parameters.clone(), self.velocity.clone());
        self.group.broadcast(&mut parameters, root)?;
        self.group.broadcast(&mut velocity, root)?;
        self.flat.scatter(&parameters)?;
        (self.parameters, self.velocity) = (parameters, velocity);
        self.progress = serde_json::from_slice(&account).map_err(Error::Progress)?;
        self.is_level = true;
        Ok(())
    }
}
