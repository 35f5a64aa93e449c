//! Several programs on the hosts of a job. Pure.
//!
//! Programs without a list of hosts share one: they are a group, and each program with a list of
//! its own is another. The ranks of each group are placed on its hosts alone; then all ranks are
//! numbered program by program. A host in several lists is one host, with the ranks of all:
//! `-H a:2,b:1 -n 1 p : -H b:2 -n 2 q : -n 2 r` places p on a, q on b and r on a and b, so that b
//! has the ranks 1, 2 and 4.

use ringreduce::config::MAX_SIZE;

use super::AvailableHost;
use super::available::HostTable;
use super::placement::{Placed, ProgramOnHost, Wanted, number, place};

/// Programs that share hosts.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// In the order of their ranks, at least one.
    pub(super) programs: Vec<ProgramRanks>,
    /// At least one; or none in the group without a list, for the slots that the others leave.
    pub(super) hosts: Vec<AvailableHost>,
    /// The placement of the group, without the number of its ranks.
    pub(super) wanted: Wanted,
}

/// The number of ranks of a program, where the command line says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramRanks {
    /// The number of the program among those of the job.
    pub(super) program: usize,
    pub(super) ranks: Option<usize>,
}

/// Places the ranks of several programs. `shared` are those without a list of their own; the first
/// program is one of them, as its list is the job's.
pub(super) fn place_groups(mut shared: Group, others: Vec<Group>) -> Result<Placed, String> {
    let place = |group: Group| group.place().map(|placed| (group, placed));
    let others: Vec<_> = others.into_iter().map(place).collect::<Result<_, _>>()?;
    let mut source = "";
    if shared.hosts.is_empty() {
        source = " (no list is for it: it has the slots that the lists of other programs leave)";
        shared.hosts = slots_left(&others)?;
        shared.check_counted()?;
    }
    let placed = shared.place().map_err(|why| why + source)?;
    combine([(shared, placed)].into_iter().chain(others).collect())
}

impl Group {
    fn place(&self) -> Result<Placed, String> {
        let ranks = match self.programs[..] {
            [ProgramRanks { ranks, .. }] => ranks,
            _ => Some(self.check_counted()?),
        };
        let placed = place(&self.hosts, &Wanted { ranks, ..self.wanted });
        let uncounted = || "how many ranks? Say so with -n N, or by slots, as in -H localhost:N";
        let placed = placed.and_then(|placed| placed.ok_or_else(|| uncounted().into()));
        placed.map_err(|why| {
            let programs: Vec<_> = self.programs.iter().map(|it| it.program).collect();
            of_programs(&programs, &why)
        })
    }

    /// The number of ranks of all programs, each of which has to say its own: the hosts that they
    /// share do not tell it.
    fn check_counted(&self) -> Result<usize, String> {
        let ranks = |&ProgramRanks { program, ranks }: &ProgramRanks| {
            let why = "how many ranks? Each program without hosts of its own has its own -n N";
            ranks.ok_or_else(|| of_programs(&[program], why))
        };
        let mut all = self.programs.iter().map(ranks);
        all.try_fold(0, |all: usize, ranks| Ok(all.saturating_add(ranks?)))
    }
}

/// The hosts of all groups, with the slots that their ranks leave.
fn slots_left(groups: &[(Group, Placed)]) -> Result<Vec<AvailableHost>, String> {
    let mut table = HostTable::default();
    for host in groups.iter().flat_map(|(group, _)| &group.hosts) {
        table.add(host.clone())?;
    }
    for (_, Placed { hosts, placements, .. }) in groups {
        let numbers: Vec<_> = hosts.iter().map(|host| table.number(host)).collect();
        for number in placements.iter().filter_map(|rank| numbers[rank.host_number]) {
            let host = &mut table.hosts[number];
            host.slots = host.slots.saturating_sub(1);
            host.max_slots = host.max_slots.map(|most| most.saturating_sub(1));
        }
    }
    Ok(table.hosts)
}

/// Numbers the ranks of all groups, program by program.
fn combine(groups: Vec<(Group, Placed)>) -> Result<Placed, String> {
    let all: usize = groups.iter().map(|(_, placed)| placed.placements.len()).sum();
    if all > MAX_SIZE {
        return Err(format!("{all} ranks of all programs: at most {MAX_SIZE} ranks are possible"));
    }
    let mut table = HostTable::default();
    let mut all = vec![];
    for (group, Placed { hosts, placements, .. }) in groups {
        let no_slots = |host| AvailableHost { host, slots: 0, is_counted: true, max_slots: None };
        let numbers = hosts.into_iter().map(|host| table.add(no_slots(host)));
        let numbers: Vec<_> = numbers.collect::<Result<_, _>>()?;
        let mut host_numbers = placements.iter().map(|rank| numbers[rank.host_number]);
        for ProgramRanks { program, ranks } in group.programs {
            let of_program = host_numbers.by_ref().take(ranks.unwrap_or(placements.len()));
            all.extend(of_program.map(|host_number| ProgramOnHost { program, host_number }));
        }
    }
    all.sort_by_key(|rank| rank.program);
    let hosts: Vec<_> = table.hosts.into_iter().map(|known| known.host).collect();
    // A slot that one program leaves is none of another one's.
    let count = |host| all.iter().filter(|rank| rank.host_number == host).count();
    let slots = (0..hosts.len()).map(count).collect();
    Ok(Placed { placements: number(&hosts, all), slots, hosts })
}

