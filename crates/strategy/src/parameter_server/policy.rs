//! When a server updates, and which workers it may answer: a state machine without messages.
//! Laws: each push has one answer; a gradient is used once at most; no worker that is answered is
//! further ahead than the bound says; if all workers wait, one of them may be answered.

/// When a server updates its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Once for the gradients of all workers but the slowest: `backups` workers may be late, and
    /// their gradients are dropped (Chen et al., 2016). With 0, updates are those of one rank with
    /// the whole batch.
    Synchronous {
        /// Workers whose gradients an update does not wait for.
        backups: usize,
    },
    /// For each gradient at once, although it may belong to older parameters (Dean et al., 2012).
    Asynchronous {
        /// How many steps a worker may be ahead of the slowest one; then it waits (stale
        /// synchronous parallel; Ho et al., 2013). `None` if there is no bound.
        bound: Option<u64>,
    },
}

impl Policy {
    /// The learning rate of an update by the mean gradient of `part` samples, where `rate` is that
    /// of a synchronous update by all `whole` samples of a step: each sample counts alike.
    #[must_use]
    pub fn rate(self, rate: f32, part: f64, whole: f64) -> f32 {
        match self {
            Self::Synchronous { .. } => rate,
            Self::Asynchronous { .. } => rate / (whole / part) as f32,
        }
    }

    /// The most updates that can be between the parameters that a gradient was computed with and
    /// its own update, among `workers` that push; `None` if there is no bound.
    ///
    /// While a worker computes, no other can pass its steps by more than the bound and one, and no
    /// other was behind it by more than the bound when it got its parameters: 2 bound + 1 updates
    /// by each other worker.
    #[must_use]
    pub const fn most_stale(self, workers: u64) -> Option<u64> {
        match self {
            Self::Synchronous { .. } => Some(0),
            Self::Asynchronous { bound: None } => None,
            Self::Asynchronous { bound: Some(bound) } => {
                let each = bound.saturating_mul(2).saturating_add(1);
                Some(each.saturating_mul(workers.saturating_sub(1)))
            }
        }
    }
}

/// The state of a worker, as a server sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ClientState {
    /// It computes a gradient, or has not said anything yet.
    #[default]
    Computing,
    /// It waits for parameters before its first step.
    Fetching,
    /// Its gradient waits for an update.
    Pushed,
    /// Its gradient has been used or dropped; it waits for parameters.
    Used,
    /// Its gradient can't be used now, and is pushed again.
    Refused,
    /// Another worker of its group speaks for it.
    Follower,
    /// It waits for the change of the membership.
    Leaving,
    /// It has ended or is lost.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) state: ClientState,
    /// The steps whose gradients were used or dropped.
    pub(crate) clock: u64,
}

impl Client {
    /// Whether the worker has yet to push its gradient for the next update. One that waits for an
    /// answer has, too.
    const fn is_absent(&self) -> bool {
        use ClientState::{Computing, Fetching, Refused, Used};
        matches!(self.state, Computing | Fetching | Used | Refused)
    }
}

/// The use that a server makes of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GradientFate {
    /// It is added to those of the update.
    Add {
        /// Updates since the parameters that it was computed with.
        stale: u64,
    },
    /// It came after its update.
    Drop,
    /// It was used before.
    Known,
    /// It shall be pushed again: after the change of the membership, or once there are parameters.
    Refuse,
}

/// An answer to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    pub(crate) worker: usize,
    /// Whether the push or fetch is done: the parameters follow.
    pub(crate) is_done: bool,
    /// Whether the worker shall come to a change of the membership before its next step.
    pub(crate) is_change: bool,
    /// Its steps ahead of the slowest worker.
    pub(crate) ahead: u64,
}

/// All workers, as a server sees them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clients {
    policy: Policy,
    /// By rank; a server is [`ClientState::Gone`].
    pub(crate) all: Vec<Client>,
    /// Updates of the parameters.
    pub(crate) updates: u64,
    /// Whether there are parameters.
    pub(crate) is_started: bool,
    /// A rank waits to join: answered workers come to a change.
    is_announced: bool,
    /// The change has begun: no gradient waits for those of other workers.
    is_frozen: bool,
}

impl Clients {
    pub(crate) fn new(policy: Policy, all: Vec<Client>, updates: u64) -> Self {
        let (is_started, is_announced, is_frozen) = (false, false, false);
        Self { policy, all, updates, is_started, is_announced, is_frozen }
    }

    /// A worker asks for parameters.
    pub(crate) fn fetch(&mut self, worker: usize) {
        self.all[worker].state = ClientState::Fetching;
    }

