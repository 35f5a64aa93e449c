//! Parameter servers and their workers. The first ranks are servers. Each worker takes its part of
//! each batch; the first one tests and reports. Lost ranks come back with `--patience`.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Monitor};
use strategy::{
    Groups, JobConfig, Layout, Member, Part, Role, Server, ServerReport, ServerSettings, Snapshots,
    Step, Worker, epoch_order,
};

use super::batches::Batches;
use super::data_parallel::{digest, network, test};
use super::engine::{Division, test_all};
use super::epochs::tested;
use super::history::History;
use super::job::Job;
use super::stop::Stop;
use super::world::sent_bytes;
use super::{Extras, Outcome};
use crate::checkpoint::{Checkpoints, Snapshot, buffers, set_buffers};
use crate::cli::{PolicyName, Settings, WorkerGroups};
use crate::error::{Error, Result};
use crate::models::Network;
use crate::report::{self, Report};

pub(super) fn run(
    comm: Communicator,
    job: &Job,
    config: JobConfig,
    extras: &Extras<'_>,
) -> Result<Outcome> {
    // A rank that has come back belongs to the group in which it was before.
    let started_as = std::env::var("RINGREDUCE_RANK").ok().filter(|_| extras.are_processes);
    let rank: usize = started_as.and_then(|it| it.parse().ok()).unwrap_or(comm.rank());
    let monitor = comm.monitor();
    let settings = &job.settings;
    let seconds = |seconds: usize| Duration::from_secs(seconds as u64);
    let groups = match settings.groups {
        WorkerGroups::Each => Groups::Each,
        WorkerGroups::Host => Groups::Host,
        WorkerGroups::Number(groups) => Groups::Number((rank % groups) as u64),
    };
    let layout = Layout {
        groups,
        patience: patience(settings, extras),
        worker_timeout: seconds(settings.worker_timeout),
        ..Layout::new(settings.servers)
    };
    // The first worker, where the job begins, has the checkpoint for all.
    let is_start = comm.epoch() == 0;
    let is_first = is_start && comm.rank() == settings.servers;
    let saved = match extras.checkpoints.filter(|_| is_first) {
        Some(checkpoints) => checkpoints.load(job)?,
        None => None,
    };
    let member = match &saved {
        Some((saved, _)) => Member::resume(comm, layout, config, saved.state.steps)?,
        None => Member::new(comm, layout, config)?,
    };
    // Lost ranks that have come back are among them.
    let ranks = Ranks { size: member.communicator().size(), pushers: member.pushers() };
    // Without this check the others would begin anew from weights that have learnt nothing.
    if is_start
        && member.role() == Role::Worker(0)
        && saved.is_none()
        && member.steps() == 0
        && let Some(checkpoints) = extras.checkpoints
        && checkpoints.load(job)?.is_some()
    {
        let problem = "the rank that has read it is lost: start the training again with --resume";
        return Err(Error::State(problem.into()));
    }
    match member.role() {
        Role::Server(part) => serve(member, (part, ranks), job, extras, &monitor),
        Role::Worker(_) => {
            let origin = match saved {
                Some((snapshot, history)) => Origin::Saved(snapshot, history),
                None if !is_start && has_checkpoint(extras)? => Origin::Servers,
                None => Origin::Model,
            };
            Work::new(member, origin, (ranks, job), extras)?.run(&monitor)
        }
    }
}

/// How long lost ranks are waited for, after which the others take over what they did.
fn patience(settings: &Settings, extras: &Extras<'_>) -> Option<Duration> {
    let default = extras.is_elastic().then_some(settings.worker_timeout);
    settings.patience.or(default).map(|seconds| Duration::from_secs(seconds as u64))
}

/// Whether there is a checkpoint: then the servers have had parameters, or a rank has read it.
fn has_checkpoint(extras: &Extras<'_>) -> Result<bool> {
    Ok(extras.checkpoints.map_or(Ok(None), Checkpoints::newest)?.is_some())
}

/// Where the parameters come from with which a worker begins.
enum Origin {
    /// Its model, or servers that have some.
    Model,
    /// Servers that must have some.
    Servers,
    /// A checkpoint.
    Saved(Snapshot, History),
}

/// How many ranks there are where this one begins.
#[derive(Clone, Copy)]
struct Ranks {
    size: usize,
    /// The ranks that push gradients to the servers.
    pushers: usize,
}

