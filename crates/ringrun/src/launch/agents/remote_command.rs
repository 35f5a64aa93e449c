//! The command that starts an agent on another host, for each launcher, and what helps where it
//! does not.

use std::env;
use std::path::Path;
use std::process::Command;

use super::client::FLAG;
use crate::cli::hosts::{Launcher, is_kubectl};

/// Options for ssh: it asks nobody, and gives up a host that does not answer.
const SSH_OPTIONS: [&str; 8] =
    ["-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"];
/// Options for srun: a step of one task beside all other steps, with all that the allocation has on
/// the node. Without --unbuffered, bytes wait for the end of a line. No message but errors.
const SRUN_OPTIONS: [&str; 14] = [
    "--quiet",
    "--job-name=ringrun",
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--export=ALL",
    "--unbuffered",
    "--input=all",
    "--output=all",
    "--error=all",
    "--kill-on-bad-exit=0",
];
/// Slurm's variables that srun needs to find the job. Others are options of the job's own steps:
/// with SLURM_NTASKS_PER_NODE=4, SLURM_GPUS=8 or SLURM_LABELIO=1 the step would not be as above.
const SRUN_VARIABLES: [&str; 9] = [
    "SLURM_CONF",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JWT",
    "SLURM_CLUSTERS",
    "SLURM_CLUSTER_NAME",
    "SLURM_WORKING_CLUSTER",
    "SLURM_DEBUG",
    "SLURM_UMASK",
];
/// Variables of the agent's step, of which ranks are no tasks: programs would take themselves for a
/// world of one task. The launcher passes on those of the job.
const STEP_VARIABLES: [&str; 16] = [
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT",
];
/// A note that srun makes for --cpu-bind=none, whatever --quiet says, where Slurm binds no task.
const SRUN_NOTE: &str = "srun: cluster configuration lacks support for cpu binding";
/// The exit status of ssh itself.
const SSH_FAILED: i32 = 255;
/// The exit statuses of a shell that can't run a program, or can't find it.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A command that starts an agent, and the name of its program in messages.
pub(super) struct RemoteCommand {
    pub(super) command: Command,
    pub(super) name: String,
}

/// The command that starts an agent, by the path of ringrun there, on a host; none if the user
/// starts it.
pub(super) fn remote_command(
    launcher: &Launcher,
    host: &str,
    ringrun: &str,
) -> Option<RemoteCommand> {
    let command = match launcher {
        Launcher::Ssh => shell("ssh", &[], host, ringrun),
        Launcher::Command(words) => match words.split_first() {
            Some((program, arguments)) => shell(program, arguments, host, ringrun),
            None => shell("ssh", &[], host, ringrun),
        },
        Launcher::Slurm => srun(host, ringrun),
        Launcher::Manual => return None,
    };
    let name = file_name(&command);
    Some(RemoteCommand { command, name })
}

/// A remote shell, which gives its last word to a shell of the host. Kubectl takes the words of a
/// command instead, for which a pod needs no shell.
fn shell(program: &str, arguments: &[String], host: &str, ringrun: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    if is_kubectl(program) {
        command.args(["--stdin", "--quiet", host, "--", ringrun, FLAG]);
        return command;
    }
    if file_name(&command) == "ssh" {
        command.args(SSH_OPTIONS).arg("--");
    }
    command.arg(host).arg(format!("exec '{}' {FLAG}", ringrun.replace('\'', "'\\''")));
    command
}

fn srun(host: &str, ringrun: &str) -> Command {
    let mut command = Command::new("srun");
    command.args(SRUN_OPTIONS).arg(format!("--nodelist={host}")).arg("env");
    command.args(STEP_VARIABLES.iter().flat_map(|name| ["-u", name]));
    command.args([ringrun, FLAG]);
    let of_slurm = env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        let is_option = ["SLURM_", "SRUN_"].iter().any(|prefix| name.starts_with(prefix));
        is_option && !SRUN_VARIABLES.contains(&&*name)
    });
    of_slurm.fold(&mut command, Command::env_remove);
    command
}

fn file_name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The remedy if `program`, which has ended with this exit status, has started no agent.
pub(super) fn remedy(
    launcher: &Launcher,
    (program, status): (&str, Option<i32>),
    host: &str,
    ringrun: &str,
) -> String {
    match (launcher, status) {
        (_, Some(NOT_FOUND | NOT_EXECUTABLE)) => {
            format!("{ringrun} must be there as it is here")
        }
        (Launcher::Ssh, Some(SSH_FAILED)) => works_here("ssh", host),
        (Launcher::Command(words), Some(SSH_FAILED)) if program == "ssh" => {
            works_here(&words.join(" "), host)
        }
        (Launcher::Slurm, _) => format!(
            "`srun --overlap --nodes=1 --ntasks=1 --nodelist={host} true` must work here, in the \
             job's allocation, or say --launcher ssh"
        ),
        (Launcher::Command(words), _) if is_kubectl(program) => {
            let shell = words.join(" ");
            format!("`{shell} {host} -- true` must work here, and {ringrun} be in that pod")
        }
        _ => format!("the remote shell must run {ringrun} there"),
    }
}