/// An error of these programs. The first one has the number 1 there.
pub(super) fn of_programs(programs: &[usize], why: &str) -> String {
    let list: Vec<_> = programs.iter().map(|program| (program + 1).to_string()).collect();
    let noun = if programs.len() == 1 { "program" } else { "programs" };
    format!("{noun} {}: {why}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::available::merge;
    use super::super::mapping::HostOrder::Node;
    use super::super::text::mentions_of_list;
    use super::super::{MAX_HOSTS, RankPlacement};
    use super::*;

    fn hosts(list: &str) -> Vec<AvailableHost> {
        if list.is_empty() {
            return vec![];
        }
        merge(mentions_of_list(list, MAX_HOSTS).unwrap(), |name| name.starts_with("here")).unwrap()
    }

    /// Programs with their numbers of ranks, on a list of hosts.
    fn group(list: &str, programs: &[(usize, usize)]) -> Group {
        let ranks = |&(program, ranks)| ProgramRanks { program, ranks: Some(ranks) };
        let programs = programs.iter().map(ranks).collect();
        Group { programs, hosts: hosts(list), wanted: Wanted::default() }
    }

    /// The host, program, local rank and local size of each rank, as "a 0 0/2".
    fn placed(shared: Group, others: &[Group]) -> Vec<String> {
        let Placed { hosts, placements, .. } = place_groups(shared, others.to_vec()).unwrap();
        let shown = |(number, it): (usize, &RankPlacement)| {
            assert_eq!(it.rank, number);
            let host = &hosts[it.host_number].name;
            format!("{host} {} {}/{}", it.program, it.local_rank, it.local_size)
        };
        placements.iter().enumerate().map(shown).collect()
    }

    #[test]
    fn a_host_of_several_lists_is_one_host() {
        let shared = group("a:2,b:1", &[(0, 1), (2, 2)]);
        assert_eq!(
            placed(shared, &[group("b:2", &[(1, 2)])]),
            ["a 0 0/2", "b 1 0/3", "b 1 1/3", "a 2 1/2", "b 2 2/3"]
        );
        // This host has several names.
        let found = placed(group("here", &[(0, 1)]), &[group("c,here2", &[(1, 2)])]);
        assert_eq!(found, ["here 0 0/2", "c 1 0/1", "here 1 1/2"]);
    }

    #[test]
    fn groups_are_placed_by_themselves() {
        let mut shared = group("a:2,b:2", &[(0, 2), (3, 2)]);
        shared.wanted = Wanted { map_by: Node, rank_by: Node, ..shared.wanted };
        let others = [group("b:1,c:4", &[(1, 2)]), group("c:1", &[(2, 1)])];
        assert_eq!(
            placed(shared, &others),
            ["a 0 0/2", "b 0 0/3", "b 1 1/3", "c 1 0/2", "c 2 1/2", "a 3 1/2", "b 3 2/3"]
        );
    }

    #[test]
    fn programs_without_any_list_have_the_slots_that_others_leave() {
        let lists = || [group("a:2,b:2", &[(1, 3)]), group("c:2", &[(2, 1)])];
        assert_eq!(
            placed(group("", &[(0, 2)]), &lists()),
            ["b 0 0/2", "c 0 0/2", "a 1 0/2", "a 1 1/2", "b 1 1/2", "c 2 1/2"]
        );
        let error = place_groups(group("", &[(0, 3)]), lists().to_vec()).unwrap_err();
        assert!(error.starts_with("program 1: 3 ranks are more than the 2 slots"), "{error}");
        let mut crowded = group("", &[(0, 5)]);
        crowded.wanted.oversubscribe = true;
        let mut limited = lists();
        limited.iter_mut().flat_map(|it| &mut it.hosts).for_each(|it| it.max_slots = Some(3));
        let found = place_groups(crowded.clone(), limited.to_vec()).unwrap();
        let most = found.placements.iter().map(|it| it.local_size).max();
        assert_eq!(most, Some(3));
        crowded.programs[0].ranks = Some(6);
        let error = place_groups(crowded, limited.to_vec()).unwrap_err();
        assert!(error.contains("the hosts' max-slots allow 5"), "{error}");
    }
}
