//! Ranks on other hosts. An agent on each of these hosts (`serve`) starts them; a remote shell
//! starts the agent (`client`), and is the connection of both. Over it (`mux`, `frame`) go control
//! messages (`message`) and the streams of all ranks of the host (`stream`), each of which ends in
//! a descriptor here, as for this host itself. A thread for each host (`agent_thread`) moves
//! bytes. The agent dials the launcher (`redial`, `listen`), and goes on over that encrypted
//! connection (`connection`, `carrier`), which is made anew when it breaks. A host may also join by
//! itself (`joining`), without a remote shell. Where hosts are many, agents start further ones
//! (`tree`). `machine` finds hosts that are one machine. A lost host is reached again (`reach`,
//! `recovery`), and its new agent first ends what the former one has left (`former`).
//! Law: whichever ends first, launcher, agent, remote shell or network, no rank is left running.

mod agent_thread;
mod begin;
mod carrier;
mod client;
mod connection;
mod former;
mod frame;
mod joining;
mod listen;
mod machine;
mod manual;
mod message;
mod mux;
mod rank_streams;
mod reach;
mod recovery;
mod redial;
mod remote;
mod remote_command;
mod repeats;
mod serve;
mod stream;
mod tree;

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::orphans::Orphans;
use super::signals::{ENDING, Signals};
use super::spawn::{RankStreams, StartKind};
use super::torchrun::Rendezvous;
use crate::cli::Request;
use crate::cli::hosts::{Launcher, RankPlacement};
use crate::failure::Failure;
use agent_thread::{AgentThread, Telling};
pub(crate) use begin::{join, run};
use client::AgentStart;
pub(crate) use client::FLAG;
use joining::{Progress, is_joined};
use listen::{Accepting, Listening};
use message::{AgentJob, NodeCounts, StreamNumbers, ToAgent};
pub(crate) use message::{RankRecord, ToLauncher};
use rank_streams::streams;
use recovery::AgentHandle;
use remote::Command;
pub(crate) use remote::{AskedRecords, Commands, HostRecord, RemoteProcess};
use ringreduce::bootstrap::Instant;
use ringreduce::config::DEFAULT_PEER_TIMEOUT;
use ringreduce::config::variables::PEER_TIMEOUT;

/// The time beyond `RINGREDUCE_PEER_TIMEOUT` that launcher and agent wait for each other.
const LEASE_BEYOND_PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that messages to agents have before this process stops.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// The time after the first failure of a host in which those of others are collected.
const OTHER_FAILURES: Duration = Duration::from_secs(1);

/// An event that an agent's thread tells the launcher's loop.
pub(crate) enum AgentEvent {
    Message(ToLauncher),
    /// The job can't begin on this host.
    NotBegun(Failure),
    /// Another host was to start this one's agent, and did not.
    NotStartedByAgent,
    /// The agent has gone, for this reason.
    Lost(String),
}

/// The agents of all hosts but the launcher's own.
pub(crate) struct Agents {
    agents: Vec<AgentHandle>,
    news: Receiver<(usize, AgentEvent)>,
    /// Has a byte for each piece of news; none if all ranks are on one host. The writing end keeps
    /// it from its end, which poll would tell for ever.
    awake: Option<(PipeReader, Arc<PipeWriter>)>,
    /// Accepts the agents' own connections.
    accepting: Option<Accepting>,
    next_stream: u32,
}