/// The remedy if ssh, with the user's words, can't reach a host.
fn works_here(ssh: &str, host: &str) -> String {
    format!("`{ssh} {host} true` must work here without a question")
}

/// The remedy if there is no `program` here.
pub(super) fn remedy_without(launcher: &Launcher, program: &str) -> String {
    match launcher {
        Launcher::Slurm => "srun must be in the PATH, or say --launcher ssh".into(),
        _ => format!("install {program}, or name another command by --rsh"),
    }
}

/// The messages of a launcher's program without those that ask nothing of the user.
pub(super) fn without_notes(errors: &str) -> String {
    errors.trim().lines().filter(|line| *line != SRUN_NOTE).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(launcher: &Launcher, host: &str, ringrun: &str) -> String {
        let RemoteCommand { command, name } = remote_command(launcher, host, ringrun).unwrap();
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
        [name].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_launcher_has_its_command() {
        let options = "-o BatchMode=yes -o ConnectTimeout=10 -o ControlMaster=no";
        let ssh = &*format!("ssh -x -T {options} -- u@a exec '/r' --agent");
        let own = |words: &[&str]| Launcher::Command(words.iter().map(|it| (*it).into()).collect());
        assert_eq!(line(&Launcher::Ssh, "u@a", "/r"), ssh);
        assert_eq!(
            line(&own(&["/usr/bin/ssh", "-p", "22"]), "u@a", "/r"),
            ssh.replace("ssh ", "ssh -p 22 ")
        );
        assert_eq!(line(&own(&["x", "-y"]), "a", "/it's"), "x -y a exec '/it'\\''s' --agent");
        assert_eq!(
            line(&own(&["/opt/kubectl", "exec", "-n", "ml"]), "worker-0", "/r"),
            "kubectl exec -n ml --stdin --quiet worker-0 -- /r --agent"
        );
        let srun = line(&Launcher::Slurm, "n1", "/r");
        assert!(srun.starts_with("srun --quiet --job-name=ringrun --nodes=1 --ntasks=1"), "{srun}");
        assert!(srun.contains(" --nodelist=n1 env -u SLURM_PROCID "), "{srun}");
        assert!(srun.ends_with(" -u SLURM_SRUN_COMM_PORT /r --agent"), "{srun}");
    }

    #[test]
    fn notes_that_ask_nothing_are_left_out() {
        assert_eq!(without_notes(&format!("{SRUN_NOTE}\n")), "");
        assert_eq!(without_notes(&format!("a\n{SRUN_NOTE}\nb\n")), "a\nb");
    }

    #[test]
    fn each_failure_has_a_remedy() {
        let own = Launcher::Command(vec!["x".into()]);
        let other_port = Launcher::Command(["/usr/bin/ssh", "-p", "2222"].map(String::from).into());
        let kubectl = Launcher::Command(["kubectl", "exec", "-n", "ml"].map(String::from).into());
        for (launcher, program, status, expected) in [
            (&Launcher::Ssh, "ssh", Some(255), "`ssh n1 true` must work here"),
            (&Launcher::Ssh, "ssh", Some(127), "/r must be there as it is here"),
            (&Launcher::Ssh, "ssh", None, "the remote shell must run /r there"),
            (&other_port, "ssh", Some(255), "`/usr/bin/ssh -p 2222 n1 true` must work here"),
            (&own, "x", Some(255), "the remote shell must run /r there"),
            (&Launcher::Slurm, "srun", Some(1), "--nodelist=n1 true` must work here, in the"),
            (&Launcher::Slurm, "srun", Some(126), "/r must be there as it is here"),
            (&kubectl, "kubectl", Some(1), "`kubectl exec -n ml n1 -- true` must work"),
        ] {
            let remedy = remedy(launcher, (program, status), "n1", "/r");
            assert!(remedy.contains(expected), "{launcher:?} {status:?}: {remedy}");
        }
        assert!(remedy_without(&Launcher::Slurm, "srun").contains("--launcher ssh"));
        assert!(remedy_without(&kubectl, "kubectl").starts_with("install kubectl"));
    }
}
