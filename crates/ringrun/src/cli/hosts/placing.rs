//! From the options to the placement of the ranks, by what files and the environment say of hosts.

use std::num::NonZeroUsize;

use super::available::HostTable;
use super::counts::PerHost;
use super::groups::{Group, ProgramRanks, of_programs, place_groups};
use super::launcher::Launcher;
use super::mapping::Mapping;
use super::named::{ProgramHosts, merged};
use super::nodes::{self, Nodes};
use super::options::{HostOptions, surroundings};
use super::placement::{ElasticRanks, Placed, Wanted, place};
use super::this_host::{ThisHost, here};
use super::{AvailableHost, Host};
use crate::failure::Failure;

impl HostOptions {
    /// Places the ranks of the first program and of `later` ones. `elastic` is the number
    /// of ranks with which an elastic job begins. `None` if there is no
    /// number at all.
    pub(in crate::cli) fn place(
        &self,
        later: &[ProgramHosts],
        is_nested: bool,
        elastic: Option<ElasticRanks>,
    ) -> Result<Option<Placed>, Failure> {
        let nodes = self.nodes()?;
        if let Some(nodes) = &nodes {
            self.check_nodes((nodes, elastic), later)?;
        }
        let launcher = self.launcher(is_nested)?;
        let mut this_host = ThisHost::new(launcher == Launcher::Slurm);
        let others = self.programs_with_lists(later, &mut this_host)?;
        let shared = match &nodes {
            Some(nodes) => nodes.hosts(),
            None => {
                let is_counted = self.is_counted(elastic).map_err(Failure::Usage)?;
                self.available((&others, is_nested, is_counted), &mut this_host)?
            }
        };
        let all = || shared.iter().chain(others.iter().flat_map(|group| &group.hosts));
        if let Some(launcher) = self.reach.launcher {
            launcher.check(all().map(|it| &it.host), nodes.is_some()).map_err(Failure::Usage)?;
        }
        let ProgramHosts { count, .. } = &self.first;
        let wanted = match shared.is_empty() {
            true => self.wanted(None, all()),
            false => self.wanted(None, &shared),
        };
        let wanted = wanted.map_err(Failure::Usage)?;
        if later.is_empty() {
            let ranks = count.ranks.map(NonZeroUsize::get);
            let wanted = Wanted { ranks, elastic, keeps_hosts: nodes.is_some(), ..wanted };
            return place(&shared, &wanted).map_err(Failure::Usage);
        }
        let shared = Group { programs: self.programs_without_lists(later), hosts: shared, wanted };
        place_groups(shared, others).map(Some).map_err(Failure::Usage)
    }

    /// Refuses lists of hosts beside `--nnodes`. Hosts that join by themselves are for one rank
    /// each unless a number of ranks of each is given.
    fn check_nodes(
        &self,
        (nodes, elastic): (&Nodes, Option<ElasticRanks>),
        later: &[ProgramHosts],
    ) -> Result<(), Failure> {
        let mut programs = std::iter::once(&self.first).chain(later);
        if let Some(program) = programs.position(|program| program.named.is_given()) {
            let why = "--nnodes says how many hosts there are: leave out -H and --hostfile";
            let is_alone = later.is_empty();
            let why = if is_alone { why.into() } else { of_programs(&[program], why) };
            return Err(Failure::Usage(why));
        }
        let Mapping { per_host, oversubscribe, .. } = self.map_by.unwrap_or_default();
        let is_counted = self.per_host().map_err(Failure::Usage)?.is_some() || per_host.is_some();
        let may_have_more = self.oversubscribe || oversubscribe;
        let programs = std::iter::once(&self.first).chain(later);
        let ranks = programs.map(|program| program.count.ranks.map_or(0, NonZeroUsize::get));
        let ranks = ranks.fold(0, usize::saturating_add);
        let ranks = if ranks > 0 { ranks } else { elastic.map_or(0, |elastic| elastic.count) };
        let has_place = ranks > 0 && (may_have_more || ranks <= nodes.count);
        if is_counted || has_place { Ok(()) } else { Err(nodes::no_count()) }
    }

    /// The later programs that have hosts of their own.
    fn programs_with_lists(
        &self,
        later: &[ProgramHosts],
        this_host: &mut ThisHost,
    ) -> Result<Vec<Group>, Failure> {
        let mut groups = vec![];
        for (program, own) in (1..).zip(later) {
            let refuse = |why: &str| Failure::Usage(of_programs(&[program], why));
            let named = own.named.read(this_host).map_err(|failure| match failure {
                Failure::Usage(why) => refuse(&why),
                other => other,
            })?;
            let Some(hosts) = named else {
                if own.count.per_host.is_some() {
                    return Err(refuse(
                        "-N behind ':' is for a program with hosts of its own: add -H HOSTS, or \
                         say -n N alone",
                    ));
                }
                continue;
            };
            let wanted = self.wanted(own.count.per_host, &hosts).map_err(|why| refuse(&why))?;
            let programs = vec![ranks_of(program, own)];
            groups.push(Group { programs, hosts, wanted });
        }
        Ok(groups)
    }

