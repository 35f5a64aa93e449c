//! Parameter servers and their workers. The first ranks are servers. Each worker takes its part of
//! each batch; the first one tests and reports. An asynchronous update is of one worker's part, so
//! its learning rate is divided by the number of workers. Lost ranks come back if the user is
//! patient.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Monitor};
use strategy::{
    Groups, Layout, Member, Part, Role, Server, ServerSettings, SnapshotFolder, Snapshots, Worker,
    epoch_order,
};

use super::batches::Batches;
use super::data_parallel::{digest, network, right};
use super::engine::Division;
use super::history::History;
use super::job::Job;
use super::world::sent_bytes;
use super::{Extras, Outcome};
use crate::cli::{PolicyName, Settings};
use crate::error::{Error, Result};
use crate::models::Network;
use crate::report::{self, Report};

/// The images of one test batch.
const TEST_BATCH: usize = 250;

pub(super) fn run(comm: Communicator, job: &Job, extras: &Extras<'_>) -> Result<Outcome> {
    let (size, monitor) = (comm.size(), comm.monitor());
    let settings = &job.settings;
    let patience = settings.patience.map(|seconds| Duration::from_secs(seconds as u64));
    let layout = Layout { servers: settings.servers, groups: Groups::Each, patience };
    let member = Member::new(comm, layout)?;
    match member.role() {
        Role::Server(part) => serve(member, (part, size), job, extras, &monitor),
        Role::Worker(_) => Work::new(member, size, job, extras)?.run(&monitor),
    }
}

/// The learning rate of an update.
fn rate(settings: &Settings, size: usize) -> f32 {
    let rate = settings.rate(0, 1);
    match settings.policy {
        PolicyName::Synchronous => rate,
        PolicyName::Asynchronous => rate / (size - settings.servers).max(1) as f32,
    }
}

fn serve(
    member: Member,
    (part, size): (usize, usize),
    job: &Job,
    extras: &Extras<'_>,
    monitor: &Monitor,
) -> Result<Outcome> {
    let settings = &job.settings;
    let snapshots = extras.checkpoints.map(|checkpoints| {
        let (dir, every) = checkpoints.of_servers();
        let failed = |error: std::io::Error| Error::Checkpoint {
            file: dir.into(),
            problem: error.to_string(),
        };
        let store = Box::new(SnapshotFolder::new(dir).map_err(failed)?);
        Ok::<_, Error>(Snapshots { store, every, is_resumed: checkpoints.resumes() })
    });
    let (policy, optimizer) = (settings.policy(), settings.optimizer());
    let snapshots = snapshots.transpose()?;
    let how = ServerSettings { policy, optimizer, rate: rate(settings, size), snapshots };
    let mut server = Server::new(member, how)?;
    // What goes to the workers before their first step is not of a step.
    let mut before = None;
    let count = || sent_bytes(monitor);
    let seen = server.serve(|_, _| {
        before.get_or_insert_with(count);
    });
    let seen = seen?.clone();
    let before = before.unwrap_or_default();
    let note = format!(
        "server {part}: {} updates, {} gradients dropped, at most {} updates stale and {} steps \
         ahead, lost workers {:?}",
        seen.updates,
        seen.dropped.values().sum::<u64>(),
        seen.most_stale(),
        seen.most_ahead(),
        seen.lost
    );
    if extras.outputs.table {
        report::print(&note)?;
    }
    Ok(Outcome {
        ranks: size,
        is_stopped: false,
        steps: seen.updates,
        parameters: server.values().len(),
        epochs: Vec::new(),
        weights: String::new(),
        sent_bytes: extras.counts_bytes.then(|| sent_bytes(monitor) - before),
        notes: vec![note],
    })
}

/// A worker.
struct Work<'a> {
    job: &'a Job,
    counts_bytes: bool,
    size: usize,
    network: Network,
    worker: Worker,
    report: Report,
    history: History,
}

impl<'a> Work<'a> {
    fn new(member: Member, size: usize, job: &'a Job, extras: &Extras<'_>) -> Result<Self> {
        let mut network = network(job)?;
        let worker = Worker::new(member, &mut network)?;
        let report = Report::new(worker.number(), extras.outputs.clone())?;
        let (history, counts_bytes) = (History::default(), extras.counts_bytes);
        let work = Self { job, counts_bytes, size, network, worker, report, history };
        work.report.begin(job, size, work.parameters())?;
        Ok(work)
    }

    fn parameters(&self) -> usize {
        self.network.vars().iter().map(|(_, var)| var.elem_count()).sum()
    }

    fn run(mut self, monitor: &Monitor) -> Result<Outcome> {
        let before = sent_bytes(monitor);
        while self.worker.steps() < self.job.steps() {
            self.epoch()?;
        }
        let sent = sent_bytes(monitor) - before;
        let (steps, parameters) = (self.worker.steps(), self.parameters());
        self.worker.end()?;
        let outcome = Outcome {
            ranks: self.size,
            is_stopped: false,
            steps,
            parameters,
            epochs: self.history.epochs,
            weights: format!("{:016x}", digest(&self.network)?),
            sent_bytes: self.counts_bytes.then_some(sent),
            notes: Vec::new(),
        };
        self.report.end(self.job, &outcome)?;
        Ok(outcome)
    }

    /// The rest of an epoch, as long as the workers are the same.
    fn epoch(&mut self) -> Result<()> {
        let (settings, steps) = (&self.job.settings, self.job.steps_per_epoch());
        let done = self.worker.steps();
        let (epoch, first) = (done as usize / steps, done as usize % steps);
        let order = epoch_order(self.job.data.train.len(), settings.seed, epoch as u64);
        let place = (self.worker.number(), self.worker.workers());
        let mut batches = Batches::new(self.job, &order, first, (Division::ByRank, 1), place)?;
        let bar = self.report.bar(epoch + 1, settings, steps, first);
        for at in first..steps {
            let start = Instant::now();
            let batch = batches.next()?.batches.into_iter().next().flatten();
            // A server expects the mean over this worker's own samples.
            let total = batch.as_ref().map_or(0, crate::data::Batch::len);
            let loss = self.worker.step(&mut self.network, &Part { batch, total })?;
            self.history.losses.push(loss);
            self.history.spent.all += start.elapsed();
            bar.step(&self.history, settings.batch * (at + 1 - first));
            let step = (epoch * steps + at + 1) as u64;
            self.report.step(step, loss, rate(settings, self.size))?;
            let is_same = place == (self.worker.number(), self.worker.workers());
            if !is_same || self.worker.steps() != step {
                self.report.lead(self.worker.number())?;
                if at + 1 < steps {
                    return Ok(());
                }
            }
        }
        bar.end();
        let accuracy = if self.worker.number() == 0 { self.accuracy()? } else { 0.0 };
        self.history.end_epoch(accuracy, order.len());
        self.history.epochs.last().map_or(Ok(()), |epoch| self.report.epoch(epoch))
    }

    /// The share of all test images that the network classifies right.
    fn accuracy(&self) -> Result<f64> {
        let test = &self.job.data.test;
        let places: Vec<usize> = (0..test.len()).collect();
        let mut found = 0;
        for places in places.chunks(TEST_BATCH) {
            found += right(&self.network, &test.batch(places)?)?;
        }
        Ok(found as f64 / test.len().max(1) as f64)
    }
}
