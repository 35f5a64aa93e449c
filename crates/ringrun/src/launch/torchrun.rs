//! The variables by which torchrun's programs find each other. Programs that read them before they
//! use this library, or that use another one, run under ringrun as under torchrun. [`TfConfig`] is
//! for those of TensorFlow.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::tf_config::{TF_CONFIG, TfConfig};
use crate::cli::environment::Variables;
use crate::cli::hosts::{self, Host, RankPlacement};
use crate::cli::{Program, Request};

const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
/// True where an outer torchrun has a store of its own at its address.
pub(super) const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";

/// The address at which the ranks of another library may meet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rendezvous {
    variables: Vec<(String, String)>,
    tf_config: TfConfig,
}

impl Rendezvous {
    /// The address of rank 0's host and a port that is free here, each unless the user or the
    /// starter of ringrun has set it.
    pub(super) fn choose(request: &Request) -> Self {
        // The ranks of an outer job meet at an address that was inherited from one of them.
        let is_taken = |name: &str| match request.is_nested {
            true => contains(&request.variables, name),
            false => is_set(request, name),
        };
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let port = port.ok().map(|free| free.port());
        let own_address = match &request.nodes {
            Some(nodes) => nodes.host.clone(),
            None => address(&request.hosts, 0),
        };
        let variables = port.map(|free| {
            vec![(MASTER_ADDR.into(), own_address), (MASTER_PORT.into(), free.to_string())]
        });
        let mut variables: Vec<(String, String)> = variables.unwrap_or_default();
        variables.retain(|(name, _)| !is_taken(name));
        // Hosts that join by themselves have environments of their own, and must agree.
        let shared = [MASTER_ADDR, MASTER_PORT].into_iter().filter(|_| request.nodes.is_some());
        let inherited = shared.filter(|name| is_taken(name)).filter_map(|name| {
            Some((name.to_owned(), request.variable(name)?.into_string().ok()?))
        });
        variables.extend(inherited);
        let given = request.variable(MASTER_PORT).filter(|_| is_taken(MASTER_PORT));
        let used_port = match given {
            Some(given) => given.to_str().and_then(|given| given.parse().ok()),
            None => port,
        };
        let tf_config = match is_taken(TF_CONFIG) {
            true => TfConfig::Unchanged,
            false => TfConfig::choose(request, used_port),
        };
        Self { variables, tf_config }
    }

    /// Sets the variables of one rank, which has `cpus` CPUs with the other ranks of its host.
    pub(super) fn set(
        &self,
        command: &mut Command,
        (request, program): (&Request, &Program),
        placement: &RankPlacement,
        cpus: usize,
    ) {
        let numbers = [
            ("RANK", placement.rank),
            ("WORLD_SIZE", request.ranks),
            ("LOCAL_RANK", placement.local_rank),
            ("LOCAL_WORLD_SIZE", placement.local_size),
            ("GROUP_RANK", placement.host_number),
        ];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        let has_own = |name: &str| contains(&program.variables, name);
        let meeting = self.variables.iter().filter(|(name, _)| !has_own(name));
        command.envs(meeting.map(|(name, value)| (name, value)));
        if !has_own(TF_CONFIG) {
            self.tf_config.set(command, placement.rank);
        }
        if !is_set(request, OMP_NUM_THREADS) && !has_own(OMP_NUM_THREADS) {
            // With a thread for each CPU in each rank, ranks would wait for each other's threads.
            let threads = cpus / placement.local_size.max(1);
            command.env(OMP_NUM_THREADS, threads.max(1).to_string());
        }
    }
}

/// The address at which other ranks reach this host of the job: loopback if the job has this host
/// alone, else the name that the user gives, without a user before it.
pub(super) fn address(hosts: &[Host], number: usize) -> String {
    match hosts {
        [only] if only.is_here => Ipv4Addr::LOCALHOST.to_string(),
        _ => match hosts.get(number) {
            Some(host) if !host.is_here => host.without_user().to_owned(),
            _ => hosts::here(),
        },
    }
}

/// True if `-x` or the environment of ringrun sets the variable.
fn is_set(request: &Request, name: &str) -> bool {
    request.variable(name).is_some()
}

fn contains(variables: &Variables, name: &str) -> bool {
    variables.iter().any(|(given, _)| given == OsStr::new(name))
}
