//! Other launchers' variables: torchrun, Open MPI, MPICH and Intel MPI, Slurm. May touch: config.
//! Law: sources are never mixed; all of a place (rank, size, meeting point) is one launcher's word,
//! and two launchers that disagree are an error unless the user names one.

use std::fs;

use super::{Place, StoreAddr, Surroundings, Vars, malformed, number, own, slurm};
use crate::error::{Error, Result};

/// A launcher and the variables it leaves.
pub(super) struct Launcher {
    name: &'static str,
    title: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static str,
    local_size: &'static str,
    /// Variables that tell one job on a host from another.
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
/// In the order in which they are asked.
static LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// What `RINGREDUCE_LAUNCHER` asks for.
pub(super) enum Forced {
    Alone,
    Own,
    Foreign(&'static Launcher),
}

pub(super) fn forced(vars: Vars<'_>) -> Result<Option<Forced>> {
    let Some(text) = vars.text(own::LAUNCHER)? else { return Ok(None) };
    Ok(Some(match text {
        "none" => Forced::Alone,
        "ringrun" => Forced::Own,
        _ => Forced::Foreign(LAUNCHERS.iter().find(|l| l.name == text).ok_or_else(|| {
            let expected = "it must be torchrun, openmpi, mpich, slurm, ringrun or none";
            malformed(own::LAUNCHER, text, expected.into())
        })?),
    }))
}

/// The place that the launcher named by the user gives.
pub(super) fn named(launcher: &Launcher, vars: Vars<'_>, around: &Surroundings) -> Result<Place> {
    launcher.place(vars, around)?.ok_or_else(|| {
        let Launcher { title, rank, size, .. } = launcher;
        let step = if launcher.name == SLURM.name { " and SLURM_STEP_ID" } else { "" };
        let expected = format!("{title} left no {rank} and {}{step}", size.join(" or "));
        malformed(own::LAUNCHER, launcher.name, expected)
    })
}

/// The first launcher that left a complete place, if any; one that also says where to meet goes
/// before one that does not.
pub(super) fn first_complete(vars: Vars<'_>, around: &Surroundings) -> Result<Option<Place>> {
    let mut places: Vec<Place> = Vec::new();
    for launcher in &LAUNCHERS {
        let Some(place) = launcher.place(vars, around)? else { continue };
        if let Some(first) = places.first()
            && (first.rank, first.size) != (place.rank, place.size)
        {
            let (first, second) = (first.source.clone(), place.source);
            return Err(Error::Launchers { first, second });
        }
        places.push(place);
    }
    let best = places.iter().position(|place| place.store.is_some()).unwrap_or(0);
    Ok(places.into_iter().nth(best))
}

/// A warning for one process started without a launcher where a scheduler meant several.
pub(super) fn alone_in_a_job(vars: Vars<'_>) -> Option<String> {
    let tasks = vars.loose("SLURM_NTASKS").filter(|&tasks| tasks != "1")?;
    Some(format!(
        "inside a Slurm allocation of {tasks} tasks (SLURM_NTASKS) this process is a world of 1 \
         rank; start the ranks with srun or ringrun"
    ))
}

impl Launcher {
    /// What this launcher says, if it left everything it must.
    fn place(&self, vars: Vars<'_>, around: &Surroundings) -> Result<Option<Place>> {
        let size_name = self.size.iter().find(|name| vars.has(name));
        let (true, Some(size_name)) = (vars.has(self.rank), size_name) else { return Ok(None) };
        if self.name == SLURM.name && !in_slurm_step(vars) {
            return Ok(None);
        }
        let (Some(rank), Some(size)) = (vars.number(self.rank)?, vars.number(size_name)?) else {
            return Ok(None);
        };
        let local_size = match self.name == SLURM.name {
            true => tasks_on_this_node(vars)?,
            false => vars.number(self.local_size)?,
        };
        let source = format!("{}: {}={rank}, {size_name}={size}", self.title, self.rank);
        let local_rank = vars.number(self.local_rank)?;
        let ids: Vec<_> = self.job.iter().filter_map(|name| vars.loose(name)).collect();
        let job = (!ids.is_empty()).then(|| ids.join(" "));
        let mut place = Place { rank, size, local_rank, local_size, job, store: None, source };
        place.store = self.store(vars, around, &place)?;
        Ok(Some(place))
    }

