//! The time in which a launcher that was stopped, as by Ctrl-Z, is silent.
//! Law: a launcher that is stopped has its agents for as long as it is there.

use std::time::Duration;

use super::message::ToAgent;
use super::mux::Mux;
use super::redial::Redial;
use ringreduce::bootstrap::Instant;

/// The time after the launcher's word that it stops in which it may still be heard.
const SUSPENSION: Duration = Duration::from_secs(2);

/// When the launcher has said that it stops, and is silent therefore.
#[derive(Default)]
pub(super) struct Suspension(Option<Instant>);

impl Suspension {
    /// Takes in a message of the launcher.
    pub(super) fn note(&mut self, message: &ToAgent) {
        self.0 = matches!(message, ToAgent::Suspend).then(Instant::now);
    }

    /// A launcher that is heard again has been continued.
    pub(super) fn note_heard(&mut self, heard: Instant) {
        self.0.take_if(|at| heard > *at + SUSPENSION);
    }

    /// True while the launcher may be continued: its system holds the connection, or takes another
    /// one. Where nothing has listened there for the whole lease, the launcher has ended.
    pub(super) fn lasts(&self, mux: &Mux, redial: Option<&Redial>, lease: Duration) -> bool {
        let refused = redial.map_or(Duration::ZERO, Redial::refused_for);
        self.0.is_some() && (!mux.is_broken() || refused <= lease)
    }
}