fn serve(
    member: Member,
    (part, ranks): (usize, Ranks),
    job: &Job,
    extras: &Extras<'_>,
    monitor: &Monitor,
) -> Result<Outcome> {
    let settings = &job.settings;
    let snapshots = extras.checkpoints.map(|checkpoints| {
        let (store, every) = checkpoints.of_servers()?;
        Ok::<_, Error>(Snapshots { store, every, is_resumed: false })
    });
    let (policy, optimizer) = (settings.policy(), settings.optimizer());
    let snapshots = snapshots.transpose()?;
    let how = ServerSettings { policy, optimizer, rate: settings.rate(0, 1), snapshots };
    let mut server = Server::new(member, how)?;
    let before = sent_bytes(monitor);
    let (mut lost, mut changes) = (0, 0);
    let seen = server.serve(|seen, _| {
        if extras.outputs.table && (seen.lost.len(), seen.changes) != (lost, changes) {
            (lost, changes) = (seen.lost.len(), seen.changes);
            eprintln!("ringtrain: server {part} goes on after {}", happened(seen));
        }
    });
    let seen = seen?.clone();
    let note = format!(
        "server {part}: {} updates, {} gradients dropped, at most {} updates stale and {} steps \
         ahead, {}",
        seen.updates,
        seen.dropped.values().sum::<u64>(),
        seen.most_stale(),
        seen.most_ahead(),
        happened(&seen)
    );
    if extras.outputs.table {
        report::print(&note)?;
    }
    if extras.are_processes && seen.has_lost_first_worker {
        let problem = "the first worker, which reports and saves, is lost, and no other one has \
                       taken its place: --resume goes on from its last checkpoint";
        if patience(settings, extras).is_some() {
            return Err(Error::Unfit(problem.into()));
        }
        // The error of the worker is the cause.
        eprintln!("ringtrain: {problem}");
    }
    // The parameters that workers get before their first step are not of a step.
    let first = ranks.pushers * size_of_val(server.values());
    let sent = (sent_bytes(monitor) - before).saturating_sub(first as u64);
    Ok(Outcome {
        ranks: ranks.size,
        is_stopped: seen.is_stopped,
        steps: seen.updates,
        parameters: server.values().len(),
        epochs: Vec::new(),
        weights: String::new(),
        sent_bytes: extras.counts_bytes.then_some(sent),
        pipeline: None,
        notes: vec![note],
    })
}

/// What has happened to the ranks, in words.
fn happened(seen: &ServerReport) -> String {
    format!("lost workers {:?}, {} changes of the membership", seen.lost, seen.changes)
}

/// A worker.
struct Work<'a> {
    job: &'a Job,
    extras: &'a Extras<'a>,
    ranks: Ranks,
    network: Network,
    worker: Worker,
    report: Report,
    history: History,
    /// The steps with whose parameters this worker has begun.
    began: u64,
}

