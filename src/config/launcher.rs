//! Environment variables of other launchers: torchrun, Open MPI, MPICH and Intel MPI, Slurm.
//! Law: rank, size and store address come from one launcher; two launchers that disagree are an
//! error unless the user names one.

use std::fs;

use super::{Assignment, ProcessEnvironment, StoreAddr, Vars, malformed, number, slurm, variables};
use crate::codec::printable;
use crate::error::{Error, Result};

/// The likely reason why a launcher's descriptor is not open, and the way out.
pub(crate) const INHERITED_FROM_A_RANK: &str = "ringrun gave it to a rank, and this process seems \
    to be a program which that rank has started, and which inherited the rank's variables; give it \
    RINGREDUCE_LAUNCHER=none, or start it with ringrun. If it is the rank itself, behind a wrapper \
    that closes descriptors as Python's subprocess does, let the wrapper exec it, or pass them on \
    (close_fds=False)";

/// A launcher and the variables that it sets.
pub(super) struct Launcher {
    name: &'static str,
    title: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static str,
    local_size: &'static str,
    /// Variables that distinguish jobs on one host.
    job: &'static [&'static str],
}

const TORCHRUN: Launcher = Launcher {
    name: "torchrun",
    title: "torchrun",
    rank: "RANK",
    size: &["WORLD_SIZE"],
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
    job: &["TORCHELASTIC_RUN_ID"],
};
const OPEN_MPI: Launcher = Launcher {
    name: "openmpi",
    title: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    size: &["OMPI_COMM_WORLD_SIZE"],
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    job: &["PMIX_NAMESPACE"],
};
const MPICH: Launcher = Launcher {
    name: "mpich",
    title: "MPICH or Intel MPI",
    rank: "PMI_RANK",
    size: &["PMI_SIZE"],
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
    job: &[],
};
const SLURM: Launcher = Launcher {
    name: "slurm",
    title: "Slurm",
    rank: "SLURM_PROCID",
    size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    local_rank: "SLURM_LOCALID",
    local_size: "SLURM_STEP_TASKS_PER_NODE",
    job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID"],
};
/// The number of this node among those of Slurm's step.
const NODE: &str = "SLURM_NODEID";
/// Launchers, in the order in which they are tried.
static LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// Values of `RINGREDUCE_LAUNCHER`.
pub(super) enum LauncherChoice {
    SingleRank,
    Ringrun,
    Named(&'static Launcher),
}

/// The launcher that the user names by `RINGREDUCE_LAUNCHER`.
pub(super) fn launcher_choice(vars: Vars<'_>) -> Result<Option<LauncherChoice>> {
    let Some(text) = vars.text(variables::LAUNCHER)? else { return Ok(None) };
    Ok(Some(match text {
        "none" => LauncherChoice::SingleRank,
        "ringrun" => LauncherChoice::Ringrun,
        _ => LauncherChoice::Named(LAUNCHERS.iter().find(|l| l.name == text).ok_or_else(|| {
            let expected = "it must be torchrun, openmpi, mpich, slurm, ringrun or none";
            malformed(variables::LAUNCHER, text, expected.into())
        })?),
    }))
}

/// The assignment by the launcher that the user has named.
pub(super) fn assignment_by(
    launcher: &Launcher,
    vars: Vars<'_>,
    env: &ProcessEnvironment,
) -> Result<Assignment> {
    launcher.assignment(vars, env)?.ok_or_else(|| {
        let Launcher { title, rank, size, .. } = launcher;
        let step = if launcher.name == SLURM.name { " and SLURM_STEP_ID" } else { "" };
        let expected = format!("{title} has not set {rank} and {}{step}", size.join(" or "));
        malformed(variables::LAUNCHER, launcher.name, expected)
    })
}

/// The first complete assignment. A launcher that also gives a store address comes before others.
pub(super) fn first_assignment(
    vars: Vars<'_>,
    env: &ProcessEnvironment,
) -> Result<Option<Assignment>> {
    let mut assignments: Vec<Assignment> = Vec::new();
    for launcher in &LAUNCHERS {
        let Some(assignment) = launcher.assignment(vars, env)? else { continue };
        if let Some(first) = assignments.first()
            && (first.rank, first.size) != (assignment.rank, assignment.size)
        {
            let (first, second) = (first.source.clone(), assignment.source);
            return Err(Error::Launchers { first, second });
        }
        assignments.push(assignment);
    }
    // Slurm's PMI may speak another protocol, and Slurm gives an address besides.
    let is_address = |store: &Option<StoreAddr>| !matches!(store, None | Some(StoreAddr::Pmi(_)));
    let with = |has: &dyn Fn(&Option<StoreAddr>) -> bool| {
        assignments.iter().position(|assignment| has(&assignment.store))
    };
    let best = with(&is_address).or_else(|| with(&Option::is_some)).unwrap_or(0);
    Ok(assignments.into_iter().nth(best))
}

/// A warning for a process that was started alone inside an allocation of several tasks.
pub(super) fn unused_allocation_warning(vars: Vars<'_>) -> Option<String> {
    let tasks = printable(vars.raw("SLURM_NTASKS").filter(|&tasks| tasks != "1")?);
    Some(format!(
        "inside a Slurm allocation of {tasks} tasks (SLURM_NTASKS) this process is a world of 1 \
         rank; start the ranks with srun or ringrun"
    ))
}

impl Launcher {
    /// The assignment by this launcher; `None` unless its variables of rank and size are set and,
    /// for Slurm, the process is a task of a job step.
    fn assignment(&self, vars: Vars<'_>, env: &ProcessEnvironment) -> Result<Option<Assignment>> {
        let size_name = self.size.iter().find(|name| vars.has(name));
        let (true, Some(size_name)) = (vars.has(self.rank), size_name) else { return Ok(None) };
        if self.name == SLURM.name && !is_slurm_step(vars) {
            return Ok(None);
        }
        let (Some(rank), Some(size)) = (vars.number(self.rank)?, vars.number(size_name)?) else {
            return Ok(None);
        };
        let (local_size_name, local_size) = match self.name == SLURM.name {
            true => tasks_on_this_node(vars)?,
            false => (self.local_size, vars.number(self.local_size)?),
        };
        let local_rank = vars.number(self.local_rank)?;
        let source = format!("{}: {}={rank}, {size_name}={size}", self.title, self.rank);
        let node = local_size.and(if self.name == SLURM.name { vars.number(NODE)? } else { None });
        let locals = [(self.local_rank, local_rank), (local_size_name, local_size), (NODE, node)];
        let source = with_locals(source, &locals);
        let ids: Vec<_> = self.job.iter().filter_map(|name| vars.raw(name)).collect();
        let job = (!ids.is_empty()).then(|| ids.join(" "));
        let mut assignment =
            Assignment { rank, size, local_rank, local_size, job, store: None, source };
        assignment.store = self.store(vars, env, &assignment)?;
        Ok(Some(assignment))
    }

