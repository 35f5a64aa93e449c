//! The control messages of a launcher and an agent, and the line by which an agent begins.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::cli::Request;
use crate::cli::environment::Variables;
use crate::cli::hosts::{Launcher, RankPlacement};
use crate::launch::rank_end::RankEnd;
use crate::launch::spawn::StartKind;
use crate::launch::torchrun::Rendezvous;

/// The first word of an agent's first line. What a login shell prints comes before it.
const GREETING: &str = "ringrun-agent";

/// The version of the messages.
const PROTOCOL: u32 = 6;

/// An agent's first line: launcher and agent must be of one version, for one kind of processor.
pub(super) fn greeting() -> String {
    let (version, kind) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    format!("{GREETING} {PROTOCOL} {version} {kind}\n")
}

/// The first line of an agent among the first bytes of a connection, with the number of bytes up
/// to its end.
pub(super) fn find_greeting(bytes: &[u8]) -> Option<(String, usize)> {
    let start = bytes.windows(GREETING.len()).position(|window| window == GREETING.as_bytes())?;
    let length = bytes[start..].iter().position(|byte| *byte == b'\n')? + 1;
    let line = String::from_utf8_lossy(&bytes[start..start + length]).into_owned();
    Some((line, start + length))
}

/// The job, as an agent must know it.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct AgentJob {
    /// The job's name on the agent's host: two hosts of a job may be one machine.
    pub(super) id: String,
    pub(super) request: Request,
    /// The launcher's environment, as far as ranks of this host have it.
    pub(super) environment: Variables,
    pub(super) rendezvous: Rendezvous,
    /// The job's secret, unless the user has a file with one.
    pub(super) secret: Option<[u8; 32]>,
    /// The number of the agent's host among those of the job.
    pub(super) host_number: usize,
    /// The number of agents that the host had before.
    pub(super) generation: u16,
    /// Where the agent makes a connection of its own; none if the launcher can't listen.
    pub(super) dial: Option<DialBack>,
    /// Seconds without a sign of life of the launcher after which the agent ends its ranks.
    pub(super) lease: u64,
}

/// The counts in which all ringruns of a job must agree where each was started by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeCounts {
    /// The number of hosts.
    pub(super) nodes: usize,
    /// The number of ranks of all hosts.
    pub(super) ranks: usize,
}

impl AgentJob {
    /// The job's name in the processes of this agent: those of another agent of the host have
    /// another one.
    pub(super) fn agent_name(&self) -> String {
        format!("{}.{}", self.id, self.generation)
    }
}

impl NodeCounts {
    pub(super) fn of(request: &Request) -> Option<Self> {
        let nodes = request.nodes.as_ref()?.count;
        Some(Self { nodes, ranks: request.ranks })
    }
}

/// The number by which an agent's connections name it: that of its host, and that of the agents
/// that the host had before. So the connections of an agent that was given up differ from those of
/// the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentNumber {
    pub(super) host: u16,
    pub(super) generation: u16,
}

impl AgentNumber {
    pub(super) fn new(host_number: usize, generation: u16) -> io::Result<Self> {
        let host = u16::try_from(host_number).map_err(io::Error::other)?;
        Ok(Self { host, generation })
    }

    pub(super) fn of_word(word: u32) -> Self {
        Self { host: word as u16, generation: (word >> 16) as u16 }
    }

    pub(super) fn word(self) -> u32 {
        u32::from(self.generation) << 16 | u32::from(self.host)
    }
}

/// How an agent reaches its launcher without the remote shell.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct DialBack {
    /// The addresses of the launcher's host, the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
    /// The secret of these connections.
    pub(super) secret: [u8; 32],
}

/// The messages of a launcher to an agent.
#[derive(Serialize, Deserialize)]
pub(super) enum ToAgent {
    /// The first message.
    Begin(Box<AgentJob>),
    /// Start a rank. Its streams have the numbers from this one on, as in [`StreamNumbers`].
    Start { placement: RankPlacement, kind: StartKind, streams: u32 },
    /// Send a signal to a rank's process group, or to those processes of it that have a handler.
    Signal { rank: usize, signal: i32, to_handlers: bool },
    /// Send SIGTERM to processes that outlived their rank, but to none that got it with the rank.
    TerminateLeftovers,
    /// Kill such processes, and say how many there were if this is news.
    KillLeftovers { is_news: bool },
    /// Start the agent of another host by this launcher. The standard streams of the remote shell
    /// have the first numbers from this one on, as in [`StreamNumbers`].
    StartAgent { host: String, launcher: Launcher, streams: u32 },
    /// A process of another host has ended: its entry for the process table of this one.
    FarEnd(Vec<u8>),
    /// Read the records of all ranks.
    Read,
    /// The launcher is about to stop, until it says something again.
    Suspend,
    /// There is no job, or no launcher for it any more: end everything at once.
    Abandon,
    /// The job is over, and its launcher exits with this code.
    Finish { exit_code: u8 },
}