    /// The first program, and the later ones that share its hosts.
    fn programs_without_lists(&self, later: &[ProgramHosts]) -> Vec<ProgramRanks> {
        let others = (1..).zip(later).filter(|(_, other)| !other.named.is_given());
        let all = std::iter::once((0, &self.first)).chain(others);
        all.map(|(program, hosts)| ranks_of(program, hosts)).collect()
    }

    /// The placement on hosts that are chosen already, without the number of ranks. `own` is what a
    /// program says of it.
    fn wanted<'a>(
        &self,
        own: Option<PerHost>,
        hosts: impl IntoIterator<Item = &'a AvailableHost>,
    ) -> Result<Wanted, String> {
        let mapping = self.map_by.unwrap_or_default();
        let of_job = mapping.per_host.filter(|_| own.is_none());
        // Every ringrun of --nnodes counts its own host, and joins if it has as many ranks.
        let counts_alone = self.nodes().map_err(|failure| failure.to_string())?.is_none();
        let per_host = match (own.map_or_else(|| self.per_host(), |own| Ok(Some(own)))?, of_job) {
            (Some(PerHost { is_of_this_host: true, .. }), _)
                if counts_alone && hosts.into_iter().any(|it| !it.host.is_here) =>
            {
                let advice = "-N auto counts the CPUs of this host, and -N gpu its GPUs: give a \
                     number for other hosts";
                return Err(advice.into());
            }
            (Some(each), Some(other)) if each.ranks != other => {
                return Err(format!(
                    "--per-host {} and --map-by ppr:{other}:node contradict each other",
                    each.ranks
                ));
            }
            (each, other) => each.map(|each| each.ranks).or(other),
        };
        Ok(Wanted {
            ranks: None,
            per_host: per_host.map(NonZeroUsize::get),
            elastic: None,
            keeps_hosts: false,
            map_by: mapping.order,
            rank_by: self.rank_by.unwrap_or(mapping.order),
            oversubscribe: self.oversubscribe || mapping.oversubscribe,
        })
    }

    /// The hosts of the job, which programs without a list share. None if nothing names any, and
    /// other programs have theirs: as under Open MPI, all programs then run on those.
    fn available(
        &self,
        (others, is_nested, is_counted): (&[Group], bool, bool),
        this_host: &mut ThisHost,
    ) -> Result<Vec<AvailableHost>, Failure> {
        if let Some(named) = self.first.named.read(this_host)? {
            return Ok(named);
        }
        // Each rank of an outer job would start ranks on all its hosts.
        let mentions = if is_nested { None } else { surroundings().mentions()? };
        let Some(mentions) = mentions else {
            return Ok(if others.is_empty() { vec![this_host_alone()] } else { vec![] });
        };
        let named = merged(mentions, this_host)?;
        if self.launcher(is_nested)? == Launcher::Slurm {
            check_allocated(others, &named).map_err(Failure::Usage)?;
        }
        // A source that names this host alone is asked for the number of ranks, and limits none.
        let is_alone = named.iter().all(|it| it.host.is_here);
        Ok(if is_alone && is_counted { vec![this_host_alone()] } else { named })
    }

    /// True if the user says how many ranks there are.
    fn is_counted(&self, elastic: Option<ElasticRanks>) -> Result<bool, String> {
        let of_mapping = self.map_by.and_then(|mapping| mapping.per_host);
        let is_each_counted = self.per_host()?.is_some() || of_mapping.is_some();
        Ok(is_each_counted || self.first.count.ranks.is_some() || elastic.is_some())
    }
}

/// Refuses hosts that are not in Slurm's allocation: srun has no way to them.
fn check_allocated(groups: &[Group], nodes: &[AvailableHost]) -> Result<(), String> {
    let mut table = HostTable::default();
    nodes.iter().try_for_each(|node| table.add(node.clone()).map(drop))?;
    for Group { programs, hosts, .. } in groups {
        let other = hosts.iter().find(|it| table.number(&it.host).is_none());
        if let Some(AvailableHost { host: Host { name, .. }, .. }) = other {
            let programs: Vec<_> = programs.iter().map(|it| it.program).collect();
            let why = format!(
                "host {name} is not in Slurm's allocation, which has the hosts of the first \
                 program: name nodes of the allocation, or say --launcher ssh"
            );
            return Err(of_programs(&programs, &why));
        }
    }
    Ok(())
}

fn ranks_of(program: usize, hosts: &ProgramHosts) -> ProgramRanks {
    ProgramRanks { program, ranks: hosts.count.ranks.map(NonZeroUsize::get) }
}

fn this_host_alone() -> AvailableHost {
    let host = Host { name: here(), is_here: true };
    AvailableHost { host, slots: 1, is_counted: false, max_slots: None }
}

#[cfg(test)]
mod tests;