    /// An abstract socket if all ranks are on this host, because the kernel vouches for the peer's
    /// user there; else the address that the launcher gives.
    fn store(
        &self,
        vars: Vars<'_>,
        env: &ProcessEnvironment,
        assignment: &Assignment,
    ) -> Result<Option<StoreAddr>> {
        let given = match self.name {
            name if name == TORCHRUN.name => torchrun_address(vars)?,
            name if name == SLURM.name => slurm_first_host(vars)?,
            name if name == MPICH.name => pmi_socket(vars)?,
            _ => None,
        };
        if assignment.local_size != Some(assignment.size) {
            return Ok(given);
        }
        // Jobs on one host differ in their ids, in the port of torchrun's store, or in their
        // launcher process.
        let port = vars.raw("MASTER_PORT").filter(|_| self.name == TORCHRUN.name);
        let ids: Vec<_> = assignment.job.as_deref().into_iter().chain(port).collect();
        let job = match ids.as_slice() {
            [] => format!("{} {}", self.name, (env.ancestor_without)(self.rank)),
            ids => format!("{} {}", self.name, ids.join(" ")),
        };
        let name = format!("ringreduce-{}-{:016x}", env.uid, fnv1a(job.as_bytes()));
        Ok(Some(StoreAddr::Unix(name)))
    }
}

/// torchrun's address. If its agent has a store of its own on that port, rank 0 listens on the next
/// one.
fn torchrun_address(vars: Vars<'_>) -> Result<Option<StoreAddr>> {
    let (Some(host), Some(port)) = (vars.text("MASTER_ADDR")?, vars.text("MASTER_PORT")?) else {
        return Ok(None);
    };
    let taken = vars.raw("TORCHELASTIC_USE_AGENT_STORE") == Some("True");
    let listen = number("MASTER_PORT", port)?.saturating_add(usize::from(taken));
    let Some(listen) = u16::try_from(listen).ok().filter(|&port| port > 0) else {
        return Err(malformed("MASTER_PORT", port, format!("port {listen} does not exist")));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
    Ok(Some(StoreAddr::Tcp { host, port: listen }))
}

/// The socket by which the launcher passes texts between ranks.
fn pmi_socket(vars: Vars<'_>) -> Result<Option<StoreAddr>> {
    let Some(fd) = vars.number("PMI_FD")? else { return Ok(None) };
    let expected = || "it must be the number of a descriptor".into();
    let fd = i32::try_from(fd).map_err(|_| malformed("PMI_FD", &fd.to_string(), expected()))?;
    Ok(Some(StoreAddr::Pmi(fd)))
}

/// True for a task of a job step. In the shell of sbatch or salloc the task variables are set too,
/// for one process only; Slurm's internal steps have the highest numbers.
fn is_slurm_step(vars: Vars<'_>) -> bool {
    let step = vars.raw("SLURM_STEP_ID").or(vars.raw("SLURM_STEPID"));
    step.and_then(|step| step.parse::<u32>().ok()).is_some_and(|step| step < 0xffff_fff0)
}

/// A source of rank and size, with the places within the host that are set.
pub(super) fn with_locals(mut source: String, locals: &[(&str, Option<usize>)]) -> String {
    for (name, value) in locals {
        source.extend(value.map(|value| format!(", {name}={value}")));
    }
    source
}

/// The number of the step's tasks on this node, and the name of the variable that has it.
fn tasks_on_this_node(vars: Vars<'_>) -> Result<(&'static str, Option<usize>)> {
    let node = vars.number(NODE)?;
    for name in [SLURM.local_size, "SLURM_TASKS_PER_NODE"] {
        if let (Some(list), Some(node)) = (vars.text(name)?, node) {
            let tasks = slurm::run_length(list, node).ok_or_else(|| {
                malformed(name, list, format!("it says nothing of node {node} ({NODE})"))
            })?;
            return Ok((name, Some(tasks)));
        }
    }
    Ok((SLURM.local_size, None))
}

/// The first host of the step, which runs task 0, and a port derived from the numbers of job and
/// step: the steps of one job that run at the same time have different ports.
fn slurm_first_host(vars: Vars<'_>) -> Result<Option<StoreAddr>> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let (Some(list), Some(job)) = (vars.text(name)?, vars.number("SLURM_JOB_ID")?) {
            let host = slurm::first_host(list)
                .ok_or_else(|| malformed(name, list, "it is no list of hosts".into()))?;
            let step = vars.number("SLURM_STEP_ID")?.or(vars.number("SLURM_STEPID")?).unwrap_or(0);
            // An odd factor keeps all steps of a job apart, and the first steps of many jobs too.
            let place = job.wrapping_add(step.wrapping_mul(1009)) % 4096;
            let port = 61440 + u16::try_from(place).unwrap_or(0);
            return Ok(Some(StoreAddr::Tcp { host, port }));
        }
    }
    Ok(None)
}

/// The nearest ancestor without the variable `name`: the process that started the ranks, even if
/// shells are between. Containers may share a network and so the names of sockets, while each
/// counts its processes by itself; hence the pid namespace.
pub(super) fn ancestor_without(name: &str) -> String {
    let prefix = format!("{name}=");
    let mut pid = std::os::unix::process::parent_id();
    while let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) {
        if !environ.split(|&b| b == 0).any(|entry| entry.starts_with(prefix.as_bytes())) {
            break;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        match parent {
            Some(parent) if parent > 0 => pid = parent,
            _ => break,
        }
    }
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{pid} {}", namespace.display())
}

/// The FNV-1a hash, which is the same in every build, unlike that of the standard library.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