/// The messages of an agent to its launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToLauncher {
    /// The first message of an agent that no remote shell has started: its first line, as of
    /// [`greeting`], and what its command line says of the job.
    Joined {
        greeting: String,
        counts: Option<NodeCounts>,
    },
    /// The job can begin here, on this machine.
    Ready {
        machine: Option<Machine>,
    },
    /// The job can't begin here, for which a launcher exits with this code.
    Refused {
        exit_code: u8,
        why: String,
    },
    Started {
        rank: usize,
        pid: u32,
        cpu: Option<usize>,
        launched: u64,
    },
    NotStarted {
        rank: usize,
        exit_code: u8,
        why: String,
    },
    /// A rank has ended; its entry for the process tables of other hosts, if they need it.
    Ended {
        rank: usize,
        end: RankEnd,
        far_end: Option<Vec<u8>>,
    },
    /// A signal has stopped a rank, or continued it.
    Stopped {
        rank: usize,
        is_stopped: bool,
    },
    /// All ranks of the host have ended that the launcher has told this agent to start, so many
    /// times, and so many processes outlived them.
    Left {
        starts: u32,
        processes: usize,
    },
    Warn(String),
    /// A signal that ends a program has come to the agent.
    ToldToEnd {
        signal: i32,
    },
    /// The job is over here, and all output was sent.
    Over,
    /// A part of the answer to [`ToAgent::Read`]: a rank's record at this time of the host's clock.
    Record {
        now: u64,
        record: RankRecord,
    },
    /// The end of that answer.
    AllRecords,
}

/// A rank's process and record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankRecord {
    pub(crate) rank: usize,
    pub(crate) words: Option<Vec<u64>>,
    pub(crate) is_foreign: bool,
    pub(crate) is_stopped: bool,
}

/// The numbers of a rank's streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamNumbers(pub(super) u32);

impl StreamNumbers {
    /// The numbers that each start of a rank takes.
    pub(super) const COUNT: u32 = 5;

    pub(super) fn all(self) -> [u32; 5] {
        [0, 1, 2, 3, 4].map(|offset| self.0 + offset)
    }
}

/// The environment that ranks of another host take from the launcher's: all but what describes the
/// launcher's own host and session. Slurm itself chooses the devices of each node. None where the
/// user has started a ringrun on each host, whose environment they have, as under torchrun.
pub(super) fn environment(request: &Request) -> Variables {
    if request.nodes.is_some() {
        return vec![];
    }
    const OF_THIS_HOST: [&str; 18] = [
        "HOSTNAME",
        "HOST",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "SSH_AUTH_SOCK",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "PWD",
        "OLDPWD",
        // Of Slurm, about one node of a job.
        "SLURMD_NODENAME",
        "SLURM_NODEID",
        "SLURM_CPUS_ON_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_TASK_PID",
        "SLURM_TOPOLOGY_ADDR",
    ];
    const DEVICES: [&str; 4] =
        ["CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];
    let devices = if request.launcher == Launcher::Slurm { &DEVICES[..] } else { &[] };
    let is_passed = |(name, _): &(OsString, OsString)| {
        !OF_THIS_HOST.iter().chain(devices).any(|own| name == own)
    };
    std::env::vars_os().filter(is_passed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_one_host_have_numbers_of_their_own() {
        let numbers = [(0, 0), (3, 0), (3, 1), (65535, 65535)];
        for (host, generation) in numbers {
            let number = AgentNumber::new(host, generation).unwrap();
            assert_eq!(AgentNumber::of_word(number.word()), number);
        }
        assert_eq!(AgentNumber::new(3, 0).unwrap().word(), 3);
        assert!(AgentNumber::new(65536, 0).is_err());
    }

    #[test]
    fn a_greeting_is_found_behind_what_a_shell_prints() {
        let line = greeting();
        assert!(line.ends_with(&format!(" {}\n", std::env::consts::ARCH)), "{line}");
        let bytes = format!("Welcome to h1!\n{line}\x05");
        assert_eq!(find_greeting(bytes.as_bytes()), Some((line.clone(), bytes.len() - 1)));
        assert_eq!(find_greeting(&bytes.as_bytes()[..20]), None);
        assert_eq!(find_greeting(b""), None);
    }
}
