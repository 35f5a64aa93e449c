//! Launches a job: finds the program, and prepares what must be there before the first rank.
//! [`running`] starts the ranks and sees them to their end, those of other hosts by [`agents`].

mod address;
pub(crate) mod agents;
pub(crate) mod descriptor_limit;
pub(crate) mod job;
mod local_process;
pub(crate) mod message;
mod orphans;
pub(crate) mod output;
pub(crate) mod pmi;
pub(crate) mod procfs;
mod program;
pub(crate) mod rank;
pub(crate) mod rank_end;
mod restart_policy;
mod running;
pub(crate) mod signals;
mod spawn;
pub(crate) mod sys;
mod tf_config;
mod torchrun;
pub(crate) mod watcher;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::prctl::set_child_subreaper;

use crate::cli::Request;
use crate::failure::Failure;
use crate::status::tcp::Listener;
use agents::Agents;
use orphans::{Inherited, Orphans};
use ringreduce::bootstrap::{Instant, Server};
use running::Running;
use signals::Signals;
use spawn::Spawner;
use torchrun::Rendezvous;
use watcher::Watcher;

/// Runs the job to its end and gives ringrun's exit code. After an error nothing of it runs.
pub(crate) fn run(request: &Request) -> Result<u8, Failure> {
    if let Some(nodes) = request.nodes.as_ref().filter(|nodes| nodes.rank > 0) {
        return agents::join(request, nodes);
    }
    procfs::check().map_err(Failure::system("see the processes of a job"))?;
    let bind = |&(service, address): &_| Listener::bind(address, service);
    let listeners = request.services.iter().map(bind).collect::<Result<_, _>>()?;
    let inherited = Inherited::look();
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    adopt_orphans()?;
    // Unique on this host.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{:x}-{:x}", std::process::id(), since.as_nanos());
    let watcher = Watcher::start(&id)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let orphans = Orphans::new(inherited, &watcher, &id);
    let ended = run_watched((request, &id), signals, orphans, listeners);
    watcher.stop();
    ended
}

fn run_watched(
    (request, id): (&Request, &str),
    signals: Signals,
    mut orphans: Orphans<'_>,
    listeners: Vec<Listener>,
) -> Result<u8, Failure> {
    let limit = request.timeout.map(|limit| Instant::now() + limit);
    let secret = spawn::draw_job_secret(request)?;
    let rendezvous = Rendezvous::choose(request);
    let here = request.hosts.iter().position(|host| host.is_here);
    // Any rank may go to another host, where slots are free.
    let own = match request.has_spare_slots() {
        true => 0,
        false => request.placements.iter().filter(|it| Some(it.host_number) == here).count(),
    };
    // A launcher without ranks on its own host has a spawner of none.
    let numbers = (here.unwrap_or(usize::MAX), [own, request.ranks]);
    let shared = secret.as_ref().map(OwnedFd::try_clone).transpose();
    let shared = shared.map_err(Failure::system("share the job's secret"))?;
    let job = (request, id, orphans.watcher);
    let spawner = Spawner::new(job, numbers, shared, rendezvous.clone())?;
    let store = Server::new().map_err(io::Error::other).map_err(Failure::system("start the store"));
    let agents =
        Agents::start(request, (id, &signals, limit), secret.as_ref(), &rendezvous, &mut orphans)?;
    drop(secret);
    Running::start((&spawner, &store?), signals, orphans, agents, limit, listeners)?.finish()
}

/// Makes this process the parent of what outlives its ranks.
fn adopt_orphans() -> Result<(), Failure> {
    set_child_subreaper(true).map_err(Failure::call("adopt orphans", "prctl"))
}
