//! The thread of one agent: begins the job there, and moves messages and the bytes of streams
//! until the job is over or the agent has gone.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::AgentEvent;
use super::carrier::Carrier;
use super::client::{AgentStart, Client, END_LIMIT, LOST_LIMIT, Pipes, printable_lines};
use super::message::{AgentJob, NodeCounts, ToAgent, ToLauncher, find_greeting, greeting};
use super::mux::Mux;
use super::remote::{Command, HostRecord};
use super::remote_command::without_notes;
use crate::failure::Failure;
use crate::launch::message::{describe_end, say};
use crate::launch::rank_end::RankEnd;
use ringreduce::bootstrap::{Instant, MAX_SLEEP};
use ringreduce::codec::printable;
use ringreduce::trace;

/// The time in which an agent must begin, name lookups and a slow login included.
const GREETING_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes that a login shell may print before the agent begins.
const MAX_BEFORE_GREETING: usize = 64 << 10;
/// The time that the last word to an agent has to leave this host.
const ABANDON_LIMIT: Duration = Duration::from_millis(200);
const NOT_NEEDED: &str = "is not needed any more";
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

impl Telling {
    fn tell(&self, news: AgentEvent) {
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
    start: AgentStart,
    pub(super) commands: Receiver<Command>,
    pub(super) awake: PipeReader,
    /// Commands that came before there was an agent.
    early_commands: VecDeque<Command>,
    telling: Telling,
    /// The silence of the agent after which it counts as gone.
    lease: Duration,
    /// The standard error of the remote shell, until it is closed.
    stderr: Option<PipeReader>,
    /// The messages of the remote shell that were not shown.
    errors: Vec<u8>,
    has_begun: bool,
    /// The callers that wait until all is sent.
    flush_waiters: Vec<Sender<()>>,
    /// The callers that wait for the host's records, and the records so far for the first caller.
    readers: Vec<Sender<Vec<HostRecord>>>,
    records: Vec<HostRecord>,
    is_over: bool,
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
            is_refused: false,
        }
    }

    pub(super) fn run(mut self, job: AgentJob) {
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
                    "host {host} was lost: {why}{ended}; its ranks end there by themselves"
                )));
            }
            None => drop(self.start.client.as_mut().map(|client| client.end(END_LIMIT))),
        }
    }

    /// Waits for the agent.
    fn reach(&mut self) -> Result<Mux, String> {
        let Some(pipes) = self.start.pipes.take() else { return self.await_joining() };
        match self.reach_by_shell(pipes) {
            Err(_) if self.start.client.is_none() => {
                let pipes = self.await_client()?;
                self.reach_by_shell(pipes)
            }
            reached => reached,
        }
    }

    /// Waits for a remote shell of this host, since that of another host has started no agent.
    fn await_client(&mut self) -> Result<Pipes, String> {
        self.telling.tell(AgentEvent::NotStartedByAgent);
        (self.stderr, self.errors) = (None, vec![]);
        while !self.is_closed() {
            match self.commands.recv() {
                Ok(Command::Start(client, pipes)) => {
                    (self.start.client, self.start.level) = (Some(client), 1);
                    return Ok(pipes);
                }
                Ok(command) => self.early_commands.push_back(command),
                Err(_) => break,
            }
        }
        Err(NOT_NEEDED.into())
    }

    /// True if the launcher needs no agent any more.
    fn is_closed(&self) -> bool {
        self.early_commands.iter().any(|command| matches!(command, Command::Close))
    }

    /// Waits for the agent that the remote shell starts.
    fn reach_by_shell(&mut self, Pipes { input, output, errors }: Pipes) -> Result<Mux, String> {
        // Without it, reading would wait.
        let is_set = fcntl(&errors, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok();
        self.stderr = Some(errors).filter(|_| is_set);
        let (output, received) = self.await_greeting(output)?;
        let shell = Carrier::of_shell(output, input).map_err(|cause| cause.to_string())?;
        Ok(Mux::new(shell, received))
    }

    /// Reads up to the agent's greeting; what follows it was read too.
    fn await_greeting(&mut self, mut output: PipeReader) -> Result<(OwnedFd, Vec<u8>), String> {
        let limit = GREETING_LIMIT * self.start.level;
        let (deadline, mut received) = (Instant::now() + limit, vec![]);
        let mut bytes = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("did not start ringrun within {limit:?}"));
            }
            let fds = [Some(output.as_fd()), Some(self.awake.as_fd()), self.stderr_fd()];
            let mut fds: Vec<_> =
                fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            // The clock counts half a second of a wait at most.
            let _ = poll(&mut fds, PollTimeout::from(200_u8));
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
            drop(fds);
            self.read_errors();
            let (can_read, is_awake) = (ready[0], ready[1]);
            if is_awake {
                let _ = self.awake.read(&mut [0; 256]);
                self.early_commands.extend(self.commands.try_iter());
                if self.is_closed() {
                    return Err(NOT_NEEDED.into());
                }
            }
            if !can_read {
                continue;
            }
            match output.read(&mut bytes) {
                Ok(0) => {
                    let ended = self.start.client.as_mut().and_then(|client| client.end(END_LIMIT));
                    let how = ended.map_or_else(
                        || "closed its output".into(),
                        |status| describe_end(RankEnd::of(status)),
                    );
                    self.read_errors();
                    return Err(format!("{how} before the agent had begun"));
                }
                Ok(length) => received.extend(&bytes[..length]),
                Err(cause) => return Err(cause.to_string()),
            }
            if let Some((line, end)) = find_greeting(&received) {
                if line != greeting() {
                    return Err(another_ringrun(&line));
                }
                return Ok((output.into(), received.split_off(end)));
            }
            if received.len() > MAX_BEFORE_GREETING {
                return Err("sent much, and nothing of an agent".into());
            }
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
            if mux.is_broken() && (has_shell_ended || mux.has_shell_ended()) {
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
                Ok(Command::Resume(stream)) => mux.resume(stream),
                Ok(Command::Flush(waiter)) => self.flush_waiters.push(waiter),
                Ok(Command::Read(reader)) => {
                    self.readers.push(reader);
                    mux.send(&ToAgent::Read);
                }
                Err(TryRecvError::Empty) => return false,
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => return true,
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
                self.has_begun |= matches!(message, ToLauncher::Ready);
                self.telling.tell(AgentEvent::Message(message));
            }
        }
    }

    fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
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
    fn read_errors(&mut self) {
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
