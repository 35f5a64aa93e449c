//! The thread of a host's agent: begins the job there, and moves messages and the bytes of streams
//! until the job is over or the agent has gone. A further agent of the host may follow (`reach`).

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use super::AgentEvent;
use super::client::{AgentStart, Client, END_LIMIT, LOST_LIMIT, printable_lines};
use super::message::{AgentJob, NodeCounts, ToAgent, ToLauncher, greeting};
use super::mux::Mux;
use super::remote::{Command, HostRecord};
use super::remote_command::without_notes;
use crate::failure::Failure;
use crate::launch::message::{describe_end, say};
use crate::launch::rank_end::RankEnd;
use ringreduce::bootstrap::{Instant, MAX_SLEEP};
use ringreduce::codec::printable;
use ringreduce::trace;

/// The time that the last word to an agent has to leave this host.
const ABANDON_LIMIT: Duration = Duration::from_millis(200);
/// The most bytes of the remote shell's errors that are kept.
const MAX_ERRORS: usize = 4096;

/// How a thread tells the launcher's loop.
pub(super) struct Telling {
    pub(super) host_number: usize,
    pub(super) news: Sender<(usize, AgentEvent)>,
    pub(super) wake: Arc<PipeWriter>,
}

pub(super) fn another_ringrun(line: &str) -> String {
    let (there, here) = (printable(line.trim()), greeting());
    format!("started {there:?}, and this is {:?}: install the same ringrun", here.trim())
}

/// The advice about a lost host, which an elastic job seeks by itself.
fn remedy_of_loss(is_elastic: bool) -> &'static str {
    if is_elastic {
        return "look there for what has ended its agent or cut it off (dmesg)";
    }
    "look there for what has ended its agent or cut it off (dmesg) and start the job again, with \
     --elastic if it is to outlive a lost host"
}

impl Telling {
    pub(super) fn tell(&self, news: AgentEvent) {
        if self.news.send((self.host_number, news)).is_ok() {
            // A full pipe has bytes enough to wake the loop.
            let _ = (&*self.wake).write(&[1]);
        }
    }
}

pub(super) struct AgentThread {
    pub(super) host: String,
    /// The counts that a host which joins by itself must have been given; none if it needs none.
    pub(super) counts: Option<NodeCounts>,
    /// The number of agents that the host had before this one.
    pub(super) generation: u16,
    pub(super) start: AgentStart,
    pub(super) commands: Receiver<Command>,
    pub(super) awake: PipeReader,
    /// Commands that came before there was an agent.
    pub(super) early_commands: VecDeque<Command>,
    pub(super) telling: Telling,
    /// The silence of the agent after which it counts as gone.
    pub(super) lease: Duration,
    /// The standard error of the remote shell, until it is closed.
    pub(super) stderr: Option<PipeReader>,
    /// The messages of the remote shell that were not shown.
    pub(super) errors: Vec<u8>,
    has_begun: bool,
    /// The callers that wait until all is sent.
    flush_waiters: Vec<Sender<()>>,
    /// The callers that wait for the host's records, and the records so far for the first caller.
    readers: Vec<Sender<Vec<HostRecord>>>,
    records: Vec<HostRecord>,
    is_over: bool,
    /// The launcher needs no agent any more.
    pub(super) is_closed: bool,
    /// The agent has refused the job, or the rest of it.
    is_refused: bool,
}

impl AgentThread {
    pub(super) fn new(
        (host, counts): (&str, Option<NodeCounts>),
        start: AgentStart,
        (commands, awake): (Receiver<Command>, PipeReader),
        telling: Telling,
        lease: Duration,
    ) -> Self {
        Self {
            host: host.into(),
            counts,
            generation: 0,
            start,
            commands,
            awake,
            early_commands: VecDeque::new(),
            telling,
            lease,
            stderr: None,
            errors: vec![],
            has_begun: false,
            flush_waiters: vec![],
            readers: vec![],
            records: vec![],
            is_over: false,
            is_closed: false,
            is_refused: false,
        }
    }

    /// Runs the job on the host: by one agent, and where that is lost by those that the launcher
    /// starts after it.
    pub(super) fn run(self, mut job: AgentJob) {
        let mut agent = Some(self);
        while let Some(mut current) = agent {
            job.generation = current.generation;
            current.run_agent(job.clone());
            agent = current.await_successor();
        }
    }

    fn run_agent(&mut self, job: AgentJob) {
        let mut mux = match self.reach() {
            Ok(mux) => mux,
            Err(why) => {
                let errors = String::from_utf8_lossy(&self.errors);
                let why = match &mut self.start.client {
                    Some(client) => client.explain(&errors, &why),
                    None => format!("cannot start ranks on host {}: {why}", self.host),
                };
                return self.telling.tell(AgentEvent::NotBegun(Failure::Host(why)));
            }
        };
        let is_elastic = job.request.elastic.is_some();
        mux.send(&ToAgent::Begin(Box::new(job)));
        let gone = self.serve(&mut mux);
        if self.is_over || gone.is_some() {
            self.write_rest(&mut mux);
        }
        drop(mux);
        if self.is_over {
            // The launcher reads no more of the streams after this.
            self.telling.tell(AgentEvent::Message(ToLauncher::Over));
        }
        self.read_errors();
        match gone {
            Some(why) => {
                let host = &self.host;
                let ended = self.start.client.as_mut().and_then(|client| client.end(LOST_LIMIT));
                let ended = ended.filter(|status| !status.success());
                let how =
                    |status| format!(", the remote shell {}", describe_end(RankEnd::of(status)));
                let ended = ended.map_or_else(String::new, how);
                self.telling.tell(AgentEvent::Lost(format!(
                    "host {host} was lost: {why}{ended}; its ranks end there by themselves; {}",
                    remedy_of_loss(is_elastic)
                )));
            }
            None => drop(self.start.client.as_mut().map(|client| client.end(END_LIMIT))),
        }
    }

