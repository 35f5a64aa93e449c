//! One ringrun on each host, started by hand or by a batch system, as torchrun is: `--nnodes`,
//! `--node-rank` and the address of the first one.

use std::fmt;

use clap::Args;

use super::this_host::here;
use super::{AvailableHost, Host, MAX_HOSTS};
use crate::failure::Failure;

/// The number of hosts: its option and torchrun's variable.
const NNODES: [&str; 2] = ["--nnodes", "PET_NNODES"];
/// The place of this ringrun, in the same form, and where host 0 listens.
const NODE_RANK: [&str; 2] = ["--node-rank", "PET_NODE_RANK"];
const ENDPOINT: [&str; 2] = ["--rdzv-endpoint", "PET_RDZV_ENDPOINT"];
const ADDRESS: [&str; 2] = ["--master-addr", "PET_MASTER_ADDR"];
const PORT: [&str; 2] = ["--master-port", "PET_MASTER_PORT"];
/// torchrun's variable for the ranks of each host.
pub(super) const PER_NODE_VARIABLE: &str = "PET_NPROC_PER_NODE";
const UNUSED: [&str; 4] = ["PET_RDZV_BACKEND", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_LOCAL_ADDR"];
/// The port of torchrun.
const DEFAULT_PORT: u16 = 29500;

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

/// A value of the user, with the option or the variable that has it.
struct Given {
    name: &'static str,
    text: String,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.name.starts_with("--") { ' ' } else { '=' };
        write!(f, "{}{between}{}", self.name, self.text)
    }
}

impl Given {
    /// The value of an option, else that of torchrun's variable in its place.
    fn of(
        option: &Option<String>,
        [flag, name]: [&'static str; 2],
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let option = option.clone().map(|text| Self { name: flag, text });
        option.or_else(|| variable(name).map(|text| Self { name, text }))
    }

    fn number(&self, text: &str, below: usize) -> Result<usize, String> {
        let parsed = text.parse().ok().filter(|number| *number < below);
        parsed.ok_or_else(|| format!("{self}: expected a number below {below}"))
    }
}

/// The variables of torchrun, among these, that ringrun does not read, though they may matter. By
/// those of [`UNUSED`] torchrun's agents find each other, which ringrun's do without them.
pub(super) fn unread(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let read = [NNODES, NODE_RANK, ENDPOINT, ADDRESS, PORT].map(|[_, name]| name);
    let is_known = move |name: &str| {
        read.contains(&name) || UNUSED.contains(&name) || name == PER_NODE_VARIABLE
    };
    names.filter(move |name| name.starts_with("PET_") && !is_known(name))
}

impl NodeOptions {
    /// True if the command line says how many hosts there are, or torchrun's variable does.
    pub(super) fn are_given(&self, variable: impl Fn(&str) -> Option<String>) -> bool {
        self.nnodes.is_some() || variable(NNODES[1]).is_some()
    }

