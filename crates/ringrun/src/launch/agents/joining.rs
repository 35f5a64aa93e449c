//! The wait for a host whose ringrun joins by itself.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::mpsc::TryRecvError;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::agent_thread::{AgentThread, another_ringrun};
use super::begin::{JOIN_LIMIT, JOIN_NOTICE};
use super::message::{NodeCounts, ToLauncher, greeting};
use super::mux::Mux;
use super::remote::Command;
use crate::launch::message::say;
use ringreduce::bootstrap::{Instant, MAX_SLEEP};

impl AgentThread {
    /// Waits for a host that joins by itself.
    pub(super) fn await_joining(&mut self) -> Result<Mux, String> {
        let (begun, mut mux) = (Instant::now(), None::<Mux>);
        let mut notice = begun + JOIN_NOTICE;
        while begun.elapsed() < JOIN_LIMIT {
            let waited = match &mut mux {
                Some(mux) => mux.wait(&[self.awake.as_fd()], MAX_SLEEP).map(drop),
                None => {
                    let mut fds = [PollFd::new(self.awake.as_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::from(200_u8)).map(drop).map_err(Into::into)
                }
            };
            waited.map_err(|cause: std::io::Error| cause.to_string())?;
            let _ = self.awake.read(&mut [0; 256]);
            match self.commands.try_recv() {
                Ok(Command::Resume(stream)) => match &mut mux {
                    Some(mux) => mux.resume(stream),
                    None => mux = Some(Mux::of(stream)),
                },
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => {
                    return Err("is not needed any more".into());
                }
                Ok(_) | Err(TryRecvError::Empty) => {}
            }
            let message = mux.as_mut().and_then(Mux::next_control);
            if let Some(ToLauncher::Joined { greeting: line, counts }) = message {
                let mut mux = mux.ok_or_else(String::new)?;
                let why = if line != greeting() {
                    another_ringrun(&line)
                } else if self.counts != Some(counts) {
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
            if Instant::now() >= notice {
                say(&format!("waiting for the ringrun of {}", self.host));
                notice = Instant::now() + 12 * JOIN_NOTICE;
            }
        }
        Err(format!("it has not joined within {JOIN_LIMIT:?}"))
    }
}

fn different_counts(there: NodeCounts, here: Option<NodeCounts>) -> String {
    let say = |NodeCounts { nodes, ranks }| format!("--nnodes {nodes} with {ranks} ranks in all");
    let (there, here) = (say(there), here.map_or_else(String::new, say));
    format!("it was started with {there}, and this one with {here}: start all alike")
}
