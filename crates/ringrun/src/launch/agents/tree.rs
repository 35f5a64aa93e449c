//! Which host starts the agent of which other one. Each start costs the starting host a client of
//! ssh or srun, so with many hosts those that have begun start the others.

use std::path::Path;

use super::Agents;
use super::client::Pipes;
use super::joining::is_joined;
use super::message::{StreamNumbers, ToAgent};
use super::rank_streams::shell_streams;
use super::remote::Command;
use crate::cli::Request;
use crate::cli::hosts::Launcher;
use crate::failure::Failure;

/// From so many other hosts on, 32 with the launcher's own, it does not start all agents by itself.
const MIN_HOSTS_OF_TREE: usize = 31;
/// The number of agents that one host starts then: three levels have 584 hosts.
const DEFAULT_FANOUT: usize = 8;

/// For each of `count` hosts, the index of the earlier one that starts its agent, none for those
/// that the launcher starts; and the number of hosts that start each other up to there.
pub(super) fn parents(request: &Request, count: usize) -> Vec<(Option<usize>, u32)> {
    let is_possible = can_start_others(&request.launcher) && !is_joined(request);
    if !is_possible && request.fanout.is_some_and(|fanout| fanout > 0) {
        request.warn("--fanout changes nothing: it is for hosts that ssh or srun reaches");
    }
    let parents = of_fanout(count, if is_possible { request.fanout } else { Some(0) });
    let levels = levels(&parents);
    parents.into_iter().zip(levels).collect()
}

fn of_fanout(count: usize, fanout: Option<usize>) -> Vec<Option<usize>> {
    let fanout = match fanout {
        None if count >= MIN_HOSTS_OF_TREE => DEFAULT_FANOUT,
        None | Some(0) => count,
        Some(fanout) => fanout,
    };
    (0..count).map(|index| Some(index.checked_sub(fanout)? / fanout)).collect()
}

impl Agents {
    /// Lets the agent with this index start that of a further host.
    pub(super) fn start_by_agent(
        &mut self,
        request: &Request,
        host: &str,
        parent: usize,
    ) -> Result<Pipes, Failure> {
        let failed = Failure::system(format!("reach host {host}"));
        let numbers = StreamNumbers(self.next_stream);
        self.next_stream += StreamNumbers::COUNT;
        let (pipes, theirs) = shell_streams(numbers).map_err(failed)?;
        let commands = &self.agents[parent].commands;
        for (number, end) in theirs {
            commands.send(Command::Add(number, end));
        }
        let (host, launcher) = (host.into(), request.launcher.clone());
        let streams = numbers.0;
        commands.send(Command::Send(ToAgent::StartAgent { host, launcher, streams }));
        Ok(pipes)
    }
}

fn levels(parents: &[Option<usize>]) -> Vec<u32> {
    let mut levels: Vec<u32> = vec![];
    for parent in parents {
        levels.push(parent.map_or(1, |parent| levels[parent] + 1));
    }
    levels
}

/// True if this launcher may start agents from another host too. The API of Kubernetes refuses
/// pods, and a command of the user may mean this host alone.
fn can_start_others(launcher: &Launcher) -> bool {
    match launcher {
        Launcher::Ssh | Launcher::Slurm => true,
        Launcher::Command(words) => {
            words.first().is_none_or(|program| Path::new(program).ends_with("ssh"))
        }
        Launcher::Manual => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hosts_are_all_started_by_the_launcher() {
        for fanout in [None, Some(0), Some(30)] {
            assert!(of_fanout(30, fanout).iter().all(Option::is_none), "{fanout:?}");
        }
        assert!(of_fanout(0, Some(1)).is_empty());
    }

    #[test]
    fn each_host_is_started_by_an_earlier_one_and_none_starts_too_many() {
        for (count, fanout, levels) in [
            (31, None, 2),
            (32, None, 2),
            (584, None, 3),
            (5, Some(1), 5),
            (6, Some(2), 2),
            (1000, Some(4), 5),
        ] {
            let parents = of_fanout(count, fanout);
            let most = fanout.unwrap_or(DEFAULT_FANOUT);
            let started_by = |parent| parents.iter().filter(|it| **it == parent).count();
            assert_eq!(started_by(None), most);
            for (host, parent) in parents.iter().enumerate() {
                assert!(parent.is_none_or(|parent| parent < host), "{host}: {parent:?}");
                assert!(started_by(Some(host)) <= most);
            }
            assert_eq!(super::levels(&parents).last(), Some(&levels), "{count} {fanout:?}");
        }
    }

    #[test]
    fn only_what_works_from_any_host_is_used_there() {
        let command =
            |words: &[&str]| Launcher::Command(words.iter().map(|it| (*it).into()).collect());
        for launcher in [Launcher::Ssh, Launcher::Slurm, command(&["/usr/bin/ssh", "-p", "22"])] {
            assert!(can_start_others(&launcher), "{launcher:?}");
        }
        for launcher in [Launcher::Manual, command(&["my-ssh"]), command(&["kubectl", "exec"])] {
            assert!(!can_start_others(&launcher), "{launcher:?}");
        }
    }
}