    /// A worker has pushed the gradient of this step, counted from 1, for the parameters with this
    /// number of updates.
    pub(crate) fn push(&mut self, worker: usize, step: u64, version: u64) -> GradientFate {
        let is_synchronous = matches!(self.policy, Policy::Synchronous { .. });
        // A server that has come back may have fewer updates than the worker has seen.
        let stale = self.updates.saturating_sub(version);
        let client = &mut self.all[worker];
        let (state, outcome) = if !self.is_started {
            (ClientState::Refused, GradientFate::Refuse)
        } else if step <= client.clock {
            (ClientState::Used, GradientFate::Known)
        } else if is_synchronous && stale > 0 {
            (ClientState::Used, GradientFate::Drop)
        } else if is_synchronous && self.is_frozen {
            (ClientState::Refused, GradientFate::Refuse)
        } else {
            (ClientState::Pushed, GradientFate::Add { stale })
        };
        client.state = state;
        if outcome != GradientFate::Refuse {
            client.clock = client.clock.max(step);
        }
        outcome
    }

    /// Whether it is time for an update.
    pub(crate) fn is_update_due(&self) -> bool {
        let absent = self.all.iter().filter(|it| it.is_absent()).count();
        let has_pushed = self.all.iter().any(|it| it.state == ClientState::Pushed);
        match self.policy {
            Policy::Synchronous { backups } => has_pushed && !self.is_frozen && absent <= backups,
            Policy::Asynchronous { .. } => has_pushed,
        }
    }

    /// The lowest rank that has yet to push for the next update; the number of ranks if all have.
    pub(crate) fn lowest_absent(&self) -> usize {
        self.all.iter().position(Client::is_absent).unwrap_or(self.all.len())
    }

    /// All pushed gradients have been used.
    pub(crate) fn updated(&mut self) {
        self.updates += 1;
        let pushed = self.all.iter_mut().filter(|it| it.state == ClientState::Pushed);
        pushed.for_each(|it| it.state = ClientState::Used);
    }

    /// A worker comes to the change, or has ended, or is lost.
    pub(crate) fn set(&mut self, worker: usize, state: ClientState) {
        // The gradient of a worker that was lost stays in the update.
        self.all[worker].state = state;
    }

    /// A worker is lost whose group makes this step again: no update goes without it, and a
    /// gradient that it has pushed for all does not count as used.
    pub(crate) fn lose_of_group(&mut self, worker: usize) {
        self.freeze();
        self.set(worker, ClientState::Gone);
    }

    /// Answered workers shall come to a change of the membership.
    pub(crate) const fn announce(&mut self) {
        self.is_announced = true;
    }

    pub(crate) const fn is_announced(&self) -> bool {
        self.is_announced || self.is_frozen
    }

    /// Whether the change has begun.
    pub(crate) const fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// The change begins. Gradients that wait for an update are pushed again after it.
    pub(crate) fn freeze(&mut self) {
        self.is_frozen = true;
        for client in self.all.iter_mut().filter(|it| it.state == ClientState::Pushed) {
            (client.state, client.clock) = (ClientState::Refused, client.clock - 1);
        }
    }

    /// Whether all workers have come to the change.
    pub(crate) fn is_change_due(&self) -> bool {
        let is_here = |it: &Client| matches!(it.state, ClientState::Leaving | ClientState::Gone);
        self.is_frozen && self.all.iter().all(is_here)
    }

    /// Whether no worker is left.
    pub(crate) fn is_over(&self) -> bool {
        self.all.iter().all(|it| it.state == ClientState::Gone)
    }

    /// The next answer, if a worker may be answered.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let computes = |it: &&Client| {
            !matches!(it.state, ClientState::Follower | ClientState::Leaving | ClientState::Gone)
        };
        let slowest = self.all.iter().filter(computes).map(|it| it.clock).min().unwrap_or(0);
        let ahead = |it: &Client| it.clock.saturating_sub(slowest);
        let may_go_on = |it: &Client| match self.policy {
            Policy::Synchronous { .. } => true,
            Policy::Asynchronous { bound } => bound.is_none_or(|bound| ahead(it) <= bound),
        };
        let is_next = |it: &&(usize, Client)| match it.1.state {
            ClientState::Fetching => self.is_frozen || self.is_started && may_go_on(&it.1),
            ClientState::Used => may_go_on(&it.1),
            ClientState::Refused => self.is_frozen || self.is_started,
            _ => false,
        };
        let (worker, client) = self.all.iter().copied().enumerate().find(|it| is_next(&it))?;
        let is_done = match client.state {
            // A fetch is answered with parameters unless a change has begun.
            ClientState::Fetching => !self.is_frozen,
            ClientState::Used => true,
            _ => false,
        };
        self.all[worker].state = ClientState::Computing;
        let is_change = self.is_announced();
        Some(Answer { worker, is_done, is_change, ahead: ahead(&client) })
    }
}

#[cfg(test)]
mod tests;