    /// A socket on this host if all ranks are here, for the system says whose process is at its
    /// other end; else the address that the launcher gave.
    fn store(
        &self,
        vars: Vars<'_>,
        around: &Surroundings,
        place: &Place,
    ) -> Result<Option<StoreAddr>> {
        let given = match self.name {
            name if name == TORCHRUN.name => master(vars)?,
            name if name == SLURM.name => slurm_first_host(vars)?,
            _ => None,
        };
        if place.local_size != Some(place.size) {
            return Ok(given);
        }
        // Two jobs of a host have different ids, or ports of torchrun's store, or else different
        // launcher processes.
        let port = vars.loose("MASTER_PORT").filter(|_| self.name == TORCHRUN.name);
        let ids: Vec<_> = place.job.as_deref().into_iter().chain(port).collect();
        let job = match ids.as_slice() {
            [] => format!("{} {}", self.name, (around.ancestor_without)(self.rank)),
            ids => format!("{} {}", self.name, ids.join(" ")),
        };
        let name = format!("ringreduce-{}-{:016x}", around.uid, fnv1a(job.as_bytes()));
        Ok(Some(StoreAddr::Unix(name)))
    }
}

/// torchrun's address. Its agent keeps a store of its own on the port when it says so; rank 0 then
/// listens on the next one.
fn master(vars: Vars<'_>) -> Result<Option<StoreAddr>> {
    let (Some(host), Some(port)) = (vars.text("MASTER_ADDR")?, vars.text("MASTER_PORT")?) else {
        return Ok(None);
    };
    let taken = vars.loose("TORCHELASTIC_USE_AGENT_STORE") == Some("True");
    let listen = number("MASTER_PORT", port)?.saturating_add(usize::from(taken));
    let Some(listen) = u16::try_from(listen).ok().filter(|&port| port > 0) else {
        return Err(malformed("MASTER_PORT", port, format!("port {listen} does not exist")));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
    Ok(Some(StoreAddr::Tcp { host, port: listen }))
}

/// Is this process a task of a step? In the shell of sbatch or salloc the task variables are set
/// as well, for one process only; the steps that Slurm keeps for itself have numbers at the top.
fn in_slurm_step(vars: Vars<'_>) -> bool {
    let step = vars.loose("SLURM_STEP_ID").or(vars.loose("SLURM_STEPID"));
    step.and_then(|step| step.parse::<u32>().ok()).is_some_and(|step| step < 0xffff_fff0)
}

fn tasks_on_this_node(vars: Vars<'_>) -> Result<Option<usize>> {
    let node = vars.number("SLURM_NODEID")?;
    for name in [SLURM.local_size, "SLURM_TASKS_PER_NODE"] {
        if let (Some(list), Some(node)) = (vars.text(name)?, node) {
            return slurm::run_length(list, node).map(Some).ok_or_else(|| {
                malformed(name, list, format!("it says nothing of node {node} (SLURM_NODEID)"))
            });
        }
    }
    Ok(None)
}

/// The step's first host, where Slurm puts task 0, and a port made from the job's number.
fn slurm_first_host(vars: Vars<'_>) -> Result<Option<StoreAddr>> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let (Some(list), Some(job)) = (vars.text(name)?, vars.number("SLURM_JOB_ID")?) {
            let host = slurm::first_host(list)
                .ok_or_else(|| malformed(name, list, "it is no list of hosts".into()))?;
            let port = 61440 + u16::try_from(job % 4096).unwrap_or(0);
            return Ok(Some(StoreAddr::Tcp { host, port }));
        }
    }
    Ok(None)
}

/// The nearest ancestor whose environment lacks `name`: the process that started the ranks, though
/// shells may stand between.
pub(super) fn ancestor_without(name: &str) -> u32 {
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
    pid
}

/// FNV-1a: the same in every build, unlike the standard library's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
