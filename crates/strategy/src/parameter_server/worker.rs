//! A worker: it pushes the gradients of its samples to all servers, and gets their parameters.
//! Law: a step's gradient is pushed until all servers have used or dropped it, however often the
//! membership changes meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ringreduce::{Error as RankError, Messenger, Tag};

use super::gradients::{Gradients, lock, sink};
use super::group::{Outcome, share_outcome, share_phase, sum_gradients};
use super::member::{Member, is_loss};
use super::protocol::{ANSWER, HEADER, Header, PUSH, Reply, VALUES, kept};
use super::roles::{Before, Role};
use crate::{Error, Model, Part, Sink, Step, Times};

/// A rank that computes gradients.
pub struct Worker {
    pub(super) member: Member,
    pub(super) messages: Messenger,
    /// The elements of each parameter.
    counts: Vec<usize>,
    /// All parameters, one after the other.
    pub(super) values: Vec<f32>,
    /// The optimizer's moments in a saved state that servers do not have yet.
    pub(super) moments: Vec<Vec<f32>>,
    gradients: Arc<Mutex<Gradients>>,
    sink: Sink,
    /// The mean gradient of this worker's group.
    mean: Vec<f32>,
    /// The updates in each server's parameters.
    versions: Vec<u64>,
    /// The steps whose parameters this worker has.
    pub(super) steps: u64,
}

/// What a worker wants from the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Leave to go on, and parameters.
    Fetch,
    /// The same, once this step's gradient is used.
    Push,
}

impl Worker {
    /// The worker that `member` is. The first worker's model gives the servers their first
    /// parameters, which all workers' models get.
    ///
    /// # Errors
    /// If this rank is a server; those of the model; if a server is lost and does not come back.
    pub fn new<M: Model>(member: Member, model: &mut M) -> Result<Self, Error<M::Error>> {
        Self::begun(member, model, Vec::new())
    }

    /// The worker that `member` is, whose model has the parameters of a saved state. Servers get
    /// these moments if this is the first worker.
    pub(super) fn begun<M: Model>(
        member: Member,
        model: &mut M,
        moments: Vec<Vec<f32>>,
    ) -> Result<Self, Error<M::Error>> {
        if let Role::Server(part) = member.role() {
            let given = format!("the server of part {part}, rank {}", member.rank);
            return Err(RankError::argument("Worker::new", "member", given, "a worker").into());
        }
        let counts: Vec<usize> = model.parameters().into_iter().map(|(_, count)| count).collect();
        let mut values = vec![0.0; counts.iter().sum()];
        let mut start = 0;
        for (parameter, count) in counts.iter().enumerate() {
            model.read(parameter, &mut values[start..start + count]).map_err(Error::Model)?;
            start += count;
        }
        let gradients = Gradients { values: vec![0.0; values.len()], ..Gradients::default() };
        let gradients = Arc::new(Mutex::new(gradients));
        let sink = sink(counts.clone(), Arc::clone(&gradients));
        let versions = vec![0; member.layout.servers];
        let (mean, messages) = (Vec::new(), member.comm.messenger());
        let steps = member.roles.clocks[member.rank];
        let mut worker = Self {
            member,
            messages,
            counts,
            values,
            moments,
            gradients,
            sink,
            mean,
            versions,
            steps,
        };
        let wish = match worker.begin(false) {
            Err(error) if worker.member.is_elastic() && is_loss(&error) => worker.change(false)?,
            begun => begun?,
        };
        worker.finish(wish, 0)?;
        worker.moments = Vec::new();
        worker.write(model)?;
        Ok(worker)
    }

    /// Pushes the gradients of this worker's samples, whose number is [`Part::total`], and waits
    /// for the servers' parameters. Returns the mean loss over these samples, and how long the step
    /// computed and waited: no communication is hidden. The membership may change meanwhile.
    ///
    /// # Errors
    /// Those of the model; if the loss or a gradient is not finite; if a server is lost, or a
    /// worker of this one's group, and does not come back; if a server has given this worker up
    /// after [`Layout::worker_timeout`](crate::Layout::worker_timeout).
    pub fn step<M: Model>(
        &mut self,
        model: &mut M,
        part: &Part<M::Batch>,
    ) -> Result<Step, Error<M::Error>> {
        let begun = Instant::now();
        {
            let mut gradients = lock(&self.gradients);
            gradients.values.fill(0.0);
            (gradients.diverged, gradients.error) = (None, None);
        }
        let loss = model.gradients(part, &self.sink).map_err(Error::Model)?;
        self.check(loss, model)?;
        let pushing = Instant::now();
        self.finish(Wish::Push, part.total as u64)?;
        let exposed = pushing.elapsed();
        self.write(model)?;
        let compute = pushing - begun;
        Ok(Step { loss, times: Times { compute, communication: exposed, exposed } })
    }