    /// Serves both sides until the job is over. The reason if the agent has gone before.
    fn serve(&mut self, mux: &mut Mux) -> Option<String> {
        loop {
            let others: Vec<_> =
                std::iter::once(self.awake.as_fd()).chain(self.stderr_fd()).collect();
            if let Err(cause) = mux.wait(&others, Duration::from_secs(1)) {
                return Some(format!("its connection can't be waited for: {cause}"));
            }
            self.read_errors();
            if self.take_commands(mux) {
                self.abandon(mux);
                return None;
            }
            if mux.take_refusal() {
                say(&format!(
                    "another ringrun has come as {} and was refused: was one started twice, or \
                     two with one --node-rank?",
                    self.host
                ));
            }
            if !self.flush_waiters.is_empty() {
                mux.flush();
            }
            if !mux.has_unsent() {
                for waiter in self.flush_waiters.drain(..) {
                    // One that does not wait any more has stopped.
                    let _ = waiter.send(());
                }
            }
            while let Some(message) = mux.next_control() {
                self.take(message);
            }
            if self.is_over || self.is_refused {
                return None;
            }
            if let Some(end) = mux.end() {
                return Some(end.to_owned());
            }
            // An ended one is reaped, whether it still matters or not.
            let has_shell_ended = self.start.client.as_mut().is_some_and(Client::has_ended);
            if mux.has_gone(has_shell_ended) {
                return Some("its agent has gone, and the connection has broken".into());
            }
            if mux.silent_for() > self.lease {
                return Some(format!("no sign of life for {:?}", self.lease));
            }
        }
    }

    /// Lets the agent end at once.
    pub(super) fn abandon(&self, mux: &mut Mux) {
        mux.send(&ToAgent::Abandon);
        let deadline = Instant::now() + ABANDON_LIMIT;
        while mux.has_unsent() && Instant::now() < deadline {
            if mux.wait(&[], ABANDON_LIMIT).is_err() {
                return;
            }
        }
    }

    /// Takes the commands so far. True if no more will come.
    fn take_commands(&mut self, mux: &mut Mux) -> bool {
        let _ = self.awake.read(&mut [0; 256]);
        loop {
            let early = self.early_commands.pop_front();
            match early.map_or_else(|| self.commands.try_recv(), Ok) {
                // `await_client` has taken the only one.
                Ok(Command::Start(..)) => {}
                Ok(Command::Send(message)) => mux.send(&message),
                Ok(Command::Add(number, stream)) => {
                    mux.add(number, stream);
                    mux.set_known(number);
                }
                Ok(Command::Resume(generation, stream)) => {
                    // A former agent gets no answer, and ends its ranks by itself.
                    if generation == self.generation {
                        mux.resume(stream);
                    }
                }
                Ok(Command::Flush(waiter)) => self.flush_waiters.push(waiter),
                Ok(Command::Read(reader)) => {
                    self.readers.push(reader);
                    mux.send(&ToAgent::Read);
                }
                Err(TryRecvError::Empty) => return false,
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => {
                    self.is_closed = true;
                    return true;
                }
            }
        }
    }

    fn take(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::Refused { exit_code, why } => {
                self.is_refused = true;
                let why = format!("host {}: {}", self.host, printable_lines(&why));
                self.telling.tell(AgentEvent::NotBegun(Failure::of_host(exit_code, why)));
            }
            ToLauncher::Record { now, record } => {
                let behind = trace::now().wrapping_sub(now).cast_signed();
                self.records.push(HostRecord { record, behind });
            }
            ToLauncher::AllRecords => {
                let records = std::mem::take(&mut self.records);
                if !self.readers.is_empty() {
                    // A reader that does not wait any more does not need them.
                    let _ = self.readers.remove(0).send(records);
                }
            }
            ToLauncher::Over => self.is_over = true,
            message => {
                self.has_begun |= matches!(message, ToLauncher::Ready { .. });
                self.telling.tell(AgentEvent::Message(message));
            }
        }
    }

    pub(super) fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(AsFd::as_fd)
    }

    /// Writes what the host has sent last, however slow the reader of the launcher's output is,
    /// until the launcher does not wait any more.
    fn write_rest(&mut self, mux: &mut Mux) {
        while !mux.has_written_all() && mux.wait(&[self.awake.as_fd()], MAX_SLEEP).is_ok() {
            if self.take_commands(mux) {
                return;
            }
        }
    }

    /// Keeps what the remote shell says before the job begins, and shows it after that.
    pub(super) fn read_errors(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(stderr) = &mut self.stderr {
            match stderr.read(&mut bytes) {
                Ok(0) => self.stderr = None,
                Ok(length) => self.errors.extend(&bytes[..length]),
                Err(_) => break,
            }
        }
        if self.has_begun && !self.errors.is_empty() {
            let errors = std::mem::take(&mut self.errors);
            let errors = without_notes(&String::from_utf8_lossy(&errors));
            if !errors.is_empty() {
                say(&format!("host {}: {}", self.host, printable_lines(&errors)));
            }
        }
        let excess = self.errors.len().saturating_sub(MAX_ERRORS);
        self.errors.drain(..excess);
    }
}
