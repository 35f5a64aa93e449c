//! The roles of ranks in a membership: a pure function of the records of all ranks, so all ranks
//! find the same roles.
//! Laws: each part has one server; a rank keeps its role; the workers of a group have one leader.

/// The role of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It keeps this part of the parameters, counted from 0.
    Server(usize),
    /// It computes gradients; its number among all workers, from 0.
    Worker(usize),
}

/// The state that a rank had before a membership began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// The rank is new.
    Nothing,
    /// A part of the parameters.
    Part(u64),
    /// A model that has made so many steps.
    Steps(u64),
    /// The same, and a gradient of the next step that servers may have used.
    Pushed(u64),
}

impl Carried {
    /// The steps of a model.
    const fn steps(self) -> Option<u64> {
        match self {
            Self::Steps(steps) | Self::Pushed(steps) => Some(steps),
            Self::Nothing | Self::Part(_) => None,
        }
    }
}

/// A rank's statement of itself when a membership begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) carried: Carried,
    /// Its rank in the membership before, if it was there.
    pub(crate) previous: Option<usize>,
    /// Workers with the same number add up their gradients among themselves.
    pub(crate) group: Option<u64>,
    /// The number of the job, 0 if the rank joins one.
    pub(crate) job: u64,
}

impl Record {
    pub(crate) const WORDS: usize = 6;

    pub(crate) fn words(self) -> [u64; Self::WORDS] {
        let (kind, value) = match self.carried {
            Carried::Nothing => (0, 0),
            Carried::Part(part) => (1, part),
            Carried::Steps(steps) => (2, steps),
            Carried::Pushed(steps) => (3, steps),
        };
        let previous = self.previous.map_or(u64::MAX, |rank| rank as u64);
        let (has_group, group) = self.group.map_or((0, 0), |group| (1, group));
        [kind, value, previous, has_group, group, self.job]
    }

    /// `None` if the words are no record.
    pub(crate) fn of(words: &[u64]) -> Option<Self> {
        let &[kind, value, previous, has_group, group, job] = words else { return None };
        let carried = match kind {
            0 => Carried::Nothing,
            1 => Carried::Part(value),
            2 => Carried::Steps(value),
            3 => Carried::Pushed(value),
            _ => return None,
        };
        let previous = usize::try_from(previous).ok().filter(|_| previous != u64::MAX);
        Some(Self { carried, previous, group: (has_group == 1).then_some(group), job })
    }
}

/// The roles of a membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// The server's rank for each part.
    pub(crate) servers: Vec<usize>,
    /// The ranks of the workers. A rank that is neither waits for the next membership.
    pub(crate) workers: Vec<usize>,
    /// For each rank the leader of its group, which speaks to the servers; of a server, itself.
    pub(crate) leaders: Vec<usize>,
    /// For each rank the steps that its group has made.
    pub(crate) clocks: Vec<u64>,
    /// For each rank the rank that it had before, if it was there.
    pub(crate) previous: Vec<Option<usize>>,
    /// The number of the job.
    pub(crate) job: u64,
}

impl Roles {
    /// The role of a rank; `None` if it waits for the next membership.
    pub(crate) fn of(&self, rank: usize) -> Option<Role> {
        let place = |ranks: &[usize]| ranks.iter().position(|it| *it == rank);
        let server = place(&self.servers).map(Role::Server);
        server.or_else(|| place(&self.workers).map(Role::Worker))
    }

    /// Whether a rank waits for the next membership.
    pub(crate) const fn has_waiting(&self) -> bool {
        self.servers.len() + self.workers.len() < self.leaders.len()
    }

    /// Whether a rank speaks to the servers for its group.
    pub(crate) fn is_leader(&self, rank: usize) -> bool {
        self.workers.contains(&rank) && self.leaders[rank] == rank
    }

    /// The ranks of a rank's group.
    pub(crate) fn group(&self, rank: usize) -> impl Iterator<Item = usize> {
        let leader = self.leaders[rank];
        self.workers.iter().copied().filter(move |it| self.leaders[*it] == leader)
    }
}