impl Agents {
    /// Starts the agents of a job, and waits until all of them are ready.
    pub(crate) fn start(
        request: &Request,
        (id, signals, limit): (&str, &Signals, Option<Instant>),
        secret: Option<&OwnedFd>,
        rendezvous: &Rendezvous,
        orphans: &mut Orphans<'_>,
    ) -> Result<Self, Failure> {
        let failed = |cause: io::Error| Failure::no_process("reach the hosts".into(), cause);
        let (told, news) = channel();
        let mut agents =
            Self { agents: vec![], news, awake: None, accepting: None, next_stream: 1 };
        if request.hosts.iter().all(|host| host.is_here) {
            if request.launcher == Launcher::Manual {
                request.warn("--launcher manual changes nothing: all ranks are on this host");
            }
            return Ok(agents);
        }
        let (awake, wake) = pipe().map_err(failed)?;
        let (wake, lease) = (Arc::new(wake), lease(request));
        agents.awake = Some((awake, wake.clone()));
        let secret = secret.map(read_secret).transpose();
        let secret = secret.map_err(Failure::system("read the job's secret"))?;
        let listening = Listening::start(request)?;
        let others = request.hosts.iter().enumerate().filter(|(_, host)| !host.is_here);
        let parents = tree::parents(request, others.clone().count());
        for ((host_number, host), (parent, level)) in others.zip(parents) {
            let (client, pipes) = match parent {
                _ if is_joined(request) => (None, None),
                Some(parent) => (None, Some(agents.start_by_agent(request, &host.name, parent)?)),
                None => client::start(&request.launcher, &host.name, id)?.unzip(),
            };
            client.iter().for_each(|client| orphans.add_own(client.process()));
            let job = AgentJob {
                id: format!("{id}.{host_number}"),
                request: for_host(request, host_number),
                environment: message::environment(request),
                rendezvous: rendezvous.clone(),
                secret,
                host_number,
                generation: 0,
                dial: listening.as_ref().map(|it| it.dial.clone()),
                lease: lease.as_secs(),
            };
            let (thread_awake, thread_wake) = pipe().map_err(failed)?;
            let (sender, receiver) = channel();
            let telling = Telling { host_number, news: told.clone(), wake: wake.clone() };
            let agent_thread = AgentThread::new(
                (&host.name, NodeCounts::of(request)),
                AgentStart { client, pipes, level },
                (receiver, thread_awake),
                telling,
                lease,
            );
            let name = format!("agent {host_number}");
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || agent_thread.run(job)).map_err(failed)?;
            let commands = Commands { sender, wake: Arc::new(thread_wake) };
            agents.agents.push(AgentHandle::new(host_number, commands, thread));
        }
        if let Some(listening) = listening {
            if request.launcher == Launcher::Manual {
                manual::say_commands(request, &listening)?;
            }
            agents.accepting = Some(listening.accept(agents.commands()).map_err(failed)?);
        }
        agents.await_ready((request, id), (signals, limit), orphans)?;
        Ok(agents)
    }

    /// Waits until all agents are ready. The error names every host that fails soon after the first
    /// one.
    fn await_ready(
        &mut self,
        (request, id): (&Request, &str),
        (signals, limit): (&Signals, Option<Instant>),
        orphans: &mut Orphans<'_>,
    ) -> Result<(), Failure> {
        let mut missing: Vec<_> = self.agents.iter().map(|agent| agent.host_number).collect();
        let (mut failures, mut deadline) = (vec![], None);
        let mut progress = Progress::of(request);
        // A host that joins by itself does so once.
        let is_spare = |host| Self::can_be_reached(request) && request.is_spare(host);
        while !missing.is_empty() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let fds = self.awake().into_iter().chain([signals.descriptor.as_fd()]);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let _ = poll(&mut fds, PollTimeout::from(100_u8));
            while let Some(signal) = signals.next() {
                if ENDING.contains(&signal) {
                    return Err(Failure::Interrupted(signal));
                }
            }
            if limit.is_some_and(|limit| Instant::now() >= limit) {
                return Err(Failure::TimeLimit(joining::names(request, &missing)));
            }
            if let Some(progress) = &mut progress {
                progress.tell(request, &missing)?;
            }
            for (host_number, news) in self.take_news() {
                match news {
                    AgentEvent::NotBegun(failure) if is_spare(host_number) => {
                        self.miss_spare((request, host_number), &failure.to_string());
                    }
                    AgentEvent::Lost(why) if is_spare(host_number) => {
                        self.miss_spare((request, host_number), &why);
                    }
                    AgentEvent::NotBegun(failure) => failures.push(failure),
                    AgentEvent::Lost(why) => failures.push(Failure::Host(why)),
                    AgentEvent::NotStartedByAgent => {
                        self.reach((request, id), host_number, orphans)?;
                        continue;
                    }
                    AgentEvent::Message(ToLauncher::Ready { machine }) => {
                        self.set_machine(host_number, machine);
                    }
                    AgentEvent::Message(ToLauncher::ToldToEnd { signal }) => {
                        let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTERM);
                        return Err(Failure::Interrupted(signal));
                    }
                    AgentEvent::Message(ToLauncher::Left { starts, processes }) => {
                        self.set_left(host_number, starts, processes);
                        continue;
                    }
                    // An agent that is ready has no rank yet to tell of.
                    AgentEvent::Message(_) => continue,
                }
                missing.retain(|missing| *missing != host_number);
            }
            if !failures.is_empty() {
                deadline = deadline.or(Some(Instant::now() + OTHER_FAILURES));
            }
        }
        let mut failures = failures.into_iter();
        let Some(first) = failures.next() else {
            self.warn_of_equal_machines(request);
            return Ok(());
        };
        let others: Vec<_> = failures.map(|failure| format!("\n{failure}")).collect();
        Err(if others.is_empty() { first } else { first.and(&others.concat()) })
    }

    /// The descriptor that can be read while there is news.
    pub(crate) fn awake(&self) -> Option<BorrowedFd<'_>> {
        self.awake.as_ref().map(|(awake, _)| awake.as_fd())
    }

    /// The news so far, with the number of each one's host.
    pub(crate) fn take_news(&mut self) -> Vec<(usize, AgentEvent)> {
        if let Some((awake, _)) = &mut self.awake {
            let _ = awake.read(&mut [0; 256]);
        }
        self.news.try_iter().collect()
    }

    /// The sending halves, with the numbers of their hosts.
    pub(crate) fn commands(&self) -> Vec<(usize, Commands)> {
        self.agents.iter().map(|agent| (agent.host_number, agent.commands.clone())).collect()
    }

    /// Starts a rank on another host: the news tells how that went.
    pub(crate) fn spawn(
        &mut self,
        placement: &RankPlacement,
        kind: StartKind,
        reads_stdin: bool,
    ) -> Result<(RemoteProcess, RankStreams), Failure> {
        let failed = Failure::system(format!("start rank {}", placement.rank));
        let numbers = StreamNumbers(self.next_stream);
        let (streams, theirs) = streams(numbers, reads_stdin).map_err(failed)?;
        self.next_stream += StreamNumbers::COUNT;
        let agent = self.agents.iter_mut().find(|it| it.host_number == placement.host_number);
        let agent = agent.filter(|agent| agent.starts_ranks()).ok_or_else(|| {
            Failure::Host(format!("host {} was lost: no rank can start there", placement.host))
        })?;
        agent.note_start();
        for (number, stream) in theirs {
            agent.commands.send(Command::Add(number, stream));
        }
        let (placement, streams_from) = (placement.clone(), numbers.0);
        let rank = placement.rank;
        agent.commands.send(Command::Send(ToAgent::Start {
            placement,
            kind,
            streams: streams_from,
        }));
        let process = RemoteProcess {
            rank,
            commands: agent.commands.clone(),
            pid: 0,
            launched: 0,
            cpu: None,
            has_ended: false,
            is_stopped: false,
        };
        Ok((process, streams))
    }

    /// True if all ranks of other hosts have ended, and no process outlived them.
    pub(crate) fn are_empty(&self) -> bool {
        self.agents.iter().all(AgentHandle::is_empty)
    }

    /// True if all output of other hosts has come.
    pub(crate) fn are_over(&self) -> bool {
        self.agents.iter().all(|agent| agent.is_over)
    }

    pub(crate) fn terminate_leftovers(&self) {
        self.tell_all(|| ToAgent::TerminateLeftovers);
    }

    pub(crate) fn kill_leftovers(&self, is_news: bool) {
        self.tell_all(|| ToAgent::KillLeftovers { is_news });
    }

    /// This process stops, and is not to be taken for one that has gone: all that was said before
    /// leaves it first.
    pub(crate) fn suspend(&self) {
        self.tell_all(|| ToAgent::Suspend);
        let deadline = Instant::now() + FLUSH_LIMIT;
        let flushed: Vec<_> = self
            .agents
            .iter()
            .map(|agent| {
                let (waiter, flushed) = channel();
                agent.commands.send(Command::Flush(waiter));
                flushed
            })
            .collect();
        for flushed in flushed {
            let _ = flushed.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// The job is over: the agents send the rest of the output and end.
    pub(crate) fn finish(&self, exit_code: u8) {
        self.tell_all(|| ToAgent::Finish { exit_code });
    }

    fn tell_all(&self, message: impl Fn() -> ToAgent) {
        for agent in &self.agents {
            agent.commands.send(Command::Send(message()));
        }
    }
}

impl Drop for Agents {
    /// The agents end with their connections.
    fn drop(&mut self) {
        self.accepting = None;
        self.agents.iter().for_each(|agent| agent.commands.send(Command::Close));
        for thread in self.agents.iter_mut().filter_map(|agent| agent.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// The request as the agent of a host needs it: with the placements of its own ranks.
fn for_host(request: &Request, host_number: usize) -> Request {
    let mut of_host = request.clone();
    of_host.placements.retain(|placement| placement.host_number == host_number);
    of_host
}

/// A pipe that wakes who polls it, and on which nobody waits.
fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (awake, wake) = io::pipe()?;
    for end in [awake.as_fd(), wake.as_fd()] {
        fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok((awake, wake))
}

fn read_secret(secret: &OwnedFd) -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::from(secret.try_clone()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The silence after which launcher and agent take each other for gone.
fn lease(request: &Request) -> Duration {
    let given = request.variable(PEER_TIMEOUT);
    // A value that the ranks refuse is reported by them.
    let seconds = given.and_then(|value| value.to_str()?.parse().ok());
    let peer_timeout =
        seconds.map_or(DEFAULT_PEER_TIMEOUT, |it: u64| Duration::from_secs(it.min(3600)));
    peer_timeout + LEASE_BEYOND_PEER_TIMEOUT
}