    /// Tells the servers that this worker has ended. The training is over for all workers that
    /// are lost from now on: they do not come back.
    ///
    /// # Errors
    /// If a server is lost and ranks do not come back.
    pub fn end(mut self) -> ringreduce::Result<()> {
        self.member.end_heartbeat();
        // The other workers of the group may still wait for the last parameters from this one.
        let end = Header::End.words();
        for server in &self.member.roles.servers {
            match self.messages.send(&end, *server, HEADER) {
                Err(error) if self.member.is_elastic() && is_loss(&error) => {}
                sent => sent?,
            }
        }
        Ok(())
    }

    /// The steps that this worker and those before it in its place have made: a worker that joins
    /// goes on from here.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// This worker's number among [`Self::workers`], from 0. A change of the membership changes it.
    #[must_use]
    pub fn number(&self) -> usize {
        let workers = &self.member.roles.workers;
        workers.iter().position(|rank| *rank == self.member.rank).unwrap_or_default()
    }

    /// The number of workers.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.member.roles.workers.len()
    }

    /// The number of this membership: each change makes the next one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.member.comm.epoch()
    }

    /// An error if the loss or a gradient of a step can't be used.
    fn check<M: Model>(&self, loss: f32, model: &M) -> Result<(), Error<M::Error>> {
        let mut gradients = lock(&self.gradients);
        if let Some(error) = gradients.error.take() {
            return Err(error.into());
        }
        let (rank, step) = (self.member.rank, self.steps + 1);
        let cause = match gradients.diverged {
            Some(parameter) => {
                let name = model.parameters().swap_remove(parameter).0;
                format!("a gradient of {name} at rank {rank} is not finite")
            }
            None if !loss.is_finite() => format!("at rank {rank}"),
            None => return Ok(()),
        };
        Err(Error::Diverged { step, loss, cause })
    }

    /// Does what is wished, through all changes of the membership.
    fn finish(&mut self, wish: Wish, samples: u64) -> ringreduce::Result<()> {
        let versions = self.versions.clone();
        let (mut wish, mut is_pushing) = (wish, wish == Wish::Push);
        loop {
            let outcome = self.exchange(wish, samples, &versions)?;
            if outcome.is_done {
                match wish {
                    Wish::Push => (self.steps, is_pushing) = (self.steps + 1, false),
                    // The others of the group have made the step already.
                    Wish::Fetch if self.steps < self.group_steps() => {
                        (self.steps, is_pushing) = (self.group_steps(), false);
                    }
                    Wish::Fetch => {}
                }
            }
            if outcome.is_change {
                wish = self.change(is_pushing)?;
            } else if is_pushing {
                wish = Wish::Push;
            } else if outcome.is_done {
                return Ok(());
            }
        }
    }

    /// The steps of this worker's group when the membership began.
    fn group_steps(&self) -> u64 {
        self.member.roles.clocks[self.member.rank]
    }

    /// Pushes or fetches once, together with the group. Losses after which the others go on are
    /// outcomes, not errors.
    fn exchange(
        &mut self,
        wish: Wish,
        samples: u64,
        versions: &[u64],
    ) -> ringreduce::Result<Outcome> {
        let result = self.try_exchange(wish, samples, versions);
        match result {
            Err(error) if self.member.is_elastic() && is_loss(&error) => {
                Ok(Outcome { is_done: false, is_change: true })
            }
            result => result,
        }
    }

    fn try_exchange(
        &mut self,
        wish: Wish,
        samples: u64,
        versions: &[u64],
    ) -> ringreduce::Result<Outcome> {
        let mut samples = samples;
        if wish == Wish::Push {
            let gradients = lock(&self.gradients);
            self.mean.clone_from(&gradients.values);
            drop(gradients);
            if let Some(group) = &mut self.member.group {
                samples = sum_gradients(group, &mut self.mean, samples)?;
            }
        }
        let mut outcome = Outcome::default();
        if self.member.roles.is_leader(self.member.rank) {
            outcome = self.ask_servers(wish, samples, versions)?;
        }
        if let Some(group) = &mut self.member.group {
            share_outcome(group, &mut outcome, &mut self.versions, &mut self.values)?;
        }
        Ok(outcome)
    }

    /// Sends a wish to all servers, and takes their answers. A server that is lost means a change,
    /// where it comes back; the others are served first.
    fn ask_servers(
        &mut self,
        wish: Wish,
        samples: u64,
        versions: &[u64],
    ) -> ringreduce::Result<Outcome> {
        let mut outcome = Outcome { is_done: true, is_change: false };
        let mut waiting = vec![false; self.member.layout.servers];
        for server in 0..waiting.len() {
            let sent = self.send_wish(server, wish, samples, versions[server]);
            waiting[server] = sent.is_ok();
            self.note_loss(sent, &mut outcome)?;
        }
        for server in (0..waiting.len()).filter(|server| waiting[*server]) {
            match self.take_reply(server) {
                Ok(reply) => {
                    outcome.is_done &= reply.is_done;
                    outcome.is_change |= reply.is_change;
                }
                lost => self.note_loss(lost.map(drop), &mut outcome)?,
            }
        }
        Ok(outcome)
    }

    fn note_loss(
        &self,
        result: ringreduce::Result<()>,
        outcome: &mut Outcome,
    ) -> ringreduce::Result<()> {
        match result {
            Err(error) if self.member.is_elastic() && is_loss(&error) => {
                *outcome = Outcome { is_done: false, is_change: true };
                Ok(())
            }
            result => result,
        }
    }

    fn send_wish(
        &self,
        server: usize,
        wish: Wish,
        samples: u64,
        version: u64,
    ) -> ringreduce::Result<()> {
        let rank = self.member.roles.servers[server];
        let place = kept(self.values.len(), server, self.member.layout.servers);
        match wish {
            Wish::Fetch => {
                let elements = place.len() as u64;
                self.messages.send(&Header::Fetch { elements }.words(), rank, HEADER)
            }
            Wish::Push => {
                let step = self.steps + 1;
                let header = Header::Gradient { samples, step, version };
                self.messages.send(&header.words(), rank, HEADER)?;
                self.messages.send(&self.mean[place], rank, PUSH)
            }
        }
    }

    fn take_reply(&mut self, server: usize) -> ringreduce::Result<Reply> {
        let rank = self.member.roles.servers[server];
        let mut words = [0; 2];
        self.messages.recv(&mut words, rank, ANSWER)?;
        let reply = Reply::of(words);
        // A server that could not send parameters to this worker sends a refusal in their place.
        let is_refused = reply.is_done && self.messages.probe(rank, Tag::Any)?.tag == ANSWER;
        if reply.is_refused || is_refused {
            let limit = self.member.worker_timeout();
            let given =
                format!("more than {limit:?}, so the server at rank {rank} went on without");
            let expected = "a sign of life in this time: start the worker again, or give it more";
            return Err(RankError::argument("Worker::step", "silence", given, expected));
        }
        if reply.is_done {
            let place = kept(self.values.len(), server, self.member.layout.servers);
            self.messages.recv(&mut self.values[place], rank, VALUES)?;
            self.versions[server] = reply.version;
        }
        Ok(reply)
    }

    /// Makes the next membership with all ranks, and returns what to do first in it.
    fn change(&mut self, is_pushing: bool) -> ringreduce::Result<Wish> {
        loop {
            for server in &self.member.roles.servers {
                match self.messages.send(&Header::Leave.words(), *server, HEADER) {
                    Err(error) if !is_loss(&error) => return Err(error),
                    _ => {}
                }
            }
            self.member.change(Before::Steps(self.steps))?;
            self.messages = self.member.comm.messenger();
            match self.begin(is_pushing) {
                Err(error) if is_loss(&error) => {}
                begun => return begun,
            }
        }
    }

    /// Begins a membership, and returns what to do first in it. Workers of a group that are not all
    /// in the same step get the parameters before they go on.
    fn begin(&mut self, is_pushing: bool) -> ringreduce::Result<Wish> {
        self.offer_parameters()?;
        let is_ready = is_pushing && self.steps == self.group_steps();
        let are_ready = match &mut self.member.group {
            Some(group) => share_phase(group, is_ready)?,
            None => is_ready,
        };
        Ok(if are_ready { Wish::Push } else { Wish::Fetch })
    }

    /// Gives the parameters to the model.
    fn write<M: Model>(&self, model: &mut M) -> Result<(), Error<M::Error>> {
        let mut rest = &self.values[..];
        for (parameter, count) in self.counts.iter().enumerate() {
            let (values, others) = rest.split_at(*count);
            model.write(parameter, values).map_err(Error::Model)?;
            rest = others;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("steps", &self.steps).finish_non_exhaustive()
    }
}
