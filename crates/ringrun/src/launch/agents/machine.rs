//! The machine of an agent, by which the launcher knows a host that has two names: two agents on it
//! would each number the host's local ranks from 0.

use std::fs;

use serde::{Deserialize, Serialize};

use super::Agents;
use crate::cli::Request;
use crate::cli::hosts::{Launcher, here};

/// What all processes of one host agree in. Containers of one machine differ in the name of the
/// host or in their processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    boot: String,
    name: String,
    /// The namespace of the processes' numbers.
    processes: String,
}

impl Machine {
    /// The machine of this process; none if /proc does not tell.
    pub(super) fn of_this_process() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let processes = fs::read_link("/proc/self/ns/pid").ok()?;
        let processes = processes.to_string_lossy().into_owned();
        Some(Self { boot: boot.trim().to_owned(), name: here(), processes })
    }
}

impl Agents {
    /// Takes in the machine of an agent that is ready.
    pub(super) fn set_machine(&mut self, host_number: usize, machine: Option<Machine>) {
        if let Some(agent) = self.of_host(host_number) {
            agent.machine = machine;
        }
    }

    /// Warns of hosts that are one machine. Slurm's nodes may be by its configuration, and the user
    /// has started each one of --nnodes.
    pub(super) fn warn_of_equal_machines(&self, request: &Request) {
        if request.launcher == Launcher::Slurm || request.nodes.is_some() {
            return;
        }
        let mut machines: Vec<_> = request.hosts.iter().map(|host| (&*host.name, None)).collect();
        if let Some(own) = request.hosts.iter().position(|host| host.is_here) {
            machines[own].1 = Machine::of_this_process();
        }
        for agent in &self.agents {
            machines[agent.host_number].1.clone_from(&agent.machine);
        }
        if let Some([first, second]) = equal_machines(&machines) {
            request.warn(&format!(
                "hosts {first} and {second} are one machine, on which the ranks of each are \
                 numbered by themselves (local ranks): name it once, with the slots of both"
            ));
        }
    }
}

/// The first two names of one machine.
fn equal_machines<'a>(machines: &[(&'a str, Option<Machine>)]) -> Option<[&'a str; 2]> {
    let mut pairs = machines.iter().enumerate().filter_map(|(at, (name, machine))| {
        let machine = machine.as_ref()?;
        let (first, _) = machines[..at].iter().find(|(_, it)| it.as_ref() == Some(machine))?;
        Some([*first, *name])
    });
    pairs.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_machine_are_found_and_containers_are_machines() {
        let machine = |boot: &str, name: &str, processes: &str| {
            let [boot, name, processes] = [boot, name, processes].map(str::to_owned);
            Some(Machine { boot, name, processes })
        };
        let others = [
            ("a", machine("1", "a", "pid:[1]")),
            ("b", machine("2", "a", "pid:[1]")),
            ("c", machine("1", "c", "pid:[1]")),
            ("d", machine("1", "a", "pid:[2]")),
            ("e", None),
            ("f", None),
        ];
        assert_eq!(equal_machines(&others), None);
        let again = [&others[..], &[("a.site", machine("1", "a", "pid:[1]"))]].concat();
        assert_eq!(equal_machines(&again), Some(["a", "a.site"]));
        assert_eq!(Machine::of_this_process().unwrap(), Machine::of_this_process().unwrap());
    }
}
