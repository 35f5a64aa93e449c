//! The messages between a worker and the servers in a step.

use std::time::Duration;

use ringreduce::{Error as RankError, Source};

use super::gradients::lock;
use super::group::{Outcome, share_outcome, sum_gradients};
use super::protocol::{ANSWER, HEADER, Header, PUSH, Reply, VALUES, kept};
use super::worker::Worker;
use crate::JobError;

type Result<T> = std::result::Result<T, JobError>;

/// How often a worker to which no server answers looks which are lost: the others wait for that.
const LOST_SERVER_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A worker's request to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Permission to proceed, and parameters.
    Pull,
    /// The same, once this step's gradient is used.
    Push,
}

impl Worker {
    /// Pushes or fetches once, together with the group. Losses after which the others go on are
    /// outcomes, not errors.
    pub(super) fn exchange(
        &mut self,
        request: Request,
        samples: u64,
        versions: &[u64],
    ) -> Result<Outcome> {
        self.member.set_waiting(true);
        let result = self.try_exchange(request, samples, versions);
        let _ = result.as_ref().inspect_err(|error| self.member.share_failure(error));
        self.member.set_waiting(false);
        match result {
            Err(error) if self.member.goes_on_after(&error) => {
                Ok(Outcome { is_change: true, ..Outcome::default() })
            }
            result => result.map_err(|error| self.explained(error)),
        }
    }

    /// The error with which a call to the servers ends: it names the one that does not go on.
    pub(super) fn explained(&self, error: JobError) -> JobError {
        self.member.explained(error, self.steps + 1)
    }

    fn try_exchange(
        &mut self,
        request: Request,
        samples: u64,
        versions: &[u64],
    ) -> Result<Outcome> {
        let mut samples = samples;
        if request == Request::Push {
            let gradients = lock(&self.gradients);
            self.mean.clone_from(&gradients.values);
            drop(gradients);
            if let Some(group) = &mut self.member.group {
                samples = sum_gradients(group, &mut self.mean, samples)?;
            }
        }
        let mut outcome = Outcome::default();
        if self.member.roles.is_leader(self.member.rank) {
            outcome = self.ask_servers(request, samples, versions)?;
        }
        if let Some(group) = &mut self.member.group {
            share_outcome(group, &mut outcome, &mut self.versions, &mut self.values)?;
        }
        Ok(outcome)
    }

    /// Sends a request to all servers, and takes their answers. A server that is lost means a
    /// change, where it comes back; the others are served first.
    fn ask_servers(&mut self, request: Request, samples: u64, versions: &[u64]) -> Result<Outcome> {
        let mut outcome = Outcome { is_done: true, ..Outcome::default() };
        let mut asked = Vec::new();
        for (server, version) in versions.iter().enumerate() {
            match self.send_request(server, request, samples, *version) {
                Ok(()) => asked.push(server),
                lost => self.note_loss(lost, &mut outcome)?,
            }
        }
        while let Some(server) = self.next_to_answer(&asked) {
            asked.retain(|it| *it != server);
            match self.take_reply(server) {
                Ok(reply) => {
                    outcome.is_done &= reply.is_done;
                    outcome.is_change |= reply.is_change;
                    outcome.is_stop |= reply.is_stop;
                }
                lost => self.note_loss(lost.map(drop), &mut outcome)?,
            }
        }
        Ok(outcome)
    }

    /// The first server that answers, or from which no answer will come, while these are asked. Any
    /// may be the first: one that waits for this worker may keep others waiting, whom another
    /// server needs. One that has answered may refuse this worker meanwhile.
    fn next_to_answer(&self, asked: &[usize]) -> Option<usize> {
        let messages = self.messages.with_timeout(LOST_SERVER_POLL_INTERVAL);
        let ranks = &self.member.roles.servers;
        while asked.len() > 1 {
            match messages.probe(Source::Any, ANSWER) {
                Ok(next) => return ranks.iter().position(|rank| *rank == next.rank),
                Err(RankError::NoMessage { .. }) => {
                    let is_lost = |it: &usize| messages.try_probe(ranks[*it], ANSWER).is_err();
                    if let Some(lost) = asked.iter().copied().find(is_lost) {
                        return Some(lost);
                    }
                }
                Err(_) => break,
            }
        }
        asked.first().copied()
    }

    fn note_loss(&self, result: Result<()>, outcome: &mut Outcome) -> Result<()> {
        match result {
            Err(error) if self.member.goes_on_after(&error) => {
                *outcome = Outcome { is_done: false, is_change: true, ..*outcome };
                Ok(())
            }
            result => result,
        }
    }

    fn send_request(
        &self,
        server: usize,
        request: Request,
        samples: u64,
        version: u64,
    ) -> Result<()> {
        let rank = self.member.roles.servers[server];
        let place = kept(self.values.len(), server, self.member.layout.servers);
        match request {
            Request::Pull => {
                let elements = place.len() as u64;
                self.messages.send(&Header::Fetch { elements }.words(), rank, HEADER)?;
            }
            Request::Push => {
                let step = self.steps + 1;
                let header = Header::Gradient { samples, step, version };
                self.messages.send(&header.words(), rank, HEADER)?;
                self.messages.send(&self.mean[place], rank, PUSH)?;
            }
        }
        Ok(())
    }

    fn take_reply(&mut self, server: usize) -> Result<Reply> {
        let rank = self.member.roles.servers[server];
        let reply = self.take_answer(rank)?;
        let place = kept(self.values.len(), server, self.member.layout.servers);
        if reply.is_done {
            // A server that could not send parameters to this worker sends none in their place.
            if !place.is_empty() && self.messages.probe(rank, VALUES)?.bytes == 0 {
                return Err(self.given_up_by(rank));
            }
            self.messages.recv(&mut self.values[place], rank, VALUES)?;
            self.versions[server] = reply.version;
        }
        Ok(reply)
    }

    /// Waits for the answer of the server at this rank.
    pub(super) fn take_answer(&self, rank: usize) -> Result<Reply> {
        let mut words = [0; 2];
        self.messages.recv(&mut words, rank, ANSWER)?;
        let reply = Reply::of(words);
        if reply.is_refused { Err(self.given_up_by(rank)) } else { Ok(reply) }
    }

    fn given_up_by(&self, rank: usize) -> JobError {
        let limit = self.member.worker_timeout();
        let given = format!("more than {limit:?}, so the server at rank {rank} went on without");
        let expected = "a sign of life in this time: start the worker again, or give it more";
        JobError::peer("Worker", "silence", given, expected)
    }
}
