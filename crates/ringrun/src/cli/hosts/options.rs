//! The options about ranks and their hosts.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ringreduce::config::variables::{IFNAME, PORT_RANGE};

use super::available::{choose, merge};
use super::counts::{PerHost, RankCount, per_host};
use super::launcher::{Launcher, LauncherName, is_kubectl};
use super::mapping::{HostOrder, Mapping, rank_by};
use super::nodes::{self, NodeOptions, Nodes};
use super::placement::{Placed, Wanted, place};
use super::surroundings::{MOUNTED_FILE, Surroundings};
use super::text::{Mention, mentions_of_list};
use super::this_host::{ThisHost, here};
use super::{AvailableHost, Host, MAX_HOSTS, file};
use crate::cli::environment::Variables;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(in crate::cli) struct HostOptions {
    #[command(flatten)]
    pub(in crate::cli) count: RankCount,

    /// Start N ranks on each host; on this one alone, "auto" means one per CPU
    #[arg(short = 'N', long = "per-host", value_name = "N|auto", value_parser = per_host)]
    #[arg(allow_hyphen_values = true)]
    #[arg(visible_aliases = ["nproc-per-node", "ppn"], aliases = ["npernode", "perhost"])]
    #[arg(help_heading = "Ranks")]
    per_host: Option<PerHost>,

    #[command(flatten)]
    named: NamedHosts,

    /// Fill one host after the other (slot, the default), or give each a rank in turn (node)
    ///
    /// ppr:N:node is --per-host N, and :OVERSUBSCRIBE behind any of them is --oversubscribe.
    #[arg(long, value_name = "HOW", help_heading = "Hosts")]
    map_by: Option<Mapping>,

    /// Number the ranks host by host (slot), or in turn (node), if not as --map-by places them
    #[arg(long, value_name = "HOW", value_parser = rank_by, help_heading = "Hosts")]
    rank_by: Option<HostOrder>,

    /// Allow more ranks than slots on several hosts
    #[arg(long, help_heading = "Hosts")]
    oversubscribe: bool,

    #[command(flatten)]
    pub(in crate::cli) reach: ReachOptions,

    #[command(flatten)]
    nodes: NodeOptions,
}

/// The options that name hosts.
#[derive(Debug, Args)]
pub(crate) struct NamedHosts {
    /// Run on these hosts: HOST or HOST:SLOTS, separated by commas
    ///
    /// node[01-03,7]:4 stands for four hosts, and alice@node1 for a host with another user name.
    /// The slots of a host that is named twice add up. Beside --hostfile, choose hosts of the file.
    #[arg(short = 'H', long, value_name = "HOSTS", alias = "hosts", help_heading = "Hosts")]
    host: Vec<String>,

    /// Read the hosts from a file: "HOST slots=N" or "HOST:N" per line
    #[arg(short = 'f', long, value_name = "FILE", alias = "machinefile", help_heading = "Hosts")]
    hostfile: Option<PathBuf>,
}

/// The options about the way to other hosts.
#[derive(Debug, Args)]
pub(crate) struct ReachOptions {
    /// Start ranks on other hosts by ssh, Slurm's srun, kubectl exec, or yourself (manual)
    ///
    /// Without it by srun for the nodes of an allocation, and by ssh for other hosts. With manual
    /// ringrun prints a command for each other host, and waits until all of them were run there.
    #[arg(long, value_name = "HOW", alias = "bootstrap", help_heading = "Hosts")]
    launcher: Option<LauncherName>,

    /// Reach other hosts by this command and its arguments, such as "ssh -p 2222"
    ///
    /// "kubectl exec -n NAMESPACE -c CONTAINER" reaches pods of Kubernetes.
    #[arg(long, value_name = "CMD", aliases = ["launcher-exec", "bootstrap-exec"])]
    #[arg(value_parser = remote_shell, help_heading = "Hosts")]
    rsh: Option<RemoteShell>,

    /// The most hosts that each host starts, of which this one is the first; 0: start all from here
    ///
    /// One client of ssh or srun runs for each other host. With more than 32 other hosts, this one
    /// starts 8, and so does each that has begun. A host that can't reach another one leaves it to
    /// this one.
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
    /// Places the ranks; `otherwise` is their number where these options say none. `None` if there
    /// is no number at all.
    pub(in crate::cli) fn place(
        &self,
        is_nested: bool,
        otherwise: Option<usize>,
    ) -> Result<Option<Placed>, Failure> {
        let nodes = self.nodes()?;
        let hosts = match &nodes {
            Some(_) if self.named.is_given() => {
                let why = "--nnodes says how many hosts there are: leave out -H and --hostfile";
                return Err(Failure::Usage(why.into()));
            }
            Some(nodes) if self.needs_count(nodes) => return Err(nodes::no_count()),
            Some(nodes) => nodes.hosts(),
            None => self.available(is_nested)?,
        };
        let launcher = self.reach.launcher;
        let checked = launcher.map_or(Ok(()), |it| it.check(&hosts, nodes.is_some()));
        checked.map_err(Failure::Usage)?;
        place(&hosts, &self.wanted(&hosts, otherwise)?).map_err(Failure::Usage)
    }

