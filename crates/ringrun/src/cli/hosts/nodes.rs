//! One ringrun on each host, started by hand or by a batch system, as torchrun is: `--nnodes`,
//! `--node-rank` and the address of the first one.

use clap::Args;

use super::this_host::here;
use super::{AvailableHost, Host, MAX_HOSTS};
use crate::failure::Failure;

#[derive(Debug, Default, Args)]
pub(super) struct NodeOptions {
    /// Hosts of the job, on each of which ringrun is started with its --node-rank
    ///
    /// Else PET_NNODES, as under torchrun; PET_NODE_RANK, PET_RDZV_ENDPOINT, PET_MASTER_ADDR,
    /// PET_MASTER_PORT and PET_NPROC_PER_NODE stand for the other options.
    #[arg(long, value_name = "N", help_heading = "Hosts")]
    nnodes: Option<String>,

    /// The number of this host among those of --nnodes; 0 is the one that looks after the job
    #[arg(long, value_name = "I", help_heading = "Hosts")]
    node_rank: Option<String>,

    /// Where the ringrun of host 0 listens for those of the others
    #[arg(long, value_name = "HOST:PORT", help_heading = "Hosts")]
    rdzv_endpoint: Option<String>,

    /// The two parts of --rdzv-endpoint
    #[arg(long, value_name = "HOST", help_heading = "Hosts")]
    master_addr: Option<String>,

    #[arg(long, value_name = "PORT", help_heading = "Hosts", hide_short_help = true)]
    master_port: Option<String>,
}

/// The place of this ringrun among those of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    pub(crate) count: usize,
    pub(crate) rank: usize,
    /// Where the ringrun of host 0 listens.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl NodeOptions {
    /// The options, with `variable` in place of those that are not given; `None` for one host.
    pub(super) fn read(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Nodes>, String> {
        let or = |option: &Option<String>, name| option.clone().or_else(|| variable(name));
        let Some(count) = or(&self.nnodes, "PET_NNODES") else {
            return match (&self.node_rank, &self.rdzv_endpoint) {
                (Some(rank), _) if rank != "0" => {
                    Err(format!("--node-rank {rank}: say how many hosts there are: --nnodes N"))
                }
                _ => Ok(None),
            };
        };
        let count = match count.split_once(':') {
            Some((min, max)) if min == max => max,
            Some(_) => {
                return Err(format!(
                    "--nnodes {count}: no host joins later; give one number (--elastic is about \
                     ranks)"
                ));
            }
            None => &count,
        };
        let number = |text: &str, name: &str, below: usize| {
            let parsed = text.parse().ok().filter(|number| *number < below);
            parsed.ok_or_else(|| format!("{name} {text}: expected a number below {below}"))
        };
        let count = number(count, "--nnodes", MAX_HOSTS)?;
        match count {
            0 => return Err("--nnodes 0: a job has at least one host".into()),
            1 => return Ok(None),
            _ => {}
        }
        let rank = or(&self.node_rank, "PET_NODE_RANK");
        let rank = rank.ok_or("--nnodes: give each host its --node-rank, from 0")?;
        let rank = number(&rank, "--node-rank", count)?;
        let (host, port) = self.endpoint(variable)?;
        Ok(Some(Nodes { count, rank, host, port }))
    }

    /// The options that change nothing on one host.
    pub(super) fn unused(&self) -> Vec<&'static str> {
        let all = [
            ("--node-rank", &self.node_rank),
            ("--rdzv-endpoint", &self.rdzv_endpoint),
            ("--master-addr", &self.master_addr),
            ("--master-port", &self.master_port),
        ];
        let is_given = |value: &Option<String>| value.as_ref().is_some_and(|value| value != "0");
        all.into_iter().filter(|(_, value)| is_given(value)).map(|(name, _)| name).collect()
    }

    fn endpoint(&self, variable: impl Fn(&str) -> Option<String>) -> Result<(String, u16), String> {
        let endpoint = || variable("PET_RDZV_ENDPOINT").filter(|it| !it.is_empty());
        let parts = || {
            let host = self.master_addr.clone().or_else(|| variable("PET_MASTER_ADDR"))?;
            let port = self.master_port.clone().or_else(|| variable("PET_MASTER_PORT"));
            Some(format!("{host}:{}", port.unwrap_or_else(|| "29500".into())))
        };
        let is_given = self.master_addr.is_some();
        let endpoint = || endpoint().filter(|_| !is_given);
        let given = self.rdzv_endpoint.clone().or_else(endpoint).or_else(parts);
        let given = given.ok_or("--nnodes: say where host 0 listens: --rdzv-endpoint HOST:PORT")?;
        endpoint_of(&given).ok_or_else(|| format!("--rdzv-endpoint {given}: expected HOST:PORT"))
    }
}

