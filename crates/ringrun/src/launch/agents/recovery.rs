//! The states of an agent as the launcher sees them: it runs, is lost, and is followed by another.

use std::thread::JoinHandle;

use super::joining::is_joined;
use super::machine::Machine;
use super::remote::{Command, Commands};
use super::{Agents, client};
use crate::cli::Request;
use crate::failure::Failure;
use crate::launch::orphans::Orphans;

pub(super) struct AgentHandle {
    pub(super) host_number: usize,
    pub(super) commands: Commands,
    pub(super) thread: Option<JoinHandle<()>>,
    /// The agent was told so many times to start a rank.
    starts: u32,
    /// The processes that outlived the host's ranks; none while ranks run.
    left: Option<usize>,
    /// The agent has ended, or is lost.
    pub(super) is_over: bool,
    /// The agent was told by a signal to end, and starts no rank any more.
    is_ending: bool,
    /// Known once the agent is ready.
    pub(super) machine: Option<Machine>,
}

impl AgentHandle {
    pub(super) fn new(host_number: usize, commands: Commands, thread: JoinHandle<()>) -> Self {
        let (thread, machine) = (Some(thread), None);
        let (starts, left, is_over, is_ending) = (0, None, false, false);
        Self { host_number, commands, thread, starts, left, is_over, is_ending, machine }
    }

    /// A rank is to start there.
    pub(super) fn note_start(&mut self) {
        (self.starts, self.left) = (self.starts + 1, None);
    }

    /// Takes in how many processes have outlived the ranks, of which so many were to start. The
    /// agent may have said so before it knew of the last of them.
    fn set_left(&mut self, starts: u32, processes: usize) {
        if self.starts == starts {
            self.left = Some(processes);
        }
    }

    /// True if all ranks there have ended, and no process outlived them.
    pub(super) fn is_empty(&self) -> bool {
        self.left == Some(0)
    }

    pub(super) fn starts_ranks(&self) -> bool {
        !self.is_over && !self.is_ending
    }
}

impl Agents {
    pub(super) fn of_host(&mut self, host_number: usize) -> Option<&mut AgentHandle> {
        self.agents.iter_mut().find(|agent| agent.host_number == host_number)
    }

    /// Takes in how many processes have outlived the ranks of a host, of which so many were to
    /// start.
    pub(crate) fn set_left(&mut self, host_number: usize, starts: u32, processes: usize) {
        if let Some(agent) = self.of_host(host_number) {
            agent.set_left(starts, processes);
        }
    }

    /// The agent of this host has ended. True if that is news.
    pub(crate) fn set_over(&mut self, host_number: usize) -> bool {
        let Some(agent) = self.of_host(host_number) else { return false };
        agent.left = Some(0);
        !std::mem::replace(&mut agent.is_over, true)
    }

    /// The job begins without a host that is to have no rank.
    pub(super) fn miss_spare(&mut self, (request, host_number): (&Request, usize), why: &str) {
        let host = &request.hosts[host_number].name;
        request.warn(&format!(
            "the job begins without the free slots of host {host}, which is tried again until the \
             job ends: {why}"
        ));
        self.set_over(host_number);
    }

    /// The agent of this host ends soon, since a signal told it to.
    pub(crate) fn set_ending(&mut self, host_number: usize) {
        if let Some(agent) = self.of_host(host_number) {
            agent.is_ending = true;
        }
    }

    /// A new agent of this host is ready.
    pub(crate) fn set_back(&mut self, host_number: usize) {
        if let Some(agent) = self.of_host(host_number) {
            (agent.starts, agent.left) = (0, None);
            (agent.is_over, agent.is_ending) = (false, false);
        }
    }

    /// True if ranks of this host can't be started, since its agent has gone.
    pub(crate) fn is_lost(&self, host_number: usize) -> bool {
        let agent = self.agents.iter().find(|agent| agent.host_number == host_number);
        agent.is_some_and(|agent| !agent.starts_ranks())
    }

    /// True if the agent of this host has ended, or is lost.
    pub(crate) fn is_over(&self, host_number: usize) -> bool {
        self.agents.iter().any(|agent| agent.host_number == host_number && agent.is_over)
    }

    /// True if this launcher can start an agent again where one is lost.
    pub(crate) fn can_be_reached(request: &Request) -> bool {
        !is_joined(request)
    }

    /// Starts an agent of a host by a remote shell of this one: at the beginning where that of
    /// another host has not, and later where the former agent is lost.
    pub(crate) fn reach(
        &mut self,
        (request, id): (&Request, &str),
        host_number: usize,
        orphans: &mut Orphans<'_>,
    ) -> Result<(), Failure> {
        let host = &request.hosts[host_number].name;
        let started = client::start(&request.launcher, host, id)?;
        if let (Some(agent), Some((client, pipes))) = (self.of_host(host_number), started) {
            orphans.add_own(client.process());
            agent.commands.send(Command::Start(client, pipes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_host_is_empty_only_by_word_of_its_last_rank() {
        let (sender, wake) = (channel().0, Arc::new(pipe().unwrap().1));
        let thread = std::thread::spawn(|| {});
        let mut agent = AgentHandle::new(1, Commands { sender, wake }, thread);
        assert!(!agent.is_empty());
        agent.set_left(0, 0);
        assert!(agent.is_empty());
        agent.note_start();
        agent.note_start();
        // The agent's word crosses the launcher's.
        agent.set_left(0, 0);
        agent.set_left(1, 0);
        assert!(!agent.is_empty());
        agent.set_left(2, 1);
        assert!(!agent.is_empty());
        agent.set_left(2, 0);
        assert!(agent.is_empty());
    }
}
