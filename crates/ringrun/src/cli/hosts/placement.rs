//! From the hosts and their slots to the host of each rank. Pure.
//!
//! First each host gets a number of ranks, by `--map-by`; then the ranks get their numbers, by
//! `--rank-by`. Four ranks on `a:3,b:3`, with both by slot: a has ranks 0, 1, 2 and b has 3. With
//! both by node: a has 0, 2 and b has 1, 3. Mapped by node and numbered by slot: a has 0, 1 and b
//! has 2, 3.

use ringreduce::config::MAX_SIZE;

use super::mapping::HostOrder;
use super::{AvailableHost, Host, RankPlacement};

/// The ranks that the command line asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) ranks: Option<usize>,
    pub(super) per_host: Option<usize>,
    pub(super) elastic: Option<ElasticRanks>,
    /// No host of an elastic job is left out: all join by themselves.
    pub(super) keeps_hosts: bool,
    pub(super) map_by: HostOrder,
    pub(super) rank_by: HostOrder,
    pub(super) oversubscribe: bool,
}

/// The ranks with which an elastic job begins, where the command line says no other number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct ElasticRanks {
    pub(in crate::cli) count: usize,
    /// Lost ranks start again: on slots that the others leave, too.
    pub(in crate::cli) start_again: bool,
}

/// The hosts of the job, and the host of each rank; neither is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Placed {
    pub(in crate::cli) hosts: Vec<Host>,
    /// The most ranks that each host may have while the job runs.
    pub(in crate::cli) slots: Vec<usize>,
    pub(in crate::cli) placements: Vec<RankPlacement>,
}

/// A rank without its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramOnHost {
    pub(super) program: usize,
    pub(super) host_number: usize,
}

/// Places ranks on `hosts`, of which there is at least one. `None` if nothing says how many ranks
/// there are.
pub(super) fn place(hosts: &[AvailableHost], wanted: &Wanted) -> Result<Option<Placed>, String> {
    let Some(ranks) = rank_count(hosts, wanted) else { return Ok(None) };
    if ranks > MAX_SIZE {
        return Err(format!("-n {ranks}: at most {MAX_SIZE} ranks are possible"));
    }
    let counts = counts(hosts, ranks, wanted)?;
    let slots = slots(hosts, &counts, wanted);
    let used: Vec<_> = (0..).zip(slots).filter(|&(_, slots)| slots > 0).collect();
    let slots = used.iter().map(|&(_, slots)| slots).collect();
    let counts: Vec<_> = used.iter().map(|&(host, _)| counts[host]).collect();
    let hosts: Vec<_> = used.iter().map(|&(host, _)| hosts[host].host.clone()).collect();
    let ranks = host_numbers(&counts, wanted.rank_by).into_iter();
    let ranks = ranks.map(|host_number| ProgramOnHost { program: 0, host_number });
    let placements = number(&hosts, ranks);
    Ok(Some(Placed { hosts, slots, placements }))
}

/// The number of ranks: as given, or of all hosts, or of all slots.
fn rank_count(hosts: &[AvailableHost], wanted: &Wanted) -> Option<usize> {
    let by_hosts = wanted.per_host.map(|each| each.saturating_mul(hosts.len()));
    let is_counted = hosts.iter().any(|host| host.is_counted);
    let slots = || hosts.iter().map(|host| host.slots).sum();
    let counted = || is_counted.then(slots);
    // Several hosts without a count have one slot each, as under Open MPI.
    let uncounted = || (hosts.len() > 1).then(slots);
    let elastic = wanted.elastic.map(|elastic| elastic.count);
    wanted.ranks.or(elastic).or(by_hosts).or_else(counted).or_else(uncounted)
}

/// The number of ranks of each host.
fn counts(hosts: &[AvailableHost], ranks: usize, wanted: &Wanted) -> Result<Vec<usize>, String> {
    let &Wanted { per_host, oversubscribe, .. } = wanted;
    let is_alone = hosts.len() == 1;
    // A lone host takes as many ranks as the user says.
    let limits: Vec<_> = match per_host {
        Some(each) => vec![each; hosts.len()],
        None if is_alone => vec![ranks],
        None => hosts.iter().map(|host| host.slots).collect(),
    };
    let (mut counts, mut left) = (vec![0; hosts.len()], ranks);
    match wanted.map_by {
        HostOrder::Slot => fill(&mut counts, &limits, &mut left),
        HostOrder::Node => deal(&mut counts, &limits, &mut left),
    }
    if left > 0 && per_host.is_none() && oversubscribe {
        let limits: Vec<_> = hosts.iter().map(|it| it.max_slots.unwrap_or(usize::MAX)).collect();
        deal(&mut counts, &limits, &mut left);
        if left > 0 {
            return Err(format!("{ranks} ranks: the hosts' max-slots allow {}", ranks - left));
        }
    }
    match per_host {
        _ if left == 0 => check_slots(hosts, &counts, oversubscribe).map(|()| counts),
        None => Err(too_few_slots(hosts, ranks)),
        Some(each) => Err(format!(
            "{ranks} ranks with {each} per host need {} hosts, and there are {}: name more with \
             -H or --hostfile",
            ranks.div_ceil(each),
            hosts.len()
        )),
    }
}

