//! A worker: it pushes the gradients of its samples to all servers, and gets their parameters.
//! Law: a step's gradient is pushed until all servers have used or dropped it, however often the
//! membership changes meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ringreduce::{Error as RankError, Messenger};

use super::exchange::Request;
use super::gradients::{Gradients, lock, sink};
use super::group::share_phase;
use super::member::Member;
use super::protocol::{HEADER, Header};
use super::roles::{Carried, Role};
use crate::model::{read_all, write_all};
use crate::{Divergence, Error, JobError, Model, NotFinite, Part, Sink, Step, Times};

/// A rank that computes gradients.
pub struct Worker {
    pub(super) member: Member,
    pub(super) messages: Messenger,
    /// All parameters, one after the other.
    pub(super) values: Vec<f32>,
    pub(super) origin: Origin,
    pub(super) gradients: Arc<Mutex<Gradients>>,
    sink: Sink,
    /// The mean gradient of this worker's group.
    pub(super) mean: Vec<f32>,
    /// The updates in each server's parameters.
    pub(super) versions: Vec<u64>,
    /// The steps whose parameters this worker has.
    pub(super) steps: u64,
    /// Whether the servers have said that all workers end.
    is_stopping: bool,
}

/// Where a worker's parameters come from.
pub(super) enum Origin {
    /// The model, before a job.
    Model,
    /// A saved state, whose moments and updates servers do not have yet.
    Saved { moments: Vec<Vec<f32>>, updates: u64 },
    /// The servers.
    Servers,
    /// Servers that must have them already.
    Others,
}

impl Worker {
    /// The worker that `member` is. The first worker's model gives the servers their first
    /// parameters, which all workers' models get.
    ///
    /// # Errors
    /// If this rank is a server; those of the model; if a server is lost and does not come back.
    pub fn new<M: Model>(member: Member, model: &mut M) -> Result<Self, Error<M::Error>> {
        Self::begun(member, model, Origin::Model)
    }

    /// As [`Self::new`], for a rank that joins a training with a saved state: this model gives the
    /// servers no parameters, so nobody begins anew where the servers have none.
    ///
    /// # Errors
    /// As [`Self::new`]; the servers have an error if the first worker is one like this, and they
    /// have no parameters.
    pub fn joining<M: Model>(member: Member, model: &mut M) -> Result<Self, Error<M::Error>> {
        Self::begun(member, model, Origin::Others)
    }

    /// The worker that `member` is, whose model has parameters of this origin.
    pub(super) fn begun<M: Model>(
        member: Member,
        model: &mut M,
        origin: Origin,
    ) -> Result<Self, Error<M::Error>> {
        if let Role::Server(part) = member.role() {
            let given = format!("the server of part {part}, rank {}", member.rank);
            return Err(RankError::argument("Worker::new", "member", given, "a worker").into());
        }
        let counts: Vec<usize> = model.parameters().into_iter().map(|(_, count)| count).collect();
        let values = read_all(model)?;
        let gradients = Arc::new(Mutex::new(Gradients::new(&counts)));
        let sink = sink(counts, Arc::clone(&gradients));
        let versions = vec![0; member.layout.servers];
        let (mean, messages) = (Vec::new(), member.patient_messenger());
        let steps = member.roles.clocks[member.rank];
        let mut worker = Self {
            member,
            messages,
            values,
            origin,
            gradients,
            sink,
            mean,
            versions,
            steps,
            is_stopping: false,
        };
        let request = match worker.begin(false) {
            Err(error) if worker.member.goes_on_after(&error) => worker.change(false)?,
            Err(error) => return Err(worker.explained(error).into()),
            Ok(request) => request,
        };
        worker.finish(request, 0)?;
        worker.origin = Origin::Servers;
        write_all(model, &worker.values)?;
        Ok(worker)
    }

    /// Pushes the gradients of this worker's samples, whose number is [`Part::total`], and waits
    /// for the servers' parameters. Returns the mean loss over these samples, and how long the step
    /// computed and waited: no communication is hidden. The membership may change meanwhile.
    ///
    /// # Errors
    /// Those of the model; if the loss or a gradient is not finite; if a server is lost, or a
    /// worker of this one's group, and does not come back; if a server has given this worker up
    /// after [`Layout::worker_timeout`](crate::Layout::worker_timeout), or gives no sign of life
    /// for that long.
    pub fn step<M: Model>(
        &mut self,
        model: &mut M,
        part: &Part<M::Batch>,
    ) -> Result<Step, Error<M::Error>> {
        let begun = Instant::now();
        lock(&self.gradients).begin();
        let loss = model.gradients(part, &self.sink).map_err(Error::Model)?;
        self.check(loss, model)?;
        let pushing = Instant::now();
        self.finish(Request::Push, part.total as u64)?;
        let exposed = pushing.elapsed();
        write_all(model, &self.values)?;
        let compute = pushing - begun;
        Ok(Step { loss, times: Times { compute, communication: exposed, exposed } })
    }

