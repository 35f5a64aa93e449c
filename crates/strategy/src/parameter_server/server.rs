//! A server: it takes whichever message comes first, and updates its parameters as its policy says.
//! Law: a worker gets an answer to each push, whether or not its gradient was used.

use std::time::{Duration, Instant};

use ringreduce::{Error, Messenger, Source, Tag};

use super::end::take_rest;
use super::member::Member;
use super::policy::{Answer, Client, ClientState, Clients, GradientFate, Policy};
use super::protocol::{ANSWER, HEADER, Header, PUSH, Reply, STATE, VALUES};
use super::report::{ServerReport, count};
use super::roles::{Carried, Role};
use super::settings::ServerSettings;
use super::silence::WorkerHealth;
use super::sum::GradientSum;
use crate::JobError;

/// How often a server that hears nothing asks which workers are lost: the others wait for that.
const LOST_WORKER_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the first server asks the launcher whether a rank waits to join.
const JOINER_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait for what a worker has sent before it closed its links.
const LAST_MESSAGE_LIMIT: Duration = Duration::from_millis(200);

/// A rank that keeps a part of the parameters.
pub struct Server {
    pub(super) member: Member,
    pub(super) messages: Messenger,
    pub(super) settings: ServerSettings,
    pub(super) part: usize,
    pub(super) clients: Clients,
    /// By rank.
    pub(super) health: Vec<WorkerHealth>,
    pub(super) values: Vec<f32>,
    pub(super) moments: Vec<Vec<f32>>,
    pub(super) gradient: Vec<f32>,
    pub(super) sum: GradientSum,
    /// The workers of this membership that have ended, and wait for the others to do so.
    pub(super) ended: Vec<usize>,
    /// Whether a worker has ended: then the training is over for all.
    pub(super) has_ended: bool,
    /// Whether a worker wants all to end, which answers say from the next update on.
    is_stop_wanted: bool,
    is_stop_said: bool,
    /// When this server has last asked whether a rank waits to join.
    asked: Instant,
    pub(super) report: ServerReport,
}

impl Server {
    /// A server for the part that `member` has. Loads its snapshot if it has come back.
    ///
    /// # Errors
    /// If this rank is a worker, or the optimizer needs whole parameters; where a job begins, if
    /// servers have other settings, the first one that differs with both ranks; if the snapshot is
    /// damaged, or belongs to another training; if the communicator is deterministic and the policy
    /// is not.
    pub fn new(member: Member, settings: ServerSettings) -> Result<Self, JobError> {
        let part = Self::checked(&member, &settings).inspect_err(|_| take_rest(&member.comm))?;
        let is_deterministic = member.comm.is_deterministic();
        let clients = Clients::new(settings.policy, Vec::new(), 0);
        let messages = member.comm.messenger().with_timeout(member.worker_timeout());
        let mut server = Self {
            member,
            messages,
            settings,
            part,
            clients,
            health: Vec::new(),
            values: Vec::new(),
            moments: Vec::new(),
            gradient: Vec::new(),
            sum: GradientSum::new(is_deterministic),
            ended: Vec::new(),
            has_ended: false,
            is_stop_wanted: false,
            is_stop_said: false,
            asked: Instant::now(),
            report: ServerReport::default(),
        };
        let begun = server.load();
        server.meet(&[]);
        let begun = begun.and_then(|()| server.compare_settings());
        begun.inspect_err(|_| take_rest(&server.member.comm))?;
        Ok(server)
    }

    /// The part of a member that can be a server with these settings.
    fn checked(member: &Member, settings: &ServerSettings) -> Result<usize, JobError> {
        let Role::Server(part) = member.role() else {
            let given = format!("a worker, rank {}", member.rank);
            return Err(Error::argument("Server::new", "member", given, "a server").into());
        };
        if settings.optimizer.is_by_parameter() {
            let given = format!("{:?}", settings.optimizer);
            let expected = "SGD or Adam: a part of a parameter has no norm";
            return Err(Error::argument("Server::new", "optimizer", given, expected).into());
        }
        if member.comm.is_deterministic() && settings.policy != (Policy::Synchronous { backups: 0 })
        {
            let given = format!("{:?} in the deterministic mode", settings.policy);
            let expected = "Synchronous without backups: by others each update depends on which \
                            gradients come first";
            return Err(Error::argument("Server::new", "policy", given, expected).into());
        }
        Ok(part)
    }

    /// Serves until the workers have ended, or are lost and do not come back. Calls `progress`
    /// after each update, with the parameters that this server keeps. Returns what it has seen.
    ///
    /// Workers that wait for this server end with an error if `progress` takes longer than
    /// [`Layout::worker_timeout`](crate::Layout::worker_timeout), or writing a snapshot longer than
    /// the timeout of the communicator.
    ///
    /// # Errors
    /// If a message is none of a worker's, or of another length; if the messages fail; if a
    /// snapshot can't be written; if lost ranks do not come back in time.
    pub fn serve(
        &mut self,
        progress: impl FnMut(&ServerReport, &[f32]),
    ) -> Result<&ServerReport, JobError> {
        self.serve_all(progress).inspect_err(|_| take_rest(&self.member.comm))?;
        Ok(&self.report)
    }

