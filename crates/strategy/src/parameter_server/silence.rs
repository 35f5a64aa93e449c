//! Workers that are lost, or that a server has given up, as they were silent for too long.
//! Law: what such a worker sends later changes nothing, and is answered once by a refusal.

use std::time::{Duration, Instant};

use ringreduce::Error;

use super::policy::ClientState;
use super::protocol::{ANSWER, PUSH, Reply, VALUES};
use super::server::Server;
use crate::JobError;

/// The longest wait for a worker that was given up, and sends again.
const REFUSAL_LIMIT: Duration = Duration::from_millis(200);

/// How a server stands with a rank in a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerHealth {
    /// When the server last heard of the rank, or began the membership.
    heard: Instant,
    is_given_up: bool,
    is_refused: bool,
}

impl WorkerHealth {
    pub(super) fn new() -> Self {
        Self { heard: Instant::now(), is_given_up: false, is_refused: false }
    }
}

impl Server {
    /// Notes that a worker is alive. False if it was given up: then it is told so, and its message
    /// must not be used.
    pub(super) fn hear(&mut self, worker: usize) -> bool {
        self.health[worker].heard = Instant::now();
        if self.health[worker].is_given_up {
            self.refuse(worker);
        }
        !self.health[worker].is_given_up
    }

    /// Counts workers as lost that others wait for, and that are silent for too long. This server
    /// has taken all messages that have come.
    pub(super) fn give_up_silent_workers(&mut self) {
        let timeout = self.member.worker_timeout();
        for worker in self.member.roles.workers.clone() {
            let state = self.clients.all[worker].state;
            let is_awaited = match state {
                ClientState::Leaving | ClientState::Gone => false,
                // Its group speaks for it, but it comes by itself to a change and to its end.
                ClientState::Follower => {
                    let leader = self.member.roles.leaders[worker];
                    self.clients.is_frozen() || self.clients.all[leader].state == ClientState::Gone
                }
                _ => true,
            };
            if is_awaited && self.health[worker].heard.elapsed() > timeout {
                self.give_up(worker);
            }
        }
    }

    /// Goes on without a worker that is lost, or silent for too long.
    pub(super) fn note_loss(&mut self, worker: usize, error: Error) -> Result<(), JobError> {
        match error {
            Error::PeerLost { .. } => self.lose(worker),
            Error::Timeout { .. } | Error::Stalled { .. } => self.give_up(worker),
            error => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn lose(&mut self, worker: usize) {
        let state = self.clients.all[worker].state;
        if state != ClientState::Gone {
            if self.member.is_elastic() && self.member.roles.group(worker).count() > 1 {
                self.clients.lose_of_group(worker);
                self.sum.discard();
            } else {
                self.clients.set(worker, ClientState::Gone);
                // Another worker shall be the first one, which programs have report and save.
                if self.member.roles.workers.first() == Some(&worker) {
                    match self.member.is_elastic() && !self.has_ended {
                        true => self.freeze(),
                        false => self.report.has_lost_first_worker = true,
                    }
                }
            }
            self.report.lost.push(worker);
        }
    }

    pub(super) fn give_up(&mut self, worker: usize) {
        self.lose(worker);
        self.health[worker].is_given_up = true;
    }

    /// Takes the gradients that workers have sent after they were given up, which wait for that.
    pub(super) fn drop_late_gradients(&mut self) {
        let messages = self.messages.with_timeout(REFUSAL_LIMIT);
        for worker in 0..self.health.len() {
            if !self.health[worker].is_given_up {
                continue;
            }
            // An error is the loss of a worker that counts as lost already.
            while let Ok(Some(late)) = messages.try_probe(worker, PUSH) {
                let mut gradient = vec![0.0_f32; late.bytes / size_of::<f32>()];
                if messages.recv(&mut gradient, worker, PUSH).is_err() {
                    break;
                }
                self.refuse(worker);
            }
        }
    }

    fn refuse(&mut self, worker: usize) {
        if self.health[worker].is_refused {
            return;
        }
        let reply = Reply { is_refused: true, ..Reply::default() };
        let messages = self.messages.with_timeout(REFUSAL_LIMIT);
        let sent = messages.send(&reply.words(), worker, ANSWER);
        // The worker may wait for parameters behind an answer that came before.
        let sent = sent.and_then(|()| messages.send::<f32>(&[], worker, VALUES));
        self.health[worker].is_refused = sent.is_ok();
    }
}