/// The roles for these records, one of each rank: servers keep their parts, new ranks take the
/// parts that have no server in their order, and all others are workers. So the first ranks are
/// servers where a job begins. `Err` is the number of ranks that are missing.
///
/// New ranks wait while all workers have pushed gradients of which nobody knows whether servers
/// have used them: they could not tell which step is theirs. A group whose ranks are all new begins
/// with the steps of the slowest one, as nobody shall wait for it.
pub(crate) fn assign(records: &[Record], parts: usize) -> Result<Roles, usize> {
    let is_new = |rank: &usize| records[*rank].carried == Carried::Nothing;
    let mut new = (0..records.len()).filter(is_new);
    let owner = |part: u64| records.iter().position(|it| it.carried == Carried::Part(part));
    let owners = (0..parts).map(|part| owner(part as u64).or_else(|| new.next()));
    let owners: Vec<Option<usize>> = owners.collect();
    let servers: Vec<usize> = owners.iter().copied().flatten().collect();
    let others = (0..records.len()).filter(|rank| !servers.contains(rank));
    let (olds, news): (Vec<usize>, Vec<usize>) = others.partition(|rank| !is_new(rank));
    let is_pushed = |rank: &usize| matches!(records[*rank].carried, Carried::Pushed(_));
    let waits = !olds.is_empty() && olds.iter().all(is_pushed);
    let mut workers = olds;
    workers.extend(news.into_iter().filter(|_| !waits));
    workers.sort_unstable();
    let missing = parts - servers.len() + usize::from(workers.is_empty());
    if missing > 0 {
        return Err(missing);
    }
    let mut leaders: Vec<usize> = (0..records.len()).collect();
    for &rank in &workers {
        let is_with = |it: &&usize| {
            records[rank].group.is_some() && records[**it].group == records[rank].group
        };
        leaders[rank] = workers.iter().find(is_with).copied().unwrap_or(rank);
    }
    // The most steps of a group's ranks: a rank that has made fewer gets the parameters again.
    let mut clocks = vec![None; records.len()];
    for &rank in &workers {
        let clock = &mut clocks[leaders[rank]];
        *clock = (*clock).max(records[rank].carried.steps());
    }
    let slowest = clocks.iter().copied().flatten().min().unwrap_or_default();
    let clocks = leaders.iter().map(|leader| clocks[*leader].unwrap_or(slowest)).collect();
    let previous = records.iter().map(|it| it.previous).collect();
    let jobs = records.iter().map(|it| it.job);
    let job = jobs.clone().find(|it| *it != 0).unwrap_or_default();
    Ok(Roles { servers, workers, leaders, clocks, previous, job })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(carried: Carried, group: Option<u64>) -> Record {
        Record { carried, previous: None, group, job: 0 }
    }

    #[test]
    fn records_come_back_from_their_words() {
        for carried in [Carried::Nothing, Carried::Part(3), Carried::Steps(9), Carried::Pushed(2)] {
            for (previous, group) in [(None, None), (Some(2), Some(7)), (Some(0), Some(0))] {
                let record = Record { carried, previous, group, job: 5 };
                assert_eq!(Record::of(&record.words()), Some(record));
            }
        }
        assert_eq!(Record::of(&[4, 0, 0, 0, 0, 0]), None);
        assert_eq!(Record::of(&[0; 5]), None);
    }

    #[test]
    fn the_first_ranks_of_a_job_are_its_servers() {
        for (parts, size) in [(1, 2), (1, 5), (2, 3), (3, 5)] {
            let roles = assign(&vec![record(Carried::Nothing, None); size], parts).unwrap();
            assert_eq!(roles.servers, (0..parts).collect::<Vec<_>>());
            assert_eq!(roles.workers, (parts..size).collect::<Vec<_>>());
            assert_eq!(roles.of(parts - 1), Some(Role::Server(parts - 1)));
            assert_eq!(roles.of(size - 1), Some(Role::Worker(size - 1 - parts)));
            assert_eq!(roles.of(size), None);
        }
        assert_eq!(assign(&[record(Carried::Nothing, None); 2], 2), Err(1));
    }

    /// All worlds of up to five ranks, each new, a server of one of two parts, or a worker.
    #[test]
    fn roles_stay_and_new_ranks_fill_the_parts() {
        let servers = [Carried::Nothing, Carried::Part(0), Carried::Part(1)];
        let workers =
            [Carried::Steps(4), Carried::Steps(6), Carried::Pushed(4), Carried::Pushed(5)];
        let kinds = [&servers[..], &workers].concat();
        for size in 1..=5_u32 {
            for world in 0..kinds.len().pow(size) {
                let kind = |rank: u32| kinds[world / kinds.len().pow(rank) % kinds.len()];
                let records: Vec<Record> = (0..size).map(|it| record(kind(it), None)).collect();
                let count = |carried| records.iter().filter(|it| it.carried == carried).count();
                if count(kinds[1]) > 1 || count(kinds[2]) > 1 {
                    continue;
                }
                check(&records);
            }
        }
    }

    fn check(records: &[Record]) {
        let new = records.iter().filter(|it| it.carried == Carried::Nothing).count();
        let servers = records.iter().filter(|it| matches!(it.carried, Carried::Part(_))).count();
        let needed = 2 - servers + usize::from(new + servers == records.len());
        let roles = match assign(records, 2) {
            Ok(roles) => roles,
            Err(missing) => {
                assert_eq!(missing, needed.saturating_sub(new), "{records:?}");
                assert!(missing > 0);
                return;
            }
        };
        assert!(new >= needed, "{records:?}");
        let mut all_have_pushed = servers + new < records.len();
        for (rank, it) in records.iter().enumerate() {
            match it.carried {
                Carried::Part(part) => assert_eq!(roles.servers[part as usize], rank),
                Carried::Steps(steps) | Carried::Pushed(steps) => {
                    assert!(roles.workers.contains(&rank));
                    assert_eq!(roles.clocks[rank], steps);
                    all_have_pushed &= it.carried == Carried::Pushed(steps);
                }
                Carried::Nothing => {}
            }
        }
        let slowest = records.iter().filter_map(|it| it.carried.steps()).min().unwrap_or_default();
        let new_workers =
            roles.workers.iter().filter(|it| records[**it].carried == Carried::Nothing);
        new_workers.for_each(|rank| assert_eq!(roles.clocks[*rank], slowest));
        // The new ranks that take no part work, or all of them wait.
        let waiting = if all_have_pushed { new - (2 - servers) } else { 0 };
        assert_eq!(roles.servers.len() + roles.workers.len() + waiting, records.len());
        assert_eq!(roles.has_waiting(), waiting > 0);
        let roleless = (0..records.len()).filter(|rank| roles.of(*rank).is_none());
        assert_eq!(roleless.count(), waiting);
    }

    #[test]
    fn a_group_has_one_leader_and_the_steps_of_its_first() {
        let (old, new) = (Carried::Steps, Carried::Nothing);
        let mut records = vec![record(Carried::Part(0), Some(7))];
        records.extend([
            record(old(5), Some(7)),
            record(old(6), Some(8)),
            record(old(4), Some(7)),
            record(new, Some(8)),
            record(new, Some(9)),
            record(new, Some(9)),
        ]);
        let roles = assign(&records, 1).unwrap();
        // The server is in no group, though it is on the same host.
        assert_eq!(roles.leaders, [0, 1, 2, 1, 2, 5, 5]);
        assert_eq!(roles.clocks[1..], [5, 6, 5, 6, 5, 5]);
        assert_eq!(roles.group(3).collect::<Vec<_>>(), [1, 3]);
        assert!(roles.is_leader(5) && !roles.is_leader(6) && !roles.is_leader(0));
    }
}
