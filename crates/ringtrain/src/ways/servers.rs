//! Parameter servers and their workers. The first ranks are servers. Each worker takes its part of
//! each batch; the first one tests and reports. Lost ranks come back with `--patience`.

use std::time::Duration;

use ringreduce::{Communicator, Monitor, launched};
use strategy::{
    Groups, JobConfig, Layout, Member, Part, Role, Server, ServerReport, ServerSettings, Snapshots,
    Step, Worker, server_bytes,
};

use super::flow::{Flow, What};
use super::{Sizes, Way};
use crate::checkpoint::{Checkpoints, Snapshot, buffers, set_buffers};
use crate::cli::{Decay, PolicyName, Settings, WorkerGroups};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::Network;
use crate::report;
use crate::run::{
    Division, Done, Engine, Extras, History, Job, Outcome, Stop, sent_bytes, train_by, unfit,
};

pub(super) static PARAMETER_SERVER: Way = Way {
    name: "parameter-server",
    help: "The first ranks have the variables; the others push gradients to them",
    trainer: None,
    options: &["servers", "groups", "policy", "bound", "backups", "patience", "worker_timeout"],
    splits_parameters: true,
    check,
    ranks: |job| Ok(job.settings.servers + 1..=usize::MAX),
    flow: Flow::star(Some("server"), What::Parameters, "workers push and pull"),
    bytes,
    start,
};

fn check(job: &Job, size: usize) -> Result<()> {
    let Settings { servers, groups, policy, bound, backups, decay, .. } = job.settings;
    if servers >= size {
        return unfit(format!(
            "--servers {servers} of {size} ranks leave no worker: start at least {} ranks",
            servers + 1
        ));
    }
    let workers = size - servers;
    if policy == PolicyName::Synchronous && bound.is_some() {
        return unfit("--bound is for --policy asynchronous".into());
    }
    if policy == PolicyName::Asynchronous && backups > 0 {
        return unfit("--backups is for --policy synchronous".into());
    }
    if let WorkerGroups::Number(groups) = groups
        && groups > workers
    {
        return unfit(format!(
            "--groups {groups} of {workers} workers leave groups without one: make it smaller"
        ));
    }
    let pushers = job.settings.pushers(workers, workers);
    if backups >= pushers {
        return unfit(format!(
            "--backups {backups} of {pushers} workers or groups leave none to wait for: make \
             it smaller"
        ));
    }
    if decay == Some(Decay::Linear) {
        return unfit(
            "--decay linear is not for --strategy parameter-server, which keeps the learning \
             rate: leave it out"
                .into(),
        );
    }
    job.check_share(workers, "workers")
}

/// k servers send mS/k each to m workers that push, which send S each, the bytes of all gradients;
/// others add theirs to these in the memory of the host.
fn bytes(job: &Job, &Sizes { gradients, ranks, .. }: &Sizes<'_>) -> Result<Vec<u64>> {
    let servers = job.settings.servers;
    let pushers = job.settings.pushers(ranks.saturating_sub(servers), 1);
    let of_server = server_bytes(gradients, servers as u64, pushers as u64);
    let of_worker = |worker| if worker < pushers { gradients } else { 0 };
    let by = |rank: usize| rank.checked_sub(servers).map_or(of_server, of_worker);
    Ok((0..ranks).map(by).collect())
}

fn start(comm: Communicator, job: &Job, config: JobConfig, extras: &Extras<'_>) -> Result<Outcome> {
    // A rank that has come back belongs to the group in which it was before.
    let rank = if extras.are_processes { launched()?.rank } else { comm.rank() };
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
            // The first worker opens its files once it has parameters, as it is not rank 0.
            let place = (member.communicator().rank(), ranks.size);
            train_by(job, extras, place, |history| {
                Work::new(member, origin, (job, ranks, monitor, extras.stop), history)
            })
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

/// The events that have happened to the ranks, in words.
fn happened(seen: &ServerReport) -> String {
    format!("lost workers {:?}, {} changes of the membership", seen.lost, seen.changes)
}

/// A worker.
struct Work<'a> {
    settings: &'a Settings,
    stop: Option<&'a Stop>,
    ranks: Ranks,
    monitor: Monitor,
    network: Network,
    worker: Worker,
    /// The steps with whose parameters this worker has begun.
    began: u64,
}

