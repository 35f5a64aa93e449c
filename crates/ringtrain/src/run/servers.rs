//! Parameter servers and their workers. The first ranks are servers. Each worker takes its part of
//! each batch; the first one tests and reports. An asynchronous update is of one worker's part, so
//! its learning rate is divided by the number of workers.

use std::time::Instant;

use ringreduce::Communicator;
use strategy::{Part, Server, ServerReport, Worker, epoch_order};

use super::batches::Batches;
use super::data_parallel::{digest, network, right};
use super::engine::Division;
use super::history::History;
use super::job::Job;
use super::world::sent_bytes;
use super::{Extras, Outcome};
use crate::cli::{PolicyName, Settings};
use crate::error::Result;
use crate::models::Network;
use crate::report::{self, Report};

/// The images of one test batch.
const TEST_BATCH: usize = 250;

pub(super) fn run(comm: Communicator, job: &Job, extras: &Extras<'_>) -> Result<Outcome> {
    if comm.rank() < job.settings.servers {
        serve(&comm, job, extras)
    } else {
        work(&comm, job, extras)
    }
}

/// The learning rate of an update.
fn rate(settings: &Settings, workers: usize) -> f32 {
    let rate = settings.rate(0, 1);
    match settings.policy {
        PolicyName::Synchronous => rate,
        PolicyName::Asynchronous => rate / workers as f32,
    }
}

fn serve(comm: &Communicator, job: &Job, extras: &Extras<'_>) -> Result<Outcome> {
    let settings = &job.settings;
    let rate = rate(settings, comm.size() - settings.servers);
    let rule = (settings.optimizer(), rate);
    let before = sent_bytes(comm);
    let mut server = Server::new(comm, settings.servers, settings.policy(), rule)?;
    let ServerReport { updates, dropped, most_stale, most_ahead, lost } = server.serve()?.clone();
    let note = format!(
        "server {}: {updates} updates, {dropped} gradients dropped, at most {most_stale} updates \
         stale and {most_ahead} steps ahead, lost workers {lost:?}",
        comm.rank()
    );
    if extras.outputs.table {
        report::print(&note)?;
    }
    Ok(Outcome {
        ranks: comm.size(),
        is_stopped: false,
        steps: updates,
        parameters: server.values().len(),
        epochs: Vec::new(),
        weights: String::new(),
        sent_bytes: extras.counts_bytes.then(|| sent_bytes(comm) - before),
        notes: vec![note],
    })
}

fn work(comm: &Communicator, job: &Job, extras: &Extras<'_>) -> Result<Outcome> {
    let settings = &job.settings;
    let (me, workers) = (comm.rank() - settings.servers, comm.size() - settings.servers);
    let mut network = network(job)?;
    let mut report = Report::new(me, extras.outputs.clone())?;
    let parameters = network.vars().iter().map(|(_, var)| var.elem_count()).sum();
    report.begin(job, comm.size(), parameters)?;
    let mut worker = Worker::new(comm, settings.servers, &mut network)?;
    let before = sent_bytes(comm);
    let mut history = History::default();
    for epoch in 0..settings.epochs {
        let order = epoch_order(job.data.train.len(), settings.seed, epoch as u64);
        let mut batches = Batches::new(job, &order, 0, Division::ByRank, (me, workers))?;
        let steps = job.steps_per_epoch();
        let bar = report.bar(epoch + 1, settings, steps, 0);
        for at in 0..steps {
            let start = Instant::now();
            let loss = step(&mut worker, &mut network, &mut batches)?;
            history.losses.push(loss);
            history.spent.all += start.elapsed();
            let images = (settings.batch * (at + 1)).min(order.len());
            bar.step(&history, images);
            report.step((epoch * steps + at + 1) as u64, loss, rate(settings, workers))?;
        }
        bar.end();
        let accuracy = if me == 0 { accuracy(&network, job)? } else { 0.0 };
        history.end_epoch(accuracy, order.len());
        if let Some(epoch) = history.epochs.last() {
            report.epoch(epoch)?;
        }
    }
    let sent = sent_bytes(comm) - before;
    worker.end()?;
    let outcome = Outcome {
        ranks: comm.size(),
        is_stopped: false,
        steps: job.steps(),
        parameters,
        epochs: history.epochs,
        weights: format!("{:016x}", digest(&network)?),
        sent_bytes: extras.counts_bytes.then_some(sent),
        notes: Vec::new(),
    };
    report.end(job, &outcome)?;
    Ok(outcome)
}

/// Pushes the gradient of this worker's part of a batch. The mean loss of the part.
fn step(worker: &mut Worker, network: &mut Network, batches: &mut Batches) -> Result<f32> {
    let batch = batches.next()?.batches.into_iter().next().flatten();
    // The mean over this worker's own samples is what a server expects.
    let total = batch.as_ref().map_or(0, |batch| batch.len());
    Ok(worker.step(network, &Part { batch, total })?)
}

/// The share of all test images that a network classifies right.
fn accuracy(network: &Network, job: &Job) -> Result<f64> {
    let test = &job.data.test;
    let places: Vec<usize> = (0..test.len()).collect();
    let mut found = 0;
    for places in places.chunks(TEST_BATCH) {
        found += right(network, &test.batch(places)?)?;
    }
    Ok(found as f64 / test.len().max(1) as f64)
}
