//! How the thread of a host's agent comes to its agent: by the remote shell that starts it, at the
//! beginning of a job and again after the host was lost.

use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::AgentEvent;
use super::agent_thread::{AgentThread, another_ringrun};
use super::carrier::Carrier;
use super::client::{AgentStart, END_LIMIT, Pipes};
use super::message::{find_greeting, greeting};
use super::mux::Mux;
use super::remote::Command;
use crate::launch::message::describe_end;
use crate::launch::rank_end::RankEnd;
use ringreduce::bootstrap::Instant;

/// The time in which an agent must begin, name lookups and a slow login included.
const GREETING_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes that a login shell may print before the agent begins.
const MAX_BEFORE_GREETING: usize = 64 << 10;
const NOT_NEEDED: &str = "is not needed any more";

impl AgentThread {
    /// Waits until the launcher starts a further agent of this host; none if it never will. What
    /// the launcher says meanwhile to an agent that is lost is dropped: a caller that waits for an
    /// answer is told so by the end of its channel.
    pub(super) fn await_successor(self) -> Option<Self> {
        if self.is_closed() {
            return None;
        }
        let mut next = self.into_successor();
        loop {
            match next.commands.recv() {
                Err(_) | Ok(Command::Close) => return None,
                Ok(Command::Start(client, pipes)) => {
                    next.start = AgentStart { client: Some(client), pipes: Some(pipes), level: 1 };
                    return Some(next);
                }
                Ok(_) => {}
            }
        }
    }

    /// The thread as it is before its next agent.
    fn into_successor(self) -> Self {
        let start = AgentStart { client: None, pipes: None, level: 1 };
        let receiving = (self.commands, self.awake);
        let named = (self.host.as_str(), self.counts);
        let mut next = Self::new(named, start, receiving, self.telling, self.lease);
        next.generation = self.generation.wrapping_add(1);
        next
    }

    /// Waits for the agent.
    pub(super) fn reach(&mut self) -> Result<Mux, String> {
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
        self.is_closed
            || self.early_commands.iter().any(|command| matches!(command, Command::Close))
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
                // No rank runs yet whose record could be read.
                let is_for_ranks = |command: &Command| matches!(command, Command::Read(_));
                let commands = self.commands.try_iter().filter(|it| !is_for_ranks(it));
                self.early_commands.extend(commands);
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
}
