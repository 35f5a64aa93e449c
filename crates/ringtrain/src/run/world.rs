//! The ranks: threads of this process, or the processes of a launcher. Law: each rank computes on
//! threads of its own, one unless the user says otherwise, so that no rank waits for another's.

use std::panic::resume_unwind;
use std::thread;

use ringreduce::{Builder, Communicator, Monitor, launched};

use crate::error::{Error, Result};

/// The variable that says on how many threads a rank computes, as rayon and candle read it.
pub const THREADS: &str = "RAYON_NUM_THREADS";

/// The ranks of this process: `threads` if given, else the one that the launcher has started.
///
/// # Errors
/// If ranks can't be made or meet.
pub(crate) fn meet(builder: &Builder, threads: Option<usize>) -> Result<Vec<Communicator>> {
    let Some(threads) = threads else { return Ok(vec![builder.clone().build()?]) };
    if let Some(size) = several()? {
        return Err(Error::Unfit(format!(
            "--ranks {threads} makes ranks in one process, but a launcher has started {size} \
             processes: leave one of the two out"
        )));
    }
    Ok(builder.clone().local(threads)?)
}

/// Refuses a launcher for a command that makes its ranks itself.
///
/// # Errors
/// [`Error::Unfit`] in a job of several processes.
pub(crate) fn refuse_launcher(command: &str) -> Result<()> {
    let Some(size) = several()? else { return Ok(()) };
    Err(Error::Unfit(format!(
        "ringtrain {command} makes its ranks itself, and a launcher has started {size} processes: \
         start it alone, without the launcher"
    )))
}

/// How many processes a launcher has started, if there are several.
fn several() -> Result<Option<usize>> {
    let size = launched()?.size;
    Ok((size > 1).then_some(size))
}

/// Does `work` on as many ranks as threads of this process. Returns what they have made of it, in
/// their order.
///
/// # Errors
/// As [`meet`]; and the first error of a rank that is not another one's fault.
pub(crate) fn run<T: Send>(
    builder: &Builder,
    threads: usize,
    work: &(impl Fn(Communicator) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    run_all(meet(builder, Some(threads))?, work)
}

/// Does `work` on each of these ranks of this process. Returns what they have made of it, in their
/// order.
///
/// # Errors
/// The first error of a rank that is not another one's fault.
pub(crate) fn run_all<T: Send>(
    comms: Vec<Communicator>,
    work: &(impl Fn(Communicator) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    let ended = thread::scope(|scope| {
        let start = |comm: Communicator| {
            let name = format!("rank {}", comm.rank());
            let rank = move || on_rank(comm, work);
            thread::Builder::new().name(name).spawn_scoped(scope, rank).map_err(Error::Thread)
        };
        let ranks: Vec<_> = comms.into_iter().map(start).collect();
        let end = |rank: Result<thread::ScopedJoinHandle<'_, Result<T>>>| {
            rank?.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        ranks.into_iter().map(end).collect::<Vec<_>>()
    });
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    for end in ended {
        match end {
            Ok(value) => made.push(value),
            Err(error) => errors.push(error),
        }
    }
    let cause = errors.iter().position(|error| !error.is_consequence()).unwrap_or(0);
    if errors.is_empty() { Ok(made) } else { Err(errors.swap_remove(cause)) }
}

fn on_rank<T>(comm: Communicator, work: impl Fn(Communicator) -> Result<T>) -> Result<T> {
    let threads = std::env::var(THREADS).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    // Operations of this thread run in this pool; with one thread, they are not passed on at all.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    let _pool = pool.build().map_err(|error| Error::Thread(std::io::Error::other(error)))?;
    let (rank, size) = (comm.rank(), comm.size());
    work(comm).map_err(|source| match (size, source) {
        (1, source) => source,
        // A mistake in the settings is the same at all ranks.
        (_, source @ (Error::Unfit(_) | Error::File(_) | Error::Folder { .. })) => source,
        (_, source) => Error::OnRank { rank, size, source: Box::new(source) },
    })
}

/// The bytes that a rank has sent over links, in collectives and messages. Calls in the memory of a
/// host send none.
pub(crate) fn sent_bytes(monitor: &Monitor) -> u64 {
    let metrics = monitor.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with("ringreduce_sent_bytes_total"));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    lines.filter_map(value).sum()
}