impl<'a> Work<'a> {
    fn new(
        member: Member,
        origin: Origin,
        (job, ranks, monitor, stop): (&'a Job, Ranks, Monitor, Option<&'a Stop>),
        history: &mut History,
    ) -> Result<Self> {
        let (settings, mut network) = (&job.settings, job.network()?);
        let worker = match origin {
            Origin::Saved(Snapshot { state, buffers }, saved) => {
                set_buffers(&network, &buffers)?;
                *history = saved;
                Worker::resume(member, &mut network, settings.optimizer(), &state)?
            }
            Origin::Servers => Worker::joining(member, &mut network)?,
            Origin::Model => Worker::new(member, &mut network)?,
        };
        let began = worker.steps();
        history.catch_up(began, job.steps_per_epoch());
        Ok(Self { settings, stop, ranks, monitor, network, worker, began })
    }
}

impl Engine for Work<'_> {
    fn division(&self) -> Division {
        Division::ByRank
    }

    fn test_division(&self) -> Division {
        Division::Whole
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn steps(&self) -> u64 {
        self.worker.steps()
    }

    /// True: any saved state was loaded before the servers had parameters.
    fn has_state(&self) -> bool {
        true
    }

    fn rate(&self, _: &Job) -> f32 {
        let pushers = self.worker.pushers() as f64;
        self.settings.policy().rate(self.settings.rate(0, 1), 1.0, pushers)
    }

    fn step(&mut self, pieces: Vec<Part<Batch>>, _: f32) -> Result<Done> {
        if self.stop.is_some_and(Stop::is_wanted) && !self.worker.is_stopping() {
            self.worker.ask_to_stop()?;
        }
        let (place, next) = (self.place(), self.worker.steps() + 1);
        let batch = pieces.into_iter().find_map(|piece| piece.batch);
        // A server expects the mean over this worker's own samples.
        let total = batch.as_ref().map_or(0, Batch::len);
        let Step { loss, times } = self.worker.step(&mut self.network, &Part { batch, total })?;
        let has_changed = place != self.place() || next != self.worker.steps();
        Ok(Done { loss, exposed: times.exposed, hidden: times.hidden(), has_changed })
    }

    /// None while a server is lost: the checkpoint before stays the last one.
    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        if self.worker.number() > 0 {
            return Ok(None);
        }
        let state = self.worker.state(&self.network, self.settings.optimizer())?;
        let Some(state) = state else { return Ok(None) };
        Ok(Some(Snapshot { state, buffers: buffers(&self.network)? }))
    }

    fn load(&mut self, _: Option<&Snapshot>) -> Result<()> {
        Ok(())
    }

    /// Where servers do not wait for this worker, its checkpoint has later parameters than those of
    /// its steps.
    fn proven(&self, finite: u64) -> u64 {
        let Settings { policy, backups, .. } = *self.settings;
        let waits = policy == PolicyName::Synchronous && backups == 0;
        let proven = finite.saturating_sub(if waits { 1 } else { 2 });
        if finite > self.began { proven.max(self.began) } else { proven }
    }

    /// Workers go at their own pace.
    fn call<R>(&mut self, _: impl FnOnce(&mut Communicator) -> R) -> Option<R> {
        None
    }

    fn place(&mut self) -> (usize, usize) {
        (self.worker.number(), self.worker.workers())
    }

    fn ranks(&mut self) -> usize {
        self.ranks.size
    }

    fn is_stopping(&self) -> bool {
        self.worker.is_stopping()
    }

    fn sent_bytes(&mut self) -> u64 {
        sent_bytes(&self.monitor)
    }

    /// The worker itself goes on where it can.
    fn recover(self, lost: ringreduce::Error, _: &mut History) -> Result<Self> {
        Err(lost.into())
    }

    fn end(self) -> Result<bool> {
        Ok(self.worker.end()?)
    }
}