    /// Asks for the end of the training: all workers end after one of the next steps, as
    /// [`Self::is_stopping`] says. Call it before each step until then, as the server that has
    /// heard it may be lost.
    ///
    /// # Errors
    /// If a server is lost and does not come back.
    pub fn ask_to_stop(&self) -> Result<(), JobError> {
        let first = self.member.roles.servers[0];
        let sent = self.messages.send(&Header::Stop.words(), first, HEADER);
        match sent.map_err(JobError::from) {
            Err(error) if self.member.goes_on_after(&error) => Ok(()),
            sent => sent.map_err(|error| self.explained(error)),
        }
    }

    /// Whether a worker has asked for the end of the training. With synchronous servers and no
    /// backups all workers learn it from the same step.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        self.is_stopping
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

    /// How many ranks push to the servers, as [`Member::pushers`] says.
    #[must_use]
    pub fn pushers(&self) -> usize {
        self.member.pushers()
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
        let number = match gradients.diverged {
            Some(parameter) => NotFinite::Gradient(model.parameters().swap_remove(parameter).0),
            None if !loss.is_finite() => NotFinite::Loss,
            None => return Ok(()),
        };
        Err(Error::diverged(step, loss, Divergence::AtRank { rank, stage: None, number }))
    }

    /// Does what is wished, through all changes of the membership.
    fn finish(&mut self, request: Request, samples: u64) -> Result<(), JobError> {
        let versions = self.versions.clone();
        let (mut request, mut is_pushing) = (request, request == Request::Push);
        loop {
            let outcome = self.exchange(request, samples, &versions)?;
            self.is_stopping |= outcome.is_stop;
            if outcome.is_done {
                match request {
                    Request::Push => (self.steps, is_pushing) = (self.steps + 1, false),
                    // The others of the group have made the step already.
                    Request::Pull if self.steps < self.group_steps() => {
                        (self.steps, is_pushing) = (self.group_steps(), false);
                    }
                    Request::Pull => {}
                }
            }
            if outcome.is_change {
                request = self.change(is_pushing)?;
            } else if is_pushing {
                request = Request::Push;
            } else if outcome.is_done {
                return Ok(());
            }
        }
    }

    /// The steps of this worker's group when the membership began.
    fn group_steps(&self) -> u64 {
        self.member.roles.clocks[self.member.rank]
    }

    /// Makes the next membership with all ranks, and returns what to do first in it.
    fn change(&mut self, is_pushing: bool) -> Result<Request, JobError> {
        loop {
            for server in &self.member.roles.servers {
                match self.messages.send(&Header::Leave.words(), *server, HEADER) {
                    Err(error) if !error.is_lost_rank() => return Err(error.into()),
                    _ => {}
                }
            }
            let before = if is_pushing { Carried::Pushed } else { Carried::Steps };
            self.member.change(before(self.steps))?;
            self.messages = self.member.patient_messenger();
            match self.begin(is_pushing) {
                Err(error) if error.is_lost_rank() => {}
                begun => return begun,
            }
        }
    }

    /// Begins a membership, and returns what to do first in it. Workers of a group that are not all
    /// in the same step get the parameters before they go on.
    fn begin(&mut self, is_pushing: bool) -> Result<Request, JobError> {
        self.member.set_waiting(true);
        let begun = self.try_begin(is_pushing);
        let _ = begun.as_ref().inspect_err(|error| self.member.share_failure(error));
        self.member.set_waiting(false);
        begun
    }

    fn try_begin(&mut self, is_pushing: bool) -> Result<Request, JobError> {
        self.offer_parameters()?;
        let is_ready = is_pushing && self.steps == self.group_steps();
        let are_ready = match &mut self.member.group {
            Some(group) => share_phase(group, is_ready)?,
            None => is_ready,
        };
        Ok(if are_ready { Request::Push } else { Request::Pull })
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("steps", &self.steps).finish_non_exhaustive()
    }
}