impl<'a> Work<'a> {
    fn new(
        member: Member,
        origin: Origin,
        (ranks, job): (Ranks, &'a Job),
        extras: &'a Extras<'_>,
    ) -> Result<Self> {
        let mut network = network(job)?;
        let mut restored = None;
        let worker = match origin {
            Origin::Saved(Snapshot { state, buffers }, history) => {
                set_buffers(&network, &buffers)?;
                restored = Some(history);
                Worker::resume(member, &mut network, job.settings.optimizer(), &state)?
            }
            Origin::Servers => Worker::joining(member, &mut network)?,
            Origin::Model => Worker::new(member, &mut network)?,
        };
        let unseen = || History::unseen(worker.steps(), job.steps_per_epoch());
        let history = restored.unwrap_or_else(unseen);
        let report = Report::new(worker.number(), extras.outputs.clone())?;
        let began = worker.steps();
        let work = Self { job, extras, ranks, network, worker, report, history, began };
        work.report.begin(job, ranks.size, work.parameters())?;
        if !work.history.is_new() {
            work.report.resumed(&work.history.epochs, work.worker.steps(), job)?;
        }
        Ok(work)
    }

    fn parameters(&self) -> usize {
        self.network.vars().iter().map(|(_, var)| var.elem_count()).sum()
    }

    fn run(mut self, monitor: &Monitor) -> Result<Outcome> {
        let before = sent_bytes(monitor);
        while !self.worker.is_stopping() && self.worker.steps() < self.job.steps() {
            if let Err(error) = self.epoch() {
                return Err(self.explained(error));
            }
        }
        let sent = sent_bytes(monitor) - before;
        let (steps, parameters) = (self.worker.steps(), self.parameters());
        let is_stopped = self.worker.is_stopping();
        let mut outcome = Outcome {
            ranks: self.ranks.size,
            is_stopped,
            steps,
            parameters,
            epochs: self.history.epochs,
            weights: format!("{:016x}", digest(&self.network)?),
            sent_bytes: self.extras.counts_bytes.then_some(sent),
            pipeline: None,
            notes: Vec::new(),
        };
        // A launcher may end this rank once another one has ended with the code of a stop.
        let reported = is_stopped.then(|| self.report.end(self.job, &outcome));
        let ended = self.worker.end();
        // Another worker may have been stopped before its last step.
        outcome.is_stopped |= matches!(ended, Ok(true));
        reported.unwrap_or_else(|| self.report.end(self.job, &outcome))?;
        ended?;
        Ok(outcome)
    }

    /// The rest of an epoch, as long as the workers are the same and none is told to stop.
    fn epoch(&mut self) -> Result<()> {
        let (settings, steps) = (&self.job.settings, self.job.steps_per_epoch());
        let done = self.worker.steps();
        let (epoch, first) = (done as usize / steps, done as usize % steps);
        let order = epoch_order(self.job.data.train.len(), settings.seed, epoch as u64);
        let place = (self.worker.number(), self.worker.workers());
        let mut batches = Batches::new(self.job, &order, first, (Division::ByRank, 1), place)?;
        let bar = self.report.bar(epoch + 1, settings, steps, first);
        for at in first..steps {
            self.step(&mut batches)?;
            bar.step(&self.history, settings.batch * (at + 1 - first));
            let step = (epoch * steps + at + 1) as u64;
            let is_last = at + 1 == steps;
            if self.worker.is_stopping() && !is_last {
                bar.end();
                return self.save();
            }
            let is_due = |it: &Checkpoints| it.is_due(self.worker.steps()) && !is_last;
            if self.extras.checkpoints.is_some_and(is_due) {
                self.save()?;
            }
            let is_same = place == (self.worker.number(), self.worker.workers());
            if !is_same || self.worker.steps() != step {
                self.report.lead(self.worker.number())?;
                if !is_last {
                    return Ok(());
                }
            }
        }
        bar.end();
        let accuracy = if self.worker.number() == 0 { self.accuracy()? } else { f64::NAN };
        self.history.end_epoch(accuracy, order.len());
        self.history.epochs.last().map_or(Ok(()), |epoch| self.report.epoch(epoch))?;
        self.save()
    }

    /// A step on this worker's part of the next batch.
    fn step(&mut self, batches: &mut Batches) -> Result<()> {
        if self.extras.stop.is_some_and(Stop::is_wanted) && !self.worker.is_stopping() {
            self.worker.ask_to_stop()?;
        }
        let start = Instant::now();
        let batch = batches.next()?.batches.into_iter().next().flatten();
        // A server expects the mean over this worker's own samples.
        let total = batch.as_ref().map_or(0, crate::data::Batch::len);
        let done = self.worker.step(&mut self.network, &Part { batch, total })?;
        let Step { loss, times } = done;
        self.history.losses.push(loss);
        let spent = &mut self.history.spent;
        spent.all += start.elapsed();
        spent.exposed += times.exposed;
        spent.hidden += times.hidden();
        let settings = &self.job.settings;
        let rate = settings.rate(0, 1);
        let rate = settings.policy().rate(rate, 1.0, self.worker.pushers() as f64);
        self.report.step(self.worker.steps(), loss, rate)
    }

    /// Saves a checkpoint at the first worker, if the user wants any.
    fn save(&mut self) -> Result<()> {
        let Some(checkpoints) = self.extras.checkpoints else { return Ok(()) };
        if self.worker.number() > 0 {
            return Ok(());
        }
        let optimizer = self.job.settings.optimizer();
        // While a server is lost, the checkpoint before stays the last one.
        let Some(state) = self.worker.state(&self.network, optimizer)? else { return Ok(()) };
        // The tests after the last step are as good as the loss of one more.
        let is_over = self.history.epochs.len() >= self.job.settings.epochs;
        let proven = self.proven(state.steps + u64::from(is_over));
        let snapshot = Snapshot { state, buffers: buffers(&self.network)? };
        checkpoints.save(&snapshot, self.job, self.ranks.size, (&self.history, proven))
    }

    /// The steps up to which checkpoints are proven by the finite loss of this step, which is of
    /// the parameters after the step before. Where servers do not wait for this worker, its
    /// checkpoint has later ones.
    fn proven(&self, finite: u64) -> u64 {
        let Settings { policy, backups, .. } = self.job.settings;
        let waits = policy == PolicyName::Synchronous && backups == 0;
        let proven = finite.saturating_sub(if waits { 1 } else { 2 });
        if finite > self.began { proven.max(self.began) } else { proven }
    }

    /// An error with the last good checkpoint, if this worker saves any and has diverged.
    fn explained(&self, error: Error) -> Error {
        let checkpoints = self.extras.checkpoints.filter(|_| self.worker.number() == 0);
        error.with_last_good(|finite| {
            Some(checkpoints?.last_good(self.proven(finite), &self.history, true))
        })
    }

    /// The share of all test images that the network classifies right.
    fn accuracy(&self) -> Result<f64> {
        let images = &self.job.data.test;
        let places: Vec<usize> = (0..images.len()).collect();
        let found = test_all(images, &places, |batch| test(&self.network, batch))?;
        tested(self.worker.steps(), (found.right, images.len()), found.diverged)
    }
}
