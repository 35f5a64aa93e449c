//! The options about ranks and their hosts.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, ValueEnum};
use ringreduce::config::variables::{IFNAME, PORT_RANGE};

use super::counts::{PerHost, per_host};
use super::launcher::{Launcher, LauncherName, is_kubectl};
use super::mapping::{HostOrder, Mapping, rank_by};
use super::named::ProgramHosts;
use super::nodes::{self, NodeOptions, Nodes};
use super::surroundings::{MOUNTED_FILE, Surroundings};
use crate::cli::environment::Variables;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(in crate::cli) struct HostOptions {
    #[command(flatten)]
    pub(super) first: ProgramHosts,

    /// Fill one host after the other (slot, the default), or give each a rank in turn (node)
    ///
    /// ppr:N:node is --per-host N, and :OVERSUBSCRIBE behind any of them is --oversubscribe.
    #[arg(long, value_name = "HOW", help_heading = "Hosts")]
    pub(super) map_by: Option<Mapping>,

    /// Number the ranks host by host (slot), or in turn (node), if not as --map-by places them
    #[arg(long, value_name = "HOW", value_parser = rank_by, help_heading = "Hosts")]
    pub(super) rank_by: Option<HostOrder>,

    /// Allow more ranks than slots on several hosts
    #[arg(long, help_heading = "Hosts")]
    pub(super) oversubscribe: bool,

    #[command(flatten)]
    pub(in crate::cli) reach: ReachOptions,

    #[command(flatten)]
    nodes: NodeOptions,
}

/// The options about the way to other hosts.
#[derive(Debug, Args)]
pub(crate) struct ReachOptions {
    /// Start ranks on other hosts by ssh, Slurm's srun, kubectl exec, or yourself (manual)
    ///
    /// Without it by srun for the nodes of an allocation, and by ssh for other hosts. With manual
    /// ringrun prints a command for each other host, and waits until all of them were run there.
    #[arg(long, value_name = "HOW", alias = "bootstrap", help_heading = "Hosts")]
    pub(super) launcher: Option<LauncherName>,

    /// Reach other hosts by this command and its arguments, such as "ssh -p 2222"
    ///
    /// "kubectl exec -n NAMESPACE -c CONTAINER" reaches pods of Kubernetes.
    #[arg(long, value_name = "CMD", aliases = ["launcher-exec", "bootstrap-exec"])]
    #[arg(value_parser = remote_shell, help_heading = "Hosts")]
    rsh: Option<RemoteShell>,

    /// The most hosts that each host starts, of which this one is the first; 0: start all from here
    ///
    /// One client of ssh or srun runs for each other host. From 32 hosts on, with this one, each
    /// starts 8: this one, and each that has begun. A host that can't reach another one leaves it
    /// to this one.
    #[arg(long, value_name = "N", help_heading = "Hosts")]
    fanout: Option<usize>,

    /// Interfaces for what ranks send over TCP. The same as -x RINGREDUCE_IFNAME=SPEC
    #[arg(long, value_name = "SPEC", help_heading = "Hosts")]
    iface: Option<OsString>,

    /// Ports at which ranks listen over TCP. The same as -x RINGREDUCE_PORT_RANGE=A-B
    #[arg(long, value_name = "A-B", help_heading = "Hosts")]
    port_range: Option<OsString>,
}

/// The words of a command.
#[derive(Clone, Debug)]
struct RemoteShell(Vec<String>);

impl HostOptions {
    /// The place of this ringrun among several of one job.
    pub(in crate::cli) fn nodes(&self) -> Result<Option<Nodes>, Failure> {
        self.nodes.read(variable).map_err(Failure::Usage)
    }

    /// Warnings of options that change nothing.
    pub(in crate::cli) fn warnings(&self) -> Result<Vec<String>, Failure> {
        let unused = if self.nodes()?.is_some() { vec![] } else { self.nodes.unused() };
        let why = "changes nothing: the ranks of one host meet through ringrun itself";
        let mut warnings: Vec<_> = unused.iter().map(|name| format!("{name} {why}")).collect();
        if self.nodes.are_given(variable) {
            let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
            let names = set.filter_map(|(name, _)| name.into_string().ok());
            let why = "is not read: ringrun's own options say such things (ringrun --help)";
            warnings.extend(nodes::unread(names).map(|name| format!("{name} {why}")));
        }
        Ok(warnings)
    }

    /// The number of ranks of each host: the option's, else that of torchrun's variable where the
    /// hosts are counted as torchrun counts them.
    pub(super) fn per_host(&self) -> Result<Option<PerHost>, String> {
        self.per_host_by(variable)
    }