    fn serve_all(
        &mut self,
        mut progress: impl FnMut(&ServerReport, &[f32]),
    ) -> Result<(), JobError> {
        self.member.set_busy(None);
        loop {
            self.take_next()?;
            self.look_for_ranks()?;
            while self.clients.is_update_due() {
                self.update()?;
                self.member.set_busy(Some(self.member.worker_timeout()));
                progress(&self.report, &self.values);
                self.member.set_busy(None);
            }
            while let Some(answer) = self.clients.answer() {
                self.send(answer)?;
            }
            let is_over = self.clients.is_over();
            if is_over && (self.has_ended || !self.member.is_elastic()) {
                self.answer_ended();
                return Ok(());
            }
            if is_over || self.clients.is_change_due() {
                self.change()?;
            }
        }
    }

    /// The parameters that this server keeps.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Takes the next message, if one comes soon.
    fn take_next(&mut self) -> Result<(), JobError> {
        let patient = self.messages.with_timeout(LOST_WORKER_POLL_INTERVAL);
        let next = match patient.probe(Source::Any, Tag::Is(HEADER)) {
            Ok(next) => next,
            Err(Error::NoMessage { .. }) => {
                self.give_up_silent_workers();
                return Ok(());
            }
            // Lost ranks are noted below.
            Err(Error::PeerLost { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match self.take(next.rank) {
            Err(JobError::Ranks(error)) => self.note_loss(next.rank, error),
            taken => taken,
        }
    }

    /// Takes a message of a worker.
    fn take(&mut self, worker: usize) -> Result<(), JobError> {
        let mut words = [0; 4];
        self.messages.recv(&mut words, worker, HEADER)?;
        let is_worker = self.member.roles.workers.contains(&worker);
        let Some(header) = Header::of(words).filter(|_| is_worker) else {
            let given = format!("{words:?} from rank {worker}");
            let expected = "a worker's message";
            return Err(JobError::peer("Server::serve", "header", given, expected));
        };
        if !self.hear(worker) {
            return Ok(());
        }
        match header {
            Header::Start { elements, updates, moments } => {
                self.start(worker, elements, (updates, moments))?;
            }
            Header::Fetch { elements } => {
                self.check_elements(worker, elements)?;
                if !self.clients.is_started && worker == self.member.roles.workers[0] {
                    return Err(self.lost_state(worker));
                }
                self.clients.fetch(worker);
            }
            Header::Gradient { samples, step, version } => {
                if !self.clients.is_started {
                    let bytes = self.messages.probe(worker, PUSH)?.bytes;
                    self.gradient.resize(bytes / size_of::<f32>(), 0.0);
                }
                self.messages.recv(&mut self.gradient, worker, PUSH)?;
                self.report.received_bytes += size_of_val(&self.gradient[..]) as u64;
                if let Some(restored) = &mut self.report.restored
                    && version > self.clients.updates
                {
                    // This worker has seen parameters that came after the snapshot.
                    let lost = version.saturating_sub(restored.updates);
                    restored.lost_updates = restored.lost_updates.max(lost);
                }
                let clock = self.clients.all[worker].clock;
                if step.saturating_sub(clock) > 1 {
                    let given = format!("{step} after step {clock} of rank {worker}");
                    let expected = "steps one after the other";
                    return Err(JobError::peer("Server::serve", "step", given, expected));
                }
                let outcome = self.clients.push(worker, step, version);
                self.use_gradient(worker, samples, outcome);
            }
            Header::Leave => {
                self.member.forget(worker);
                self.clients.set(worker, ClientState::Leaving);
                self.freeze();
            }
            Header::End { is_stopped } => self.note_end(worker, is_stopped),
            Header::State => {
                self.messages.send(&[self.clients.updates], worker, STATE)?;
                for values in std::iter::once(&self.values).chain(&self.moments) {
                    self.messages.send(values, worker, STATE)?;
                }
            }
            Header::Alive => {}
            Header::Stop => self.is_stop_wanted = true,
        }
        Ok(())
    }

    fn use_gradient(&mut self, worker: usize, samples: u64, outcome: GradientFate) {
        match outcome {
            GradientFate::Add { stale } => {
                count(&mut self.report.staleness, stale);
                let ranks = (worker, self.clients.lowest_absent());
                self.sum.add(ranks, samples, &mut self.gradient);
            }
            GradientFate::Drop => *self.report.dropped.entry(worker).or_default() += 1,
            GradientFate::Known | GradientFate::Refuse => {}
        }
    }

    fn update(&mut self) -> Result<(), JobError> {
        let ServerSettings { policy, rate, .. } = self.settings;
        let rate = policy.rate(
            rate,
            self.sum.samples as f64,
            self.sum.samples_of_step(&self.member.roles),
        );
        let step = (rate, self.clients.updates + 1);
        let Self { moments, values, sum, .. } = self;
        // A push without samples moves nothing, momentum included.
        if let Some(mean) = sum.mean() {
            self.settings.optimizer.update(step, moments, values, mean, &[]);
        }
        self.report.samples += self.sum.samples;
        self.sum.discard();
        self.is_stop_said = self.is_stop_wanted;
        self.clients.updated();
        self.report.updates = self.clients.updates;
        let every = self.settings.snapshots.as_ref().map_or(u64::MAX, |it| it.every.max(1));
        if self.clients.updates.is_multiple_of(every) { self.save() } else { Ok(()) }
    }

    fn send(&mut self, answer: Answer) -> Result<(), JobError> {
        let Answer { worker, is_done, is_change, ahead } = answer;
        let version = self.clients.updates;
        let is_stop = self.is_stop_said;
        let reply = Reply { is_done, is_change, is_refused: false, is_stop, version };
        let mut sent = self.messages.send(&reply.words(), worker, ANSWER);
        if is_done {
            sent = sent.and_then(|()| self.messages.send(&self.values, worker, VALUES));
            self.report.sent_bytes += size_of_val(&self.values[..]) as u64;
        }
        if let Err(error) = sent {
            self.note_loss(worker, error)?;
        }
        if is_done {
            count(&mut self.report.ahead, ahead);
        }
        Ok(())
    }

    /// Begins a change of the membership. Gradients that wait for an update come again after it.
    pub(super) fn freeze(&mut self) {
        self.clients.freeze();
        self.sum.discard();
    }

    /// Takes what a worker has sent before it closed its links: it may have ended, or come to the
    /// change. Else it is lost.
    fn take_last_words(&mut self, worker: usize) -> Result<(), JobError> {
        let patient = self.messages.with_timeout(LAST_MESSAGE_LIMIT);
        let is_done = |state| matches!(state, ClientState::Leaving | ClientState::Gone);
        while !is_done(self.clients.all[worker].state) {
            let taken = patient.probe(worker, HEADER).map_err(JobError::Ranks);
            match taken.and_then(|_| self.take(worker)) {
                Err(JobError::Ranks(Error::PeerLost { .. } | Error::Timeout { .. })) => {
                    self.lose(worker);
                }
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Notes lost workers, and announces a change if a rank waits to join. A worker that loses a
    /// server or one of its group comes to a change by itself.
    fn look_for_ranks(&mut self) -> Result<(), JobError> {
        for lost in self.messages.lost() {
            self.take_last_words(lost)?;
        }
        self.drop_late_gradients();
        let first = self.member.roles.workers[0];
        if !self.clients.is_started && self.clients.all[first].state == ClientState::Gone {
            if !self.member.is_elastic() {
                let (call, given) = ("Server::serve", format!("rank {first}, which is lost"));
                return Err(JobError::peer(call, "first worker", given, "its parameters"));
            }
            self.freeze();
        }
        let is_asked = self.part == 0 && self.member.is_elastic() && !self.clients.is_announced();
        if is_asked && self.asked.elapsed() >= JOINER_POLL_INTERVAL {
            self.asked = Instant::now();
            if self.member.queued_joiners()? > 0 {
                self.clients.announce();
            }
        }
        Ok(())
    }

    /// Makes the next membership with all ranks.
    fn change(&mut self) -> Result<(), JobError> {
        self.answer_ended();
        let before: Vec<Client> = self.clients.all.clone();
        let workers = self.member.roles.workers.clone();
        let leaders = self.member.roles.leaders.clone();
        self.member.change(Carried::Part(self.part as u64))?;
        self.member.set_busy(None);
        self.messages = self.member.comm.messenger().with_timeout(self.member.worker_timeout());
        self.report.changes += 1;
        // Ranks that were lost on their way to the change.
        let previous = &self.member.roles.previous;
        let is_lost = |rank: &usize| {
            before[*rank].state == ClientState::Leaving && !previous.contains(&Some(*rank))
        };
        self.report.lost.extend(workers.into_iter().filter(is_lost));
        let clocks: Vec<u64> = leaders.iter().map(|leader| before[*leader].clock).collect();
        self.meet(&clocks);
        Ok(())
    }

    /// Begins a membership, with the steps that the ranks of the one before have pushed.
    fn meet(&mut self, before: &[u64]) {
        let roles = &self.member.roles;
        let client = |rank: usize| {
            let state = match roles.of(rank) {
                Some(Role::Worker(_)) if roles.is_leader(rank) => ClientState::Computing,
                Some(Role::Worker(_)) => ClientState::Follower,
                _ => ClientState::Gone,
            };
            // A gradient that this server has used is not used again for the leader's successor.
            let previous = roles.group(rank).filter_map(|it| roles.previous[it]);
            let pushed = previous.filter_map(|it| before.get(it).copied()).max();
            Client { state, clock: roles.clocks[rank].max(pushed.unwrap_or_default()) }
        };
        let clients: Vec<Client> = (0..roles.leaders.len()).map(client).collect();
        self.sum.forget_ranks();
        self.health = vec![WorkerHealth::new(); clients.len()];
        let updates = self.report.updates;
        let is_started = self.clients.is_started;
        self.clients = Clients::new(self.settings.policy, clients, updates);
        self.clients.is_started = is_started;
        if self.member.roles.has_waiting() {
            self.clients.announce();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("part", &self.part).finish_non_exhaustive()
    }
}