    /// True if hosts that join by themselves, each of which is for one rank, lack the number of
    /// ranks of each.
    fn needs_count(&self, nodes: &Nodes) -> bool {
        let Mapping { per_host, oversubscribe, .. } = self.map_by.unwrap_or_default();
        let is_counted = self.per_host().is_some() || per_host.is_some();
        let may_have_more = self.oversubscribe || oversubscribe;
        let has_place = |ranks: NonZeroUsize| may_have_more || ranks.get() <= nodes.count;
        !is_counted && !self.count.ranks.is_some_and(has_place)
    }

    /// The place of this ringrun among several of one job.
    pub(in crate::cli) fn nodes(&self) -> Result<Option<Nodes>, Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        self.nodes.read(variable).map_err(Failure::Usage)
    }

    /// Warnings of options that change nothing.
    pub(in crate::cli) fn warnings(&self) -> Result<Vec<String>, Failure> {
        let unused = if self.nodes()?.is_some() { vec![] } else { self.nodes.unused() };
        let why = "changes nothing: the ranks of one host meet through ringrun itself";
        Ok(unused.into_iter().map(|name| format!("{name} {why}")).collect())
    }

    fn per_host(&self) -> Option<PerHost> {
        // As torchrun reads it, and only where that was meant.
        let is_of_torchrun = std::env::var_os("PET_NNODES").is_some();
        let variable = std::env::var("PET_NPROC_PER_NODE").ok().filter(|_| is_of_torchrun);
        self.per_host.or_else(|| per_host(&variable?).ok())
    }

    /// How ranks on other hosts are started.
    pub(in crate::cli) fn launcher(&self, is_nested: bool) -> Result<Launcher, Failure> {
        let is_named = self.named.is_given() || is_nested;
        self.reach.launcher(!is_named && surroundings().is_slurm())
    }

    pub(in crate::cli) fn fanout(&self) -> Option<usize> {
        self.reach.fanout
    }

    fn wanted(&self, hosts: &[AvailableHost], otherwise: Option<usize>) -> Result<Wanted, Failure> {
        let mapping = self.map_by.unwrap_or_default();
        let per_host = match (self.per_host(), mapping.per_host) {
            (Some(PerHost { is_of_this_host: true, .. }), _)
                if hosts.iter().any(|it| !it.host.is_here) =>
            {
                let advice = "-N auto counts the CPUs of this host: give a number for other hosts";
                return Err(Failure::Usage(advice.into()));
            }
            (Some(each), Some(other)) if each.ranks != other => {
                return Err(Failure::Usage(format!(
                    "--per-host {} and --map-by ppr:{other}:node contradict each other",
                    each.ranks
                )));
            }
            (each, other) => each.map(|each| each.ranks).or(other),
        };
        Ok(Wanted {
            ranks: self.count.ranks.map(NonZeroUsize::get),
            per_host: per_host.map(NonZeroUsize::get),
            otherwise,
            map_by: mapping.order,
            rank_by: self.rank_by.unwrap_or(mapping.order),
            oversubscribe: self.oversubscribe || mapping.oversubscribe,
        })
    }

    /// The hosts that may run ranks, at least one.
    fn available(&self, is_nested: bool) -> Result<Vec<AvailableHost>, Failure> {
        let mut this_host = ThisHost::new(self.launcher(is_nested)? == Launcher::Slurm);
        if let Some(named) = self.named.read(&mut this_host)? {
            return Ok(named);
        }
        // Each rank of an outer job would start ranks on all its hosts.
        let mentions = if is_nested { None } else { surroundings().mentions()? };
        let named = mentions.map(|mentions| merged(mentions, &mut this_host)).transpose()?;
        // A source that names this host alone changes nothing.
        let others = named.filter(|hosts| hosts.iter().any(|it| !it.host.is_here));
        Ok(others.unwrap_or_else(|| vec![this_host_alone()]))
    }
}

impl NamedHosts {
    fn is_given(&self) -> bool {
        !self.host.is_empty() || self.hostfile.is_some()
    }

    /// The hosts that these options name; none if they are left out.
    pub(crate) fn hosts(&self, reach: &ReachOptions) -> Result<Option<Vec<Host>>, Failure> {
        let launcher = reach.launcher(false)?.of_subcommand().map_err(Failure::Usage)?;
        let named = self.read(&mut ThisHost::new(launcher == Launcher::Slurm))?;
        Ok(named.map(|named| named.into_iter().map(|it| it.host).collect()))
    }