    fn per_host_by(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<PerHost>, String> {
        const NAME: &str = nodes::PER_NODE_VARIABLE;
        let given = self.first.count.per_host;
        if given.is_some() || !self.nodes.are_given(&variable) {
            return Ok(given);
        }
        let read = |word: String| {
            per_host(&word).map_err(|why| format!("{NAME}={word}: {why}, or say -N N"))
        };
        variable(NAME).map(read).transpose()
    }

    /// How ranks on other hosts are started.
    pub(in crate::cli) fn launcher(&self, is_nested: bool) -> Result<Launcher, Failure> {
        let is_named = self.first.named.is_given() || is_nested;
        self.reach.launcher(!is_named && surroundings().is_slurm())
    }

    pub(in crate::cli) fn fanout(&self) -> Option<usize> {
        self.reach.fanout
    }
}

impl ReachOptions {
    fn rsh(&self) -> Option<Vec<String>> {
        self.rsh.clone().map(|RemoteShell(words)| words)
    }

    pub(super) fn launcher(&self, are_slurms: bool) -> Result<Launcher, Failure> {
        Launcher::choose((self.launcher, self.rsh()), are_slurms).map_err(Failure::Usage)
    }

    /// The variables that these options set for every rank.
    pub(crate) fn variables(&self) -> Variables {
        let set = [(IFNAME, &self.iface), (PORT_RANGE, &self.port_range)];
        set.into_iter().filter_map(|(name, value)| Some((name.into(), value.clone()?))).collect()
    }

    /// The options as words of a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let launcher = self.launcher.and_then(|launcher| launcher.to_possible_value());
        let options = [
            ("--launcher", launcher.map(|value| value.get_name().into())),
            ("--rsh", self.rsh().map(|words| words.join(" ").into())),
            ("--fanout", self.fanout.map(|fanout| fanout.to_string().into())),
            ("--iface", self.iface.clone()),
            ("--port-range", self.port_range.clone()),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.into(), value]).collect()
    }
}

/// The value of a variable, which counts as unset if it is empty.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

pub(super) fn surroundings() -> Surroundings<'static> {
    Surroundings { variable: &|name| std::env::var_os(name), mounted_file: Path::new(MOUNTED_FILE) }
}

fn remote_shell(word: &str) -> Result<RemoteShell, String> {
    let words: Vec<_> = word.split_whitespace().map(str::to_owned).collect();
    match words.first() {
        None => Err("expected a command, such as ssh".into()),
        Some(program) if is_kubectl(program) && !words.iter().any(|word| word == "exec") => {
            Err("kubectl needs the word exec, as in \"kubectl exec -n NAMESPACE\"".into())
        }
        Some(_) => Ok(RemoteShell(words)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        hosts: HostOptions,
    }

    fn options(line: &str) -> HostOptions {
        Line::try_parse_from(["test"].into_iter().chain(line.split(' '))).unwrap().hosts
    }

    #[test]
    fn commands_are_split_at_white_space() {
        let launcher = |command: &str| {
            let line = Line::try_parse_from(["test", "--rsh", command]).ok()?;
            line.hosts.launcher(true).ok()
        };
        let words = ["ssh", "-p", "22"].map(String::from);
        assert_eq!(launcher(" ssh  -p 22\t"), Some(Launcher::Command(words.into())));
        assert_eq!(launcher(" "), None);
        assert_eq!(launcher("kubectl -n ml"), None);
        assert_eq!(options("-n 1").launcher(true).ok(), Some(Launcher::Ssh));
    }

    #[test]
    fn torchruns_variable_counts_ranks_beside_its_hosts() {
        let ranks = |line: &str, set: &[(&str, &str)]| {
            let set = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            options(line).per_host_by(set).map(|found| found.map(|each| each.ranks.get()))
        };
        let (count, nodes) = (("PET_NPROC_PER_NODE", "3"), ("PET_NNODES", "2"));
        assert_eq!(ranks("--nnodes 2", &[count]), Ok(Some(3)));
        assert_eq!(ranks("-n 1", &[count, nodes]), Ok(Some(3)));
        assert_eq!(ranks("--nnodes 2 -N 4", &[count]), Ok(Some(4)));
        // Without hosts of torchrun, the variable may be that of an outer job.
        assert_eq!(ranks("-n 1", &[count]), Ok(None));
        assert_eq!(ranks("--nnodes 2", &[]), Ok(None));
        assert!(ranks("--nnodes 2", &[(count.0, "auto")]).unwrap() > Some(0));
        for wrong in ["0", "3x", "xpu"] {
            let error = ranks("--nnodes 2", &[(count.0, wrong)]).unwrap_err();
            assert!(error.starts_with(&format!("PET_NPROC_PER_NODE={wrong}: ")), "{error}");
        }
    }

    #[test]
    fn interfaces_and_ports_are_variables() {
        let set = options("--iface eth0 --port-range 20000-20100").reach.variables();
        let expected = [(IFNAME, "eth0"), (PORT_RANGE, "20000-20100")];
        assert_eq!(set, expected.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(options("-n 1").reach.variables(), []);
        let words = options("--iface eth0 --launcher srun").reach.words();
        assert_eq!(words, ["--launcher", "slurm", "--iface", "eth0"]);
    }
}
