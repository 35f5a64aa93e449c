//! How a server works.

use super::policy::Policy;
use super::server::Server;
use super::snapshot::SnapshotStore;
use crate::{JobConfig, JobError, Optimizer};

/// How a server works. All servers of a job have the same settings, which they compare where it
/// begins.
pub struct ServerSettings {
    /// When it updates its parameters.
    pub policy: Policy,
    /// How it updates them.
    pub optimizer: Optimizer,
    /// The learning rate, by which [`Policy::rate`] makes that of an update.
    pub rate: f32,
    /// Its snapshots, if it shall come back after it was lost.
    pub snapshots: Option<Snapshots>,
}

/// When and where a server writes its state.
pub struct Snapshots {
    /// The place where servers write snapshots.
    pub store: Box<dyn SnapshotStore>,
    /// The number of updates after which the next one is written, before any worker has the
    /// parameters; so all that a worker knows is kept if this is 1.
    pub every: u64,
    /// Whether a job that begins goes on from the snapshots of another job.
    pub is_resumed: bool,
}

impl ServerSettings {
    fn config(&self) -> JobConfig {
        let every = self.snapshots.as_ref().map(|it| it.every);
        let is_resumed = self.snapshots.as_ref().map(|it| it.is_resumed);
        let settings: [(&str, &dyn std::fmt::Debug); 5] = [
            ("policy", &self.policy),
            ("optimizer", &self.optimizer),
            ("rate", &self.rate),
            ("updates between snapshots", &every),
            ("is_resumed", &is_resumed),
        ];
        JobConfig::default().with_settings(&settings, &[])
    }
}

impl Server {
    /// An error if another server has other settings, where a job begins. A server that comes back
    /// later is the same program.
    pub(super) fn compare_settings(&mut self) -> Result<(), JobError> {
        // The first ranks are the servers then, so they have the same numbers among themselves.
        let Some(mut servers) = self.member.group.take() else { return Ok(()) };
        match self.settings.config().agree(&mut servers, false) {
            Err(error) if self.member.is_elastic() && error.is_lost_rank() => {
                // Workers lose the server, too, and come to a change.
                self.freeze();
                Ok(())
            }
            agreed => agreed,
        }
    }
}
