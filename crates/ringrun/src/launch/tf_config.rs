//! `TF_CONFIG`, by which the workers of TensorFlow's `MultiWorkerMirroredStrategy` meet.
//! Law: all ranks have the same list of workers, and no two workers have the same port, so that two
//! names of one host do no harm.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::torchrun::address;
use crate::cli::Request;

pub(super) const TF_CONFIG: &str = "TF_CONFIG";
/// The most bytes of one value. Linux takes 128 KiB, but each rank has the addresses of all: beyond
/// this length they would fill the memory of a host and slow down every look for processes of the
/// job, which reads their environments.
const MAX_VALUE_LEN: usize = 32 << 10;

/// The change of the variable for the ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TfConfig {
    /// The user or the starter of ringrun has set the variable, or nobody has.
    Unchanged,
    /// The variable of an outer job, which names that job's workers.
    Removed,
    /// The address and port of each rank, by rank.
    Workers(Vec<String>),
}

impl TfConfig {
    /// Chooses a port that is free on this host for each rank; none of them is `used_port`.
    pub(super) fn choose(request: &Request, used_port: Option<u16>) -> Self {
        let placements = request.placements.iter();
        let hosts = placements.map(|at| address(&request.hosts, at.host_number));
        let workers = match request.nodes {
            // The other hosts have numbers here, and no names.
            Some(_) => None,
            None => workers(&hosts.collect::<Vec<_>>(), used_port),
        };
        match workers {
            Some(workers) => Self::Workers(workers),
            None if request.is_nested => Self::Removed,
            None => Self::Unchanged,
        }
    }

    pub(super) fn set(&self, command: &mut Command, rank: usize) {
        match self {
            Self::Unchanged => command,
            Self::Removed => command.env_remove(TF_CONFIG),
            Self::Workers(workers) => command.env(TF_CONFIG, value(workers, rank)),
        };
    }
}

/// The workers of ranks that other ranks reach at these addresses; none if the value would be too
/// long, or no port is free.
fn workers(hosts: &[String], used_port: Option<u16>) -> Option<Vec<String>> {
    let longest: Vec<_> = hosts.iter().map(|host| worker(host, u16::MAX)).collect();
    if value(&longest, hosts.len()).len() > MAX_VALUE_LEN {
        return None;
    }
    let ports = different(hosts.len(), used_port, free_port)?;
    Some(hosts.iter().zip(ports).map(|(host, port)| worker(host, port)).collect())
}

/// A port of the system's choice that is free on this host.
fn free_port() -> Option<u16> {
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
    Some(TcpListener::bind(&any[..]).and_then(|bound| bound.local_addr()).ok()?.port())
}

/// So many different ports of those that `draw` gives; none of them is `used_port`.
fn different(
    count: usize,
    used_port: Option<u16>,
    mut draw: impl FnMut() -> Option<u16>,
) -> Option<Vec<u16>> {
    let (mut known, mut ports) = (used_port.into_iter().collect::<HashSet<_>>(), vec![]);
    // The system chooses at random, so a few ports come twice.
    for _ in 0..4 * count + 16 {
        if ports.len() == count {
            break;
        }
        let port = draw()?;
        if known.insert(port) {
            ports.push(port);
        }
    }
    (ports.len() == count).then_some(ports)
}

/// `HOST:PORT`, with an IPv6 address in brackets.
fn worker(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The variable's value for one rank. TensorFlow takes worker 0 for the chief.
fn value(workers: &[String], rank: usize) -> String {
    let task = json!({ "type": "worker", "index": rank });
    json!({ "cluster": { "worker": workers }, "task": task }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_tensorflow_reads() {
        let workers = [worker("n0", 4000), worker("fd77::1", 4001)];
        assert_eq!(
            value(&workers, 1),
            r#"{"cluster":{"worker":["n0:4000","[fd77::1]:4001"]},"#.to_owned()
                + r#""task":{"index":1,"type":"worker"}}"#
        );
    }

    #[test]
    fn a_value_that_would_be_too_long_is_left_out() {
        let hosts = |ranks| vec!["127.0.0.1".to_owned(); ranks];
        let most = workers(&hosts(1800), None).unwrap();
        assert!(most.len() == 1800 && value(&most, 1799).len() <= MAX_VALUE_LEN);
        assert_eq!(workers(&hosts(1850), None), None);
    }

    #[test]
    fn ports_are_different_and_free() {
        let drawn = |ports: &[u16]| {
            let mut ports = ports.iter().copied();
            different(2, Some(7), move || ports.next())
        };
        assert_eq!(drawn(&[5, 7, 5, 9, 11]), Some(vec![5, 9]));
        assert_eq!(drawn(&[5, 7, 5]), None);
        assert_eq!(different(2, None, || Some(5)), None);
        let used = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let used_port = used.local_addr().unwrap().port();
        let free: HashSet<_> = different(500, None, free_port).unwrap().into_iter().collect();
        assert!(free.len() == 500 && !free.contains(&used_port) && !free.contains(&0));
    }

    #[test]
    fn a_rank_of_an_inner_job_has_no_variable_of_the_outer_one() {
        let changed = |config: TfConfig| {
            let mut command = Command::new("true");
            command.env(TF_CONFIG, "outer");
            config.set(&mut command, 0);
            let (_, value) = command.get_envs().next().unwrap();
            value.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(changed(TfConfig::Unchanged).as_deref(), Some("outer"));
        assert_eq!(changed(TfConfig::Removed), None);
        let workers = vec![worker("127.0.0.1", 4000)];
        assert_eq!(changed(TfConfig::Workers(workers.clone())), Some(value(&workers, 0)));
    }
}
