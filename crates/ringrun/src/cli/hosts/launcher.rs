//! How ranks of other hosts are started: by ssh, by the launcher of a batch system, by a command of
//! the user, or by the user.

use std::env;
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Host;

/// The variable with the number of Slurm's job.
const SLURM_JOB: &str = "SLURM_JOB_ID";

/// The values of `--launcher`; Hydra has the name, and `fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LauncherName {
    Ssh,
    #[value(alias = "srun")]
    Slurm,
    Kubectl,
    Manual,
    /// There is no other host.
    #[value(hide = true)]
    Fork,
}

impl LauncherName {
    /// Refuses hosts that are not reached so; `are_nodes` is true for those of `--nnodes`.
    pub(super) fn check<'a>(
        self,
        hosts: impl IntoIterator<Item = &'a Host>,
        are_nodes: bool,
    ) -> Result<(), String> {
        match (self, hosts.into_iter().find(|host| !host.is_here)) {
            (Self::Fork, Some(Host { name, .. })) => Err(format!(
                "--launcher fork starts ranks on this host alone, and {name} is another"
            )),
            (Self::Manual, _) if are_nodes => Err("--launcher manual is for hosts that -H or \
                 --hostfile names; those of --nnodes join without it"
                .into()),
            _ => Ok(()),
        }
    }
}

/// The program that starts the agent of another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Launcher {
    #[default]
    Ssh,
    /// A step of Slurm, by srun.
    Slurm,
    /// The user, who runs the command that ringrun prints.
    Manual,
    /// A remote shell and its first arguments, before the host and the command for that host.
    /// `kubectl exec` is one, whose hosts are pods of Kubernetes.
    Command(Vec<String>),
}

/// True if the program of a remote shell takes the arguments of kubectl, not those of ssh.
pub(crate) fn is_kubectl(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "kubectl")
}

impl Launcher {
    /// The launcher by the values of `--launcher` and `--rsh`, or else by whether the hosts are
    /// those of Slurm's allocation.
    pub(super) fn choose(
        given: (Option<LauncherName>, Option<Vec<String>>),
        are_slurms: bool,
    ) -> Result<Self, String> {
        Self::choose_by(given, are_slurms, (env::var_os(SLURM_JOB).is_some(), is_in_path))
    }

    /// The launcher of a subcommand that starts jobs by itself, whose words nobody sees.
    pub(super) fn of_subcommand(self) -> Result<Self, String> {
        match self {
            Self::Manual => Err("--launcher manual is for a job alone: leave it out here".into()),
            launcher => Ok(launcher),
        }
    }

    fn choose_by(
        given: (Option<LauncherName>, Option<Vec<String>>),
        are_slurms: bool,
        (has_job, is_in_path): (bool, impl Fn(&str) -> bool),
    ) -> Result<Self, String> {
        match given {
            (Some(LauncherName::Ssh | LauncherName::Fork) | None, Some(words)) => {
                Ok(Self::Command(words))
            }
            (Some(LauncherName::Kubectl), Some(words))
                if words.first().is_some_and(|program| is_kubectl(program)) =>
            {
                Ok(Self::Command(words))
            }
            (Some(name), Some(_)) => {
                let name = name.to_possible_value();
                let name = name.as_ref().map_or("", |value| value.get_name());
                Err(format!(
                    "--launcher {name} and --rsh contradict each other: --rsh is a command in \
                     place of ssh or of kubectl exec, so leave one of them out"
                ))
            }
            (Some(LauncherName::Slurm), None) if !has_job => Err(format!(
                "--launcher slurm: {SLURM_JOB} is not set, so there is no allocation to start \
                 ranks in; start ringrun in a job of sbatch or salloc"
            )),
            (Some(LauncherName::Slurm), None) => Ok(Self::Slurm),
            (Some(LauncherName::Kubectl), None) => {
                Ok(Self::Command(vec!["kubectl".into(), "exec".into()]))
            }
            (Some(LauncherName::Manual), None) => Ok(Self::Manual),
            (Some(LauncherName::Ssh | LauncherName::Fork), None) => Ok(Self::Ssh),
            (None, None) if are_slurms && has_job && is_in_path("srun") => Ok(Self::Slurm),
            (None, None) => Ok(Self::Ssh),
        }
    }
}

/// True if the PATH has a file of this name.
fn is_in_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| Path::new(&folder).join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn command(line: &str) -> Launcher {
        Launcher::Command(words(line))
    }

    #[test]
    fn nodes_of_an_allocation_are_reached_by_srun_and_others_by_ssh() {
        let choose = |name, are_slurms, has_job, has_srun| {
            Launcher::choose_by((name, None), are_slurms, (has_job, |_: &str| has_srun))
        };
        let slurm = Some(LauncherName::Slurm);
        for (name, are_slurms, has_job, has_srun, expected) in [
            (None, true, true, true, Launcher::Slurm),
            (None, true, true, false, Launcher::Ssh),
            (None, true, false, true, Launcher::Ssh),
            (None, false, true, true, Launcher::Ssh),
            (Some(LauncherName::Ssh), true, true, true, Launcher::Ssh),
            (Some(LauncherName::Fork), true, true, true, Launcher::Ssh),
            (slurm, false, true, false, Launcher::Slurm),
            (Some(LauncherName::Kubectl), true, true, true, command("kubectl exec")),
            (Some(LauncherName::Manual), true, true, true, Launcher::Manual),
        ] {
            let chosen = choose(name, are_slurms, has_job, has_srun);
            assert_eq!(chosen, Ok(expected), "{name:?} {are_slurms} {has_job} {has_srun}");
        }
        let error = choose(slurm, false, false, true).unwrap_err();
        assert!(error.contains("SLURM_JOB_ID is not set"), "{error}");
    }

    #[test]
    fn a_command_is_in_place_of_ssh_or_of_kubectl() {
        let choose = |name, line| {
            Launcher::choose_by((name, Some(words(line))), true, (true, |_: &str| true))
        };
        let pods = "/opt/kubectl exec -n ml -c train";
        for (name, line) in [
            (None, "ssh -4"),
            (Some(LauncherName::Ssh), "ssh -4"),
            (None, pods),
            (Some(LauncherName::Kubectl), pods),
        ] {
            assert_eq!(choose(name, line), Ok(command(line)), "{name:?}");
        }
        for name in [LauncherName::Slurm, LauncherName::Kubectl] {
            let error = choose(Some(name), "ssh -4").unwrap_err();
            assert!(error.contains("and --rsh contradict each other"), "{error}");
        }
    }
}