    /// The options, with `variable` in place of those that are not given; `None` for one host.
    pub(super) fn read(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Nodes>, String> {
        let Some(given) = Given::of(&self.nnodes, NNODES, &variable) else {
            return match &self.node_rank {
                Some(rank) if rank != "0" => {
                    Err(format!("--node-rank {rank}: say how many hosts there are: --nnodes N"))
                }
                _ => Ok(None),
            };
        };
        let count = match given.text.split_once(':') {
            Some((min, max)) if min == max => max,
            Some(_) => {
                return Err(format!(
                    "{given}: no host joins later; give one number (--elastic is about ranks)"
                ));
            }
            None => &given.text,
        };
        let count = given.number(count, MAX_HOSTS)?;
        match count {
            0 => return Err(format!("{given}: a job has at least one host")),
            1 => return Ok(None),
            _ => {}
        }
        let rank = Given::of(&self.node_rank, NODE_RANK, &variable);
        let rank = rank.ok_or("--nnodes: give each host its --node-rank, from 0")?;
        let rank = rank.number(&rank.text, count)?;
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

    /// Where host 0 listens: an endpoint, unless an address of the command line is to replace that
    /// of a variable.
    fn endpoint(&self, variable: impl Fn(&str) -> Option<String>) -> Result<(String, u16), String> {
        let endpoint = match (&self.rdzv_endpoint, &self.master_addr) {
            (None, Some(_)) => None,
            (option, _) => Given::of(option, ENDPOINT, &variable),
        };
        if let Some(given) = endpoint {
            let parts = endpoint_of(&given.text);
            return parts.ok_or_else(|| format!("{given}: expected HOST:PORT"));
        }
        let host = Given::of(&self.master_addr, ADDRESS, &variable);
        let host = host.ok_or("--nnodes: say where host 0 listens: --rdzv-endpoint HOST:PORT")?;
        let port = Given::of(&self.master_port, PORT, &variable);
        let number = port.as_ref().map_or(Some(DEFAULT_PORT), |port| port_of(&port.text));
        match (without_brackets(&host.text), number, port) {
            ("", ..) => Err(format!("{host}: expected a name or an address")),
            (_, None, Some(port)) => Err(format!("{port}: expected a port, from 1 to 65535")),
            (host, number, _) => Ok((host.into(), number.unwrap_or(DEFAULT_PORT))),
        }
    }
}

/// The two parts of HOST:PORT; torchrun's port where none is given.
pub(crate) fn endpoint_of(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port_of(port)),
        _ => (text, Some(DEFAULT_PORT)),
    };
    let host = without_brackets(host);
    port.filter(|_| !host.is_empty()).map(|port| (host.into(), port))
}

fn port_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// An address of IPv6 without the brackets that part it from a port.
fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
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
    }

    /// The nodes by options, as (nnodes, master_addr), and the variables that are set.
    fn read_with(
        (nnodes, master_addr): (Option<&str>, Option<&str>),
        set: &[(&str, &str)],
    ) -> Result<Option<Nodes>, String> {
        let [nnodes, master_addr] = [nnodes, master_addr].map(|it| it.map(str::to_owned));
        let options = NodeOptions { nnodes, master_addr, ..Default::default() };
        options.read(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const HOSTS: (&str, &str) = ("PET_NNODES", "2");
    const RANK: (&str, &str) = ("PET_NODE_RANK", "1");
    const ENDPOINT: (&str, &str) = ("PET_RDZV_ENDPOINT", "h1:4001");
    const ADDRESS: (&str, &str) = ("PET_MASTER_ADDR", "h0");
    const PORT: (&str, &str) = ("PET_MASTER_PORT", "4000");

    #[test]
    fn torchruns_variables_stand_for_options() {
        for (options, set, host, port) in [
            ((None, None), &[HOSTS, RANK, ADDRESS][..], "h0", 29500),
            ((None, None), &[HOSTS, RANK, ADDRESS, PORT], "h0", 4000),
            ((None, None), &[HOSTS, RANK, ("PET_MASTER_ADDR", "fd77::1"), PORT], "fd77::1", 4000),
            ((None, None), &[HOSTS, RANK, ENDPOINT], "h1", 4001),
            ((None, None), &[HOSTS, RANK, ENDPOINT, ADDRESS, PORT], "h1", 4001),
            ((Some("2"), None), &[("PET_NNODES", "9"), RANK, ENDPOINT], "h1", 4001),
            // The option replaces the variable's host and port.
            ((Some("2"), Some("h7")), &[RANK, ENDPOINT], "h7", 29500),
            ((Some("2"), Some("h7")), &[RANK, ENDPOINT, PORT], "h7", 4000),
        ] {
            let nodes = Nodes { count: 2, rank: 1, host: host.into(), port };
            assert_eq!(read_with(options, set), Ok(Some(nodes)), "{options:?} {set:?}");
        }
        assert_eq!(read_with((Some("1"), None), &[HOSTS, RANK]), Ok(None));
    }

    #[test]
    fn a_variable_that_does_not_fit_is_named() {
        for (set, why) in [
            (&[("PET_NNODES", "x")][..], "PET_NNODES=x: expected a number"),
            (&[("PET_NNODES", "1:4")], "PET_NNODES=1:4: no host joins later"),
            (&[HOSTS, ("PET_NODE_RANK", "2")], "PET_NODE_RANK=2: expected a number below 2"),
            (&[HOSTS, RANK, ("PET_RDZV_ENDPOINT", "h0:x")], "PET_RDZV_ENDPOINT=h0:x: expected"),
            (&[HOSTS, RANK, ADDRESS, ("PET_MASTER_PORT", "0")], "PET_MASTER_PORT=0: expected a"),
            (&[HOSTS, RANK, ADDRESS, ("PET_MASTER_PORT", "x")], "PET_MASTER_PORT=x: expected a"),
            (&[HOSTS, RANK, PORT], "say where host 0 listens"),
        ] {
            let error = read_with((None, None), set).unwrap_err();
            assert!(error.contains(why), "{set:?}: {error}");
        }
        let error = read_with((Some("2"), Some("")), &[RANK]).unwrap_err();
        assert_eq!(error, "--master-addr : expected a name or an address");
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