/// The two parts of HOST:PORT; torchrun's port where none is given.
pub(crate) fn endpoint_of(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        _ => (text, "29500"),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port > 0 && !host.is_empty())?;
    Some((host.into(), port))
}

impl Nodes {
    /// The hosts: this one by its name, the others by their numbers.
    pub(super) fn hosts(&self) -> Vec<AvailableHost> {
        let one = |number| {
            let is_here = number == self.rank;
            let name = if is_here { here() } else { format!("node{number}") };
            let host = Host { name, is_here };
            AvailableHost { host, slots: 1, is_counted: false, max_slots: None }
        };
        (0..self.count).map(one).collect()
    }
}

/// The refusal of a job whose ranks are not counted for each host.
pub(super) fn no_count() -> Failure {
    Failure::Usage("--nnodes: say how many ranks each host has: --nproc-per-node N".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(nnodes: &str, rank: &str, endpoint: &str) -> Result<Option<Nodes>, String> {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let (nnodes, node_rank, rdzv_endpoint) = (some(nnodes), some(rank), some(endpoint));
        let options = NodeOptions { nnodes, node_rank, rdzv_endpoint, ..Default::default() };
        options.read(|_| None)
    }

    #[test]
    fn a_node_knows_its_number_and_where_the_first_one_listens() {
        let nodes =
            |rank, host: &str, port| Ok(Some(Nodes { count: 2, rank, host: host.into(), port }));
        assert_eq!(read("2", "1", "h0:4000"), nodes(1, "h0", 4000));
        assert_eq!(read("2:2", "0", "[fd77::1]:4000"), nodes(0, "fd77::1", 4000));
        assert_eq!(read("2", "0", "fd77::1"), nodes(0, "fd77::1", 29500));
        assert_eq!(read("2", "0", "h0"), nodes(0, "h0", 29500));
        assert_eq!(read("1", "", ""), Ok(None));
        assert_eq!(read("", "0", "h0:1"), Ok(None));
        let set = |name: &str| {
            let all = [("PET_NNODES", "2"), ("PET_NODE_RANK", "1"), ("PET_MASTER_ADDR", "h0")];
            let found = all.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(NodeOptions::default().read(set), nodes(1, "h0", 29500));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_remedy() {
        for (nnodes, rank, endpoint, why) in [
            ("2", "", "h0:1", "give each host its --node-rank"),
            ("2", "2", "h0:1", "--node-rank 2: expected a number below 2"),
            ("2", "-1", "h0:1", "--node-rank -1"),
            ("2", "0", "", "say where host 0 listens"),
            ("2", "0", "h0:x", "--rdzv-endpoint h0:x: expected HOST:PORT"),
            ("2", "0", "h0:0", "expected HOST:PORT"),
            ("2", "0", ":1", "expected HOST:PORT"),
            ("1:4", "0", "h0:1", "no host joins later"),
            ("x", "0", "h0:1", "--nnodes x: expected a number"),
            ("0", "0", "h0:1", "a job has at least one host"),
            ("", "1", "h0:1", "--nnodes N"),
        ] {
            let error = read(nnodes, rank, endpoint).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
