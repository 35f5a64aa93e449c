//! A server: it takes whichever message comes first, and updates its parameters as its policy says.
//! Law: a worker gets an answer to each push, whether or not its gradient was used.

use std::time::Duration;

use ringreduce::{Communicator, Error, Messenger, Result, Source, Tag};

use super::protocol::{HEADER, Header, PUSH, VALUES};
use crate::Optimizer;

/// How often a server that hears nothing asks which workers are lost.
const LOST_WORKER_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// When a server updates its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a server has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Updates of the parameters.
    pub updates: u64,
    /// Gradients that came too late for their update.
    pub dropped: u64,
    /// The most updates between the parameters that a gradient belongs to and its own update.
    pub most_stale: u64,
    /// The most steps that a worker which was answered was ahead of the slowest one.
    pub most_ahead: u64,
    /// The workers that were lost.
    pub lost: Vec<usize>,
}

/// A worker, as a server sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    is_live: bool,
    /// Whether it waits for parameters.
    is_waiting: bool,
    /// Whether its gradient waits for an update.
    has_pushed: bool,
    /// Gradients that it has pushed.
    clock: u64,
    /// The number of updates in the parameters that it has got last.
    fetched: u64,
}

/// A rank that keeps a part of the parameters.
#[derive(Debug)]
pub struct Server {
    messages: Messenger,
    policy: Policy,
    optimizer: Optimizer,
    rate: f32,
    servers: usize,
    clients: Vec<Client>,
    /// Whether the first worker has sent its parameters.
    is_started: bool,
    values: Vec<f32>,
    moments: Vec<Vec<f32>>,
    gradient: Vec<f32>,
    /// The sum of the gradients of an update, each times its samples, and how many there are.
    sum: Vec<f32>,
    samples: u64,
    report: ServerReport,
}

impl Server {
    /// One of the first `servers` ranks. All servers of a job have the same settings.
    ///
    /// # Errors
    /// If this rank is no server, or the optimizer needs whole parameters.
    pub fn new(
        comm: &Communicator,
        servers: usize,
        policy: Policy,
        (optimizer, rate): (Optimizer, f32),
    ) -> Result<Self> {
        let wrong = |argument, given: String, expected: String| {
            Err(Error::argument("Server::new", argument, given, expected))
        };
        if comm.rank() >= servers || servers >= comm.size() {
            let given = format!("{servers} at rank {} of {}", comm.rank(), comm.size());
            return wrong("servers", given, "the first ranks, and a worker".into());
        }
        if optimizer.is_by_parameter() {
            let expected = "SGD or Adam: a part of a parameter has no norm";
            return wrong("optimizer", format!("{optimizer:?}"), expected.into());
        }
        let client = |rank| Client { is_live: rank >= servers, ..Client::default() };
        Ok(Self {
            messages: comm.messenger(),
            policy,
            optimizer,
            rate,
            servers,
            clients: (0..comm.size()).map(client).collect(),
            is_started: false,
            values: Vec::new(),
            moments: Vec::new(),
            gradient: Vec::new(),
            sum: Vec::new(),
            samples: 0,
            report: ServerReport::default(),
        })
    }

    /// Serves until all workers have ended or are lost. Returns what it has seen.
    ///
    /// # Errors
    /// If a message is none of a worker's, or of another length; if the messages fail.
    pub fn serve(&mut self) -> Result<&ServerReport> {
        let patient = self.messages.with_timeout(LOST_WORKER_POLL_INTERVAL);
        while self.clients.iter().any(|client| client.is_live) {
            match patient.probe(Source::Any, Tag::Is(HEADER)) {
                Ok(next) => {
                    let taken = self.take(next.rank);
                    self.unless_lost(next.rank, taken)?;
                }
                Err(Error::NoMessage { .. } | Error::PeerLost { .. }) => {}
                Err(error) => return Err(error),
            }
            for lost in self.messages.lost() {
                self.lose(lost);
            }
            self.advance()?;
        }
        Ok(&self.report)
    }

