//! The records of a job's ranks for clients that ask often.

use std::time::{Duration, Instant};

use ringreduce::trace;

use super::{JobStatus, RankStatus};

/// Clients that ask more often get the same records again, since each reading costs the launcher's
/// host, and the agents of others, the time to read the records of all ranks.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The latest records of a job.
pub(super) struct Snapshots {
    status: JobStatus,
    /// The latest records, and the time at which they were read.
    latest: Option<(Instant, Snapshot)>,
}

/// The records of all ranks at one time.
pub(super) struct Snapshot {
    pub(super) ranks: Vec<RankStatus>,
    /// The time, by [`trace::now`].
    pub(super) time: u64,
    /// The time that it took to read them.
    pub(super) duration: Duration,
}

impl Snapshots {
    pub(super) const fn new(status: JobStatus) -> Self {
        Self { status, latest: None }
    }

    /// Records that are new, or hardly older.
    pub(super) fn latest(&mut self) -> &Snapshot {
        let status = &self.status;
        let is_new = |read: &Instant| read.elapsed() < MIN_INTERVAL;
        let latest = self.latest.take().filter(|(read, _)| is_new(read));
        &self.latest.insert(latest.unwrap_or_else(|| Self::read(status))).1
    }

    fn read(status: &JobStatus) -> (Instant, Snapshot) {
        let began = Instant::now();
        let (ranks, time) = (status.snapshot(), trace::now());
        (Instant::now(), Snapshot { ranks, time, duration: began.elapsed() })
    }
}
