//! The wait for hosts that join by themselves: each one's thread, and what the user is told.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::sync::mpsc::TryRecvError;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::agent_thread::{AgentThread, another_ringrun};
use super::begin::{JOIN_LIMIT, JOIN_NOTICE};
use super::message::{NodeCounts, ToLauncher, greeting};
use super::mux::Mux;
use super::remote::Command;
use crate::cli::Request;
use crate::cli::hosts::Launcher;
use crate::failure::Failure;
use crate::launch::message::say;
use ringreduce::bootstrap::{Instant, MAX_SLEEP};

/// The most hosts that a message names.
const MAX_NAMES: usize = 16;

/// True if the other hosts of a job join by themselves, and no remote shell starts their agents.
pub(super) fn is_joined(request: &Request) -> bool {
    request.nodes.is_some() || request.launcher == Launcher::Manual
}

/// The messages to the user about hosts that join by themselves.
pub(super) struct Progress {
    begun: Instant,
    told_at: Instant,
    /// The hosts that were missing then.
    told: Vec<usize>,
    is_terminal: bool,
}

impl Progress {
    /// None if a remote shell reaches the hosts.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let (begun, is_terminal) = (Instant::now(), io::stderr().is_terminal());
        is_joined(request).then_some(Self { begun, told_at: begun, told: vec![], is_terminal })
    }

    /// Names the missing hosts: once, and on a terminal now and then. An error once they are late.
    pub(super) fn tell(&mut self, request: &Request, missing: &[usize]) -> Result<(), Failure> {
        let now = Instant::now();
        if now >= self.begun + JOIN_LIMIT {
            return Err(late(&names(request, missing), &request.launcher));
        }
        let is_new = self.told != missing && (self.is_terminal || self.told.is_empty());
        let is_due = is_new && now >= self.told_at + JOIN_NOTICE;
        if is_due || self.is_terminal && now >= self.told_at + 12 * JOIN_NOTICE {
            say(&format!("waiting for the ringrun of {}", names(request, missing)));
            (self.told_at, self.told) = (now, missing.to_vec());
        }
        Ok(())
    }
}

/// The names of the hosts with these numbers.
pub(super) fn names(request: &Request, hosts: &[usize]) -> String {
    let known = hosts.iter().filter_map(|&number| request.hosts.get(number));
    shortened(&known.map(|host| host.name.as_str()).collect::<Vec<_>>())
}

fn shortened(names: &[&str]) -> String {
    match names.get(..MAX_NAMES).filter(|shown| shown.len() < names.len()) {
        Some(shown) => format!("{} and {} more", shown.join(", "), names.len() - MAX_NAMES),
        None => names.join(", "),
    }
}

fn late(missing: &str, launcher: &Launcher) -> Failure {
    let remedy = match launcher {
        Launcher::Manual => {
            "run the printed command on each of these hosts, with the same secret in its file; if \
             it runs there, its own output says why it can't join (--iface and --port-range \
             choose the address and the port)"
        }
        _ => "start ringrun there too, with its own --node-rank and the same secret",
    };
    Failure::Host(format!("no ringrun has come within {JOIN_LIMIT:?} from {missing}: {remedy}"))
}

impl AgentThread {
    /// Waits for a host that joins by itself, until the launcher waits no more.
    pub(super) fn await_joining(&mut self) -> Result<Mux, String> {
        let mut mux = None::<Mux>;
        loop {
            let waited = match &mut mux {
                Some(mux) => mux.wait(&[self.awake.as_fd()], MAX_SLEEP).map(drop),
                None => {
                    let mut fds = [PollFd::new(self.awake.as_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::from(200_u8)).map(drop).map_err(Into::into)
                }
            };
            waited.map_err(|cause: io::Error| cause.to_string())?;
            let _ = self.awake.read(&mut [0; 256]);
            match self.commands.try_recv() {
                Ok(Command::Resume(_, stream)) => match &mut mux {
                    Some(mux) => mux.resume(stream),
                    None => mux = Some(Mux::of(stream)),
                },
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => {
                    self.is_closed = true;
                    return Err("is not needed any more".into());
                }
                Ok(_) | Err(TryRecvError::Empty) => {}
            }
            let message = mux.as_mut().and_then(Mux::next_control);
            if let Some(ToLauncher::Joined { greeting: line, counts }) = message {
                let mut mux = mux.ok_or_else(String::new)?;
                let why = if line != greeting() {
                    another_ringrun(&line)
                } else if self.counts != counts {
                    different_counts(counts, self.counts)
                } else {
                    return Ok(mux);
                };
                self.abandon(&mut mux);
                return Err(why);
            }
            if let Some(end) = mux.as_ref().and_then(Mux::end) {
                return Err(end.into());
            }
        }
    }
}

fn different_counts(there: Option<NodeCounts>, here: Option<NodeCounts>) -> String {
    let say = |counts: Option<NodeCounts>| match counts {
        Some(NodeCounts { nodes, ranks }) => format!("--nnodes {nodes} with {ranks} ranks in all"),
        None => "--launcher manual".into(),
    };
    let (there, here) = (say(there), say(here));
    format!(
        "it was started with {there}, and this one with {here}: start all alike (-N auto and \
         -N gpu count what each host has: give a number where hosts differ)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_late_are_named_with_a_remedy() {
        let by_hand = late("h1, h2", &Launcher::Manual).to_string();
        let expected = "no ringrun has come within 600s from h1, h2: run the printed command";
        assert!(by_hand.starts_with(expected), "{by_hand}");
        let node = late("node1", &Launcher::Ssh).to_string();
        assert!(
            node.ends_with("start ringrun there too, with its own --node-rank and the same secret")
        );
        let many: Vec<_> = (0..20).map(|number| format!("h{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(shortened(&many).ends_with("h14, h15 and 4 more"), "{}", shortened(&many));
        assert_eq!(shortened(&many[..16]).matches(", ").count(), 15);
    }
}