    /// The parameters that this server keeps.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    fn lose(&mut self, worker: usize) {
        if self.clients[worker].is_live {
            self.clients[worker] = Client::default();
            self.report.lost.push(worker);
        }
    }

    /// Goes on without a worker that was lost in an exchange with it.
    fn unless_lost(&mut self, worker: usize, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::PeerLost { .. }) => self.lose(worker),
            other => other?,
        }
        Ok(())
    }

    /// Takes a message of a worker.
    fn take(&mut self, worker: usize) -> Result<()> {
        let mut words = [0; 2];
        self.messages.recv(&mut words, worker, HEADER)?;
        let is_wrong = |header: &Header| *header == Header::Start && self.is_started;
        let header = Header::of(words).filter(|header| !is_wrong(header));
        let header = header.filter(|_| self.clients[worker].is_live);
        let Some(header) = header else {
            let given = format!("{words:?} from rank {worker}");
            return Err(Error::argument("Server::serve", "header", given, "a worker's message"));
        };
        self.clients[worker].is_waiting = header != Header::End;
        match header {
            Header::Start => {
                let bytes = self.messages.probe(worker, PUSH)?.bytes;
                let elements = bytes / size_of::<f32>();
                self.values = vec![0.0; elements];
                self.messages.recv(&mut self.values, worker, PUSH)?;
                self.is_started = true;
                self.moments = vec![vec![0.0; elements]; self.optimizer.moments()];
                (self.gradient, self.sum) = (vec![0.0; elements], vec![0.0; elements]);
            }
            Header::Fetch => {}
            Header::Gradient(samples) => {
                self.messages.recv(&mut self.gradient, worker, PUSH)?;
                self.use_gradient(worker, samples);
            }
            Header::End => self.clients[worker] = Client::default(),
        }
        Ok(())
    }

    /// Uses the gradient that a worker has pushed.
    fn use_gradient(&mut self, worker: usize, samples: u64) {
        let client = &mut self.clients[worker];
        client.clock += 1;
        let stale = self.report.updates - client.fetched;
        let is_synchronous = matches!(self.policy, Policy::Synchronous { .. });
        if is_synchronous && stale > 0 {
            self.report.dropped += 1;
            return;
        }
        self.report.most_stale = self.report.most_stale.max(stale);
        let weight = samples as f32;
        self.sum.iter_mut().zip(&self.gradient).for_each(|(sum, it)| *sum += weight * it);
        self.samples += samples;
        client.has_pushed = true;
        if !is_synchronous {
            self.update();
        }
    }

    fn update(&mut self) {
        let samples = self.samples.max(1) as f32;
        self.sum.iter_mut().for_each(|sum| *sum /= samples);
        let step = (self.rate, self.report.updates + 1);
        self.optimizer.update(step, &mut self.moments, &mut self.values, &self.sum, &[]);
        self.sum.fill(0.0);
        self.samples = 0;
        self.clients.iter_mut().for_each(|client| client.has_pushed = false);
        self.report.updates += 1;
    }

    /// Updates if the policy says so, and answers the workers that may go on.
    fn advance(&mut self) -> Result<()> {
        let is_absent = |client: &&Client| client.is_live && !client.has_pushed;
        let absent = self.clients.iter().filter(is_absent).count();
        if let Policy::Synchronous { backups } = self.policy
            && self.clients.iter().any(|client| client.has_pushed)
            && absent <= backups
        {
            self.update();
        }
        if !self.is_started {
            // Workers that fetch wait for the first worker's parameters.
            if !self.clients[self.servers].is_live {
                let given = format!("rank {}, which is lost", self.servers);
                let expected = "its parameters";
                return Err(Error::argument("Server::serve", "first worker", given, expected));
            }
            return Ok(());
        }
        for worker in self.servers..self.clients.len() {
            let client = self.clients[worker];
            // The slowest may have changed by a worker that was lost in this loop.
            let live = self.clients.iter().filter(|client| client.is_live);
            let slowest = live.map(|client| client.clock).min().unwrap_or_default();
            let ahead = client.clock.saturating_sub(slowest);
            let may_go_on = match self.policy {
                // A gradient that waits for its update belongs to these parameters.
                Policy::Synchronous { .. } => {
                    client.clock == 0 || client.fetched < self.report.updates
                }
                Policy::Asynchronous { bound } => bound.is_none_or(|bound| ahead <= bound),
            };
            if !client.is_waiting || !may_go_on {
                continue;
            }
            let sent = self.messages.send(&self.values, worker, VALUES);
            self.unless_lost(worker, sent)?;
            let client = &mut self.clients[worker];
            client.is_waiting = false;
            client.fetched = self.report.updates;
            self.report.most_ahead = self.report.most_ahead.max(ahead);
        }
        Ok(())
    }
}