    fn read(&self, this_host: &mut ThisHost) -> Result<Option<Vec<AvailableHost>>, Failure> {
        let mut listed = vec![];
        for list in &self.host {
            listed.extend(mentions_of_list(list, MAX_HOSTS).map_err(Failure::Usage)?);
        }
        if let Some(path) = &self.hostfile {
            let known = merged(file::read(path)?, this_host)?;
            return match listed.is_empty() {
                true => Ok(Some(known)),
                false => {
                    choose(merged(listed, this_host)?, &known).map(Some).map_err(Failure::Usage)
                }
            };
        }
        (!listed.is_empty()).then(|| merged(listed, this_host)).transpose()
    }
}

impl ReachOptions {
    fn rsh(&self) -> Option<Vec<String>> {
        self.rsh.clone().map(|RemoteShell(words)| words)
    }

    fn launcher(&self, are_slurms: bool) -> Result<Launcher, Failure> {
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

fn merged(mentions: Vec<Mention>, this_host: &mut ThisHost) -> Result<Vec<AvailableHost>, Failure> {
    merge(mentions, |name| this_host.is(name)).map_err(Failure::Usage)
}

fn surroundings() -> Surroundings<'static> {
    Surroundings { variable: &|name| std::env::var_os(name), mounted_file: Path::new(MOUNTED_FILE) }
}

fn this_host_alone() -> AvailableHost {
    let host = Host { name: here(), is_here: true };
    AvailableHost { host, slots: 1, is_counted: false, max_slots: None }
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

    /// The hosts of the ranks, as "a a b".
    fn placed(line: &str) -> Result<String, String> {
        let placed = options(line).place(true, None).map_err(|failure| failure.to_string())?;
        let placed = placed.ok_or("no number")?;
        let name = |number: usize| placed.hosts[number].name.clone();
        let names = placed.placements.iter().map(|it| name(it.host_number));
        Ok(names.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_place_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "u@a slots=2\nu@b slots=2\nlocalhost slots=1\n").unwrap();
        let file = file.display();
        for (line, hosts) in [
            ("-H u@a:2,u@b:2 --np 3", "u@a u@a u@b"),
            ("-H u@a:2 -H u@b,u@a:1", "u@a u@a u@a u@b"),
            ("-H u@n[1-2]:2 --map-by node", "u@n1 u@n2 u@n1 u@n2"),
            ("-H u@a,u@b --map-by ppr:2:node", "u@a u@a u@b u@b"),
            ("-H u@a,u@b --map-by ppr:2:node --per-host 2 -n 3", "u@a u@a u@b"),
            ("-H u@a:2,u@b:2 --map-by node --rank-by slot -n 2", "u@a u@b"),
            ("-H u@a,u@b -n 4 --map-by :OVERSUBSCRIBE", "u@a u@a u@b u@b"),
            ("-H u@a,u@b -n 3 --oversubscribe", "u@a u@a u@b"),
            ("-H localhost --launcher fork -n 1", "localhost"),
            ("-H u@a --launcher kubectl -n 1", "u@a"),
            ("-H localhost:2,127.0.0.1:1", "localhost localhost localhost"),
            (&format!("--hostfile {file}"), "u@a u@a u@b u@b localhost"),
            (&format!("--hostfile {file} -H 127.0.0.1,u@b:1"), "127.0.0.1 u@b"),
        ] {
            assert_eq!(placed(line).as_deref(), Ok(hosts), "{line}");
        }
        for (line, why) in [
            ("-H u@a --launcher fork -n 1", "fork starts ranks on this host alone, and u@a is"),
            ("-H u@a --launcher kubectl --rsh ssh -n 1", "--launcher kubectl and --rsh"),
            ("-H u@a --launcher manual --rsh ssh -n 1", "--launcher manual and --rsh"),
            ("--nnodes 2 --node-rank 0 --rdzv-endpoint h -N 1 --launcher manual", "join without"),
            ("-H u@a,u@b -n 3", "3 ranks are more than the 2 slots"),
            ("-H u@a -N auto", "-N auto counts the CPUs of this host"),
            ("-H u@a -N 2 --map-by ppr:3:node", "--per-host 2 and --map-by ppr:3:node contradict"),
            ("-H localhost", "no number"),
            ("-H -oX=1 -n 1", "host \"-oX=1\": no name"),
            (&format!("--hostfile {file} -H u@c"), "\"u@c\" of --host is not in the host file"),
        ] {
            let error = placed(&line.replace("-H -o", "-H=-o")).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert_eq!(placed("-n 2").unwrap(), [here(), here()].join(" "));
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
    fn interfaces_and_ports_are_variables() {
        let set = options("--iface eth0 --port-range 20000-20100").reach.variables();
        let expected = [(IFNAME, "eth0"), (PORT_RANGE, "20000-20100")];
        assert_eq!(set, expected.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(options("-n 1").reach.variables(), []);
        let words = options("--iface eth0 --launcher srun").reach.words();
        assert_eq!(words, ["--launcher", "slurm", "--iface", "eth0"]);
    }
}
