//! The settings that all ranks of a job must have in common, and their comparison.
//! Law: ranks with other settings end before they exchange anything else.

use std::fmt;

use ringreduce::Communicator;
use serde::{Deserialize, Serialize};

use crate::JobError;

/// The settings that all ranks of a job share, such as the batch and the learning rate, each with
/// its name. Ranks compare them when the job begins, and again with each rank that joins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobConfig(Vec<(String, String)>);

/// A rank's statement of its settings.
#[derive(Serialize, Deserialize)]
struct Claim {
    /// Whether the rank has a part of the training that others take over.
    has_state: bool,
    config: JobConfig,
}

impl FromIterator<(String, String)> for JobConfig {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(settings: I) -> Self {
        Self(settings.into_iter().collect())
    }
}

impl JobConfig {
    /// These settings, then those of a trainer, then the parameters of its model.
    pub(crate) fn with_settings(
        mut self,
        settings: &[(&str, &dyn fmt::Debug)],
        shapes: &[(String, usize)],
    ) -> Self {
        self.0.extend(settings.iter().map(|(name, it)| ((*name).to_owned(), format!("{it:?}"))));
        let parameter = |(name, count): &(String, usize)| {
            (format!("the parameter {name} of"), format!("{count} elements"))
        };
        self.0.extend(shapes.iter().map(parameter));
        self
    }

    /// Compares the settings of all ranks, which all call this. The first rank with a state of the
    /// training that ranks have joined, or else rank 0, has the right ones.
    ///
    /// # Errors
    /// [`JobError::Settings`] with the first setting that differs and both ranks. If a rank that
    /// joins has other settings than the job, that rank alone gets this error, and the others that
    /// of its loss once it has ended, so they can go on without it.
    pub fn agree(&self, comm: &mut Communicator, has_state: bool) -> Result<(), JobError> {
        // Where a job begins, all ranks are alike.
        let has_state = has_state && comm.epoch() > 0;
        let claims = comm.all_gather_object(&Claim { has_state, config: self.clone() })?;
        let right = claims.iter().position(|it| it.has_state).unwrap_or(0);
        let wrong = |rank: usize| claims[right].config.difference(&claims[rank].config);
        let refused = |rank: usize, (given, expected): (String, String)| {
            let given = format!("{given} at rank {rank}");
            let expected = format!(
                "{expected}, as at rank {right}: start all ranks of a job with the same settings"
            );
            Err(JobError::Settings { given, expected })
        };
        if let Some(difference) = wrong(comm.rank()) {
            return refused(comm.rank(), difference);
        }
        let mut others = (0..claims.len()).filter_map(|rank| Some((rank, wrong(rank)?)));
        let Some((rank, difference)) = others.next() else { return Ok(()) };
        if claims[right].has_state && !claims[rank].has_state {
            // A joiner that is refused ends, and so this call loses it.
            comm.barrier()?;
        }
        refused(rank, difference)
    }

    /// The first setting that another rank has not, or has otherwise: the other rank's and this
    /// one.
    fn difference(&self, other: &Self) -> Option<(String, String)> {
        let words = |setting: Option<&(String, String)>| {
            setting.map_or("nothing".into(), |(name, value)| format!("{name} {value}"))
        };
        let most = self.0.len().max(other.0.len());
        let at = (0..most).find(|at| self.0.get(*at) != other.0.get(*at))?;
        Some((words(other.0.get(at)), words(self.0.get(at))))
    }
}