/// The most ranks that each host may have, 0 if it is left out. Hosts without ranks are spare ones
/// until all ranks of an elastic job could go to free slots.
fn slots(hosts: &[AvailableHost], counts: &[usize], wanted: &Wanted) -> Vec<usize> {
    let ranks: usize = counts.iter().sum();
    if !wanted.elastic.is_some_and(|elastic| elastic.start_again) {
        return counts.to_vec();
    }
    let all = hosts.iter().zip(counts).map(|(host, &count)| {
        let most = match wanted.per_host {
            Some(each) if host.is_counted && !wanted.oversubscribe => each.min(host.slots),
            Some(each) => each,
            None => host.slots,
        };
        count.max(most.min(host.max_slots.unwrap_or(most)).min(ranks))
    });
    let mut all: Vec<_> = all.collect();
    let used = all.iter().zip(counts).filter(|&(_, &count)| count > 0);
    let mut free: usize = used.map(|(slots, count)| slots - count).sum();
    for (slots, _) in all.iter_mut().zip(counts).filter(|&(_, &count)| count == 0) {
        *slots = if free < ranks || wanted.keeps_hosts { *slots } else { 0 };
        free += *slots;
    }
    all
}

/// Refuses more ranks per host than one of several hosts is for.
fn check_slots(
    hosts: &[AvailableHost],
    counts: &[usize],
    oversubscribe: bool,
) -> Result<(), String> {
    let most = |host: &AvailableHost| match host.is_counted && !oversubscribe {
        true => host.slots,
        false => host.max_slots.unwrap_or(usize::MAX),
    };
    let mut several = hosts.iter().zip(counts).filter(|_| hosts.len() > 1);
    match several.find(|&(host, &count)| count > most(host)) {
        None => Ok(()),
        Some((host, count)) => Err(format!(
            "{count} ranks per host are more than host {} is for ({}); give it more slots, as in \
             -H {}, or say --oversubscribe, which goes up to max-slots",
            host.host.name,
            most(host),
            host.host.with_count(*count)
        )),
    }
}

/// The error of more ranks than slots, with the command line that has enough.
fn too_few_slots(hosts: &[AvailableHost], ranks: usize) -> String {
    const SHOWN: usize = 4;
    let slots: usize = hosts.iter().map(|host| host.slots).sum();
    let each = ranks.div_ceil(hosts.len());
    let list = |shown: &dyn Fn(&AvailableHost) -> String| {
        let all: Vec<_> = hosts.iter().take(SHOWN).map(shown).collect();
        all.join(",") + if hosts.len() > SHOWN { ",..." } else { "" }
    };
    format!(
        "{ranks} ranks are more than the {slots} slots of the hosts ({}); give them more, as in \
         -H {}, or say --oversubscribe",
        list(&|host| host.host.with_count(host.slots)),
        list(&|host| host.host.with_count(host.slots.max(each)))
    )
}

/// Fills one host after the other up to its limit.
fn fill(counts: &mut [usize], limits: &[usize], left: &mut usize) {
    for (count, limit) in counts.iter_mut().zip(limits) {
        let more = limit.saturating_sub(*count).min(*left);
        *count += more;
        *left -= more;
    }
}

/// Gives each host below its limit one rank in turn.
fn deal(counts: &mut [usize], limits: &[usize], left: &mut usize) {
    let mut below: Vec<_> = counts.iter_mut().zip(limits).collect();
    while *left > 0 && !below.is_empty() {
        below.retain_mut(|(count, limit)| {
            let takes_one = *left > 0 && **count < **limit;
            **count += usize::from(takes_one);
            *left -= usize::from(takes_one);
            takes_one
        });
    }
}

/// The number of the host of each rank, of hosts with so many ranks each.
fn host_numbers(counts: &[usize], order: HostOrder) -> Vec<usize> {
    // The host and the local rank of each rank.
    let mut sequence: Vec<(usize, usize)> = counts
        .iter()
        .enumerate()
        .flat_map(|(host, &count)| (0..count).map(move |local| (host, local)))
        .collect();
    if order == HostOrder::Node {
        sequence.sort_by_key(|&(host, local)| (local, host));
    }
    sequence.into_iter().map(|(host, _)| host).collect()
}

/// Numbers ranks in this order, and those of each host too.
pub(super) fn number(
    hosts: &[Host],
    ranks: impl IntoIterator<Item = ProgramOnHost>,
) -> Vec<RankPlacement> {
    let names: Vec<_> = hosts.iter().map(Host::shown_name).collect();
    let mut counts = vec![0; hosts.len()];
    let placement = |(rank, ProgramOnHost { program, host_number }): (usize, ProgramOnHost)| {
        let (host, local_rank) = (names[host_number].clone(), counts[host_number]);
        counts[host_number] += 1;
        RankPlacement { rank, host, host_number, local_rank, local_size: 0, program }
    };
    let mut placements: Vec<_> = ranks.into_iter().enumerate().map(placement).collect();
    placements.iter_mut().for_each(|rank| rank.local_size = counts[rank.host_number]);
    placements
}

#[cfg(test)]
mod tests;
