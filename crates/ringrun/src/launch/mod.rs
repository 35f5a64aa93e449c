//! Launches a job: finds the program, and prepares what must be there before the first rank.
//! [`running`] starts the ranks and sees them to their end.

pub(crate) mod descriptor_limit;
pub(crate) mod job;
pub(crate) mod message;
pub(crate) mod output;
pub(crate) mod pmi;
pub(crate) mod procfs;
mod program;
pub(crate) mod rank;
mod restart_policy;
mod running;
pub(crate) mod signals;
mod spawn;
pub(crate) mod sys;
mod torchrun;
pub(crate) mod watcher;

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::prctl::set_child_subreaper;

use crate::cli::Request;
use crate::failure::Failure;
use ringreduce::bootstrap::Server;
use running::{Inherited, Running};
use signals::Signals;
use spawn::Spawner;
use watcher::Watcher;

/// Runs the job to its end and gives ringrun's exit code. After an error nothing of it runs.
pub(crate) fn run(request: &Request) -> Result<u8, Failure> {
    let program = program::find(&request.name, &request.directory, &request.path)?;
    procfs::check().map_err(Failure::system("see the processes of a job"))?;
    let inherited = Inherited::look();
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    set_child_subreaper(true).map_err(Failure::call("adopt orphans", "prctl"))?;
    // Unique on this host.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{:x}-{:x}", std::process::id(), since.as_nanos());
    let watcher = Watcher::start(&id)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let ended = Server::new().map_err(io::Error::other).map_err(Failure::system("start the store"));
    let ended = ended.and_then(|store| {
        let spawner = Spawner::new(request, &program, &id, &watcher, &store)?;
        Running::start(&spawner, signals, inherited)?.finish()
    });
    watcher.stop();
    ended
}
